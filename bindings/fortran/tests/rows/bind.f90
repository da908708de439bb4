! bind_buffer_to_shader(buffer, binding), and a program's own gpu_compute: 0 is the input, 1 the output.
program bind
  use, intrinsic :: iso_fortran_env, only: real32
  use gpu_unified_buffers
  use gain, only: gain_program
  use checks, only: check
  implicit none
  integer, parameter :: n = 1024
  real(real32), allocatable :: x(:), y(:)
  type(unified_buffer) :: input, output
  type(compute_program) :: program

  allocate (x(n), y(n))
  program = gain_program()
  input = create_unified_buffer(4*n, BUFFER_WRITE_ONLY)
  output = create_unified_buffer(4*n, BUFFER_READ_ONLY)
  x = 5
  y = 0
  call write_buffer(input, x)
  call bind_buffer_to_shader(input, 0)
  call bind_buffer_to_shader(output, binding=1)
  call read_buffer(output, y)
  call check(all(abs(y) <= 0), 'before it ran')
  call gpu_compute()
  call read_buffer(output, y)
  call check(all(abs(y - 10) <= 0), 'what the kernel wrote')
  print '(a)', 'row bind works'

contains

  ! The name is free for the program.
  subroutine gpu_compute()
    call dispatch_compute(program, [n], integers=[n], reals=[2.0_real32])
  end subroutine
end program
