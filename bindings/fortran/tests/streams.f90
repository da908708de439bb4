! Memory, a stream and an event that the program created with CUDA or HIP. `streams LIBRARY DEVICE`; it starts `streams LIBRARY DEVICE HANDLE`,
! which opens memory of the first process.
module driver
  use, intrinsic :: iso_c_binding
  implicit none

  interface
    function driver_open(path, is_hip) bind(c) result(status)
      import
      character(kind=c_char), intent(in) :: path(*)
      integer(c_int), value :: is_hip
      integer(c_int) :: status
    end function

    function driver_allocate(pointer, bytes) bind(c) result(status)
      import
      type(c_ptr), intent(out) :: pointer
      integer(c_size_t), value :: bytes
      integer(c_int) :: status
    end function

    function driver_create(handle, bytes) bind(c) result(status)
      import
      integer(c_int64_t), intent(out) :: handle
      integer(c_size_t), value :: bytes
      integer(c_int) :: status
    end function

    function driver_share(handle, pointer) bind(c) result(status)
      import
      integer(c_int8_t), intent(out) :: handle(64)
      type(c_ptr), value :: pointer
      integer(c_int) :: status
    end function

    function driver_stream(stream) bind(c) result(status)
      import
      type(c_ptr), intent(out) :: stream
      integer(c_int) :: status
    end function

    function driver_event(event) bind(c) result(status)
      import
      type(c_ptr), intent(out) :: event
      integer(c_int) :: status
    end function

    function driver_record(event, stream) bind(c) result(status)
      import
      type(c_ptr), value :: event, stream
      integer(c_int) :: status
    end function

    function driver_fill(pointer, number, words, stream) bind(c) result(status)
      import
      type(c_ptr), value :: pointer, stream
      integer(c_int32_t), value :: number
      integer(c_size_t), value :: words
      integer(c_int) :: status
    end function

    function driver_read(to, pointer, words, stream) bind(c) result(status)
      import
      integer(c_int32_t), intent(out) :: to(*)
      type(c_ptr), value :: pointer, stream
      integer(c_size_t), value :: words
      integer(c_int) :: status
    end function
  end interface
end module

program streams
  use, intrinsic :: iso_fortran_env, only: int32, int64
  use driver
  use gpu_unified_buffers
  use gpu_fence_primitives
  use checks, only: check
  implicit none
  integer, parameter :: n = 6000
  character(*), parameter :: source = 'extern "C" __global__ void add(unsigned *x, int n) '// &
    '{ x[blockIdx.x*blockDim.x + threadIdx.x] += n; }'
  type(c_ptr) :: pointer, stream, event, native
  type(unified_buffer) :: b, half, none
  type(buffer_view) :: view
  type(gpu_fence) :: reached
  type(compute_program) :: program
  type(pointer_info) :: info
  integer(c_int32_t) :: found(n)
  integer(int32), target :: plain
  integer(c_int8_t) :: handle(64)
  integer(c_int64_t) :: allocation
  integer :: stat
  character(300) :: library, message
  character(16) :: device
  logical :: hip

  call get_command_argument(1, library)
  call get_command_argument(2, device)
  hip = device(:3) == 'hip'
  call gpu_open(trim(device))
  if (command_argument_count() > 2) then
    call guest
    stop
  end if
  call ok(driver_open(trim(library)//c_null_char, merge(1_c_int, 0_c_int, hip)))
  call ok(driver_allocate(pointer, int(4*n, c_size_t)))
  call ok(driver_stream(stream))
  call ok(driver_event(event))

  call get_pointer_info(pointer, info, device=1)
  call check(info%kind == POINTER_DEVICE .and. info%bytes >= 4*n .and. info%device_number == 0, 'what the driver says')
  call check(c_associated(info%start) .and. .not. c_associated(info%host), 'an address for the device alone')
  call get_pointer_info(c_loc(plain), info, stat)
  call check(stat == ONEBUF_INVALID_ARGUMENT, 'ordinary memory')

  ! The program writes, and these modules read: after an event, and after everything on the stream.
  b = wrap_device_pointer(pointer, 4*n, BUFFER_READ_WRITE)
  call check(buffer_size_bytes(b) == 4*n, 'the size')
  call ok(driver_fill(pointer, 7, int(n, c_size_t), stream))
  call ok(driver_record(event, stream))
  reached = wrap_stream_event(event)
  call foreign_writes_end_at(b, reached)
  call read_buffer(b, found)
  call check(all(found == 7), 'what the program wrote, after the event')
  call hand_to_stream(b, stream, device=1)
  call ok(driver_fill(pointer, 8, int(n, c_size_t), stream))
  reached = stream_fence(stream)
  call foreign_writes_end_at(b, reached)
  call read_buffer(b, found)
  call check(all(found == 8), 'what the program wrote, after the stream')

  ! The other way round.
  call fill_buffer(b, 9)
  call hand_to_stream(b, stream)
  call ok(driver_read(found, pointer, int(n, c_size_t), stream))
  call check(all(found == 9), 'what these modules wrote')

  ! Dispatches on the program's own stream.
  call gpu_use_stream(stream)
  native = gpu_native_queue()
  call check(c_associated(native, stream), 'the stream is the queue')
  program = compile_compute_program('add', [BUFFER_READ_WRITE], cuda_c=source, hip_c=source, integers=1)
  call bind_buffer_to_shader(b, 0)
  call dispatch_compute(program, [n], integers=[5])
  call open_buffer_view(view, b)
  if (hip) then
    native = view_hip_pointer(view)
  else
    native = view_cuda_pointer(view)
  end if
  call check(c_associated(native, pointer), 'the pointer is the memory')
  call ok(driver_read(found, native, int(n, c_size_t), stream))
  call close_buffer_view(view)
  call check(all(found == 14), 'a kernel on the stream, then the program''s copy')
  call unbind_shader_buffers

  ! A part of the allocation, and what is refused.
  half = wrap_device_pointer(pointer, 2_int64*n, BUFFER_READ_ONLY, stat, message)
  call check(stat == ONEBUF_INVALID_ARGUMENT .and. index(message, 'already wrapped') > 0, trim(message))
  call destroy_unified_buffer(b)
  half = wrap_device_pointer(pointer, 2_int64*n, BUFFER_READ_ONLY)
  call check(buffer_size_bytes(half) == 2*n, 'half of it')
  none = wrap_device_pointer(pointer, 0, BUFFER_READ_WRITE, stat)
  call check(stat == ONEBUF_INVALID_ARGUMENT, 'no bytes')
  none = wrap_device_pointer(pointer, 4*n, 9, stat)
  call check(stat == ONEBUF_INVALID_ARGUMENT, 'no such mode')
  none = wrap_device_pointer(pointer, 1000000000000_int64, BUFFER_READ_WRITE, stat, message)
  call check(stat == ONEBUF_INVALID_ARGUMENT, 'more than the allocation: '//trim(message))
  call ok(driver_create(allocation, 2097152_c_size_t))
  half = wrap_device_allocation(allocation, 2097152, BUFFER_READ_WRITE)
  call fill_buffer(half, 3)
  call read_buffer(half, found)
  call check(all(found == 3), 'an allocation that had no address')
  none = wrap_device_allocation(0_int64, 2097152, BUFFER_READ_WRITE, stat)
  call check(stat /= 0, 'no allocation')
  none = wrap_device_allocation(0_int64, 2097152_int64, BUFFER_READ_WRITE, stat)
  call check(stat /= 0, 'no allocation')
  call two_processes
  handle = 0
  none = open_ipc_memory(handle, 0, 4*n, BUFFER_READ_WRITE, stat)
  call check(stat /= 0, 'no memory of another process')
  none = open_ipc_memory(handle, -1_int64, 4_int64*n, BUFFER_READ_WRITE, stat)
  call check(stat == ONEBUF_INVALID_ARGUMENT, 'a negative offset')
  call check(.not. buffer_is_valid(none), 'nothing was made')
  reached = wrap_stream_event(c_null_ptr, stat)
  call check(stat /= 0, 'no event')
  print '(2a)', 'streams work on ', gpu_device_name()

contains

  ! Another process opens the memory, reads it and writes the second half.
  subroutine two_processes
    character(300) :: me
    character(128) :: digits
    integer :: started, ended

    call ok(driver_fill(pointer, 21, int(n, c_size_t), stream))
    call ok(driver_read(found, pointer, int(n, c_size_t), stream))
    call ok(driver_share(handle, pointer))
    write (digits, '(64z2.2)') handle
    call get_command_argument(0, me)
    call execute_command_line(trim(me)//' '//trim(library)//' '//trim(device)//' '//digits, exitstat=ended, cmdstat=started)
    call check(started == 0 .and. ended == 0, 'the other process')
    call ok(driver_read(found, pointer, int(n, c_size_t), stream))
    call check(all(found(:n/2) == 21) .and. all(found(n/2 + 1:) == 22), 'what the other process wrote')
  end subroutine

  subroutine guest
    type(unified_buffer) :: whole, part
    character(128) :: digits

    call get_command_argument(3, digits)
    read (digits, '(64z2)') handle
    whole = open_ipc_memory(handle, 0_int64, 4_int64*n, BUFFER_READ_WRITE)
    call check(buffer_size_bytes(whole) == 4*n, 'memory of the first process')
    call read_buffer(whole, found)
    call check(all(found == 21), 'what the first process wrote')
    call destroy_unified_buffer(whole)
    part = open_ipc_memory(handle, 2*n, 2*n, BUFFER_READ_WRITE)
    call fill_buffer(part, 22)
    call read_buffer(part, found(:n/2))
    call check(all(found(:n/2) == 22), 'the second half')
  end subroutine

  subroutine ok(status)
    integer(c_int), intent(in) :: status

    call check(status == 0, 'a call of the driver')
  end subroutine
end program
