! Three frames in flight by a ring of buffers, with a fallback where the GPU has no memory left.
program ring
  use, intrinsic :: iso_fortran_env, only: int64, real32
  use gpu_unified_buffers
  use gpu_fence_calls
  use gain, only: gain_program
  implicit none
  integer, parameter :: n = 65536, frames = 20
  integer(int64), parameter :: ten_seconds = 10000000000_int64
  type(buffer_ring) :: inputs
  type(unified_buffer) :: input, output
  type(compute_program) :: program
  type(gpu_fence) :: done
  real(real32), pointer :: x(:), y(:)
  integer :: frame

  output = create_unified_buffer(4_int64*n, BUFFER_READ_ONLY)
  if (.not. buffer_is_valid(output)) call use_copy_fallback()
  program = gain_program()
  call create_buffer_ring(inputs, 3, 4*n, BUFFER_WRITE_ONLY, MEMORY_STREAMING)
  call bind_buffer_to_shader(output, 1)
  do frame = 1, frames
    call ring_next(inputs, input)                    ! waits while the GPU uses this slot
    call get_array_pointer(input, x)
    x = real(frame, real32)
    call bind_buffer_to_shader(input, 0)
    call dispatch_compute(program, [n], integers=[n], reals=[2.0_real32], fence=done)
  end do
  call gpu_fence_wait(done, ten_seconds)             ! stops the program if the GPU does not answer
  call get_array_pointer(output, y)
  print '(3a, f5.1)', 'ring on ', gpu_device_name(), ': the last element is ', y(n)

contains

  subroutine use_copy_fallback()
    stop 'no memory on the GPU: another way is needed'
  end subroutine
end program
