! buffer_is_valid(buffer), gpu_fence_is_valid(fence): logical functions.
program valid
  use gpu_unified_buffers
  use gpu_fence_primitives
  use checks, only: check
  implicit none
  type(unified_buffer) :: b
  type(gpu_fence) :: f
  logical :: yes

  yes = buffer_is_valid(b)
  call check(.not. yes, 'no buffer')
  yes = gpu_fence_is_valid(f)
  call check(.not. yes, 'no fence')
  b = create_unified_buffer(64, BUFFER_READ_WRITE)
  call check(buffer_is_valid(b), 'a buffer')
  f = gpu_fence_create()
  if (.not. gpu_fence_is_valid(f)) error stop 'a fence'
  call gpu_fence_destroy(f)
  call check(.not. gpu_fence_is_valid(f), 'destroyed')
  print '(a)', 'row valid works'
end program
