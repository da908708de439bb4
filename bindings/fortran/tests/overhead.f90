! What the modules cost: a dispatch, over the same launch by the C interface, in the same run; and the calls of one frame of 04-conv2d.
! The kernel only counts its runs. `overhead [DEVICE [LAUNCHES]]`.
module counting
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int64, real32, real64
  use onebuf_c
  use gpu_session, only: session
  use gpu_buffer_core, only: buffer_handle
  use gpu_unified_buffers
  implicit none
  character(*), parameter :: nl = new_line('a')
  character(*), parameter :: text = &
    'kernel void tally(global const float *x, global const float *f, global int *runs, int by, int unused) {'//nl// &
    '  runs[0] += by;'//nl// &
    '}'//c_null_char
  type(unified_buffer) :: image, filter, runs
  type(compute_program) :: program
  type(onebuf_kernel) :: kernel

contains

  function tally(user, launch) result(status) bind(c)
    type(c_ptr), value :: user
    type(onebuf_native_call), intent(in) :: launch
    integer(c_int32_t) :: status
    type(onebuf_native_arg), pointer :: args(:)
    integer(c_int32_t), pointer :: count, by

    status = merge(1, 0, c_associated(user) .or. launch%arg_count /= 5)
    call c_f_pointer(launch%args, args, [5])
    call c_f_pointer(args(3)%data, count)
    call c_f_pointer(args(4)%data, by)
    count = count + by
  end function

  ! The same kernel, by the C interface.
  subroutine build_in_c
    type(onebuf_program_options) :: options
    type(onebuf_native), target :: natives(1)
    type(onebuf_param) :: params(5)
    type(onebuf_program) :: built
    character(kind=c_char, len=:), allocatable, target :: name, source

    name = 'tally'//c_null_char
    source = text
    natives(1) = onebuf_native(c_loc(name), c_funloc(tally), c_null_ptr)
    options%size = int(storage_size(options)/8, c_size_t)
    options%opencl_c = c_loc(source)
    options%natives = c_loc(natives)
    options%native_count = 1
    params(:3)%kind = ONEBUF_ARG_BUFFER
    params(:2)%access = ONEBUF_READ
    params(4:)%kind = ONEBUF_ARG_INTEGER
    params(4:)%bytes = 4
    call ok(onebuf_program_build(session%devices(1), options, built))
    call ok(onebuf_kernel_create(built, name, params, 5_c_size_t, 0_c_int32_t, kernel))
    call ok(onebuf_program_free(built))
  end subroutine

  subroutine launch_in_fortran
    call dispatch_compute(program, [1], integers=[1, 0])
  end subroutine

  ! What a program in C writes for the same launch.
  subroutine launch_in_c
    type(onebuf_arg) :: args(5)
    type(onebuf_grid) :: grid
    integer(c_int32_t), target :: values(2)

    values = [1, 0]
    grid%dims = 1
    grid%global = 1
    args(1) = onebuf_arg(ONEBUF_ARG_TURN, ONEBUF_READ, buffer_handle(image), onebuf_view(), c_null_ptr, 0)
    args(2) = onebuf_arg(ONEBUF_ARG_TURN, ONEBUF_READ, buffer_handle(filter), onebuf_view(), c_null_ptr, 0)
    args(3) = onebuf_arg(ONEBUF_ARG_TURN, ONEBUF_READ_WRITE, buffer_handle(runs), onebuf_view(), c_null_ptr, 0)
    args(4) = onebuf_arg(ONEBUF_ARG_INTEGER, 0, onebuf_buffer(), onebuf_view(), c_loc(values(1)), 4)
    args(5) = onebuf_arg(ONEBUF_ARG_INTEGER, 0, onebuf_buffer(), onebuf_view(), c_loc(values(2)), 4)
    call ok(onebuf_queue_launch(session%queues(1), kernel, grid, args, 5_c_size_t, c_null_ptr))
    if (session%device_count > 1) call ok(onebuf_queue_flush(session%queues(1)))
  end subroutine

  subroutine ok(status)
    integer(c_int32_t), intent(in) :: status

    if (status /= ONEBUF_OK) error stop 'a call of the C interface failed'
  end subroutine
end module

program overhead
  use counting
  use checks, only: check
  implicit none
  integer, parameter :: batches = 101
  integer :: launches, batch, warm
  real(real64) :: in_fortran(batches), in_c(batches), frames(batches)
  integer(c_int32_t) :: found(1)
  character(64) :: word

  call get_command_argument(1, word)
  call gpu_open(merge(word, 'host'//repeat(' ', 60), word /= ''))
  launches = 100
  call get_command_argument(2, word)
  if (word /= '') read (word, *) launches
  image = create_unified_buffer(65536, BUFFER_WRITE_ONLY, MEMORY_STREAMING)
  filter = create_unified_buffer(64, BUFFER_WRITE_ONLY)
  runs = create_unified_buffer(65536, BUFFER_READ_WRITE, MEMORY_CPU_PREFERRED)
  program = compile_compute_program('tally', [BUFFER_WRITE_ONLY, BUFFER_WRITE_ONLY, BUFFER_READ_WRITE], &
    opencl_c=text(:len(text) - 1), native=tally, integers=2)
  call build_in_c
  call bind_buffer_to_shader(image, 0)
  call bind_buffer_to_shader(filter, 1)
  call bind_buffer_to_shader(runs, 2)
  do warm = 1, 2
    ! In pairs, and in turn, so that a busy machine slows both.
    do batch = 1, batches
      if (mod(batch, 2) == 0) in_fortran(batch) = timed(launch_in_fortran)
      in_c(batch) = timed(launch_in_c)
      if (mod(batch, 2) == 1) in_fortran(batch) = timed(launch_in_fortran)
    end do
  end do
  do batch = 1, batches
    ! With a driver this would be the time of the kernels, too.
    if (session%device_count == 1) frames(batch) = timed(frame)
  end do
  call read_buffer(runs, found)
  call check(found(1) == merge(5, 4, session%device_count == 1)*batches*(launches + 1), 'every launch ran once')
  print '(a, f0.3, a, f0.0, a, f0.0, 2a)', 'a dispatch over the launch in C: ', median(in_fortran/in_c), ' (', &
    median(in_fortran), ' ns over ', median(in_c), ' ns) on ', gpu_device_name()
  if (session%device_count == 1) print '(a, f0.0, a)', 'a frame of conv2d costs ', median(frames), ' ns beside its kernel'
  call unbind_shader_buffers

contains

  ! Nanoseconds of one call. One comes before, so that the buffers are where the calls need them; the kernels have ended then.
  function timed(run) result(ns)
    interface
      subroutine run
      end subroutine
    end interface
    real(real64) :: ns
    integer(int64) :: begin, end, rate
    integer :: i

    call run
    call ok(onebuf_queue_finish(session%queues(1), ONEBUF_DEFAULT_TIMEOUT))
    call system_clock(begin, rate)
    do i = 1, launches
      call run
    end do
    call system_clock(end)
    ns = real(end - begin, real64)*1e9_real64/real(rate, real64)/launches
    call ok(onebuf_queue_finish(session%queues(1), ONEBUF_DEFAULT_TIMEOUT))
  end function

  ! All calls of one frame of 04-conv2d.
  subroutine frame
    real(real32), pointer :: in(:, :), out(:, :)

    call get_array_pointer(image, in, [128, 128])
    call dispatch_compute(program, [1], integers=[1, 0])
    call get_array_pointer(runs, out, [128, 128])
  end subroutine

  pure function median(of) result(middle)
    real(real64), intent(in) :: of(:)
    real(real64) :: middle, sorted(size(of)), moved
    integer :: i, j

    sorted = of
    do i = 2, size(sorted)
      moved = sorted(i)
      do j = i - 1, 1, -1
        if (sorted(j) <= moved) exit
        sorted(j + 1) = sorted(j)
      end do
      sorted(j + 1) = moved
    end do
    middle = sorted((size(sorted) + 1)/2)
  end function
end program
