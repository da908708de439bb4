! write_buffer_safe(buffer, data[, timeout_ns]): the timeout has a default; every mix of kinds of timeout and offset.
program write_safe
  use, intrinsic :: iso_fortran_env, only: int64, real32
  use gpu_unified_buffers
  use checks, only: check
  implicit none
  integer, parameter :: i64 = int64
  type(unified_buffer) :: b
  real(real32) :: d(4), found(4)
  integer :: stat

  b = create_unified_buffer(64, BUFFER_READ_WRITE)
  d = [1, 2, 3, 4]
  call write_buffer_safe(b, d)
  call expect(0, 1)
  call write_buffer_safe(b, 2*d, 1000000000)
  call expect(0, 2)
  call write_buffer_safe(b, 3*d, 5000000000_i64)
  call expect(0, 3)
  call write_buffer_safe(b, 4*d, timeout_ns=1000000000, offset=4)
  call expect(4, 4)
  call write_buffer_safe(b, 5*d, 5000000000_i64, 8)
  call expect(8, 5)
  call write_buffer_safe(b, 6*d, 1000000000, 12_i64)
  call expect(12, 6)
  call write_buffer_safe(b, 7*d, 5000000000_i64, 4_i64, stat)
  call expect(4, 7)
  call write_buffer_safe(b, 8*d, offset=8_i64)
  call expect(8, 8)
  call write_buffer_safe(b, 9*d, offset=12, stat=stat)
  call expect(12, 9)
  call read_buffer_safe(b, found)
  call check(all(abs(found - 3*d) <= 0), 'read_buffer_safe')
  call write_buffer_safe(b, d, offset=14, stat=stat)
  call check(stat == ONEBUF_INVALID_ARGUMENT, 'behind the end')
  call check(GPU_DEFAULT_TIMEOUT_NS == 10000000000_i64, 'the default')
  print '(a)', 'row write_safe works'

contains

  subroutine expect(offset, factor)
    integer, intent(in) :: offset, factor

    call read_buffer_safe(b, found, 5000000000_i64, offset)
    call check(all(abs(found - factor*d) <= 0), 'what was written')
  end subroutine
end program
