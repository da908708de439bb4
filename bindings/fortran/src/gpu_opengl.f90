! OpenGL objects of the program: its current context becomes a device, its buffers are wrapped, and it binds buffers of these modules in
! its own shaders.
module gpu_opengl
  use, intrinsic :: iso_fortran_env, only: int64
  use onebuf_c
  use gpu_errors, only: report, refuse, succeed, is_unused
  use gpu_session, only: session, need_session, adopt_device
  use gpu_fence_primitives, only: gpu_fence, set_fence
  use gpu_buffer_core, only: unified_buffer, buffer_handle, give_buffer, mode_exists
  use gpu_foreign, only: wrap_options
  implicit none
  private
  public :: gl_context, wrap_gl_context, release_gl_context, gl_context_is_valid, gpu_add_gl_context
  public :: wrap_gl_buffer, gl_buffer_bytes, gl_fence, hand_to_gl

  ! A context of the program, until release_gl_context. All calls are made on the thread on which it is current.
  type :: gl_context
    private
    type(onebuf_gl) :: handle
    type(onebuf_queue) :: queue
  end type

contains

  ! Registers the OpenGL context that is current on this thread. It was created with EGL, and lives longer than everything made with it.
  subroutine wrap_gl_context(context, stat, errmsg)
    type(gl_context), intent(inout) :: context
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'wrap_gl_context'
    integer(c_int32_t) :: status, ignored

    if (.not. is_unused(context%handle%id, me, 'a context: release it first', stat, errmsg)) return
    call need_session(stat, errmsg)
    if (session%hub%id == 0) return
    status = onebuf_gl_wrap(session%hub, context%handle)
    if (status == ONEBUF_OK) status = onebuf_gl_queue(context%handle, context%queue)
    call report(status, me, stat, errmsg)
    if (status == ONEBUF_OK) return
    ignored = onebuf_gl_free(context%handle)
    context%handle%id = 0
  end subroutine

  ! Ends the registration. Buffers made with it stay usable.
  subroutine release_gl_context(context, stat, errmsg)
    type(gl_context), intent(inout) :: context
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(c_int32_t) :: ignored

    ignored = onebuf_queue_free(context%queue)
    call report(onebuf_gl_free(context%handle), 'release_gl_context', stat, errmsg)
    context%queue%id = 0
    context%handle%id = 0
  end subroutine

  ! Whether the variable holds a context.
  function gl_context_is_valid(context, stat, errmsg) result(valid)
    type(gl_context), intent(in) :: context
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: valid

    valid = context%handle%id /= 0
    call succeed(stat, errmsg)
  end function

  ! Opens the context as a device, and returns its number; 0 on failure. Buffers created from now on have a name in it (open_buffer_view
  ! with this device, then view_gl_name), and programs can be compiled for it: their dispatches are made between the program's own calls.
  function gpu_add_gl_context(context, stat, errmsg) result(number)
    type(gl_context), intent(in) :: context
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer :: number
    character(*), parameter :: me = 'gpu_add_gl_context'
    type(onebuf_device) :: device
    type(onebuf_queue) :: queue
    integer(c_int32_t) :: status, ignored

    number = 0
    status = onebuf_gl_device(context%handle, device)
    if (status == ONEBUF_OK) status = onebuf_gl_queue(context%handle, queue)
    call report(status, me, stat, errmsg, returns=.true.)
    if (status /= ONEBUF_OK) return
    number = adopt_device(device, queue)
    if (number > 0) return
    ignored = onebuf_queue_free(queue)
    call refuse(ONEBUF_INVALID_ARGUMENT, me//': at most 8 devices are open at a time', stat, errmsg, returns=.true.)
  end function

  ! Wraps an OpenGL buffer of the program without a copy. Its earlier commands on the buffer are waited for. The buffer is not deleted,
  ! reallocated or mapped while it is wrapped.
  function wrap_gl_buffer(context, name, access_mode, stat, errmsg) result(buffer)
    type(gl_context), intent(in) :: context
    integer, intent(in) :: name
    integer, intent(in) :: access_mode
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(unified_buffer) :: buffer
    character(*), parameter :: me = 'wrap_gl_buffer'
    type(onebuf_wrap_options) :: options
    type(onebuf_fence), target :: before(1)
    type(onebuf_buffer) :: handle
    integer(c_int32_t) :: status, ignored

    if (.not. mode_exists(me, access_mode, stat, errmsg, returns=.true.)) return
    status = onebuf_queue_fence(context%queue, before(1))
    if (status == ONEBUF_OK) then
      options = wrap_options()
      options%after = c_loc(before)
      options%after_count = 1
      status = onebuf_buffer_wrap_gl(context%handle, int(name, c_int32_t), options, handle)
    end if
    call give_buffer(buffer, handle, access_mode, status, me, stat, errmsg)
    ignored = onebuf_fence_free(before(1))
  end function

  ! The size of an OpenGL buffer of the program; zero on failure.
  function gl_buffer_bytes(context, name, stat, errmsg) result(bytes)
    type(gl_context), intent(in) :: context
    integer, intent(in) :: name
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(int64) :: bytes
    type(onebuf_gl_buffer_info) :: info

    info%size = int(storage_size(info)/8, c_size_t)
    call report(onebuf_gl_buffer_query(context%handle, int(name, c_int32_t), info), 'gl_buffer_bytes', stat, errmsg, &
      returns=.true.)
    bytes = int(info%bytes, int64)
  end function

  ! A fence that the program's OpenGL commands so far will reach: for foreign_writes_end_at.
  function gl_fence(context, stat, errmsg) result(fence)
    type(gl_context), intent(in) :: context
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(gpu_fence) :: fence
    type(onebuf_fence) :: handle
    integer(c_int32_t) :: status

    status = onebuf_queue_fence(context%queue, handle)
    call report(status, 'gl_fence', stat, errmsg, returns=.true.)
    if (status == ONEBUF_OK) call set_fence(fence, handle)
  end function

  ! Makes the newest contents visible to the OpenGL commands that the program calls next in its context.
  subroutine hand_to_gl(buffer, context, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    type(gl_context), intent(in) :: context
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(c_int32_t) :: status

    status = onebuf_buffer_to_device(buffer_handle(buffer))
    if (status == ONEBUF_OK) status = onebuf_buffer_hand_to(buffer_handle(buffer), context%queue, c_null_ptr)
    call report(status, 'hand_to_gl', stat, errmsg)
  end subroutine
end module
