! Pipelines: a source fills a slot, stages dispatch work on it, a sink consumes the result, and the slot is used again. The source and each
! stage have a thread of their own; the sink runs on the thread that calls run_pipeline.
module gpu_pipelines
  use, intrinsic :: iso_fortran_env, only: int32, int64
  use onebuf_c
  use gpu_errors, only: report, refuse, succeed, taken_text
  use gpu_session, only: session, need_session, need_device
  use gpu_buffer_core, only: BUFFER_READ_ONLY, BUFFER_READ_WRITE, MEMORY_CPU_PREFERRED, MEMORY_COHERENT, &
    MEMORY_STREAMING
  use gpu_frames, only: fill_procedure, frame_procedure, MAX_SLOT_BUFFERS
  use gpu_pipeline_parts, only: parts, enter, leave, build, MAX_STAGES
  use gpu_sources, only: frame_source, source_handle
  use gpu_sinks, only: frame_sink, sink_handle
  implicit none
  private
  public :: gpu_pipeline, pipeline_report, create_pipeline, destroy_pipeline, pipeline_is_valid
  public :: pipeline_add_buffer, pipeline_set_source, pipeline_add_stage, pipeline_set_sink, pipeline_when_full
  public :: run_pipeline, stop_pipeline, get_pipeline_report, pipeline_json
  public :: WHEN_FULL_BLOCK, WHEN_FULL_DROP_OLDEST, WHEN_FULL_DROP_NEWEST, MAX_STAGES
  public :: pipeline_handle

  ! What happens if the source is faster than the stages: it waits; the oldest or the newest frame is dropped, and counted.
  integer, parameter :: WHEN_FULL_BLOCK = 0
  integer, parameter :: WHEN_FULL_DROP_OLDEST = 1
  integer, parameter :: WHEN_FULL_DROP_NEWEST = 2

  ! A pipeline, until destroy_pipeline. It is created at its first run.
  type :: gpu_pipeline
    private
    type(onebuf_pipeline) :: handle
    type(parts), pointer :: parts => null()
  end type

  ! Times are in nanoseconds.
  type :: pipeline_report
    ! Frames that the sink has consumed; that were dropped; that were incomplete; that are in flight.
    integer(int64) :: frames = 0
    integer(int64) :: dropped = 0
    integer(int64) :: incomplete = 0
    integer(int64) :: in_flight = 0
    integer(int64) :: elapsed_ns = 0
    ! The latency of a frame, from the end of the source's callback to the end of the sink's: median and 99th percentile.
    integer(int64) :: latency_p50_ns = 0
    integer(int64) :: latency_p99_ns = 0
    logical :: one_thread = .false.
  end type

  interface pipeline_add_buffer
    module procedure buffer_int32, buffer_int64
  end interface

  interface pipeline_set_source
    module procedure source_procedure, source_object
  end interface

  interface pipeline_set_sink
    module procedure sink_procedure, sink_object
  end interface

contains

  ! Begins a pipeline with this number of slots; two is double buffering. Then add at least one buffer, a source and a sink.
  subroutine create_pipeline(pipeline, slots, stat, errmsg)
    type(gpu_pipeline), intent(inout) :: pipeline
    integer, intent(in) :: slots
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'create_pipeline'

    if (associated(pipeline%parts)) then
      call refuse(ONEBUF_BUSY, me//': the variable holds a pipeline: destroy it first', stat, errmsg)
    else if (slots < 1) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': at least one slot', stat, errmsg)
    else
      allocate (pipeline%parts)
      pipeline%parts%slots = slots
      if (enter(pipeline%parts)) then
        call succeed(stat, errmsg)
      else
        deallocate (pipeline%parts)
        call refuse(ONEBUF_BUSY, me//': at most 64 pipelines exist at a time', stat, errmsg)
      end if
    end if
  end subroutine

  ! Adds a buffer of `size` bytes to each slot; they are numbered from 1. `access_mode` is the CPU's access, by the source and the sink.
  subroutine buffer_int64(pipeline, size, access_mode, memory_hint, stat, errmsg)
    type(gpu_pipeline), intent(inout) :: pipeline
    integer(int64), intent(in) :: size
    integer, intent(in) :: access_mode
    integer, intent(in), optional :: memory_hint
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'pipeline_add_buffer'
    integer :: hint

    hint = MEMORY_COHERENT
    if (present(memory_hint)) hint = memory_hint
    if (.not. is_open(pipeline, me, stat, errmsg)) return
    if (pipeline%parts%buffer_count == MAX_SLOT_BUFFERS) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': a slot has at most 16 buffers', stat, errmsg)
    else if (size < 1) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': the size must be at least one byte', stat, errmsg)
    else if (access_mode < BUFFER_READ_ONLY .or. access_mode > BUFFER_READ_WRITE) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': no such access_mode', stat, errmsg)
    else if (hint < MEMORY_CPU_PREFERRED .or. hint > MEMORY_STREAMING) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': no such memory_hint', stat, errmsg)
    else
      associate (p => pipeline%parts)
        p%buffer_count = p%buffer_count + 1
        p%sizes(p%buffer_count) = size
        p%modes(p%buffer_count) = access_mode
        p%hints(p%buffer_count) = hint
      end associate
      call succeed(stat, errmsg)
    end if
  end subroutine

  subroutine buffer_int32(pipeline, size, access_mode, memory_hint, stat, errmsg)
    type(gpu_pipeline), intent(inout) :: pipeline
    integer(int32), intent(in) :: size
    integer, intent(in) :: access_mode
    integer, intent(in), optional :: memory_hint
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call buffer_int64(pipeline, int(size, int64), access_mode, memory_hint, stat, errmsg)
  end subroutine

  ! The procedure that fills slots. `tag` comes back as frame_tag.
  subroutine source_procedure(pipeline, fill, tag, stat, errmsg)
    type(gpu_pipeline), intent(inout) :: pipeline
    procedure(fill_procedure) :: fill
    integer, intent(in), optional :: tag
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    if (.not. is_open(pipeline, 'pipeline_set_source', stat, errmsg)) return
    pipeline%parts%fill => fill
    if (present(tag)) pipeline%parts%fill_tag = tag
    call succeed(stat, errmsg)
  end subroutine

  ! A source of the library fills the slot's buffer of that number, the first one without it.
  subroutine source_object(pipeline, source, buffer, stat, errmsg)
    type(gpu_pipeline), intent(inout) :: pipeline
    type(frame_source), intent(in) :: source
    integer, intent(in), optional :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    if (.not. is_open(pipeline, 'pipeline_set_source', stat, errmsg)) return
    pipeline%parts%feed = source_handle(source)
    if (present(buffer)) pipeline%parts%feed_buffer = buffer
    call succeed(stat, errmsg)
  end subroutine

  ! Adds a stage: a procedure that dispatches the work of one frame (dispatch_frame) on a device, the first one without a number.
  subroutine pipeline_add_stage(pipeline, name, run, device, tag, stat, errmsg)
    type(gpu_pipeline), intent(inout) :: pipeline
    character(*), intent(in) :: name
    procedure(frame_procedure) :: run
    integer, intent(in), optional :: device, tag
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'pipeline_add_stage'
    integer :: number

    if (.not. is_open(pipeline, me, stat, errmsg)) return
    number = need_device(me, device, stat, errmsg, returns=.false.)
    if (number == 0) return
    if (pipeline%parts%stage_count == MAX_STAGES) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': a pipeline has at most 16 stages', stat, errmsg)
      return
    end if
    associate (p => pipeline%parts)
      p%stage_count = p%stage_count + 1
      p%steps(p%stage_count)%name = name
      p%steps(p%stage_count)%device = number
      p%steps(p%stage_count)%run => run
      if (present(tag)) p%steps(p%stage_count)%tag = tag
    end associate
    call succeed(stat, errmsg)
  end subroutine

  ! The procedure that consumes frames, in order.
  subroutine sink_procedure(pipeline, run, tag, stat, errmsg)
    type(gpu_pipeline), intent(inout) :: pipeline
    procedure(frame_procedure) :: run
    integer, intent(in), optional :: tag
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    if (.not. is_open(pipeline, 'pipeline_set_sink', stat, errmsg)) return
    pipeline%parts%steps(0)%run => run
    if (present(tag)) pipeline%parts%steps(0)%tag = tag
    call succeed(stat, errmsg)
  end subroutine

  ! A sink of the library takes the slot's buffer of that number, the first one without it.
  subroutine sink_object(pipeline, sink, buffer, stat, errmsg)
    type(gpu_pipeline), intent(inout) :: pipeline
    type(frame_sink), intent(in) :: sink
    integer, intent(in), optional :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    if (.not. is_open(pipeline, 'pipeline_set_sink', stat, errmsg)) return
    pipeline%parts%drain = sink_handle(sink)
    if (present(buffer)) pipeline%parts%drain_buffer = buffer
    call succeed(stat, errmsg)
  end subroutine

  ! What happens if the source is faster than the stages: one of the WHEN_FULL_ constants.
  subroutine pipeline_when_full(pipeline, what, stat, errmsg)
    type(gpu_pipeline), intent(inout) :: pipeline
    integer, intent(in) :: what
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    if (.not. is_open(pipeline, 'pipeline_when_full', stat, errmsg)) return
    pipeline%parts%when_full = what
    call succeed(stat, errmsg)
  end subroutine

  ! Runs until the source ends, stop_pipeline is called, or a callback fails. It may be run again.
  subroutine run_pipeline(pipeline, result, stat, errmsg)
    type(gpu_pipeline), intent(inout) :: pipeline
    type(pipeline_report), intent(out), optional :: result
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'run_pipeline'
    integer(c_int32_t) :: status

    if (.not. associated(pipeline%parts)) then
      call refuse(ONEBUF_INVALID_HANDLE, me//': no pipeline, or one that was destroyed', stat, errmsg)
      return
    end if
    call need_session(stat, errmsg)
    if (session%hub%id == 0) return
    status = ONEBUF_OK
    if (pipeline%handle%id == 0) status = build(pipeline%parts, pipeline%handle)
    if (status == ONEBUF_OK) then
      status = onebuf_pipeline_run(pipeline%handle, c_null_ptr)
      ! Before the report, which would replace the message.
      if (status /= ONEBUF_OK) call report(status, me, stat, errmsg)
      if (present(result)) call get_pipeline_report(pipeline, result)
      if (status /= ONEBUF_OK) return
    end if
    call report(status, me, stat, errmsg)
  end subroutine

  ! Asks a running pipeline to end, from any thread or callback.
  subroutine stop_pipeline(pipeline, stat, errmsg)
    type(gpu_pipeline), intent(in) :: pipeline
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_pipeline_stop(pipeline%handle), 'stop_pipeline', stat, errmsg)
  end subroutine

  ! Reports the progress, from any thread, also while the pipeline runs.
  subroutine get_pipeline_report(pipeline, result, stat, errmsg)
    type(gpu_pipeline), intent(in) :: pipeline
    type(pipeline_report), intent(out) :: result
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(onebuf_pipeline_report) :: found

    found%size = int(storage_size(found)/8, c_size_t)
    call report(onebuf_pipeline_get_report(pipeline%handle, found), 'get_pipeline_report', stat, errmsg)
    result = pipeline_report(found%frames, found%dropped, found%incomplete, found%on_the_way, found%elapsed_ns, &
      found%latency_p50_ns, found%latency_p99_ns, found%one_thread /= 0)
  end subroutine

  ! The progress and the times of each stage, as JSON.
  function pipeline_json(pipeline, stat, errmsg) result(text)
    type(gpu_pipeline), intent(in) :: pipeline
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(:), allocatable :: text
    type(onebuf_string) :: string
    integer(c_int32_t) :: status

    text = ''
    status = onebuf_pipeline_json(pipeline%handle, string)
    call report(status, 'pipeline_json', stat, errmsg, returns=.true.)
    if (status == ONEBUF_OK) text = taken_text(string)
  end function

  ! Whether the variable holds a pipeline.
  function pipeline_is_valid(pipeline, stat, errmsg) result(valid)
    type(gpu_pipeline), intent(in) :: pipeline
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: valid

    valid = associated(pipeline%parts)
    call succeed(stat, errmsg)
  end function

  ! Releases a pipeline that does not run, with its slots.
  subroutine destroy_pipeline(pipeline, stat, errmsg)
    type(gpu_pipeline), intent(inout) :: pipeline
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_pipeline_free(pipeline%handle), 'destroy_pipeline', stat, errmsg)
    pipeline%handle%id = 0
    if (.not. associated(pipeline%parts)) return
    call leave(pipeline%parts)
    deallocate (pipeline%parts)
  end subroutine

  ! --- For the other modules -----------------------------------------------------------------------------------------------------------

  pure function pipeline_handle(pipeline) result(handle)
    type(gpu_pipeline), intent(in) :: pipeline
    type(onebuf_pipeline) :: handle

    handle = pipeline%handle
  end function

  ! Whether parts may be added. If not, that has been reported.
  function is_open(pipeline, me, stat, errmsg) result(open)
    type(gpu_pipeline), intent(in) :: pipeline
    character(*), intent(in) :: me
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: open

    open = .false.
    if (.not. associated(pipeline%parts)) then
      call refuse(ONEBUF_INVALID_HANDLE, me//': no pipeline: see create_pipeline', stat, errmsg)
    else if (pipeline%handle%id /= 0) then
      call refuse(ONEBUF_BUSY, me//': the pipeline has run: its parts cannot change any more', stat, errmsg)
    else
      open = .true.
    end if
  end function
end module
