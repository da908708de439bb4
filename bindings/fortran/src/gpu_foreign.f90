! OpenCL objects that the program or a library created, used with buffers of these modules. Native handles are type(c_ptr).
module gpu_foreign
  use onebuf_c
  use gpu_errors, only: report
  use gpu_session, only: session, need_session
  use gpu_fence_primitives, only: gpu_fence, set_fence, fence_handle
  use gpu_buffer_core, only: unified_buffer, buffer_handle, give_buffer, mode_exists
  implicit none
  private
  public :: wrap_cl_buffer, wrap_cl_event, foreign_writes_end_at, hand_to_cl_queue
  public :: wrap_options, hand_to_queue

contains

  ! Wraps a cl_mem without a copy, for the open devices. onebuf adds one reference, and releases that one with the buffer. Do not use the
  ! cl_mem while kernels or the CPU use the buffer: see foreign_writes_end_at and hand_to_cl_queue.
  function wrap_cl_buffer(cl_mem, access_mode, stat, errmsg) result(buffer)
    type(c_ptr), intent(in) :: cl_mem
    integer, intent(in) :: access_mode
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(unified_buffer) :: buffer
    character(*), parameter :: me = 'wrap_cl_buffer'
    type(onebuf_buffer) :: handle
    integer(c_int32_t) :: status

    if (.not. mode_exists(me, access_mode, stat, errmsg, returns=.true.)) return
    call need_session(stat, errmsg, returns=.true.)
    if (session%hub%id == 0) return
    status = onebuf_buffer_wrap(session%hub, cl_mem, wrap_options(), handle)
    call give_buffer(buffer, handle, access_mode, status, me, stat, errmsg)
  end function

  ! A cl_event as a fence. onebuf adds one reference.
  function wrap_cl_event(cl_event, stat, errmsg) result(fence)
    type(c_ptr), intent(in) :: cl_event
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(gpu_fence) :: fence
    type(onebuf_fence) :: handle

    call need_session(stat, errmsg, returns=.true.)
    if (session%hub%id == 0) return
    call report(onebuf_fence_wrap(session%hub, cl_event, handle), 'wrap_cl_event', stat, errmsg, returns=.true.)
    call set_fence(fence, handle)
  end function

  ! Other code's writes to a wrapped buffer end at the fence: the next user of the buffer waits for it.
  subroutine foreign_writes_end_at(buffer, fence, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    type(gpu_fence), intent(in) :: fence
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(c_int32_t) :: status

    status = onebuf_buffer_to_device(buffer_handle(buffer))
    if (status == ONEBUF_OK) status = onebuf_buffer_written_until(buffer_handle(buffer), fence_handle(fence))
    call report(status, 'foreign_writes_end_at', stat, errmsg)
  end subroutine

  ! Makes the newest contents visible on a cl_command_queue, and orders it after all work on the buffer: for commands that the caller
  ! enqueues there.
  subroutine hand_to_cl_queue(buffer, cl_queue, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    type(c_ptr), intent(in) :: cl_queue
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(onebuf_queue) :: queue
    integer(c_int32_t) :: status

    status = onebuf_queue_wrap(session%hub, cl_queue, queue)
    call hand_to_queue(buffer, queue, status, 'hand_to_cl_queue', stat, errmsg)
  end subroutine

  ! --- For the other modules --------------------------------------------------------------------------------------------

  ! Makes the newest contents visible on a queue of the program that was just wrapped, and frees the wrapper. `wrapped` is the status of
  ! wrapping it.
  subroutine hand_to_queue(buffer, queue, wrapped, me, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    type(onebuf_queue), intent(in) :: queue
    integer(c_int32_t), intent(in) :: wrapped
    character(*), intent(in) :: me
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(c_int32_t) :: status, ignored

    status = wrapped
    if (status == ONEBUF_OK) then
      status = onebuf_buffer_to_device(buffer_handle(buffer))
      if (status == ONEBUF_OK) status = onebuf_buffer_hand_to(buffer_handle(buffer), queue, c_null_ptr)
      ignored = onebuf_queue_free(queue)
    end if
    call report(status, me, stat, errmsg)
  end subroutine

  ! The options of a wrapped object that all open devices use.
  function wrap_options() result(options)
    type(onebuf_wrap_options) :: options

    options%size = int(storage_size(options)/8, c_size_t)
    options%devices = c_loc(session%devices)
    options%device_count = int(session%open_count, c_size_t)
  end function
end module
