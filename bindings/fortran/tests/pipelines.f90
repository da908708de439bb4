! Pipelines with callbacks in Fortran, and with sources and sinks of the library. `pipelines DEVICE FOLDER`.
module steps
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32
  use gpu_unified_buffers
  use onebuf_c, only: onebuf_viewer, onebuf_viewer_next, onebuf_string
  use gpu_errors, only: report_status => report, taken_text
  use checks, only: check
  implicit none
  integer, parameter :: n = 1024, frames = 12
  type(gpu_pipeline) :: pipeline
  type(compute_program) :: program
  integer :: seen = 0, stops_at = -1, fails_at = -1
  type(onebuf_viewer) :: viewer
  logical :: was_running = .false.
  logical :: sent_idle = .false.

contains

  ! Fills a slot with its number: frame 3 comes later, frame 5 is incomplete.
  subroutine fill(frame, answer, stat)
    type(pipeline_frame), intent(in) :: frame
    integer, intent(inout) :: answer, stat
    type(unified_buffer) :: input
    real(real32), pointer :: x(:)
    integer :: number

    number = int(frame_number(frame, stat))
    call check(frame_tag(frame, stat) == 7, 'the tag of the source')
    if (number == frames) then
      answer = FRAME_END
    else if (number == 5) then
      answer = FRAME_INCOMPLETE
    else if (number == 3 .and. .not. sent_idle) then
      sent_idle = .true.
      answer = FRAME_IDLE
    else
      call check(answer == FRAME_FILLED, 'the default answer')
      call get_frame_buffer(frame, 1, input, stat)
      call get_array_pointer(input, x)
      x = real(number, real32)
    end if
  end subroutine

  subroutine stage(frame, stat)
    type(pipeline_frame), intent(in) :: frame
    integer, intent(inout) :: stat
    character(200) :: message

    if (frame_number(frame) == fails_at) then
      stat = ONEBUF_OTHER
      return
    end if
    if (frame_number(frame) == 1) then
      call dispatch_frame(frame, program, [1, 9], [n], integers=[n], reals=[1.0_real32], stat=stat, errmsg=message)
      call check(stat == ONEBUF_INVALID_ARGUMENT .and. index(message, 'no buffer of such a number') > 0, trim(message))
      call dispatch_frame(frame, program, [1], [n], integers=[n], reals=[1.0_real32], stat=stat, errmsg=message)
      call check(stat == ONEBUF_INVALID_ARGUMENT .and. index(message, '1 buffers for a program with 2') > 0, trim(message))
    end if
    select case (mod(frame_number(frame), 4_int64))
    case (0)
      call dispatch_frame(frame, program, [1, 2], [n], integers=[n], reals=[2.0_real32], stat=stat)
    case (1)
      call dispatch_frame(frame, program, [1, 2], [int(n, int64)], integers=[n], reals=[2.0_real32], stat=stat)
    case (2)
      call dispatch_frame(frame, program, [1, 2], [n], integers=[n], reals=[2.0_real32], group=[64_int64], stat=stat)
    case default
      call dispatch_frame(frame, program, [1, 2], [int(n, int64)], integers=[n], reals=[2.0_real32], group=[64_int64], &
        stat=stat)
    end select
  end subroutine

  subroutine sink(frame, stat)
    type(pipeline_frame), intent(in) :: frame
    integer, intent(inout) :: stat
    type(unified_buffer) :: output
    real(real32), pointer :: y(:)

    call get_frame_buffer(frame, 3, output, stat)
    call check(stat == ONEBUF_INVALID_ARGUMENT, 'the slot has two buffers')
    call check(.not. buffer_is_valid(output), 'no third one')
    call get_frame_buffer(frame, 2, output, stat)
    call check(stat == 0 .and. buffer_size_bytes(output) == 4*n, 'the second buffer')
    call get_array_pointer(output, y)
    call check(all(abs(y - 2*real(frame_number(frame), real32)) <= 0), 'every element of every frame')
    seen = seen + 1
    if (viewer%id /= 0 .and. .not. was_running) call wait_until_seen('"running"')
    if (viewer%id /= 0) was_running = .true.
    if (frame_number(frame) == stops_at) call stop_pipeline(pipeline, stat)
  end subroutine

  ! Asks the viewer until it shows this, two snapshots a second.
  subroutine wait_until_seen(what)
    character(*), intent(in) :: what
    type(onebuf_string) :: json
    character(:), allocatable :: text
    integer :: i

    do i = 1, 60
      call report_status(onebuf_viewer_next(viewer, 30000_int64, json), 'the next snapshot')
      text = taken_text(json)
      if (index(text, what) > 0) return
    end do
    call check(.false., 'the viewer does not see '//what//': '//text)
  end subroutine
end module

program pipelines
  use, intrinsic :: iso_c_binding
  use steps
  use gain, only: gain_program
  implicit none
  type(pipeline_report) :: report
  integer :: stat
  character(300) :: message
  character(64) :: device

  call get_command_argument(1, device)
  call gpu_open(trim(device))
  program = gain_program()
  call callbacks
  call memory
  call files
  call network
  print '(2a)', 'pipelines work on ', gpu_device_name()

contains

  subroutine callbacks
    call check(.not. pipeline_is_valid(pipeline), 'no pipeline yet')
    call pipeline_add_buffer(pipeline, 4, BUFFER_READ_WRITE, stat=stat, errmsg=message)
    call check(stat == ONEBUF_INVALID_HANDLE .and. index(message, 'create_pipeline') > 0, trim(message))
    call run_pipeline(pipeline, stat=stat)
    call check(stat == ONEBUF_INVALID_HANDLE, 'no pipeline to run')
    call create_pipeline(pipeline, 0, stat)
    call check(stat == ONEBUF_INVALID_ARGUMENT, 'no slots')
    call create_pipeline(pipeline, 3)
    call check(pipeline_is_valid(pipeline), 'a pipeline')
    call create_pipeline(pipeline, 3, stat)
    call check(stat == ONEBUF_BUSY, 'the variable is in use')
    call pipeline_add_buffer(pipeline, 0, BUFFER_READ_WRITE, stat=stat)
    call check(stat == ONEBUF_INVALID_ARGUMENT, 'no bytes')
    call pipeline_add_buffer(pipeline, 4*n, BUFFER_WRITE_ONLY, MEMORY_STREAMING)
    call pipeline_add_buffer(pipeline, 4_int64*n, BUFFER_READ_ONLY)
    call pipeline_set_source(pipeline, fill, tag=7)
    call pipeline_add_stage(pipeline, 'gain', stage, device=1)
    call pipeline_set_sink(pipeline, sink)
    call pipeline_when_full(pipeline, WHEN_FULL_BLOCK)
    call run_pipeline(pipeline, report)
    call check(report%frames == frames - 1 .and. seen == frames - 1, 'all frames but one')
    call check(report%incomplete == 1 .and. report%dropped == 0 .and. report%in_flight == 0, 'the counters')
    call check(report%elapsed_ns > 0 .and. report%latency_p99_ns >= report%latency_p50_ns, 'the times')
    call check(index(pipeline_json(pipeline), '"gain"') > 0, 'the stage in JSON')
    call pipeline_when_full(pipeline, WHEN_FULL_DROP_NEWEST, stat, message)
    call check(stat == ONEBUF_BUSY, 'parts cannot change any more')
    ! Again, watched by a viewer and stopped by the sink; then a stage fails.
    seen = 0
    stops_at = 2
    call watched
    call check(seen >= 3 .and. report%frames == seen, 'stopped')
    call get_pipeline_report(pipeline, report)
    call check(report%frames == seen, 'the same report')
    stops_at = -1
    fails_at = 4
    call run_pipeline(pipeline, report, stat, message)
    call check(stat == ONEBUF_OTHER .and. index(message, 'gain') > 0, 'the stage that failed: '//trim(message))
    fails_at = -1
    call destroy_pipeline(pipeline)
    call check(.not. pipeline_is_valid(pipeline), 'destroyed')
  end subroutine

  ! A run that `onebuf top` would show: a viewer sees the pipeline before, during and after it.
  subroutine watched
    use onebuf_c, only: onebuf_viewer_attach, onebuf_viewer_free
    use gpu_session, only: c_text
    type(live_view) :: view
    character(300) :: folder

    ! The folder's name is unique on the machine.
    call get_command_argument(2, folder)
    call publish_gpu(view, 'pipelines'//trim(folder(index(folder, '/', back=.true.) + 1:)))
    call publish_pipeline(view, 'the amplifier', pipeline)
    call report_status(onebuf_viewer_attach(c_text(live_view_path(view)), 30000_int64, viewer), 'a viewer')
    call wait_until_seen('"the amplifier"')
    call run_pipeline(pipeline, report)
    call check(was_running, 'it was seen running')
    call wait_until_seen('"finished"')
    call report_status(onebuf_viewer_free(viewer), 'the end of the viewer')
    viewer%id = 0
    call unpublish_gpu(view)
  end subroutine

  ! Frames of an array go through a pipeline without stages into another array.
  subroutine memory
    type(frame_source) :: source
    type(frame_sink) :: to
    type(gpu_pipeline) :: line
    real(real32), target :: given(n, 3), got(n, 6)

    call random_number(given)
    got = 0
    call check(.not. source_is_valid(source), 'no source')
    call check(.not. sink_is_valid(to), 'no sink')
    call open_memory_source(source, c_loc(given), size(given)*4, repeats=2)
    call open_memory_sink(to, c_loc(got), int(size(got), int64)*4)
    call check(source_is_valid(source), 'a source')
    call check(sink_is_valid(to), 'a sink')
    call open_memory_source(source, c_loc(given), 8_int64, stat=stat)
    call check(stat == ONEBUF_BUSY, 'the source is in use')
    call open_memory_sink(to, c_loc(got), 8, stat=stat)
    call check(stat == ONEBUF_BUSY, 'the sink is in use')
    call run(line, source, to, 4*n)
    call check(report%frames == 6, 'six frames')
    call check(all(abs(got(:, :3) - given) <= 0) .and. all(abs(got(:, 4:) - given) <= 0), 'all elements')
    call get_udp_counts_refused(source, to)
    call close_source(source)
    call close_sink(to)
  end subroutine

  subroutine get_udp_counts_refused(source, to)
    type(frame_source), intent(in) :: source
    type(frame_sink), intent(in) :: to
    type(udp_counts) :: counts
    type(udp_sent) :: sent

    call get_udp_counts(source, counts, stat)
    call check(stat == ONEBUF_UNSUPPORTED, 'memory has no packets')
    call get_udp_sent(to, sent, stat)
    call check(stat == ONEBUF_UNSUPPORTED, 'memory sends no packets')
    call finish_sink(to, stat)
    call check(stat == ONEBUF_UNSUPPORTED, 'memory has no end of stream')
    call check(source_address(source, stat) == '', 'memory has no address')
    call check(stat == ONEBUF_UNSUPPORTED, 'and says so')
  end subroutine

  ! A computed signal into a NumPy file, that into a raw file, and that back.
  subroutine files
    type(frame_source) :: source
    type(frame_sink) :: to
    type(gpu_pipeline) :: first, second, third
    complex(real32), target :: got(n, 2), again(n, 2)
    character(:), allocatable :: npy, raw
    character(300) :: folder

    call get_command_argument(2, folder)
    npy = trim(folder)//'/pipelines.npy'
    raw = trim(folder)//'/pipelines.raw'
    call open_synthetic_source(source, 1, n, frames=2, noise=-1.0d0, seed=3, &
      waves=[plane_wave(1.0d0, 0.0d0, 0.0d0)])
    call open_npy_sink(to, npy, '<c8', [n])
    call run(first, source, to, 8*n)
    call closed(source, to)
    call open_npy_source(source, npy, '<c8')
    call open_file_sink(to, raw)
    call run(second, source, to, 8*n)
    call check(report%frames == 2, 'two frames of the NumPy file')
    call closed(source, to)
    call open_file_source(source, raw, repeats=1)
    call open_memory_sink(to, c_loc(got), size(got)*8)
    call run(third, source, to, 8*n)
    call closed(source, to)
    call check(all(abs(abs(got) - 1) < 1e-5_real32), 'a wave of amplitude 1')
    call open_synthetic_source(source, 1, n, frames=2, noise=-1.0d0, waves=[plane_wave(1.0d0, 0.0d0, 0.0d0)])
    call open_memory_sink(to, c_loc(again), size(again)*8)
    call run(third, source, to, 8*n)
    call closed(source, to)
    call check(all(abs(got - again) <= 0), 'the same signal in every run')
    call open_npy_sink(to, npy, '<c8', [int(n, int64)])
    call close_sink(to)
  end subroutine

  subroutine closed(source, to)
    type(frame_source), intent(inout) :: source
    type(frame_sink), intent(inout) :: to

    call close_source(source)
    call close_sink(to)
  end subroutine

  ! Frames go as packets over the loopback interface into a pipeline with a stage. The system keeps them between the two runs.
  subroutine network
    type(frame_source) :: source, stream
    type(frame_sink) :: to
    type(udp_counts) :: counts
    type(udp_sent) :: sent
    type(gpu_pipeline) :: line
    real(real32), target :: given(n, 2), got(n, 2)

    call random_number(given)
    call open_udp_source(source, '127.0.0.1:0', stream=5, window=2, timeout_ms=2000, sockets=2, busy_poll_us=1, cpus=[0])
    call check(index(source_address(source), '127.0.0.1:') == 1, 'the address of the source')
    call get_udp_counts(source, counts)
    call check(counts%frames == 0 .and. counts%packets == 0, 'nothing came')
    call get_udp_counts(source, counts, socket=2)
    call check(counts%packets == 0 .and. counts%bytes == 0 .and. counts%batches == 0, 'nothing came to the second socket')
    call get_udp_counts(source, counts, socket=3, stat=stat)
    call check(stat /= 0, 'no third socket')
    call open_udp_sink(to, source_address(source), stream=5, bytes_per_s=1d9, threads=2)
    call open_memory_source(stream, c_loc(given), size(given)*4)
    call run(line, stream, to, 4*n)
    call get_udp_sent(to, sent)
    call check(sent%frames == 2 .and. sent%bytes == size(given)*4 .and. sent%packets > 0, 'what was sent')
    call finish_sink(to)
    call close_source(stream)
    call close_sink(to)
    got = 0
    call open_memory_sink(to, c_loc(got), size(got)*4)
    call create_pipeline(line, 2)
    call pipeline_add_buffer(line, 4*n, BUFFER_WRITE_ONLY)
    call pipeline_add_buffer(line, 4*n, BUFFER_READ_ONLY)
    call pipeline_set_source(line, source, 1)
    call pipeline_add_stage(line, 'gain', stage)
    call pipeline_set_sink(line, to, buffer=2)
    call run_pipeline(line, report)
    call destroy_pipeline(line)
    call check(report%frames == 2 .and. report%incomplete == 0, 'both frames arrived')
    call check(all(abs(got - 2*given) <= 0), 'every element that arrived went through the kernel')
    call get_udp_counts(source, counts)
    call check(counts%frames == 2 .and. counts%packets == sent%packets, 'every packet was counted')
    call check(counts%lost + counts%late + counts%duplicate + counts%stray + counts%malformed + counts%kernel_drops == 0, &
      'and none was lost')
    call closed(source, to)
    call open_tcp_source(stream, '127.0.0.1:0', listen=.true., timeout_ms=100)
    call check(index(source_address(stream), '127.0.0.1:') == 1, 'the address of the listener')
    call close_source(stream)
    call open_tcp_source(stream, 'nowhere', stat=stat)
    call check(stat /= 0, 'no address')
  end subroutine

  ! Runs a pipeline without stages.
  subroutine run(line, source, to, bytes)
    type(gpu_pipeline), intent(inout) :: line
    type(frame_source), intent(in) :: source
    type(frame_sink), intent(in) :: to
    integer, intent(in) :: bytes

    call create_pipeline(line, 2)
    call pipeline_add_buffer(line, bytes, BUFFER_READ_WRITE)
    call pipeline_set_source(line, source, 1)
    call pipeline_set_sink(line, to, buffer=1)
    call run_pipeline(line, report)
    call destroy_pipeline(line)
  end subroutine
end program
