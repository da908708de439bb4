! After a failed creation the program goes on: if (.not. buffer_is_valid(buffer)) call use_copy_fallback().
program fallback
  use, intrinsic :: iso_c_binding, only: c_associated
  use, intrinsic :: iso_fortran_env, only: int64
  use gpu_unified_buffers
  use gpu_fence_primitives
  use checks, only: check
  implicit none
  type(unified_buffer) :: buffer
  type(compute_program) :: broken
  type(buffer_pool) :: pool
  type(gpu_fence) :: fence
  character(200) :: message
  logical :: fell_back

  fell_back = .false.
  buffer = create_unified_buffer(2_int64**62, BUFFER_READ_WRITE)
  if (.not. buffer_is_valid(buffer)) call use_copy_fallback()
  call check(fell_back, 'more memory than there is')
  buffer = create_unified_buffer(-4, BUFFER_READ_WRITE)
  call check(.not. buffer_is_valid(buffer), 'a negative size')
  buffer = create_unified_buffer(64, 99)
  call check(.not. buffer_is_valid(buffer), 'a wrong mode')
  if (.not. c_associated(get_cpu_pointer(buffer, 4))) fell_back = .true.
  broken = compile_compute_program('no', [BUFFER_READ_ONLY], opencl_c='kernel void', glsl='void')
  call check(.not. program_is_valid(broken), 'a program that does not build')
  pool = create_buffer_pool(-1)
  call check(.not. pool_is_valid(pool), 'a pool with a negative limit')
  fence = gpu_fence_create(device=7)
  call check(.not. gpu_fence_is_valid(fence), 'a device that is not open')
  call check(gpu_add_device('no such device') == 0, 'no such device')
  message = ''
  buffer = create_unified_buffer(0, BUFFER_READ_WRITE, errmsg=message)
  call check(index(message, 'at least one byte') > 0, 'the reason without stat=')
  print '(a)', 'row fallback works'

contains

  subroutine use_copy_fallback()
    fell_back = .true.
  end subroutine
end program
