! The forward pass of a convolution, twice: with separate arrays that are copied to the GPU and back, and with unified
! buffers. Both give the same results; the differences are printed: `04-conv2d [classic|unified|both] [width] [frames]
! [filter]`.
module conv2d_kernel
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int32, real32
  use gpu_unified_buffers
  implicit none
  private
  public :: conv2d_program

  character(*), parameter :: nl = new_line('a')

  ! Each work-item computes one element. The output has width x height elements. The image has a border of zeroes, so no
  ! element is at an edge. The filter is k x k, and k is a constant in the text that the compiler knows.
  character(*), parameter :: in_opencl_c = nl// &
    'kernel void conv2d(global const float *image, global const float *filter, global float *out,'//nl// &
    '                   int width, int height) {'//nl// &
    '  int x = get_global_id(0), y = get_global_id(1);'//nl// &
    '  float sum = 0;'//nl// &
    '  for (int j = 0; j < K; j++) for (int i = 0; i < K; i++)'//nl// &
    '    sum += filter[j * K + i] * image[(y + j) * (width + K - 1) + x + i];'//nl// &
    '  out[y * width + x] = sum;'//nl// &
    '}'

  character(*), parameter :: in_glsl = nl// &
    'layout(local_size_x = 8, local_size_y = 8) in;'//nl// &
    'layout(std430, binding = 0) readonly buffer Image { float image[]; };'//nl// &
    'layout(std430, binding = 1) readonly buffer Filter { float weights[]; };'//nl// &
    'layout(std430, binding = 2) buffer Out { float result[]; };'//nl// &
    'layout(std140, binding = 3) uniform Values { int width; int height; };'//nl// &
    'void main() {'//nl// &
    '  int x = int(gl_GlobalInvocationID.x), y = int(gl_GlobalInvocationID.y);'//nl// &
    '  float sum = 0.0;'//nl// &
    '  for (int j = 0; j < K; j++) for (int i = 0; i < K; i++)'//nl// &
    '    sum += weights[j * K + i] * image[(y + j) * (width + K - 1) + x + i];'//nl// &
    '  result[y * width + x] = sum;'//nl// &
    '}'

contains

  function conv2d_program(k) result(program)
    integer, intent(in) :: k
    type(compute_program) :: program
    character(24) :: define

    write (define, '(a, i0)') '#define K ', k
    program = compile_compute_program('conv2d', [BUFFER_WRITE_ONLY, BUFFER_WRITE_ONLY, BUFFER_READ_ONLY], &
      opencl_c=trim(define)//in_opencl_c, glsl='#version 450'//nl//trim(define)//in_glsl, native=on_the_host, &
      integers=2)
  end function

  function on_the_host(user, launch) result(status) bind(c, name='conv2d_on_the_host')
    type(c_ptr), value :: user
    type(onebuf_native_call), intent(in) :: launch
    integer(c_int32_t) :: status
    real(real32), pointer :: image(:, :), filter(:, :), out(:, :)
    integer(int32), pointer :: width, height
    type(native_arg) :: args(5)
    integer :: i, j, k

    status = merge(1, 0, c_associated(user))
    do i = 1, 5
      args(i) = native_argument(launch, i)
    end do
    call c_f_pointer(args(4)%data, width)
    call c_f_pointer(args(5)%data, height)
    k = nint(sqrt(real(args(2)%bytes/4)))
    call c_f_pointer(args(1)%data, image, [width + k - 1, height + k - 1])
    call c_f_pointer(args(2)%data, filter, [k, k])
    call c_f_pointer(args(3)%data, out, [width, height])
    out = filter(1, 1)*image(:width, :height)
    do j = 1, k
      do i = 1, k
        if (i > 1 .or. j > 1) out = out + filter(i, j)*image(i:i + width - 1, j:j + height - 1)
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
  integer :: width, padded, frames, k
  character(16) :: mode
  real(real64) :: sums(2)

  call arguments
  program = conv2d_program(k)
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
    padded = width + k - 1
  end subroutine

  ! Uses separate arrays, copied to and from the GPU's buffers.
  function classic() result(sum_of_all)
    real(real64) :: sum_of_all
    real(real32), allocatable :: image(:, :), filter(:, :), out(:, :)
    real(real64) :: begin
    integer :: frame

    call make_buffers
    allocate (image(padded, padded), filter(k, k), out(width, width))
    image = 0
    call fill_filter(filter)
    call write_buffer(filter_buffer, filter)
    sum_of_all = 0
    begin = 0
    do frame = 0, frames
      if (frame == 1) begin = seconds()        ! the first frame warms up
      call fill_image(image, frame)
      call write_buffer(image_buffer, image)
      call dispatch_compute(program, [width, width], integers=[width, width])
      call read_buffer(out_buffer, out)
      sum_of_all = sum_of_all + sum_of(out)
    end do
    call tell('classic', 4_int64*(size(image) + size(filter) + size(out)), begin)
  end function

  ! Uses the buffers as the arrays.
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
      call get_array_pointer(image_buffer, image, [padded, padded])
      call fill_image(image, frame)
      call dispatch_compute(program, [width, width], integers=[width, width])
      call get_array_pointer(out_buffer, out, [width, width])
      sum_of_all = sum_of_all + sum_of(out)
    end do
    call tell('unified', 0_int64, begin)
  end function

  subroutine make_buffers
    ! New buffers are zeroed, including the image's border.
    image_buffer = create_unified_buffer(4_int64*padded*padded, BUFFER_WRITE_ONLY, MEMORY_STREAMING)
    filter_buffer = create_unified_buffer(4*k*k, BUFFER_WRITE_ONLY)
    out_buffer = create_unified_buffer(4_int64*width*width, BUFFER_READ_ONLY, MEMORY_CPU_PREFERRED)
    call bind_buffer_to_shader(image_buffer, 0)
    call bind_buffer_to_shader(filter_buffer, 1)
    call bind_buffer_to_shader(out_buffer, 2)
  end subroutine

  ! Fills everything except the border.
  subroutine fill_image(image, frame)
    real(real32), intent(inout) :: image(:, :)
    integer, intent(in) :: frame
    integer :: j

    do j = 1, width
      image(k/2 + 1:k/2 + width, k/2 + j) = real(modulo(j + frame, 17), real32)
    end do
  end subroutine

  subroutine fill_filter(filter)
    real(real32), intent(out) :: filter(:, :)

    filter = 0.125
    filter((k + 1)/2, (k + 1)/2) = 2
  end subroutine

  ! Weighted by position, so that every element and its place matter.
  function sum_of(out) result(total)
    real(real32), intent(in) :: out(:, :)
    real(real64) :: total
    real(real32) :: rows(size(out, 1))
    integer :: j

    rows = 0
    do j = 1, size(out, 2)
      rows = rows + modulo(j, 31)*out(:, j)
    end do
    total = 0
    do j = 1, size(rows)
      total = total + j*real(rows(j), real64)
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

  ! Returns the peak resident memory from /proc/self/status, in KiB.
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
