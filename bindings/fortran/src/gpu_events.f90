! User events: OpenCL events that the CPU completes, so that work can be enqueued before its input is there.
module gpu_events
  use onebuf_c
  use gpu_errors, only: report, refuse, succeed, is_unused
  use gpu_session, only: session, need_device, c_text
  use gpu_fence_primitives, only: gpu_fence, set_fence, fence_handle
  implicit none
  private
  public :: user_event, create_user_event, complete_user_event, user_event_fence, user_event_cl_event, destroy_user_event
  public :: user_event_is_valid, gpu_wait_for_fence

  ! A user event, until destroy_user_event.
  type :: user_event
    private
    type(onebuf_user_event) :: handle
  end type

contains

  ! Creates an event in the context of a device, the first one without `device`; with `cl_context` in a context of the program.
  ! ONEBUF_UNSUPPORTED on devices of other APIs.
  subroutine create_user_event(event, stat, errmsg, device, cl_context)
    type(user_event), intent(inout) :: event
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    type(c_ptr), intent(in), optional :: cl_context
    character(*), parameter :: me = 'create_user_event'
    type(onebuf_context) :: context
    type(c_ptr) :: native
    integer(c_int32_t) :: status, ignored
    integer :: number

    if (.not. is_unused(event%handle%id, me, 'an event: destroy it first', stat, errmsg)) return
    number = need_device(me, device, stat, errmsg, returns=.false.)
    if (number == 0) return
    status = ONEBUF_OK
    if (present(cl_context)) then
      native = cl_context
    else
      status = onebuf_device_native(session%devices(number), c_text('cl_context'), native)
    end if
    if (status == ONEBUF_OK) status = onebuf_context_wrap(session%hub, native, context)
    if (status == ONEBUF_OK) then
      status = onebuf_user_event_create(context, event%handle)
      ignored = onebuf_context_free(context)
    end if
    call report(status, me, stat, errmsg)
  end subroutine

  ! Completes the event: what waits for it runs. Completing it twice has no effect.
  subroutine complete_user_event(event, stat, errmsg)
    type(user_event), intent(in) :: event
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_user_event_complete(event%handle), 'complete_user_event', stat, errmsg)
  end subroutine

  ! A fence that is reached when the event is completed: for gpu_wait_for_fence and foreign_writes_end_at.
  function user_event_fence(event, stat, errmsg) result(fence)
    type(user_event), intent(in) :: event
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(gpu_fence) :: fence
    type(onebuf_fence) :: handle
    integer(c_int32_t) :: status

    status = onebuf_user_event_fence(event%handle, handle)
    call report(status, 'user_event_fence', stat, errmsg, returns=.true.)
    if (status == ONEBUF_OK) call set_fence(fence, handle)
  end function

  ! The cl_event, for commands of the program; null on failure. Valid until destroy_user_event; no reference is added.
  function user_event_cl_event(event, stat, errmsg) result(cl_event)
    type(user_event), intent(in) :: event
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: cl_event
    type(c_ptr) :: found
    integer(c_int32_t) :: status

    cl_event = c_null_ptr
    status = onebuf_user_event_native(event%handle, found)
    call report(status, 'user_event_cl_event', stat, errmsg, returns=.true.)
    if (status == ONEBUF_OK) cl_event = found
  end function

  ! Destroys the event. If it was not completed, what waits for it fails; nothing waits forever.
  subroutine destroy_user_event(event, stat, errmsg)
    type(user_event), intent(inout) :: event
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_user_event_free(event%handle), 'destroy_user_event', stat, errmsg)
    event%handle%id = 0
  end subroutine

  ! Whether the variable holds an event.
  function user_event_is_valid(event, stat, errmsg) result(valid)
    type(user_event), intent(in) :: event
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: valid

    valid = event%handle%id /= 0
    call succeed(stat, errmsg)
  end function

  ! Later dispatches on the device, the first one without `device`, run after the fence. The CPU does not wait where the driver can.
  subroutine gpu_wait_for_fence(fence, stat, errmsg, device)
    type(gpu_fence), intent(in) :: fence
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    character(*), parameter :: me = 'gpu_wait_for_fence'
    integer :: number

    number = need_device(me, device, stat, errmsg, returns=.false.)
    if (number == 0) return
    call report(onebuf_queue_wait_for(session%queues(number), fence_handle(fence), c_null_ptr), me, stat, errmsg)
  end subroutine
end module
