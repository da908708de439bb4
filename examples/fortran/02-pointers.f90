! Phase 2: the program's arrays are the buffers. Nothing is copied, and half of the memory is
! sufficient.
program pointers
  use, intrinsic :: iso_fortran_env, only: int64, real32
  use gpu_unified_buffers
  use gain, only: gain_program
  implicit none
  integer, parameter :: n = 65536
  real(real32), pointer :: x(:), y(:)
  type(unified_buffer) :: input, output
  type(compute_program) :: program
  integer(int64) :: asked, implied
  integer :: frame

  input = create_unified_buffer(4*n, BUFFER_WRITE_ONLY, MEMORY_STREAMING)
  output = create_unified_buffer(4*n, BUFFER_READ_ONLY, MEMORY_CPU_PREFERRED)
  program = gain_program()
  call bind_buffer_to_shader(input, 0)
  call bind_buffer_to_shader(output, 1)

  do frame = 1, 10
    call get_array_pointer(input, x)                                     ! waits for the kernel that reads it
    x = real(frame, real32)
    call dispatch_compute(program, [n], integers=[n], reals=[2.0_real32])
    call get_array_pointer(output, y)                                    ! waits for the kernel that writes it
    if (any(abs(y - 2*frame) > 0)) error stop 'wrong'
  end do
  call gpu_bytes_moved(asked, implied)
  print '(3a, f5.1)', 'pointers on ', gpu_device_name(), ': the last element is ', y(n)
  print '(2(a, i0))', 'bytes copied on request: ', asked, ', implied copies: ', implied
end program
