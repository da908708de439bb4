! Scalars of 32 and 64 bits and local memory, in any order among the buffers.
program arguments
  use, intrinsic :: iso_fortran_env
  use gpu_unified_buffers
  use checks, only: check
  implicit none
  character(*), parameter :: nl = new_line('a')
  character(*), parameter :: mixed_cl = &
    'kernel void mixed(long a, global long *y, float b, int c, global const long *x, long d) {'//nl// &
    '  int i = get_global_id(0);'//nl// &
    '  y[i] = x[i] * a + (long)b + c + d;'//nl// &
    '}'
  character(*), parameter :: sum_cl = &
    'kernel void sums(global const int *x, local int *part, global int *y) {'//nl// &
    '  int i = get_local_id(0), n = get_local_size(0);'//nl// &
    '  part[i] = x[get_global_id(0)];'//nl// &
    '  barrier(CLK_LOCAL_MEM_FENCE);'//nl// &
    '  if (i == 0) { int s = 0; for (int j = 0; j < n; j++) s += part[j]; y[get_group_id(0)] = s; }'//nl// &
    '}'
  integer, parameter :: n = 256, g = 64
  integer(int64), parameter :: big = 10000000000_int64
  character(64) :: device

  call get_command_argument(1, device)
  call gpu_open(trim(device))
  call mixed
  call wrong
  call local
  print '(2a)', 'arguments work on ', gpu_device_name()

contains

  function mixed_program() result(program)
    type(compute_program) :: program

    program = compile_compute_program('mixed', &
      [ARG_INT64, BUFFER_READ_WRITE, ARG_REAL32, ARG_INT32, BUFFER_WRITE_ONLY, ARG_INT64], opencl_c=mixed_cl, &
      cuda_c='not for this device', hip_c='nor this')
  end function

  subroutine mixed
    type(unified_buffer) :: x, y
    integer(int64) :: found(n), i

    y = create_unified_buffer(8*n, BUFFER_READ_WRITE)
    x = create_unified_buffer(8*n, BUFFER_WRITE_ONLY)
    call write_buffer(x, [(i, i=1, int(n, int64))])
    call bind_buffer_to_shader(y, 0)
    call bind_buffer_to_shader(x, 1)
    call dispatch_compute(mixed_program(), [n], arguments=[kernel_argument(big), kernel_argument(3.0_real32), &
      kernel_argument(20_int32), kernel_argument(4000000000_int64)])
    call read_buffer(y, found)
    call check(all(found == [(i*big + 4000000023_int64, i=1, int(n, int64))]), 'mixed values')
    call dispatch_compute(mixed_program(), [int(n, int64)], arguments=[kernel_argument(-1_int64), &
      kernel_argument(0.0_real32), kernel_argument(0), kernel_argument(0_int64)], group=[g])
    call read_buffer(y, found)
    call check(all(found == [(-i, i=1, int(n, int64))]), 'int64 work-items')
    call dispatch_compute(mixed_program(), [n], group=[int(g, int64)], arguments=[kernel_argument(0_int64), &
      kernel_argument(1.0_real32), kernel_argument(1), kernel_argument(1_int64)])
    call read_buffer(y, found)
    call check(all(found == 3), 'an int64 group')
  end subroutine

  subroutine wrong
    type(compute_program) :: program
    integer :: stat
    character(300) :: message

    program = mixed_program()
    call dispatch_compute(program, [n], stat=stat, errmsg=message)
    call check(index(message, 'argument 1 is missing: an integer(int64)') > 0, trim(message))
    call dispatch_compute(program, [n], arguments=[kernel_argument(1)], stat=stat, errmsg=message)
    call check(index(message, 'argument 1 is an integer(int32) where the program has an integer(int64)') > 0, trim(message))
    call dispatch_compute(program, [n], arguments=[kernel_argument(1_int64), kernel_argument(1.0_real64)], stat=stat, &
      errmsg=message)
    call check(index(message, 'argument 3 is a real(real64) where the program has a real(real32)') > 0, trim(message))
    call dispatch_compute(program, [n], arguments=[kernel_argument(1_int64), kernel_argument(1.0_real32), &
      kernel_argument(1), kernel_argument(1_int64), kernel_argument(1)], stat=stat, errmsg=message)
    call check(index(message, '5 values for a program with 4 of them') > 0, trim(message))
  end subroutine

  subroutine local
    type(unified_buffer) :: x, y
    type(compute_program) :: program
    integer :: found(n/g), i, stat
    character(300) :: message

    x = create_unified_buffer(4*n, BUFFER_WRITE_ONLY)
    y = create_unified_buffer(4*n/g, BUFFER_READ_ONLY)
    program = compile_compute_program('sums', [BUFFER_WRITE_ONLY, ARG_LOCAL, BUFFER_READ_ONLY], opencl_c=sum_cl)
    call write_buffer(x, [(i, i=1, n)])
    call bind_buffer_to_shader(x, 0)
    call bind_buffer_to_shader(y, 1)
    call dispatch_compute(program, [n], group=[g], arguments=[local_memory(4*g)])
    call read_buffer(y, found)
    call check(all(found == [(sum([(i, i=1 + g*stat, g + g*stat)]), stat=0, n/g - 1)]), 'sums of groups')
    call dispatch_compute(program, [n], group=[g], arguments=[local_memory(4_int64*g)])
    call dispatch_compute(program, [n], group=[g], arguments=[kernel_argument(4)], stat=stat, errmsg=message)
    call check(index(message, 'where the program has local memory') > 0, trim(message))
  end subroutine
end program
