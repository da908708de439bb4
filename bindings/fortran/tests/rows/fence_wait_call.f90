! call gpu_fence_wait(fence, timeout_ns), as a subroutine: use gpu_fence_calls. A scope inside may still use the function.
program fence_wait_call
  use, intrinsic :: iso_fortran_env, only: int64
  use gpu_unified_buffers
  use gpu_fence_calls
  use checks, only: check
  implicit none
  type(gpu_fence) :: f, none
  integer :: answer, stat
  character(200) :: message

  f = gpu_fence_create()
  call gpu_fence_wait(f, 1000000000)
  call gpu_fence_wait(f, 10000000000_int64)
  call gpu_fence_wait(f, 1000000000, answer)
  call check(answer == FENCE_READY, 'an answer')
  call gpu_fence_wait(none, 1, answer)
  call check(answer == FENCE_ERROR, 'no fence, with an answer')
  call gpu_fence_wait(none, 1, stat=stat, errmsg=message)
  call check(stat == ONEBUF_INVALID_HANDLE .and. index(message, 'no fence') > 0, 'no fence: '//trim(message))
  call check(inner(f) == FENCE_READY, 'the function')
  print '(a)', 'row fence_wait_call works'

contains

  integer function inner(fence)
    use gpu_fence_primitives, only: gpu_fence_wait
    type(gpu_fence), intent(in) :: fence

    inner = gpu_fence_wait(fence, 1000000000)
  end function
end program
