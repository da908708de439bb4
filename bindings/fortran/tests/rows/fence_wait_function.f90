! gpu_fence_wait(fence, timeout_ns) as a function: use gpu_fence_primitives.
program fence_wait_function
  use, intrinsic :: iso_fortran_env, only: int64
  use gpu_unified_buffers
  use gpu_fence_primitives
  use checks, only: check
  implicit none
  type(gpu_fence) :: f, none
  integer :: answer

  f = gpu_fence_create()
  answer = gpu_fence_wait(f, 1000000000)
  call check(answer == FENCE_READY, 'a default integer')
  if (gpu_fence_wait(f, 10000000000_int64) /= FENCE_READY) error stop 'an int64'
  call check(gpu_fence_wait(none, 1) == FENCE_ERROR, 'no fence')
  print '(a)', 'row fence_wait_function works'
end program
