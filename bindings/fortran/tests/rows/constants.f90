! The numbers of the constants.
program constants
  use gpu_unified_buffers
  use checks, only: check
  implicit none
  integer, parameter :: modes(3) = [BUFFER_READ_ONLY, BUFFER_WRITE_ONLY, BUFFER_READ_WRITE]
  integer, parameter :: hints(4) = [MEMORY_CPU_PREFERRED, MEMORY_GPU_PREFERRED, MEMORY_COHERENT, MEMORY_STREAMING]

  call check(all(modes == [1, 2, 3]), 'modes')
  call check(all(hints == [1, 2, 3, 4]), 'hints')
  print '(a)', 'row constants works'
end program
