! Phase 1: the program keeps its own arrays. Only the names of the calls that copy to the GPU and back change.
program drop_in
  use, intrinsic :: iso_fortran_env, only: real32
  use gpu_unified_buffers
  use gain, only: gain_program
  implicit none
  integer, parameter :: n = 65536
  real(real32), allocatable :: x(:), y(:)
  type(unified_buffer) :: input, output
  type(compute_program) :: program
  integer :: frame

  allocate (x(n), y(n))
  input = create_unified_buffer(4*n, BUFFER_WRITE_ONLY)
  output = create_unified_buffer(4*n, BUFFER_READ_ONLY)
  program = gain_program()
  call bind_buffer_to_shader(input, 0)
  call bind_buffer_to_shader(output, 1)

  do frame = 1, 10
    x = real(frame, real32)
    call write_buffer(input, x)                                          ! was: copy to the GPU
    call dispatch_compute(program, [n], integers=[n], reals=[2.0_real32])
    call read_buffer(output, y)                                          ! was: wait, copy back
    if (any(abs(y - 2*frame) > 0)) error stop 'wrong'
  end do
  print '(3a, f5.1)', 'drop-in on ', gpu_device_name(), ': the last element is ', y(n)
end program
