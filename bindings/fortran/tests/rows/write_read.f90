! write_buffer(buffer, data[, offset]), read_buffer(buffer, data[, offset]): `offset` as integer(int64) and as default integer.
program write_read
  use, intrinsic :: iso_fortran_env
  use gpu_unified_buffers
  use checks, only: check
  implicit none
  integer, parameter :: i64 = int64
  type(unified_buffer) :: b
  real(real32) :: x4(4), y4(4)
  real(real64) :: x8(4), y8(4)
  integer(int32) :: i4(4), j4(4)
  integer(int64) :: i8(4), j8(4)
  complex(real32) :: z4(4), w4(4)
  complex(real64) :: z8(4), w8(4)
  integer :: offset, stat
  integer(i64) :: long_offset
  character(100) :: message

  b = create_unified_buffer(1024, BUFFER_READ_WRITE)
  offset = 3
  long_offset = 9
  x4 = [1, 2, 3, 4]
  x8 = x4
  i4 = int(x4)
  i8 = i4
  z4 = x4
  z8 = x4

  call write_buffer(b, x4)
  call read_buffer(b, y4)
  call check(all(abs(x4 - y4) <= 0), 'real32')
  call write_buffer(b, 2*x4, offset)
  call read_buffer(b, y4, offset)
  call check(all(abs(2*x4 - y4) <= 0), 'real32, default integer')
  call write_buffer(b, 3*x4, long_offset)
  call read_buffer(b, y4, 9)
  call check(all(abs(3*x4 - y4) <= 0), 'real32, int64 written, default integer read')
  call read_buffer(b, y4, 3_i64)
  call check(all(abs(2*x4 - y4) <= 0), 'real32, default integer written, int64 read')
  call write_buffer(b, x8, 20_i64)
  call read_buffer(b, y8, 20)
  call check(all(abs(x8 - y8) <= 0), 'real64')
  call write_buffer(b, i4, offset=30)
  call read_buffer(b, j4, offset=30_i64)
  call check(all(i4 == j4), 'int32')
  call write_buffer(b, i8, offset=long_offset, stat=stat, errmsg=message)
  call read_buffer(b, j8, offset=9, stat=stat, errmsg=message)
  call check(all(i8 == j8) .and. stat == 0, 'int64')
  call write_buffer(b, z4, 1_i64, stat, message)
  call read_buffer(b, w4, 1, stat, message)
  call check(all(abs(z4 - w4) <= 0) .and. stat == 0, 'complex32')
  call write_buffer(b, z8, stat=stat)
  call read_buffer(b, w8, errmsg=message)
  call check(all(abs(z8 - w8) <= 0), 'complex64')
  call write_buffer(b, x4, huge(1_i64), stat)
  call check(stat == ONEBUF_INVALID_ARGUMENT, 'an offset whose bytes cannot be counted')
  call read_buffer(b, y4, -1_i64, stat)
  call check(stat == ONEBUF_INVALID_ARGUMENT, 'a negative offset')
  print '(a)', 'row write_read works'
end program
