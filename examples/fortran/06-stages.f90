! A continuous stream: a source fills slots, a stage works on the GPU, a sink sums up. Each has a thread of its own.
module stages
  use, intrinsic :: iso_fortran_env, only: real32
  use gpu_unified_buffers
  implicit none
  integer, parameter :: n = 65536, frames = 50
  type(compute_program) :: program
  real(real32) :: total = 0

contains

  subroutine fill(frame, answer, stat)
    type(pipeline_frame), intent(in) :: frame
    integer, intent(inout) :: answer, stat
    type(unified_buffer) :: input
    real(real32), pointer :: x(:)

    if (frame_number(frame) == frames) then
      answer = FRAME_END
    else
      call get_frame_buffer(frame, 1, input, stat)
      call get_array_pointer(input, x)
      x = real(frame_number(frame), real32)
    end if
  end subroutine

  subroutine amplify(frame, stat)
    type(pipeline_frame), intent(in) :: frame
    integer, intent(inout) :: stat

    call dispatch_frame(frame, program, [1, 2], [n], integers=[n], reals=[2.0_real32], stat=stat)
  end subroutine

  subroutine add_up(frame, stat)
    type(pipeline_frame), intent(in) :: frame
    integer, intent(inout) :: stat
    type(unified_buffer) :: output
    real(real32), pointer :: y(:)

    call get_frame_buffer(frame, 2, output, stat)
    call get_array_pointer(output, y)
    total = total + y(n)
  end subroutine
end module

program continuous
  use stages
  use gain, only: gain_program
  implicit none
  type(gpu_pipeline) :: pipeline
  type(pipeline_report) :: report

  program = gain_program()
  call create_pipeline(pipeline, slots=3)
  call pipeline_add_buffer(pipeline, 4*n, BUFFER_WRITE_ONLY, MEMORY_STREAMING)
  call pipeline_add_buffer(pipeline, 4*n, BUFFER_READ_ONLY)
  call pipeline_set_source(pipeline, fill)
  call pipeline_add_stage(pipeline, 'amplify', amplify)
  call pipeline_set_sink(pipeline, add_up)
  call run_pipeline(pipeline, report)
  call destroy_pipeline(pipeline)
  print '(3a, i0, a, f0.1)', 'stages on ', gpu_device_name(), ': ', report%frames, ' frames, in total ', total
end program
