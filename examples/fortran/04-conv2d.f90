! A convolution's forward pass, twice: with arrays of its own that are copied to the GPU and back, and with unified
! buffers. The same results; what differs is told: `04-conv2d [classic|unified|both] [width] [frames] [filter]`.
module conv2d_kernel
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int32, real32
  use gpu_unified_buffers
  implicit none
  private
  public :: conv2d_program

  character(*), parameter :: nl = new_line('a')

  ! Each work-item makes one element: image and output are width times height, the filter k times k, zeroes around.
  character(*), parameter :: in_opencl_c = &
    'kernel void conv2d(global const float *image, global const float *filter, global float *out,'//nl// &
    '                   int width, int height, int k) {'//nl// &
    '  int x = get_global_id(0), y = get_global_id(1);'//nl// &
    '  float sum = 0;'//nl// &
    '  for (int j = 0; j < k; j++) for (int i = 0; i < k; i++) {'//nl// &
    '    int u = x + i - k / 2, v = y + j - k / 2;'//nl// &
    '    if (u >= 0 && v >= 0 && u < width && v < height) sum += filter[j * k + i] * image[v * width + u];'//nl// &
    '  }'//nl// &
    '  out[y * width + x] = sum;'//nl// &
    '}'

  character(*), parameter :: in_glsl = &
    '#version 450'//nl// &
    'layout(local_size_x = 8, local_size_y = 8) in;'//nl// &
    'layout(std430, binding = 0) readonly buffer Image { float image[]; };'//nl// &
    'layout(std430, binding = 1) readonly buffer Filter { float weights[]; };'//nl// &
    'layout(std430, binding = 2) writeonly buffer Out { float result[]; };'//nl// &
    'layout(std140, binding = 3) uniform Values { int width; int height; int k; };'//nl// &
    'void main() {'//nl// &
    '  int x = int(gl_GlobalInvocationID.x), y = int(gl_GlobalInvocationID.y);'//nl// &
    '  float sum = 0.0;'//nl// &
    '  for (int j = 0; j < k; j++) for (int i = 0; i < k; i++) {'//nl// &
    '    int u = x + i - k / 2, v = y + j - k / 2;'//nl// &
    '    if (u >= 0 && v >= 0 && u < width && v < height) sum += weights[j * k + i] * image[v * width + u];'//nl// &
    '  }'//nl// &
    '  result[y * width + x] = sum;'//nl// &
    '}'

contains

  function conv2d_program() result(program)
    type(compute_program) :: program

    program = compile_compute_program('conv2d', [BUFFER_WRITE_ONLY, BUFFER_WRITE_ONLY, BUFFER_READ_ONLY], &
      opencl_c=in_opencl_c, glsl=in_glsl, native=on_the_host, integers=3)
  end function

  function on_the_host(user, launch) result(status) bind(c, name='conv2d_on_the_host')
    type(c_ptr), value :: user
    type(onebuf_native_call), intent(in) :: launch
    integer(c_int32_t) :: status
    real(real32), pointer :: image(:, :), filter(:, :), out(:, :)
    integer(int32), pointer :: width, height, k
    type(native_arg) :: args(6)
    integer :: i, j, lo(2), hi(2), at(2)

    status = merge(1, 0, c_associated(user))
    do i = 1, 6
      args(i) = native_argument(launch, i)
    end do
    call c_f_pointer(args(4)%data, width)
    call c_f_pointer(args(5)%data, height)
    call c_f_pointer(args(6)%data, k)
    call c_f_pointer(args(1)%data, image, [width, height])
    call c_f_pointer(args(2)%data, filter, [k, k])
    call c_f_pointer(args(3)%data, out, [width, height])
    out = 0
    do j = 1, k
      do i = 1, k
        ! What this weight reaches: everything but an edge.
        at = [i, j] - 1 - k/2
        lo = max(1, 1 - at)
        hi = min([width, height], [width, height] - at)
        out(lo(1):hi(1), lo(2):hi(2)) = out(lo(1):hi(1), lo(2):hi(2)) + &
          filter(i, j)*image(lo(1) + at(1):hi(1) + at(1), lo(2) + at(2):hi(2) + at(2))
      end do
    end do
  end function
end module

program conv2d
  use, intrinsic :: iso_fortran_env, only: int64, real32, real64
  use gpu_unified_buffers
  use conv2d_kernel, only: conv2d_program
  implicit none
  type(compute_program) :: program
  type(unified_buffer) :: image_buffer, filter_buffer, out_buffer
  integer :: width, frames, k
  character(16) :: mode
  real(real64) :: sums(2)

  call arguments
  program = conv2d_program()
  print '(3a, 2(i0, a, i0, :, a))', 'conv2d on ', gpu_device_name(), ': ', width, ' x ', width, ', filter ', k, ' x ', k
  sums = 0
  if (mode /= 'unified') sums(1) = classic()
  if (mode /= 'classic') sums(2) = unified()
  if (mode == 'both') then
    if (abs(sums(1) - sums(2)) > 0) error stop 'the two differ'
    print '(a)', 'both agree'
  end if

contains

  subroutine arguments
    character(16) :: words(4)
    integer :: i

    words = ['both            ', '1024            ', '10              ', '3               ']
    do i = 1, min(size(words), command_argument_count())
      call get_command_argument(i, words(i))
    end do
    mode = words(1)
    read (words(2), *) width
    read (words(3), *) frames
    read (words(4), *) k
  end subroutine

  ! Arrays of the program's own; the GPU's are copied from and to.
  function classic() result(sum_of_all)
    real(real64) :: sum_of_all
    real(real32), allocatable :: image(:, :), filter(:, :), out(:, :)
    real(real64) :: begin
    integer :: frame

    call make_buffers
    allocate (image(width, width), filter(k, k), out(width, width))
    call fill_filter(filter)
    call write_buffer(filter_buffer, filter)
    sum_of_all = 0
    begin = 0
    do frame = 0, frames
      if (frame == 1) begin = seconds()        ! the first one warms up
      call fill_image(image, frame)
      call write_buffer(image_buffer, image)
      call dispatch_compute(program, [width, width], integers=[width, width, k])
      call read_buffer(out_buffer, out)
      sum_of_all = sum_of_all + sum_of(out)
    end do
    call tell('classic', 4_int64*(size(image) + size(filter) + size(out)), begin)
  end function

  ! The buffers are the arrays.
  function unified() result(sum_of_all)
    real(real64) :: sum_of_all
    real(real32), pointer :: image(:, :), filter(:, :), out(:, :)
    real(real64) :: begin
    integer :: frame

    call make_buffers
    call get_array_pointer(filter_buffer, filter, [k, k])
    call fill_filter(filter)
    sum_of_all = 0
    begin = 0
    do frame = 0, frames
      if (frame == 1) begin = seconds()
      call get_array_pointer(image_buffer, image, [width, width])
      call fill_image(image, frame)
      call dispatch_compute(program, [width, width], integers=[width, width, k])
      call get_array_pointer(out_buffer, out, [width, width])
      sum_of_all = sum_of_all + sum_of(out)
    end do
    call tell('unified', 0_int64, begin)
  end function

  subroutine make_buffers
    integer(int64) :: bytes

    bytes = 4_int64*width*width
    image_buffer = create_unified_buffer(bytes, BUFFER_WRITE_ONLY, MEMORY_STREAMING)
    filter_buffer = create_unified_buffer(4*k*k, BUFFER_WRITE_ONLY)
    out_buffer = create_unified_buffer(bytes, BUFFER_READ_ONLY, MEMORY_CPU_PREFERRED)
    call bind_buffer_to_shader(image_buffer, 0)
    call bind_buffer_to_shader(filter_buffer, 1)
    call bind_buffer_to_shader(out_buffer, 2)
  end subroutine

  subroutine fill_image(image, frame)
    real(real32), intent(out) :: image(:, :)
    integer, intent(in) :: frame
    integer :: j

    do j = 1, size(image, 2)
      image(:, j) = real(modulo(j + frame, 17), real32)
    end do
  end subroutine

  subroutine fill_filter(filter)
    real(real32), intent(out) :: filter(:, :)

    filter = 0.125
    filter((k + 1)/2, (k + 1)/2) = 2
  end subroutine

  ! Every element counts, and by its place.
  function sum_of(out) result(total)
    real(real32), intent(in) :: out(:, :)
    real(real64) :: total
    integer :: j

    total = 0
    do j = 1, size(out, 2)
      total = total + j*real(sum(out(:, j)), real64)
    end do
  end function

  function seconds()
    real(real64) :: seconds
    integer(int64) :: ticks, rate

    call system_clock(ticks, rate)
    seconds = real(ticks, real64)/real(rate, real64)
  end function

  subroutine tell(name, array_bytes, begin)
    character(*), intent(in) :: name
    integer(int64), intent(in) :: array_bytes
    real(real64), intent(in) :: begin
    integer(int64) :: buffer_bytes, moved(2)
    integer(int64), save :: before(2) = 0
    real(real64) :: end

    end = seconds()
    buffer_bytes = buffer_size_bytes(image_buffer) + buffer_size_bytes(filter_buffer) + &
      buffer_size_bytes(out_buffer)
    call gpu_bytes_moved(moved(1), moved(2))
    print '(2a, i0, a, i0, a, i0, a, f0.3, a)', name, ': peak bytes ', array_bytes + buffer_bytes, &
      ', bytes asked to be moved ', moved(1) - before(1), ', implied ', moved(2) - before(2), ', ', &
      1000*(end - begin)/frames, ' ms a frame'
    print '(a, i0, a)', 'the process had ', resident_kib(), ' KiB at most'
    before = moved
  end subroutine

  ! What Linux says of it.
  function resident_kib() result(kib)
    integer(int64) :: kib
    integer :: unit, status
    character(80) :: line

    kib = 0
    open (newunit=unit, file='/proc/self/status', action='read', status='old', iostat=status)
    if (status /= 0) return
    do while (status == 0 .and. kib == 0)
      read (unit, '(a)', iostat=status) line
      if (line(1:6) == 'VmHWM:') read (line(7:index(line, 'kB') - 1), *) kib
    end do
    close (unit)
  end function
end program
