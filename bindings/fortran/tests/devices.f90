! Several devices: kernels on each take turns on the same buffers. `devices FIRST SECOND`.
program devices
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32
  use gpu_unified_buffers
  use gpu_fence_primitives
  use gain, only: gain_program
  use checks, only: check
  implicit none
  integer, parameter :: n = 4096
  character(64) :: names(2)
  type(unified_buffer) :: a, b
  type(compute_program) :: there, back
  type(gpu_fence) :: fence
  real(real32) :: x(n)
  integer :: second, round, stat
  character(200) :: message

  call get_command_argument(1, names(1))
  call get_command_argument(2, names(2))
  call gpu_open(trim(names(1)))
  second = gpu_add_device(trim(names(2)))
  call check(second == 2, 'the number of the second')
  call check(gpu_add_device(trim(names(2))) == 2, 'added twice is added once')
  call check(gpu_add_device(trim(names(1))) == 1, 'the first has number 1')
  call check(gpu_device_count() == 2, 'two devices')
  call check(gpu_device_name() == names(1), 'the name of the first')
  call check(gpu_device_name(second) == names(2), 'the name of the second')
  call check(gpu_device_name(3, stat, message) == '', 'there is no third')
  call check(stat == ONEBUF_INVALID_ARGUMENT .and. index(message, 'gpu_add_device') > 0, 'and the message says so')
  call check(index(explain_devices(), trim(names(2))//': ') > 0, 'all devices')

  a = create_unified_buffer(4*n, BUFFER_READ_WRITE)
  b = create_unified_buffer(4_int64*n, BUFFER_READ_WRITE)
  there = gain_program()
  back = gain_program(device=second)
  x = 1
  call write_buffer(a, x)
  do round = 1, 4
    call run(there, a, b, 2.0_real32)
    call run(back, b, a, 3.0_real32, fence)
    call check(gpu_fence_wait(fence, 60000000000_int64) == FENCE_READY, 'the second has done it')
  end do
  call read_buffer(a, x)
  call check(all(abs(x - 6.0**4) <= 0), 'both took their turns')
  fence = gpu_fence_create(device=second)
  call check(gpu_fence_wait(fence, 60000000000_int64) == FENCE_READY, 'everything on the second')
  call unbind_shader_buffers
  call gpu_close
  call check(gpu_device_count() == 0, 'closed')
  print '(4a)', 'devices take turns: ', trim(names(1)), ' and ', trim(names(2))

contains

  subroutine run(program, from, to, by, fence)
    type(compute_program), intent(in) :: program
    type(unified_buffer), intent(in) :: from, to
    real(real32), intent(in) :: by
    type(gpu_fence), intent(inout), optional :: fence

    call bind_buffer_to_shader(from, 0)
    call bind_buffer_to_shader(to, 1)
    call dispatch_compute(program, [n], integers=[n], reals=[by], fence=fence)
  end subroutine
end program
