! Without stat= a failure prints a message and stops the program.
program stops
  use, intrinsic :: iso_fortran_env, only: int32
  use gpu_unified_buffers
  implicit none
  type(unified_buffer) :: b
  integer(int32) :: x(8)
  character(200) :: message

  call gpu_open('host')
  b = create_unified_buffer(16, BUFFER_READ_WRITE)
  message = 'still empty'
  call read_buffer(b, x, errmsg=message)
  print '(2a)', 'went on: ', message
end program
