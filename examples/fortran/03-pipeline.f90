! Phase 3: two frames in flight. The CPU fills one while the GPU works on the other, and waits with a timeout.
program pipeline
  use, intrinsic :: iso_fortran_env, only: int64, real32
  use gpu_unified_buffers
  use gpu_fence_primitives
  use gain, only: gain_program
  implicit none
  integer, parameter :: n = 65536, frames = 20
  integer(int64), parameter :: ten_seconds = 10000000000_int64
  type :: stage
    type(unified_buffer) :: input, output
    type(gpu_fence) :: done
  end type
  type(stage) :: stages(0:1)
  type(compute_program) :: program
  integer :: frame, i

  program = gain_program()
  do i = 0, 1
    stages(i)%input = create_unified_buffer(4*n, BUFFER_WRITE_ONLY, MEMORY_STREAMING)
    stages(i)%output = create_unified_buffer(4*n, BUFFER_READ_ONLY, MEMORY_CPU_PREFERRED)
  end do

  do frame = 1, frames
    call start(stages(modulo(frame, 2)), frame)                          ! starts this frame
    if (frame > 1) call collect(stages(modulo(frame - 1, 2)), frame - 1) ! while the previous one ends
  end do
  call collect(stages(modulo(frames, 2)), frames)
  print '(3a, i0, a)', 'pipeline on ', gpu_device_name(), ': ', frames, ' frames'

contains

  subroutine start(this, number)
    type(stage), intent(inout) :: this
    integer, intent(in) :: number
    real(real32), pointer :: x(:)

    call get_array_pointer(this%input, x)
    x = real(number, real32)
    call bind_buffer_to_shader(this%input, 0)
    call bind_buffer_to_shader(this%output, 1)
    call dispatch_compute(program, [n], integers=[n], reals=[2.0_real32], fence=this%done)
  end subroutine

  subroutine collect(this, number)
    type(stage), intent(inout) :: this
    integer, intent(in) :: number
    real(real32), pointer :: y(:)

    if (gpu_fence_wait(this%done, ten_seconds) /= FENCE_READY) error stop 'the GPU does not answer'
    call get_array_pointer(this%output, y)
    if (any(abs(y - 2*number) > 0)) error stop 'wrong'
  end subroutine
end program
