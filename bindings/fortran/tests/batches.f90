! Write batches: many small writes in one hand-over, in order, all or none.
program batches
  use, intrinsic :: iso_fortran_env
  use gpu_unified_buffers
  use checks, only: check
  implicit none
  integer, parameter :: n = 1000
  type(unified_buffer) :: b, output, none
  type(write_batch) :: batch, never
  integer(int32) :: found(n)
  integer(int32), pointer :: p(:)
  integer :: i, stat
  integer(int64) :: before, after, ignored
  character(64) :: device
  character(200) :: message

  call get_command_argument(1, device)
  call gpu_open(trim(device))
  b = create_unified_buffer(4*n, BUFFER_READ_WRITE)
  call open_write_batch(batch, b)
  do i = 1, n, 2
    call add_to_batch(batch, [i], i - 1)
  end do
  call add_to_batch(batch, [7, 8], 10_int64)
  call add_to_batch(batch, reshape([1, 2, 3, 4], [2, 2]), 996)
  call add_to_batch(batch, found(1:0))
  call check(batch_size(batch) == n/2 + 2, 'the number of writes')
  call read_buffer(b, found)
  call check(all(found == 0), 'nothing is written yet')
  call gpu_bytes_moved(before, ignored)
  call flush_write_batch(batch)
  call gpu_bytes_moved(after, ignored)
  call check(after - before <= 4*(n/2 + 2 + 4), 'only what was added is moved')
  call check(batch_size(batch) == 0, 'they are made')
  call read_buffer(b, found)
  call check(found(1) == 1 .and. found(3) == 3 .and. found(2) == 0, 'every second one')
  call check(found(11) == 7 .and. found(12) == 8, 'the later write wins')
  call check(all(found(997:1000) == [1, 2, 3, 4]), 'of rank 2')
  call flush_write_batch(batch)

  ! The batch keeps its own copies, and goes through a pointer's memory if there is one.
  call get_array_pointer(b, p)
  call add_to_batch(batch, [real(5, real32)], 0)
  call add_to_batch(batch, [5_int64], 1)
  call flush_write_batch(batch)
  call check(p(1) == transfer(5.0_real32, 1) .and. p(3) == 5, 'other types, through the pointer')

  call add_to_batch(batch, [1], n, stat, message)
  call check(stat == ONEBUF_INVALID_ARGUMENT .and. index(message, 'inside') > 0, 'behind the end')
  call add_to_batch(batch, [1], -1_int64, stat)
  call check(stat == ONEBUF_INVALID_ARGUMENT, 'before the beginning')
  call add_to_batch(never, [1], 0, stat, message)
  call check(stat == ONEBUF_INVALID_ARGUMENT .and. index(message, 'open_write_batch') > 0, 'not opened')
  call open_write_batch(batch, none, stat)
  call check(stat == ONEBUF_INVALID_HANDLE, 'no buffer')
  output = create_unified_buffer(64, BUFFER_READ_ONLY)
  call open_write_batch(batch, output, stat, message)
  call check(stat == ONEBUF_INVALID_ARGUMENT .and. index(message, 'not to write') > 0, 'a buffer for reading')
  print '(2a)', 'batches work on ', gpu_device_name()
end program
