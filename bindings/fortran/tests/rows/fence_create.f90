! gpu_fence_create(): a type(gpu_fence).
program fence_create
  use gpu_unified_buffers
  use gpu_fence_primitives
  use checks, only: check
  implicit none
  type(gpu_fence) :: f, copy

  f = gpu_fence_create()
  copy = f
  call check(gpu_fence_is_valid(f), 'a fence and its copy')
  call check(gpu_fence_is_valid(copy), 'a fence and its copy')
  print '(a)', 'row fence_create works'
end program
