! The overhead of the modules and the library: frames of a kernel that does nothing, on the host, without a driver. `overhead
! [frames]`.
module nothing
  use, intrinsic :: iso_c_binding
  use gpu_unified_buffers
  implicit none
  integer :: runs = 0

contains

  function idle(user, launch) result(status) bind(c)
    type(c_ptr), value :: user
    type(onebuf_native_call), intent(in) :: launch
    integer(c_int32_t) :: status

    status = merge(1, 0, c_associated(user) .or. launch%arg_count /= 5)
    runs = runs + 1
  end function
end module

program overhead
  use, intrinsic :: iso_fortran_env, only: real32, real64
  use nothing
  use checks, only: check
  implicit none
  integer, parameter :: batches = 20
  type(unified_buffer) :: image, filter, output
  type(compute_program) :: program
  integer :: frames, batch, i
  real(real64) :: begin, end, best
  character(16) :: word

  frames = 1000
  call get_command_argument(1, word)
  if (word /= '') read (word, *) frames
  call gpu_open('host')
  image = create_unified_buffer(65536, BUFFER_WRITE_ONLY, MEMORY_STREAMING)
  filter = create_unified_buffer(64, BUFFER_WRITE_ONLY)
  output = create_unified_buffer(65536, BUFFER_READ_ONLY, MEMORY_CPU_PREFERRED)
  program = compile_compute_program('idle', [BUFFER_WRITE_ONLY, BUFFER_WRITE_ONLY, BUFFER_READ_ONLY], &
    native=idle, integers=2)
  call bind_buffer_to_shader(image, 0)
  call bind_buffer_to_shader(filter, 1)
  call bind_buffer_to_shader(output, 2)
  best = huge(best)
  do batch = 1, batches
    call cpu_time(begin)
    do i = 1, frames
      call frame
    end do
    call cpu_time(end)
    best = min(best, (end - begin)/frames)
  end do
  call check(runs == batches*frames, 'every frame ran')
  print '(a, f0.0, a)', 'a frame of conv2d costs ', best*1e9_real64, ' ns beside its kernel'

contains

  ! All calls of one frame of 04-conv2d.
  subroutine frame
    real(real32), pointer :: in(:, :), out(:, :)

    call get_array_pointer(image, in, [128, 128])
    call dispatch_compute(program, [128, 128], integers=[128, 128])
    call get_array_pointer(output, out, [128, 128])
  end subroutine
end program
