! Fences: points that the device's work reaches. Query them, or wait with a timeout.
module gpu_fence_primitives
  use, intrinsic :: iso_fortran_env, only: int32, int64
  use onebuf_c
  use gpu_errors, only: report
  use gpu_session, only: session, need_session
  implicit none
  private
  public :: gpu_fence, gpu_fence_create, gpu_fence_is_valid, gpu_fence_is_signaled
  public :: gpu_fence_wait, gpu_fence_destroy
  public :: FENCE_READY, FENCE_TIMEOUT, FENCE_ERROR

  ! The results of gpu_fence_wait.
  integer, parameter :: FENCE_READY = 0
  integer, parameter :: FENCE_TIMEOUT = 1
  integer, parameter :: FENCE_ERROR = 2

  ! Assigned variables share the fence; it is freed with the last of them.
  type :: gpu_fence
    type(onebuf_handle) :: handle
  contains
    procedure, private :: assign
    generic :: assignment(=) => assign
    final :: finish
  end type

  interface gpu_fence_wait
    module procedure wait_int32, wait_int64
  end interface

contains

  ! A fence that everything dispatched so far will reach.
  function gpu_fence_create(stat, errmsg) result(fence)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(gpu_fence) :: fence

    call need_session(stat, errmsg)
    if (session%hub%id == 0) return
    call report(onebuf_queue_fence(session%queue, fence%handle), 'gpu_fence_create', stat, errmsg)
  end function

  ! Whether the variable holds a fence.
  function gpu_fence_is_valid(fence) result(valid)
    type(gpu_fence), intent(in) :: fence
    logical :: valid
    logical(c_bool) :: done
    integer(c_int32_t) :: status

    status = ONEBUF_INVALID_HANDLE
    if (fence%handle%id /= 0) status = onebuf_fence_poll(fence%handle, done)
    ! The fence of work that failed is valid, too.
    valid = status /= ONEBUF_INVALID_HANDLE
  end function

  ! Whether the work is done.
  function gpu_fence_is_signaled(fence, stat, errmsg) result(signaled)
    type(gpu_fence), intent(in) :: fence
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: signaled
    logical(c_bool) :: done

    done = .false.
    call report(onebuf_fence_poll(fence%handle, done), 'gpu_fence_is_signaled', stat, errmsg)
    signaled = logical(done)
  end function

  ! Waits for at most this many nanoseconds: FENCE_READY, FENCE_TIMEOUT (the work continues), or FENCE_ERROR, with
  ! details in stat and errmsg. Never stops the program.
  function wait_int64(fence, timeout_ns, stat, errmsg) result(answer)
    type(gpu_fence), intent(in) :: fence
    integer(int64), intent(in) :: timeout_ns
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer :: answer
    integer(c_int32_t) :: status
    integer :: told

    status = onebuf_fence_wait_ns(fence%handle, max(timeout_ns, 0_int64))
    call report(status, 'gpu_fence_wait', told, errmsg)
    if (present(stat)) stat = told
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
  subroutine gpu_fence_destroy(fence)
    type(gpu_fence), intent(inout), target :: fence

    call report(onebuf_own(c_loc(fence%handle%id), 0_c_int64_t), 'gpu_fence_destroy')
    fence%handle%id = 0
  end subroutine

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
