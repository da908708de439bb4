! flush_buffer_range(buffer, offset, bytes), called as flush_buffer_range(buffer, offset, size(data)*4): the kinds may be mixed.
program flush
  use, intrinsic :: iso_fortran_env, only: int64, real32
  use gpu_unified_buffers
  use checks, only: check
  implicit none
  integer, parameter :: i64 = int64
  type(unified_buffer) :: b
  real(real32) :: data(16)
  real(real32), pointer :: p(:)
  integer(i64) :: offset
  integer :: stat

  b = create_unified_buffer(size(data)*4, BUFFER_WRITE_ONLY, MEMORY_STREAMING)
  call get_array_pointer(b, p)
  data = 2
  p = data
  offset = 0
  call flush_buffer_range(b, offset, size(data)*4)
  call flush_buffer_range(b, 0, size(data)*4)
  call flush_buffer_range(b, 0_i64, size(data, kind=i64)*4)
  call flush_buffer_range(b, 16, 32_i64)
  call flush_buffer_range(buffer=b, offset=64, bytes=0)
  call flush_buffer_range(b, offset, size(data)*4 + 1, stat)
  call check(stat == ONEBUF_INVALID_ARGUMENT, 'behind the end')
  call flush_buffer_range(b, -4, 4, stat)
  call check(stat == ONEBUF_INVALID_ARGUMENT, 'before the beginning')
  call flush_buffer_range(b, huge(offset), 4, stat)
  call check(stat == ONEBUF_INVALID_ARGUMENT, 'far behind')
  print '(a)', 'row flush works'
end program
