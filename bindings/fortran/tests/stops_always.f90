! After gpu_stop_on_failure(.true.) functions stop the program, too, unless they have stat=.
program stops_always
  use gpu_unified_buffers
  implicit none
  type(unified_buffer) :: b
  integer :: stat

  call gpu_open('host')
  b = create_unified_buffer(0, BUFFER_READ_WRITE)
  call gpu_stop_on_failure(.true.)
  b = create_unified_buffer(0, BUFFER_READ_WRITE, stat=stat)
  if (stat == 0) error stop 'no failure'
  call gpu_stop_on_failure(.false.)
  b = create_unified_buffer(0, BUFFER_READ_WRITE)
  print '(a)', 'went on so far'
  call gpu_stop_on_failure(.true.)
  b = create_unified_buffer(0, BUFFER_READ_WRITE)
  print '(a)', 'went on too far'
end program
