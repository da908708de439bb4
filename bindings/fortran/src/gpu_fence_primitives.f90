! Fences: points that the device's work reaches. Query them, or wait with a timeout. In this module gpu_fence_wait is a function; in
! gpu_fence_calls it is a subroutine.
module gpu_fence_primitives
  use, intrinsic :: iso_fortran_env, only: int32, int64
  use onebuf_c
  use gpu_errors, only: report, succeed
  use gpu_session, only: session, need_device
  implicit none
  private
  public :: gpu_fence, gpu_fence_create, gpu_fence_is_valid, gpu_fence_is_signaled
  public :: gpu_fence_wait, gpu_fence_destroy
  public :: FENCE_READY, FENCE_TIMEOUT, FENCE_ERROR
  public :: set_fence, adopt_fence, fence_handle

  ! The results of gpu_fence_wait.
  integer, parameter :: FENCE_READY = 0
  integer, parameter :: FENCE_TIMEOUT = 1
  integer, parameter :: FENCE_ERROR = 2

  ! Assigned variables share the fence; it is freed with the last of them.
  type :: gpu_fence
    private
    type(onebuf_fence) :: handle
  contains
    procedure, private :: assign
    generic :: assignment(=) => assign
    final :: finish
  end type

  interface gpu_fence_wait
    module procedure wait_int32, wait_int64
  end interface

contains

  ! A fence that everything dispatched so far will reach, on the first device or on the given one.
  function gpu_fence_create(stat, errmsg, device) result(fence)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    type(gpu_fence) :: fence
    integer :: number

    number = need_device('gpu_fence_create', device, stat, errmsg, returns=.true.)
    if (number == 0) return
    call report(onebuf_queue_fence(session%queues(number), fence%handle), 'gpu_fence_create', stat, errmsg, &
      returns=.true.)
  end function

  ! Whether the variable holds a fence.
  function gpu_fence_is_valid(fence, stat, errmsg) result(valid)
    type(gpu_fence), intent(in) :: fence
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: valid
    logical(c_bool) :: done
    integer(c_int32_t) :: status

    status = ONEBUF_INVALID_HANDLE
    if (fence%handle%id /= 0) status = onebuf_fence_poll(fence%handle, done)
    ! The fence of work that failed is valid, too.
    valid = status /= ONEBUF_INVALID_HANDLE
    call succeed(stat, errmsg)
  end function

  ! Whether the work is done.
  function gpu_fence_is_signaled(fence, stat, errmsg) result(signaled)
    type(gpu_fence), intent(in) :: fence
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: signaled
    logical(c_bool) :: done

    done = .false.
    call report(onebuf_fence_poll(fence%handle, done), 'gpu_fence_is_signaled', stat, errmsg, returns=.true.)
    signaled = logical(done)
  end function

  ! Waits for at most this many nanoseconds: FENCE_READY, FENCE_TIMEOUT (the work continues), or FENCE_ERROR, with
  ! details in stat and errmsg. Prints nothing, and never stops the program.
  function wait_int64(fence, timeout_ns, stat, errmsg) result(answer)
    type(gpu_fence), intent(in) :: fence
    integer(int64), intent(in) :: timeout_ns
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer :: answer
    integer(c_int32_t) :: status
    integer :: code

    status = onebuf_fence_wait_ns(fence%handle, max(timeout_ns, 0_int64))
    call report(status, 'gpu_fence_wait', code, errmsg)
    if (present(stat)) stat = code
    answer = FENCE_ERROR
    if (status == ONEBUF_OK) answer = FENCE_READY
    if (status == ONEBUF_TIMEOUT) answer = FENCE_TIMEOUT
  end function

  function wait_int32(fence, timeout_ns, stat, errmsg) result(answer)
    type(gpu_fence), intent(in) :: fence
    integer(int32), intent(in) :: timeout_ns
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer :: answer

    answer = wait_int64(fence, int(timeout_ns, int64), stat, errmsg)
  end function

  ! Releases the fence. The work continues.
  subroutine gpu_fence_destroy(fence, stat, errmsg)
    type(gpu_fence), intent(inout), target :: fence
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_own(c_loc(fence%handle%id), 0_c_int64_t), 'gpu_fence_destroy', stat, errmsg)
    fence%handle%id = 0
  end subroutine

  ! --- For the other modules --------------------------------------------------------------------------------------------

  ! Names a fence in a function's result, which gets an owner when it is assigned.
  subroutine set_fence(fence, handle)
    type(gpu_fence), intent(inout) :: fence
    type(onebuf_fence), intent(in) :: handle

    fence%handle = handle
  end subroutine

  ! Makes the variable the owner of a new fence.
  function adopt_fence(fence, handle) result(status)
    type(gpu_fence), intent(inout), target :: fence
    type(onebuf_fence), intent(in) :: handle
    integer(c_int32_t) :: status

    fence%handle = handle
    status = onebuf_own(c_loc(fence%handle%id), handle%id)
  end function

  pure function fence_handle(fence) result(handle)
    type(gpu_fence), intent(in) :: fence
    type(onebuf_fence) :: handle

    handle = fence%handle
  end function

  ! The comment on unified_buffer explains why this is sufficient.
  impure elemental subroutine assign(to, from)
    class(gpu_fence), intent(out), target :: to
    class(gpu_fence), intent(in) :: from

    call report(onebuf_own(c_loc(to%handle%id), from%handle%id), 'assigning a gpu_fence')
    to%handle = from%handle
  end subroutine

  impure elemental subroutine finish(fence)
    type(gpu_fence), intent(inout), target :: fence

    call report(onebuf_disown(c_loc(fence%handle%id)), 'ending a gpu_fence')
  end subroutine
end module
