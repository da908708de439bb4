! Regions, maps and transfers that are waited for later, user events, and the log. `pending DEVICE`.
module receivers
  implicit none
  integer :: messages = 0, wrong = 0

contains

  recursive subroutine receive(level, part, message)
    use gpu_unified_buffers, only: LOG_DEBUG
    integer, intent(in) :: level
    character(*), intent(in) :: part, message

    if (index(message, 'pool: taken') == 0) return
    messages = messages + 1
    if (level /= LOG_DEBUG .or. part /= 'onebuf::pool') wrong = wrong + 1
  end subroutine
end module

program pending
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
  use gpu_unified_buffers
  use gpu_fence_primitives
  use gain, only: gain_program
  use checks, only: check
  implicit none
  integer, parameter :: n = 8192
  type(compute_program) :: program
  integer :: stat
  character(400) :: message
  character(64) :: device

  call get_command_argument(1, device)
  call gpu_open(trim(device))
  program = gain_program()
  call regions
  call transfers
  call wrong_transfers
  call maps
  call wrong_maps
  call kinds
  call log
  if (index(device, 'opencl') == 1) then
    call events
  else
    call no_events
  end if
  print '(2a)', 'pending work is waited for on ', gpu_device_name()

contains

  subroutine regions
    type(unified_buffer) :: whole, left, right, none, input
    real(real32), pointer :: x(:), y(:)
    real(real32) :: found(n)
    integer(int64) :: step

    step = region_alignment()
    call check(step >= 1 .and. mod(2_int64*n, step) == 0, 'the alignment of regions')
    whole = create_unified_buffer(4*n, BUFFER_READ_WRITE)
    call fill_buffer(whole, 1.0_real32)
    left = buffer_region(whole, 0, 2*n, BUFFER_WRITE_ONLY)
    right = buffer_region(whole, 2_int64*n, 2_int64*n, BUFFER_READ_ONLY)
    call check(buffer_size_bytes(left) == 2*n .and. buffer_access_mode(right) == BUFFER_READ_ONLY, 'two halves')
    ! A kernel reads one half and writes the other.
    call get_array_pointer(left, x)
    call check(size(x) == n/2, 'a pointer to a part')
    x = 3
    call bind_buffer_to_shader(left, 0)
    call bind_buffer_to_shader(right, 1)
    call dispatch_compute(program, [n/2], integers=[n/2], reals=[2.0_real32])
    call get_array_pointer(right, y)
    call check(all(abs(y - 6) <= 0), 'what the kernel wrote to a region')
    call sync_to_gpu(right)
    call read_buffer(whole, found)
    call check(all(abs(found(:n/2) - 3) <= 0) .and. all(abs(found(n/2 + 1:) - 6) <= 0), 'both halves in the whole')
    ! While the CPU has a pointer to the whole, a region is refused.
    call get_array_pointer(whole, x)
    call read_buffer(right, found(:n/2), stat=stat, errmsg=message)
    call check(stat == ONEBUF_BUSY, 'the whole buffer is in use: '//trim(message))
    call sync_to_gpu(whole)
    call read_buffer(right, found(:n/2))
    none = buffer_region(whole, 0_int64, 4*n)
    call check(buffer_access_mode(none) == BUFFER_READ_WRITE, 'the mode of the buffer')
    none = buffer_region(whole, 0, 4_int64*n, stat=stat)
    call check(stat == 0, 'kinds in any mix')
    none = buffer_region(whole, 0, 4*n + 1, stat=stat)
    call check(stat == ONEBUF_INVALID_ARGUMENT, 'behind the end')
    call check(.not. buffer_is_valid(none), 'nothing was made')
    none = buffer_region(whole, -4, 4, stat=stat)
    call check(stat == ONEBUF_INVALID_ARGUMENT, 'a negative offset')
    none = buffer_region(whole, 0, 4, 9, stat, message)
    call check(stat == ONEBUF_INVALID_ARGUMENT .and. index(message, 'access_mode') > 0, trim(message))
    none = buffer_region(left, 0, 4, stat=stat)
    call check(stat /= 0, 'a region has no regions')
    if (step > 1) then
      none = buffer_region(whole, 1, 4, stat=stat, errmsg=message)
      call check(stat == ONEBUF_INVALID_ARGUMENT, 'not aligned: '//trim(message))
    end if
    input = create_unified_buffer(4*n, BUFFER_WRITE_ONLY)
    none = buffer_region(input, 0, 4*n, BUFFER_READ_WRITE, stat)
    call check(stat /= 0, 'more than the buffer allows')
    ! The region keeps the memory.
    call unbind_shader_buffers
    call destroy_unified_buffer(whole)
    call read_buffer(right, found(:n/2))
    call check(all(abs(found(:n/2) - 6) <= 0), 'the memory of a destroyed buffer')
  end subroutine

  subroutine transfers
    type(unified_buffer) :: input, output
    type(buffer_transfer) :: writing, reading
    real(real32) :: x(n)
    real(real32), pointer :: y(:), table(:, :)
    real(real64), pointer :: wide(:)

    input = create_unified_buffer(4*n, BUFFER_WRITE_ONLY)
    output = create_unified_buffer(4*n, BUFFER_READ_ONLY)
    call check(.not. transfer_is_valid(writing), 'no transfer')
    x = 5
    call write_buffer_async(writing, input, x)
    x = 0                                             ! it was copied
    call check(transfer_is_valid(writing), 'a transfer')
    call wait_for_transfer(writing)
    call check(transfer_is_done(writing), 'it is done')
    call close_transfer(writing)
    call write_buffer_async(writing, input, [9.0_real32, 8.0_real32], 2)
    call wait_for_transfer(writing, 10000_int64)
    call close_transfer(writing)
    call write_buffer_async(writing, input, reshape([7.0_real32, 6.0_real32], [1, 2]), 4_int64)
    call wait_for_transfer(writing, 10000)
    call close_transfer(writing)
    call check(.not. transfer_is_valid(writing), 'closed')
    call bind_buffer_to_shader(input, 0)
    call bind_buffer_to_shader(output, 1)
    call dispatch_compute(program, [n], integers=[n], reals=[2.0_real32])
    call read_buffer_async(reading, output)
    call wait_for_transfer(reading, 60000)
    call get_array_pointer(reading, y)
    call check(size(y) == n .and. all(abs(y(:6) - [10, 10, 18, 16, 14, 12]) <= 0) .and. all(abs(y(7:) - 10) <= 0), &
      'every element, after the kernel')
    call get_array_pointer(reading, table, [n/2, 2])
    call check(all(shape(table) == [n/2, 2]) .and. abs(table(3, 1) - 18) <= 0, 'as a matrix')
    call get_array_pointer(reading, wide, [int(n/2, int64)])
    call check(size(wide) == n/2, 'as wider elements')
    call close_transfer(reading)
    call read_buffer_async(reading, output, 8, 8)
    call wait_for_transfer(reading)
    call get_array_pointer(reading, y)
    call check(size(y) == 2 .and. all(abs(y - [18, 16]) <= 0), 'a part')
    call close_transfer(reading)
    call read_buffer_async(reading, output, 8_int64)
    call wait_for_transfer(reading)
    call get_array_pointer(reading, y)
    call check(size(y) == n - 2 .and. abs(y(1) - 18) <= 0, 'the rest')
    call close_transfer(reading)
    call read_buffer_async(reading, output, 8, 4_int64)
    call close_transfer(reading)
    call read_buffer_async(reading, output, 8_int64, 4_int64)
    call close_transfer(reading)
    call unbind_shader_buffers
  end subroutine

  subroutine wrong_transfers
    type(unified_buffer) :: input, output
    type(buffer_transfer) :: transfer
    real(real32), pointer :: y(:)

    input = create_unified_buffer(4*n, BUFFER_WRITE_ONLY)
    output = create_unified_buffer(4*n, BUFFER_READ_ONLY)
    call read_buffer_async(transfer, input, stat=stat, errmsg=message)
    call check(stat == ONEBUF_INVALID_ARGUMENT .and. index(message, 'not to read') > 0, trim(message))
    call write_buffer_async(transfer, output, [1.0_real32], stat=stat)
    call check(stat == ONEBUF_INVALID_ARGUMENT, 'a buffer that the CPU reads')
    call read_buffer_async(transfer, output, 0, 4*n + 1, stat)
    call check(stat == ONEBUF_INVALID_ARGUMENT, 'behind the end')
    call read_buffer_async(transfer, output, 4*n, stat=stat)
    call check(stat == ONEBUF_INVALID_ARGUMENT, 'at the end')
    call read_buffer_async(transfer, output, -4, 4, stat)
    call check(stat == ONEBUF_INVALID_ARGUMENT, 'before the beginning')
    call check(.not. transfer_is_valid(transfer), 'nothing was started')
    call wait_for_transfer(transfer, 1, stat)
    call check(stat == ONEBUF_INVALID_HANDLE, 'nothing to wait for')
    call read_buffer_async(transfer, output)
    call get_array_pointer(transfer, y, stat=stat)
    call check(stat == ONEBUF_BUSY .and. .not. associated(y), 'before the wait')
    call read_buffer_async(transfer, output, stat=stat, errmsg=message)
    call check(stat == ONEBUF_BUSY .and. index(message, 'close it first') > 0, trim(message))
    call wait_for_transfer(transfer)
    call get_array_pointer(transfer, y, [n + 1], stat)
    call check(stat == ONEBUF_INVALID_ARGUMENT, 'more elements than were read')
    call close_transfer(transfer, stat)
    call check(stat == 0, 'closed')
  end subroutine

  subroutine maps
    type(unified_buffer) :: b, output
    type(buffer_map) :: map
    real(real32), pointer :: x(:), table(:, :)
    real(real32) :: found(n)
    type(c_ptr) :: address

    b = create_unified_buffer(4*n, BUFFER_READ_WRITE)
    output = create_unified_buffer(4*n, BUFFER_READ_ONLY)
    call fill_buffer(b, 1.0_real32)
    ! A part; the rest keeps its values.
    call open_buffer_map(map, b, 40, 16)
    call check(map_is_valid(map), 'a map')
    call get_array_pointer(map, x)
    call check(size(x) == 4 .and. all(abs(x - 1) <= 0), 'a part of the buffer')
    x = 2
    address = map_address(map)
    call check(c_associated(address, c_loc(x)), 'its address')
    call get_array_pointer(map, table, [2, 2])
    call check(all(shape(table) == 2), 'as a matrix')
    call read_buffer(b, found, stat=stat, errmsg=message)
    call check(stat == ONEBUF_BUSY, 'nothing else uses it meanwhile: '//trim(message))
    call close_buffer_map(map)
    call check(.not. map_is_valid(map), 'closed')
    call read_buffer(b, found)
    call check(all(abs(found(11:14) - 2) <= 0) .and. abs(found(10) - 1) <= 0 .and. abs(found(15) - 1) <= 0, 'what was written')
    ! Earlier contents are not needed.
    call open_buffer_map(map, b, discard=.true.)
    call get_array_pointer(map, x)
    x = 4
    call close_buffer_map(map)
    ! Asked for while a kernel runs.
    call bind_buffer_to_shader(b, 0)
    call bind_buffer_to_shader(output, 1)
    call dispatch_compute(program, [n], integers=[n], reals=[2.0_real32])
    call start_buffer_map(map, output, 4_int64, 8_int64, BUFFER_READ_ONLY)
    call wait_for_map(map, 60000)
    call check(map_is_ready(map), 'it is ready')
    call get_array_pointer(map, x)
    call check(size(x) == 2 .and. all(abs(x - 8) <= 0), 'after the kernel')
    call close_buffer_map(map)
    call start_buffer_map(map, output)
    call wait_for_map(map, 60000_int64)
    call get_array_pointer(map, x, [int(n, int64)])
    call check(all(abs(x - 8) <= 0), 'every element')
    call close_buffer_map(map)
    ! One that was never waited for.
    call start_buffer_map(map, output, 8)
    call get_array_pointer(map, x, stat=stat, errmsg=message)
    call check(stat == ONEBUF_BUSY .and. index(message, 'wait_for_map') > 0, trim(message))
    call close_buffer_map(map)
    call start_buffer_map(map, output, 8, 4_int64)
    call close_buffer_map(map)
    call start_buffer_map(map, output, 8_int64, 4)
    call wait_for_map(map)
    call close_buffer_map(map)
    call open_buffer_map(map, output, 8, 4_int64)
    call close_buffer_map(map)
    call open_buffer_map(map, output, 8_int64, 4)
    call close_buffer_map(map)
    call open_buffer_map(map, output, 8_int64, 4_int64)
    call close_buffer_map(map)
    call unbind_shader_buffers
  end subroutine

  subroutine wrong_maps
    type(unified_buffer) :: b, output
    type(buffer_map) :: map
    real(real32), pointer :: x(:)

    b = create_unified_buffer(4*n, BUFFER_READ_WRITE)
    output = create_unified_buffer(4*n, BUFFER_READ_ONLY)
    call get_array_pointer(map, x, stat=stat)
    call check(stat == ONEBUF_INVALID_HANDLE, 'no map')
    call wait_for_map(map, 1, stat)
    call check(stat == ONEBUF_INVALID_HANDLE, 'nothing to wait for')
    call open_buffer_map(map, b, 0, 4*n + 4, stat=stat)
    call check(stat == ONEBUF_INVALID_ARGUMENT, 'behind the end')
    call check(.not. map_is_valid(map), 'nothing was made')
    call open_buffer_map(map, b, -4, 4, stat=stat)
    call check(stat == ONEBUF_INVALID_ARGUMENT, 'a negative offset')
    call open_buffer_map(map, b, 0, 4, 9, stat=stat)
    call check(stat == ONEBUF_INVALID_ARGUMENT, 'no such access mode')
    call open_buffer_map(map, b, 0, 6)
    call get_array_pointer(map, x, stat=stat)
    call check(stat == ONEBUF_INVALID_ARGUMENT, 'no whole number of elements')
    call open_buffer_map(map, b, stat=stat, errmsg=message)
    call check(stat == ONEBUF_BUSY .and. index(message, 'close it first') > 0, trim(message))
    call close_buffer_map(map)
  end subroutine

  subroutine kinds
    type(unified_buffer) :: b

    b = create_unified_buffer(4*n, BUFFER_READ_WRITE, memory_kind=MEMORY_KIND_HOST_PAGES)
    call check(buffer_memory_kind(b) == MEMORY_KIND_HOST_PAGES, 'ordinary pages')
    b = create_unified_buffer(4*n, BUFFER_READ_WRITE, memory_kind=MEMORY_KIND_ANY)
    call check(buffer_memory_kind(b) /= MEMORY_KIND_ANY, 'the library has chosen')
    b = create_unified_buffer(4*n, BUFFER_READ_WRITE, memory_kind=99, stat=stat, errmsg=message)
    call check(stat == ONEBUF_INVALID_ARGUMENT .and. index(message, 'MEMORY_KIND_') > 0, trim(message))
    if (index(device, 'host') == 1) then
      b = create_unified_buffer(4*n, BUFFER_READ_WRITE, memory_kind=MEMORY_KIND_FINE_SVM, stat=stat)
      call check(stat == ONEBUF_UNSUPPORTED, 'the host has no SVM')
      call check(.not. buffer_is_valid(b), 'nothing was made')
    end if
  end subroutine

  ! A pool that logs sends its messages to the procedure.
  subroutine log
    use receivers
    use onebuf_c, only: onebuf_pool, onebuf_pool_options, onebuf_pool_create_with, onebuf_pool_get, onebuf_pool_free, &
      onebuf_buffer, onebuf_buffer_free
    use gpu_session, only: session
    use gpu_buffer_core, only: shape_of
    use gpu_errors, only: report
    type(onebuf_pool) :: pool
    type(onebuf_pool_options) :: options
    type(onebuf_buffer) :: b
    integer :: i

    options%size = int(storage_size(options)/8, c_size_t)
    options%log = 1
    call report(onebuf_pool_create_with(session%hub, options, pool), 'the pool')
    call gpu_log_to(receive, 9, stat)
    call check(stat == ONEBUF_INVALID_ARGUMENT, 'no such level')
    call gpu_log_to(receive, LOG_DEBUG)
    do i = 1, 2
      call report(onebuf_pool_get(pool, 4096_c_size_t, shape_of(BUFFER_READ_WRITE, MEMORY_COHERENT), 0_c_int64_t, b), 'a buffer')
      call check(messages == 1 .and. wrong == 0, 'one message, while it is sent here')
      call report(onebuf_buffer_free(b), 'the buffer')
      call gpu_log_to_stderr
    end do
    call report(onebuf_pool_free(pool), 'the pool')
    call gpu_log_to(receive)
    call gpu_log_to_stderr(stat)
    call check(stat == 0, 'the default level')
  end subroutine

  ! Work that waits for the CPU: maps and transfers time out until the event is completed.
  subroutine events
    type(unified_buffer) :: b, output
    type(user_event) :: event
    type(gpu_fence) :: fence
    type(buffer_map) :: map
    type(buffer_transfer) :: reading
    real(real32), pointer :: y(:)
    type(c_ptr) :: cl_event
    integer :: i

    b = create_unified_buffer(4*n, BUFFER_WRITE_ONLY)
    output = create_unified_buffer(4*n, BUFFER_READ_ONLY)
    call fill_buffer(b, 1.5_real32)
    call bind_buffer_to_shader(b, 0)
    call bind_buffer_to_shader(output, 1)
    call check(.not. user_event_is_valid(event), 'no event')
    do i = 1, 2
      if (i == 1) call create_user_event(event, stat, message)
      if (i == 2) call create_user_event(event, stat, message, cl_context=gpu_native_handle('cl_context'))
      if (stat == ONEBUF_UNSUPPORTED) then
        print '(4a)', 'skip: user events on ', trim(device), ': ', trim(message)
        call unbind_shader_buffers
        return
      end if
      call check(stat == 0, 'an event: '//trim(message))
      call check(user_event_is_valid(event), 'one was made')
      call create_user_event(event, stat)
      call check(stat == ONEBUF_BUSY, 'the variable is in use')
      fence = user_event_fence(event)
      cl_event = user_event_cl_event(event)
      call check(c_associated(cl_event), 'the cl_event')
      call check(gpu_fence_wait(fence, 0_int64) == FENCE_TIMEOUT, 'it is not completed')
      call gpu_wait_for_fence(fence)
      call dispatch_compute(program, [n], integers=[n], reals=[real(i, real32)])
      call start_buffer_map(map, output)
      call check(.not. map_is_ready(map), 'the kernel has not run')
      call wait_for_map(map, 1, stat)
      call check(stat == ONEBUF_TIMEOUT, 'nor can it')
      call complete_user_event(event)
      call complete_user_event(event, stat)
      call check(stat == 0, 'once more has no effect')
      call wait_for_map(map, 60000)
      call get_array_pointer(map, y)
      call check(all(abs(y - 1.5*i) <= 0), 'after the event')
      call close_buffer_map(map)
      call check(gpu_fence_wait(fence, 60000000000_int64) == FENCE_READY, 'it is completed')
      call destroy_user_event(event)
    end do
    ! A read behind an event.
    call create_user_event(event)
    fence = user_event_fence(event)
    call gpu_wait_for_fence(fence, device=1)
    call dispatch_compute(program, [n], integers=[n], reals=[6.0_real32])
    call read_buffer_async(reading, output)
    call check(.not. transfer_is_done(reading), 'it is under way')
    call wait_for_transfer(reading, 1, stat, message)
    call check(stat == ONEBUF_TIMEOUT, 'the read waits: '//trim(message))
    call complete_user_event(event)
    call wait_for_transfer(reading, 60000)
    call get_array_pointer(reading, y)
    call check(all(abs(y - 9) <= 0), 'what was read after the event')
    call close_transfer(reading)
    call destroy_user_event(event)
    call unbind_shader_buffers
  end subroutine

  subroutine no_events
    type(user_event) :: event
    type(gpu_fence) :: none

    call create_user_event(event, stat, message)
    call check(stat == ONEBUF_UNSUPPORTED, 'no OpenCL here: '//trim(message))
    call check(.not. user_event_is_valid(event), 'nothing was made')
    call complete_user_event(event, stat)
    call check(stat == ONEBUF_INVALID_HANDLE, 'no event')
    none = user_event_fence(event, stat)
    call check(stat == ONEBUF_INVALID_HANDLE, 'no fence')
    call check(.not. c_associated(user_event_cl_event(event, stat)), 'no cl_event')
    call gpu_wait_for_fence(none, stat)
    call check(stat == ONEBUF_INVALID_HANDLE, 'nothing to wait for')
    call destroy_user_event(event)
  end subroutine
end program
