! The names of gpu_fence_primitives, with gpu_fence_wait as a subroutine: `call gpu_fence_wait(fence, timeout_ns)`. A generic name has only
! functions or only subroutines, so a scope uses this module or the other one.
module gpu_fence_calls
  use, intrinsic :: iso_fortran_env, only: int32, int64
  use onebuf_c, only: ONEBUF_OK
  use gpu_errors, only: refuse
  use gpu_fence_primitives, only: gpu_fence, gpu_fence_create, gpu_fence_is_valid, gpu_fence_is_signaled, &
    gpu_fence_destroy, FENCE_READY, FENCE_TIMEOUT, FENCE_ERROR, waited => gpu_fence_wait
  implicit none
  private
  public :: gpu_fence, gpu_fence_create, gpu_fence_is_valid, gpu_fence_is_signaled
  public :: gpu_fence_wait, gpu_fence_destroy
  public :: FENCE_READY, FENCE_TIMEOUT, FENCE_ERROR

  interface gpu_fence_wait
    module procedure wait_int32, wait_int64
  end interface

contains

  ! Waits for at most this many nanoseconds. `answer` is what the function returns. A timeout or failure stops the program if neither
  ! `answer` nor stat= is given.
  subroutine wait_int64(fence, timeout_ns, answer, stat, errmsg)
    type(gpu_fence), intent(in) :: fence
    integer(int64), intent(in) :: timeout_ns
    integer, intent(out), optional :: answer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(400) :: message
    integer :: found, code

    message = ''
    found = waited(fence, timeout_ns, code, message)
    if (present(answer)) answer = found
    if (code == ONEBUF_OK .or. (present(answer) .and. .not. present(stat))) then
      if (present(stat)) stat = 0
      if (present(errmsg) .and. code /= ONEBUF_OK) errmsg = message
    else
      call refuse(int(code, kind(ONEBUF_OK)), trim(message), stat, errmsg)
    end if
  end subroutine

  subroutine wait_int32(fence, timeout_ns, answer, stat, errmsg)
    type(gpu_fence), intent(in) :: fence
    integer(int32), intent(in) :: timeout_ns
    integer, intent(out), optional :: answer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call wait_int64(fence, int(timeout_ns, int64), answer, stat, errmsg)
  end subroutine
end module
