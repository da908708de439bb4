! A kernel in CUDA C and HIP C, on a driver of either: the source and its arguments arrive there. `cuda DEVICE`.
program cuda
  use, intrinsic :: iso_fortran_env, only: int32
  use gpu_unified_buffers
  use checks, only: check
  implicit none
  integer, parameter :: n = 256
  type(unified_buffer) :: b
  type(compute_program) :: program
  integer(int32) :: found(n), i
  integer :: stat
  character(64) :: device
  character(400) :: message

  call get_command_argument(1, device)
  call gpu_open(trim(device))
  b = create_unified_buffer(4*n, BUFFER_READ_WRITE)
  call write_buffer(b, [(i, i=1, n)])
  program = compile_compute_program('add', [BUFFER_READ_WRITE], cuda_c='add', hip_c='add', integers=1)
  call bind_buffer_to_shader(b, 0)
  call dispatch_compute(program, [n], integers=[5])
  call read_buffer(b, found)
  call check(all(found == [(i + 5, i=1, n)]), 'what the kernel added')
  ! Control: a program without a source for this device.
  program = compile_compute_program('add', [BUFFER_READ_WRITE], opencl_c='add', integers=1, stat=stat, errmsg=message)
  call check(stat /= 0 .and. .not. program_is_valid(program), 'no source for it: '//trim(message))
  call unbind_shader_buffers
  print '(2a)', 'sources work on ', gpu_device_name()
end program
