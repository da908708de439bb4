! What the library did: traces, and the live view of `onebuf top`.
module gpu_traces
  use, intrinsic :: iso_fortran_env, only: int64
  use onebuf_c
  use gpu_errors, only: report, taken_text, is_unused
  use gpu_session, only: session, need_session, c_text
  use gpu_pipelines, only: gpu_pipeline, pipeline_handle
  implicit none
  private
  public :: save_trace, trace_json, trace_dropped, clear_trace
  public :: live_view, publish_gpu, publish_pipeline, live_view_path, unpublish_gpu

  ! A name under which other processes of this user watch the program, until unpublish_gpu.
  type :: live_view
    private
    type(onebuf_published) :: handle
  end type

contains

  ! Writes the events since gpu_open or clear_trace to a file that Perfetto and Chrome show. Needs `trace_events` of gpu_open.
  subroutine save_trace(path, stat, errmsg)
    character(*), intent(in) :: path
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call need_session(stat, errmsg)
    if (session%hub%id /= 0) call report(onebuf_trace_save(session%hub, c_text(path)), 'save_trace', stat, errmsg)
  end subroutine

  ! The same as a text.
  function trace_json(stat, errmsg) result(text)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(:), allocatable :: text
    type(onebuf_string) :: string
    integer(c_int32_t) :: status

    text = ''
    call need_session(stat, errmsg, returns=.true.)
    if (session%hub%id == 0) return
    status = onebuf_trace_json(session%hub, string)
    call report(status, 'trace_json', stat, errmsg, returns=.true.)
    if (status == ONEBUF_OK) text = taken_text(string)
  end function

  ! The number of events that did not fit.
  function trace_dropped(stat, errmsg) result(events)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(int64) :: events

    events = 0
    call need_session(stat, errmsg, returns=.true.)
    if (session%hub%id == 0) return
    call report(onebuf_trace_dropped(session%hub, events), 'trace_dropped', stat, errmsg, returns=.true.)
  end function

  ! Forgets the events so far.
  subroutine clear_trace(stat, errmsg)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call need_session(stat, errmsg)
    if (session%hub%id /= 0) call report(onebuf_trace_clear(session%hub), 'clear_trace', stat, errmsg)
  end subroutine

  ! Lets `onebuf top` show the buffers and copies of this program, under a name. Buffers created earlier are not listed.
  subroutine publish_gpu(view, name, stat, errmsg)
    type(live_view), intent(inout) :: view
    character(*), intent(in) :: name
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'publish_gpu'

    if (.not. is_unused(view%handle%id, me, 'a view: end it first', stat, errmsg)) return
    call need_session(stat, errmsg)
    if (session%hub%id /= 0) call report(onebuf_publish(session%hub, c_text(name), view%handle), me, stat, errmsg)
  end subroutine

  ! Shows a pipeline as well, which has run before.
  subroutine publish_pipeline(view, name, pipeline, stat, errmsg)
    type(live_view), intent(in) :: view
    character(*), intent(in) :: name
    type(gpu_pipeline), intent(in) :: pipeline
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_published_pipeline(view%handle, c_text(name), pipeline_handle(pipeline)), 'publish_pipeline', &
      stat, errmsg)
  end subroutine

  ! The path of the socket.
  function live_view_path(view, stat, errmsg) result(path)
    type(live_view), intent(in) :: view
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(:), allocatable :: path
    type(onebuf_string) :: text
    integer(c_int32_t) :: status

    path = ''
    status = onebuf_published_path(view%handle, text)
    call report(status, 'live_view_path', stat, errmsg, returns=.true.)
    if (status == ONEBUF_OK) path = taken_text(text)
  end function

  ! Ends the live view.
  subroutine unpublish_gpu(view, stat, errmsg)
    type(live_view), intent(inout) :: view
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_published_free(view%handle), 'unpublish_gpu', stat, errmsg)
    view%handle%id = 0
  end subroutine
end module
