! Kernels and the CPU take turns on the same bytes: every element is checked in both directions, without explicit waits.
module kernels
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int32, real32
  use gpu_unified_buffers
  implicit none
  character(*), parameter :: nl = new_line('a')

  character(*), parameter :: affine_cl = &
    'kernel void affine(global const int *x, global int *y, global int *seen, int n, int add, float times) {'//nl// &
    '  int i = get_global_id(0);'//nl// &
    '  if (i < n) { y[i] = x[i] * (int)times + add; seen[i] += 1; }'//nl// &
    '}'
  character(*), parameter :: affine_glsl = &
    '#version 450'//nl// &
    'layout(local_size_x = 64) in;'//nl// &
    'layout(std430, binding = 0) readonly buffer X { int x[]; };'//nl// &
    'layout(std430, binding = 1) buffer Y { int y[]; };'//nl// &
    'layout(std430, binding = 2) buffer S { int seen[]; };'//nl// &
    'layout(std140, binding = 3) uniform V { int n; int add; float times; };'//nl// &
    'void main() {'//nl// &
    '  int i = int(gl_GlobalInvocationID.x);'//nl// &
    '  if (i < n) { y[i] = x[i] * int(times) + add; seen[i] += 1; }'//nl// &
    '}'
  ! A kernel that runs long enough for waits to time out.
  character(*), parameter :: slow_cl = &
    'kernel void slow(global uint *x, int n) {'//nl// &
    '  uint v = x[0];'//nl// &
    '  for (int i = 0; i < n; i++) v = v * 1664525u + 1013904223u;'//nl// &
    '  x[0] = v | 1u;'//nl// &
    '}'

contains

  function affine(user, launch) result(status) bind(c)
    type(c_ptr), value :: user
    type(onebuf_native_call), intent(in) :: launch
    integer(c_int32_t) :: status
    integer(int32), pointer :: x(:), y(:), seen(:), n, add
    real(real32), pointer :: times
    type(native_arg) :: argument

    status = 1
    if (c_associated(user) .or. launch%arg_count /= 6) return
    argument = native_argument(launch, 1)
    call c_f_pointer(argument%data, x, [argument%bytes/4])
    argument = native_argument(launch, 2)
    if (.not. argument%writable) return
    call c_f_pointer(argument%data, y, [argument%bytes/4])
    argument = native_argument(launch, 3)
    call c_f_pointer(argument%data, seen, [argument%bytes/4])
    argument = native_argument(launch, 4)
    call c_f_pointer(argument%data, n)
    argument = native_argument(launch, 5)
    call c_f_pointer(argument%data, add)
    argument = native_argument(launch, 6)
    call c_f_pointer(argument%data, times)
    y(:n) = x(:n)*int(times) + add
    seen(:n) = seen(:n) + 1
    status = 0
  end function
end module

program compute
  use kernels
  use, intrinsic :: iso_fortran_env
  use gpu_fence_primitives
  use checks, only: check
  implicit none
  ! Several whole pages and a part of one.
  integer, parameter :: n = 40*1024 + 10, groups = 641
  character(64) :: device
  type(compute_program) :: program

  call get_command_argument(1, device)
  call gpu_open(trim(device))
  program = compiled()
  call by_turns
  call programs_are_shared
  call fences
  if (index(gpu_device_name(), 'opencl') == 1) call timeouts
  call wrong_launches
  call wrong_programs
  call unbind_shader_buffers
  print '(2a)', 'compute works on ', gpu_device_name()

contains

  function compiled() result(made)
    type(compute_program) :: made

    made = compile_compute_program('affine', [BUFFER_WRITE_ONLY, BUFFER_READ_ONLY, BUFFER_READ_WRITE], &
      opencl_c=affine_cl, glsl=affine_glsl, native=affine, integers=2, reals=1)
  end function

  subroutine by_turns
    type(unified_buffer) :: x, y, seen
    integer(int32), pointer :: px(:), py(:), pseen(:)
    integer :: round, i
    integer(int64) :: asked, before, after

    x = create_unified_buffer(4*n, BUFFER_WRITE_ONLY, MEMORY_STREAMING)
    y = create_unified_buffer(4*n, BUFFER_READ_ONLY, MEMORY_CPU_PREFERRED)
    seen = create_unified_buffer(4_int64*n, BUFFER_READ_WRITE)
    call bind_buffer_to_shader(x, 0)
    call bind_buffer_to_shader(y, 1)
    call bind_buffer_to_shader(seen, 2)
    call gpu_bytes_moved(asked, before)
    do round = 1, 5
      call get_array_pointer(x, px)
      px = [(i*round, i=1, n)]
      call get_array_pointer(y, py)
      ! Control: the kernel has not run, so its results are not there yet.
      call check(.not. any(py == [(3*i*round + round, i=1, n)]), 'before it ran')
      call dispatch_compute(program, [64*groups], integers=[n, round], reals=[3.0_real32])
      call get_array_pointer(y, py)
      call check(all(py == [(3*i*round + round, i=1, n)]), 'what the kernel wrote')
      call get_array_pointer(seen, pseen)
      call check(all(pseen == round + 100*(round - 1)), 'what both wrote')
      pseen = pseen + 100
    end do
    call gpu_bytes_moved(asked, after)
    if (index(explain_buffer(x), 'fine_svm') > 0) call check(after == before, 'nothing was copied')
    ! Bound buffers are kept alive. Reads and writes work like pointers.
    call destroy_unified_buffer(seen)
    call write_buffer(x, [(-i, i=1, n)])
    call dispatch_compute(program, [64*groups], integers=[n, 1], reals=[2.0_real32])
    call check_read(y)
  end subroutine

  subroutine check_read(y)
    type(unified_buffer), intent(in) :: y
    integer(int32), allocatable :: found(:)
    integer :: i

    allocate (found(n))
    call read_buffer(y, found)
    call check(all(found == [(1 - 2*i, i=1, n)]), 'what was read')
  end subroutine

  subroutine programs_are_shared
    type(compute_program) :: copy, other(2)

    copy = program
    other = copy
    call destroy_compute_program(copy)
    call check(.not. program_is_valid(copy), 'destroyed')
    call dispatch_compute(other(2), [64*groups], integers=[n, 1], reals=[2.0_real32])
    call dispatch_compute(program, [64*groups], integers=[n, 1], reals=[2.0_real32], group=[64])
  end subroutine

  subroutine fences
    type(gpu_fence) :: fence, copy, none
    integer :: stat, answer
    logical :: signaled
    character(200) :: message

    call check(.not. gpu_fence_is_valid(none), 'a fence that was never made')
    call dispatch_compute(program, [64*groups], integers=[n, 1], reals=[2.0_real32], fence=fence)
    call check(gpu_fence_is_valid(fence), 'the fence of a dispatch')
    answer = gpu_fence_wait(fence, 30000000000_int64)
    call check(answer == FENCE_READY, 'it is reached')
    call check(gpu_fence_is_signaled(fence), 'and says so')
    copy = fence
    call gpu_fence_destroy(fence)
    call check(.not. gpu_fence_is_valid(fence), 'a destroyed fence')
    call check(gpu_fence_is_valid(copy), 'the copy is another owner')
    fence = gpu_fence_create()
    answer = gpu_fence_wait(fence, 1000000000)
    call check(answer == FENCE_READY, 'everything so far')
    answer = gpu_fence_wait(none, 1_int64, stat, message)
    call check(answer == FENCE_ERROR .and. stat == ONEBUF_INVALID_HANDLE, 'a wait for no fence')
    signaled = gpu_fence_is_signaled(none, stat, message)
    call check(.not. signaled .and. stat == ONEBUF_INVALID_HANDLE, 'no fence asked')
  end subroutine

  subroutine timeouts
    type(compute_program) :: slow
    type(unified_buffer) :: x
    type(gpu_fence) :: fence
    integer(int32) :: found(1)
    integer :: stat, answer
    logical :: over

    x = create_unified_buffer(4096, BUFFER_READ_WRITE)
    slow = compile_compute_program('slow', [BUFFER_READ_WRITE], opencl_c=slow_cl, integers=1)
    call bind_buffer_to_shader(x, 0)
    call dispatch_compute(slow, [1], integers=[400000000], fence=fence)
    if (gpu_fence_is_signaled(fence)) then
      print '(a)', 'this driver runs kernels before it returns'
      return
    end if
    print '(a)', 'timeouts are tried'
    answer = gpu_fence_wait(fence, 1000)
    over = ended(fence)
    call check(answer == FENCE_TIMEOUT .or. over, 'a fence that is not reached')
    found = 0
    call read_buffer_safe(x, found, 1000_int64, stat=stat)
    over = ended(fence)
    call check((stat == ONEBUF_TIMEOUT .and. found(1) == 0) .or. over, 'a read that does not wait so long')
    call write_buffer_safe(x, found, 1000_int64, stat=stat)
    over = ended(fence)
    call check(stat == ONEBUF_TIMEOUT .or. over, 'a write that does not wait so long')
    if (over) then
      print '(a)', 'the kernel ended while the timeouts were told'
      return
    end if
    call read_buffer(x, found)
    call check(found(1) /= 0, 'a read waits for the kernel')
    call check(gpu_fence_is_signaled(fence), 'so it is done')
    call write_buffer_safe(x, [5_int32], 10000000000_int64)
    call read_buffer_safe(x, found, 10000000000_int64)
    call check(found(1) == 5, 'time enough')
  end subroutine

  ! Whether the kernel may have ended. A query on rusticl waits for a kernel that has begun. The first device is not queried: its
  ! kernel takes longer than all calls here.
  logical function ended(fence)
    type(gpu_fence), intent(in) :: fence

    ended = .false.
    if (device /= 'opencl:0') ended = gpu_fence_is_signaled(fence)
  end function

  subroutine wrong_launches
    type(unified_buffer) :: input, none
    integer :: stat
    character(400) :: message

    input = create_unified_buffer(4*n, BUFFER_WRITE_ONLY)
    call bind_buffer_to_shader(input, 16, stat, message)
    call refused(stat, message, 'binding points are')
    call bind_buffer_to_shader(none, 0, stat, message)
    call refused(stat, message, 'no buffer')
    call unbind_shader_buffers
    call bind_buffer_to_shader(input, 0)
    call dispatch_compute(program, [64], integers=[n, 1], reals=[1.0_real32], stat=stat, errmsg=message)
    call refused(stat, message, 'no buffer is bound to binding point')
    call bind_buffer_to_shader(input, 1)
    call bind_buffer_to_shader(input, 2)
    call dispatch_compute(program, [64], integers=[n, 1], reals=[1.0_real32], stat=stat, errmsg=message)
    call refused(stat, message, 'made for another access')
    call dispatch_compute(program, [64], integers=[n], reals=[1.0_real32], stat=stat, errmsg=message)
    call refused(stat, message, 'dispatch_compute: ')
    call dispatch_compute(program, [0], integers=[n, 1], reals=[1.0_real32], stat=stat, errmsg=message)
    call refused(stat, message, 'dispatch_compute: ')
  end subroutine

  subroutine wrong_programs
    type(compute_program) :: bad
    integer :: stat
    character(2000) :: message

    bad = compile_compute_program('affine', [9], opencl_c=affine_cl, stat=stat, errmsg=message)
    call refused(stat, message, 'none of BUFFER_READ_ONLY')
    bad = compile_compute_program('affine', [BUFFER_READ_ONLY], stat=stat, errmsg=message)
    call refused(stat, message, 'compile_compute_program: ')
    bad = compile_compute_program('affine', [BUFFER_READ_ONLY], opencl_c='kernel void affine(', glsl='void', &
      stat=stat, errmsg=message)
    call refused(stat, message, 'compile_compute_program: ')
    call check(.not. program_is_valid(bad), 'a program that was refused')
    call dispatch_compute(bad, [1], stat=stat, errmsg=message)
    call refused(stat, message, 'no program')
  end subroutine

  subroutine refused(stat, message, part)
    integer, intent(in) :: stat
    character(*), intent(in) :: message, part

    call check(stat /= 0 .and. index(message, part) > 0, 'expected '//part//', told '//trim(message))
  end subroutine
end program
