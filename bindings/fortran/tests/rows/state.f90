! The buffer's own state, by accessor functions: GL name, persistent pointer, size, mode, hint, mapped, coherent, read and write fence.
program state
  use, intrinsic :: iso_c_binding, only: c_associated, c_ptr
  use, intrinsic :: iso_fortran_env, only: int64, real32
  use gpu_unified_buffers
  use gpu_fence_primitives
  use gain, only: gain_program
  use checks, only: check
  implicit none
  integer, parameter :: n = 1024
  type(unified_buffer) :: input, output, none
  type(compute_program) :: program
  type(gpu_fence) :: reads, writes
  type(c_ptr) :: address

  input = create_unified_buffer(4*n, BUFFER_WRITE_ONLY, MEMORY_STREAMING)
  output = create_unified_buffer(4*n, BUFFER_READ_ONLY, MEMORY_CPU_PREFERRED)
  call check(buffer_size_bytes(input) == 4*n, 'the size')
  call check(buffer_access_mode(input) == BUFFER_WRITE_ONLY, 'the mode')
  call check(buffer_access_mode(output) == BUFFER_READ_ONLY, 'the mode')
  call check(buffer_memory_hint(input) == MEMORY_STREAMING, 'the hint')
  call check(buffer_memory_hint(output) == MEMORY_CPU_PREFERRED, 'the hint')
  call check((buffer_gl_name(input) /= 0) .eqv. (index(gpu_device_name(), 'gl:') == 1), 'the name in OpenGL')
  call check(.not. buffer_is_mapped(input), 'not mapped yet')
  call check(.not. c_associated(buffer_persistent_pointer(input)), 'no pointer yet')
  address = get_cpu_pointer(input, 4)
  call check(buffer_is_mapped(input), 'mapped')
  call check(c_associated(buffer_persistent_pointer(input), address), 'the pointer')
  if (gpu_device_name() == 'host') call check(buffer_is_coherent(input), 'the host is coherent with itself')
  if (index(explain_buffer(input), 'fine_svm') > 0) call check(buffer_is_coherent(input), 'fine-grained SVM is')
  if (index(gpu_device_name(), 'gl:') == 1) call check(.not. buffer_is_coherent(input), 'a mapped OpenGL buffer is not')

  program = gain_program()
  call bind_buffer_to_shader(input, 0)
  call bind_buffer_to_shader(output, 1)
  call dispatch_compute(program, [n], integers=[n], reals=[1.0_real32])
  call check(.not. buffer_is_mapped(input), 'the dispatch took it')
  reads = buffer_read_fence(input)
  writes = buffer_write_fence(output)
  call check(gpu_fence_is_valid(reads), 'fences of the last uses')
  call check(gpu_fence_is_valid(writes), 'fences of the last uses')
  call check(gpu_fence_wait(reads, 10000000000_int64) == FENCE_READY, 'it was read')
  call check(gpu_fence_wait(writes, 10000000000_int64) == FENCE_READY, 'it was written')

  call check(buffer_size_bytes(none) == 0, 'no buffer')
  call check(buffer_gl_name(none) == 0, 'no buffer')
  call check(.not. buffer_is_mapped(none), 'no buffer is not mapped')
  call check(.not. buffer_is_coherent(none), 'no buffer is not mapped')
  call check(.not. gpu_fence_is_valid(buffer_read_fence(none)), 'no buffer has no fence')
  print '(a)', 'row state works'
end program
