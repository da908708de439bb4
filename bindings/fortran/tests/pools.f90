! Pools: a returned buffer is used again; limits, alignment and counters.
program pools
  use, intrinsic :: iso_c_binding, only: c_intptr_t, c_ptr
  use, intrinsic :: iso_fortran_env, only: int64
  use gpu_unified_buffers
  use checks, only: check
  implicit none
  integer, parameter :: i64 = int64
  character(64) :: device

  call get_command_argument(1, device)
  call gpu_open(trim(device))
  call reuse
  call limits
  call alignments
  print '(2a)', 'pools work on ', gpu_device_name()

contains

  subroutine reuse
    type(buffer_pool) :: pool, copy
    type(pool_counts) :: counts
    type(unified_buffer) :: b, c
    integer :: round, found(4), stat

    pool = create_buffer_pool()
    copy = pool
    do round = 1, 5
      b = pool_buffer(pool, 4096, BUFFER_READ_WRITE)
      call write_buffer(b, [round, 2, 3, 4])
      call read_buffer(b, found)
      call check(all(found == [round, 2, 3, 4]), 'a buffer of the pool')
      call destroy_unified_buffer(b)
    end do
    call get_pool_counts(pool, counts)
    call check(counts%allocated == 1 .and. counts%reused == 4, 'one allocation for all')
    call check(counts%live == 0 .and. counts%idle == 1, 'it is idle')
    b = pool_buffer(pool, 4096_i64, BUFFER_READ_WRITE, MEMORY_STREAMING)
    c = pool_buffer(pool, 4096_i64, BUFFER_READ_WRITE, MEMORY_STREAMING)
    call destroy_buffer_pool(pool)
    call check(.not. pool_is_valid(pool), 'destroyed')
    call get_pool_counts(copy, counts)
    call check(counts%live == 2, 'the copy shares the pool')
    call destroy_unified_buffer(b)
    call destroy_unified_buffer(c)
    call trim_pool(copy)
    call get_pool_counts(copy, counts)
    call check(counts%idle == 0 .and. counts%idle_bytes == 0, 'trimmed')
    call trim_pool(copy, 1000000_i64)
    call get_pool_counts(pool, counts, stat)
    call check(stat == ONEBUF_INVALID_HANDLE, 'no pool')
  end subroutine

  subroutine limits
    type(buffer_pool) :: pool, none
    type(unified_buffer) :: b, c
    integer :: stat
    character(200) :: message

    pool = create_buffer_pool(65536)
    b = pool_buffer(pool, 65536, BUFFER_READ_WRITE)
    call check(buffer_is_valid(b), 'as many bytes as the limit')
    c = pool_buffer(pool, 65536, BUFFER_READ_WRITE, timeout_ms=1, stat=stat, errmsg=message)
    call check(stat == ONEBUF_OUT_OF_MEMORY, 'more than the limit: '//trim(message))
    call check(.not. buffer_is_valid(c), 'it is invalid')
    call destroy_unified_buffer(b)
    c = pool_buffer(pool, 65536, BUFFER_READ_WRITE)
    call check(buffer_is_valid(c), 'what was returned')
    c = pool_buffer(none, 64, BUFFER_READ_WRITE, stat=stat, errmsg=message)
    call check(stat == ONEBUF_INVALID_HANDLE .and. index(message, 'no pool') > 0, 'no pool')
    pool = create_buffer_pool(2_i64**40)
    call check(pool_is_valid(pool), 'an int64 limit')
  end subroutine

  subroutine alignments
    type(unified_buffer) :: b
    type(buffer_pool) :: pool
    integer :: stat
    character(200) :: message

    b = create_unified_buffer(100, BUFFER_READ_WRITE, alignment=64)
    call check(modulo(address(b), 64_i64) == 0, '64 bytes')
    b = create_unified_buffer(100_i64, BUFFER_READ_WRITE, MEMORY_COHERENT, alignment=4096)
    call check(modulo(address(b), 4096_i64) == 0, '4096 bytes')
    b = create_unified_buffer(100, BUFFER_READ_WRITE, alignment=4096_i64)
    call check(modulo(address(b), 4096_i64) == 0, 'an int64 alignment')
    b = create_unified_buffer(100_i64, BUFFER_READ_WRITE, alignment=64_i64)
    call check(modulo(address(b), 64_i64) == 0, 'both int64')
    pool = create_buffer_pool()
    b = pool_buffer(pool, 100, BUFFER_READ_WRITE, alignment=4096)
    call check(modulo(address(b), 4096_i64) == 0, 'in a pool')
    b = create_unified_buffer(100, BUFFER_READ_WRITE, alignment=100, stat=stat, errmsg=message)
    call check(stat == ONEBUF_INVALID_ARGUMENT .and. index(message, 'power of two') > 0, 'no power of two')
  end subroutine

  function address(buffer) result(number)
    type(unified_buffer), intent(in) :: buffer
    integer(i64) :: number
    integer(c_intptr_t) :: bits

    bits = transfer(get_cpu_pointer(buffer, 4), bits)
    number = int(bits, i64)
  end function
end program
