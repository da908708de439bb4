! create_unified_buffer(size, access_mode[, memory_hint]): `size` in bytes as integer(int64), and as default integer.
program create
  use, intrinsic :: iso_fortran_env, only: int64
  use gpu_unified_buffers
  use checks, only: check
  implicit none
  integer, parameter :: i64 = int64
  integer, parameter :: n = 1000
  integer(i64), parameter :: beyond = 2_int64**31 + 5
  type(unified_buffer) :: b
  integer :: stat

  b = create_unified_buffer(4*n, BUFFER_WRITE_ONLY)
  call check(buffer_is_valid(b), 'a default integer')
  call check(buffer_size_bytes(b) == 4000, 'a default integer')
  b = create_unified_buffer(4000_i64, BUFFER_READ_ONLY)
  call check(buffer_is_valid(b), 'an int64')
  call check(buffer_size_bytes(b) == 4000, 'an int64')
  b = create_unified_buffer(int(n, i64)*4, BUFFER_READ_WRITE, MEMORY_STREAMING)
  call check(buffer_is_valid(b), 'an int64 with a hint')
  call check(buffer_memory_hint(b) == MEMORY_STREAMING, 'an int64 with a hint')
  b = create_unified_buffer(size([(0, stat=1, n)])*4, BUFFER_READ_WRITE, MEMORY_COHERENT)
  call check(buffer_is_valid(b), 'a default integer with a hint')
  call check(buffer_memory_hint(b) == MEMORY_COHERENT, 'a default integer with a hint')
  b = create_unified_buffer(4096, BUFFER_READ_WRITE, MEMORY_COHERENT, stat)
  call check(stat == 0, 'stat as the fourth argument')
  call check(buffer_is_valid(b), 'stat as the fourth argument')
  ! More elements than a default integer counts; only the pages that are touched take memory.
  if (gpu_device_name() == 'host') call large
  print '(a)', 'row create works'

contains

  subroutine large
    integer :: found(2)
    integer, pointer :: p(:)

    b = create_unified_buffer(4*beyond, BUFFER_READ_WRITE)
    call check(buffer_size_bytes(b) == 4*beyond, 'more than 2**31 elements')
    call write_buffer(b, [17, 18], beyond - 2)
    call read_buffer(b, found, beyond - 2)
    call check(all(found == [17, 18]), 'an offset beyond 2**31 elements')
    call get_array_pointer(b, p)
    call check(size(p, kind=i64) == beyond, 'a pointer to all of them')
    call check(p(beyond) == 18, 'a pointer to all of them')
    call check(p(beyond - 1) == 17, 'a pointer to all of them')
    call get_array_pointer(b, p, [beyond])
    call check(size(p, kind=i64) == beyond, 'a shape beyond 2**31')
    call read_buffer(b, found, beyond - 1, stat)
    call check(stat == ONEBUF_INVALID_ARGUMENT, 'one element too many')
  end subroutine
end program
