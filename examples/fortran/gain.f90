! y = by * x, in each language that a device may need: the kernel of examples 01 to 03.
module gain
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: real32
  use gpu_unified_buffers
  implicit none
  private
  public :: gain_program

  character(*), parameter :: nl = new_line('a')

  character(*), parameter :: in_opencl_c = &
    'kernel void gain(global const float *x, global float *y, int n, float by) {'//nl// &
    '  int i = get_global_id(0);'//nl// &
    '  if (i < n) y[i] = by * x[i];'//nl// &
    '}'

  character(*), parameter :: in_glsl = &
    '#version 450'//nl// &
    'layout(local_size_x = 64) in;'//nl// &
    'layout(std430, binding = 0) readonly buffer X { float x[]; };'//nl// &
    'layout(std430, binding = 1) buffer Y { float y[]; };'//nl// &
    'layout(std140, binding = 2) uniform Values { int n; float by; };'//nl// &
    'void main() {'//nl// &
    '  uint i = gl_GlobalInvocationID.x;'//nl// &
    '  if (i < uint(n)) y[i] = by * x[i];'//nl// &
    '}'

contains

  ! The CPU writes binding point 0 and reads binding point 1. The number of elements and the factor
  ! follow.
  function gain_program(device) result(program)
    integer, intent(in), optional :: device
    type(compute_program) :: program

    program = compile_compute_program('gain', [BUFFER_WRITE_ONLY, BUFFER_READ_ONLY], opencl_c=in_opencl_c, &
      glsl=in_glsl, native=on_the_host, integers=1, reals=1, device=device)
  end function

  function on_the_host(user, launch) result(status) bind(c, name='gain_on_the_host')
    type(c_ptr), value :: user
    type(onebuf_native_call), intent(in) :: launch
    integer(c_int32_t) :: status
    real(real32), pointer :: x(:), y(:), by
    integer(c_int32_t), pointer :: n
    type(native_arg) :: args(4)
    integer :: i

    status = merge(1, 0, c_associated(user))
    do i = 1, 4
      args(i) = native_argument(launch, i)
    end do
    call c_f_pointer(args(3)%data, n)
    call c_f_pointer(args(4)%data, by)
    call c_f_pointer(args(1)%data, x, [n])
    call c_f_pointer(args(2)%data, y, [n])
    y = by*x
  end function
end module
