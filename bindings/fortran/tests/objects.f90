! Native objects of buffers and devices, plans, copies, fills, traces and the live view. `objects DEVICE FOLDER`.
program objects
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
  use gpu_unified_buffers
  use gain, only: gain_program
  use checks, only: check
  implicit none
  integer, parameter :: n = 4096
  integer :: stat
  character(400) :: message
  character(64) :: device
  character(300) :: folder
  real(real32), pointer :: host_data(:)

  call get_command_argument(1, device)
  call get_command_argument(2, folder)
  call gpu_open(trim(device), trace_events=1000)
  call devices
  call views
  call access
  call plans
  call copies
  call traces
  call live
  call queues
  print '(2a)', 'objects work on ', gpu_device_name()

contains

  function is(api) result(yes)
    character(*), intent(in) :: api
    logical :: yes

    yes = index(device, api) == 1
  end function

  subroutine devices
    type(device_info) :: info
    type(c_ptr) :: handle

    call get_device_info(info, device=1)
    call check(any(info%kind == [DEVICE_OTHER, DEVICE_CPU, DEVICE_GPU, DEVICE_ACCELERATOR]), 'the kind')
    if (is('host')) call check(info%kind == DEVICE_CPU .and. info%compute_units > 0, 'the host is a CPU')
    call check(info%max_buffer_bytes > 0, 'the largest buffer')
    call check(info%uuid == '' .or. verify(info%uuid, '0123456789ABCDEF') == 0, 'the UUID is hexadecimal')
    call get_device_info(info, stat, message, device=7)
    call check(stat == ONEBUF_INVALID_ARGUMENT .and. index(message, 'gpu_add_device') > 0, trim(message))
    call check(.not. gpu_device_has('no_such_feature', stat), 'a feature that does not exist')
    call check(stat == 0, 'is no error')
    if (is('opencl')) then
      handle = gpu_native_handle('cl_context')
      call check(c_associated(handle), 'the cl_context')
      handle = gpu_native_queue()
      call check(c_associated(handle), 'the cl_command_queue')
    else if (is('gl')) then
      handle = gpu_native_handle('EGLContext')
      call check(c_associated(handle), 'the EGLContext')
    end if
    handle = gpu_native_handle('VkNothing', stat, message, device=1)
    call check(stat == ONEBUF_UNSUPPORTED .and. .not. c_associated(handle), 'no such handle: '//trim(message))
  end subroutine

  subroutine views
    type(unified_buffer) :: b
    type(buffer_view) :: view
    type(c_ptr) :: address, cl_mem, pointer
    integer(int64) :: vk_buffer, offset
    integer :: name
    real(real32) :: found(n)

    b = create_unified_buffer(4*n, BUFFER_READ_WRITE)
    call fill_buffer(b, 1.5_real32)
    call check(.not. view_is_valid(view), 'no view')
    call open_buffer_view(view, b, device=1)
    call check(view_is_valid(view), 'a view')
    call open_buffer_view(view, b, stat)
    call check(stat == ONEBUF_BUSY, 'the variable is in use')
    call read_buffer(b, found, stat=stat, errmsg=message)
    call check(stat == ONEBUF_BUSY, 'the CPU waits for its turn: '//trim(message))
    address = view_address(view, stat)
    call check(stat == 0 .eqv. c_associated(address), 'an address or none')
    cl_mem = view_cl_mem(view, stat)
    call check(stat == 0 .eqv. c_associated(cl_mem), 'a cl_mem or none')
    if (is('opencl')) call check(c_associated(cl_mem) .neqv. c_associated(address), 'one of the two')
    name = view_gl_name(view, stat)
    call check((name /= 0) .eqv. is('gl'), 'the name of the OpenGL buffer')
    if (is('gl')) call check(name == buffer_gl_name(b), 'the same as the buffer says')
    pointer = view_cuda_pointer(view, stat)
    call check(stat == ONEBUF_UNSUPPORTED .and. .not. c_associated(pointer), 'no CUDA here')
    pointer = view_hip_pointer(view, stat)
    call check(stat == ONEBUF_UNSUPPORTED .and. .not. c_associated(pointer), 'no HIP here')
    call get_vulkan_buffer(view, vk_buffer, offset, stat)
    call check((stat == 0) .eqv. is('vulkan'), 'the VkBuffer')
    if (is('vulkan')) call check(vk_buffer /= 0 .and. offset >= 0, 'and its offset')
    if (is('host')) then
      call c_f_pointer(address, host_data, [n])
      call check(all(abs(host_data - 1.5) <= 0), 'the bytes at the address')
    end if
    call close_buffer_view(view)
    call check(.not. view_is_valid(view), 'closed')
    call read_buffer(b, found)
    call check(all(abs(found - 1.5) <= 0), 'and readable again')
  end subroutine

  ! What the CPU does not do is not asked of the driver.
  subroutine access
    type(unified_buffer) :: input, output, both
    type(compute_program) :: program
    real(real32), pointer :: x(:), y(:)
    logical :: restricted

    input = create_unified_buffer(4*n, BUFFER_WRITE_ONLY)
    output = create_unified_buffer(4*n, BUFFER_READ_ONLY)
    both = create_unified_buffer(4*n, BUFFER_READ_WRITE)
    program = gain_program()
    call get_array_pointer(input, x)
    x = 3
    call flush_buffer_range(input, 0, 4*n)
    call bind_buffer_to_shader(input, 0)
    call bind_buffer_to_shader(output, 1)
    call dispatch_compute(program, [n], integers=[n], reals=[2.0_real32])
    call get_array_pointer(output, y)
    call check(all(abs(y - 6) <= 0), 'through maps for one kind of access each')
    ! A part is written; the rest keeps its values.
    call get_array_pointer(input, x)
    x(5) = 4
    call dispatch_compute(program, [n], integers=[n], reals=[2.0_real32])
    call get_array_pointer(output, y)
    call check(abs(y(5) - 8) <= 0 .and. abs(y(6) - 6) <= 0, 'what was not written is kept')
    call unbind_shader_buffers
    restricted = host_reads_are_refused(input)
    call check(.not. host_reads_are_refused(both), 'the control')
    ! The plan decides whether that is possible: where the CPU reaches the memory by copies, the library needs both kinds of access.
    call check(restricted .eqv. can_be_restricted(), 'the driver was not asked for reads of the input')
    if (is('host')) call check(restricted, 'the host can always be restricted')
  end subroutine

  ! Whether the library creates buffers that the CPU only writes, on the routes of this machine.
  function can_be_restricted() result(can)
    use onebuf_c, only: onebuf_buffer, onebuf_buffer_options, onebuf_buffer_create, onebuf_buffer_free, ONEBUF_HOST_WRITE
    use gpu_session, only: session
    use gpu_buffer_core, only: shape_of
    logical :: can
    type(onebuf_buffer_options) :: options
    type(onebuf_buffer) :: made
    integer(c_int32_t) :: status

    options = shape_of(BUFFER_WRITE_ONLY, MEMORY_COHERENT)
    options%host_access = ONEBUF_HOST_WRITE
    status = onebuf_buffer_create(session%hub, int(4*n, c_size_t), options, made)
    can = status == ONEBUF_OK
    call check(can .or. status == ONEBUF_UNSUPPORTED, 'one of the two')
    if (can) status = onebuf_buffer_free(made)
  end function

  ! Whether the library itself refuses a read by the CPU, beneath these modules.
  function host_reads_are_refused(b) result(refused)
    use onebuf_c, only: onebuf_buffer, onebuf_buffer_read, onebuf_buffer_to_device
    use gpu_buffer_core, only: buffer_handle
    type(unified_buffer), intent(in) :: b
    logical :: refused
    integer(c_int32_t), target :: word
    integer(c_int32_t) :: status

    status = onebuf_buffer_to_device(buffer_handle(b))
    status = onebuf_buffer_read(buffer_handle(b), 0_c_size_t, c_loc(word), 4_c_size_t)
    refused = status == ONEBUF_INVALID_ARGUMENT
  end function

  subroutine plans
    character(:), allocatable :: text

    text = plan_buffer(4*n, BUFFER_READ_WRITE)
    call check(index(text, trim(device)) > 0, 'a plan for the device: '//text)
    text = plan_buffer(4_int64*n, BUFFER_WRITE_ONLY, MEMORY_GPU_PREFERRED, json=.true.)
    call check(index(text, '"memory_kind"') > 0, 'a plan as JSON: '//text)
    text = plan_buffer(4*n, 9, stat=stat, errmsg=message)
    call check(stat == ONEBUF_INVALID_ARGUMENT .and. text == '', 'no such access mode')
  end subroutine

  subroutine copies
    type(unified_buffer) :: a, b
    integer(int32) :: i, found(n)
    integer(int64) :: wide(n/2)
    real(real64) :: reals(n/2)

    a = create_unified_buffer(4*n, BUFFER_READ_WRITE)
    b = create_unified_buffer(4*n, BUFFER_READ_WRITE)
    call write_buffer(a, [(i, i=1, n)])
    call copy_buffer(a, b)
    call read_buffer(b, found)
    call check(all(found == [(i, i=1, n)]), 'a whole copy')
    call copy_buffer(a, b, 4*8, 0, 4*100)
    call read_buffer(b, found)
    call check(all(found(101:108) == [(i, i=1, 8)]) .and. found(100) == 100 .and. found(109) == 109, 'a part')
    call copy_buffer(a, b, 4_int64*8, 4_int64*8, 0_int64)
    call read_buffer(b, found)
    call check(all(found(:8) == [(i, i=9, 16)]), 'another part')
    call copy_buffer(a, b, -4, 0, 0, stat)
    call check(stat == ONEBUF_INVALID_ARGUMENT, 'a negative size')
    call copy_buffer(a, b, 4*n, 4, 0, stat)
    call check(stat == ONEBUF_INVALID_ARGUMENT, 'behind the end')
    call fill_buffer(a, 7)
    call read_buffer(a, found)
    call check(all(found == 7), 'filled with 32 bits')
    call fill_buffer(a, 7000000000_int64)
    call read_buffer(a, wide)
    call check(all(wide == 7000000000_int64), 'filled with 64 bits')
    call fill_buffer(a, 0.25_real64)
    call read_buffer(a, reals)
    call check(all(abs(reals - 0.25_real64) <= 0), 'filled with reals')
  end subroutine

  subroutine traces
    character(:), allocatable :: text
    integer(int64) :: dropped
    logical :: there

    text = trace_json()
    call check(index(text, 'traceEvents') > 0, 'a trace: '//text(:min(200, len(text))))
    dropped = trace_dropped()
    call check(dropped >= 0, 'dropped events')
    call save_trace(trim(folder)//'/objects-trace.json')
    inquire (file=trim(folder)//'/objects-trace.json', exist=there)
    call check(there, 'the file')
    call clear_trace
    call check(len(trace_json()) < len(text), 'fewer events')
    call save_trace('/no/such/folder/trace.json', stat)
    call check(stat /= 0, 'a folder that does not exist')
  end subroutine

  ! Dispatches on several queues, all ordered by their buffers; a program that cannot be moved.
  subroutine queues
    type(queue_pool) :: pool
    type(unified_buffer) :: input, outputs(4)
    type(compute_program) :: program, moved
    real(real32) :: found(n)
    integer :: i, host

    call check(.not. queue_pool_is_valid(pool), 'no pool')
    call create_queue_pool(pool, 0, stat)
    call check(stat == ONEBUF_INVALID_ARGUMENT, 'no queues')
    call create_queue_pool(pool, 2, device=1)
    call check(queue_pool_is_valid(pool), 'a pool')
    call create_queue_pool(pool, 2, stat)
    call check(stat == ONEBUF_BUSY, 'the variable is in use')
    program = gain_program()
    input = create_unified_buffer(4*n, BUFFER_WRITE_ONLY)
    found = 3
    call write_buffer(input, found)
    call bind_buffer_to_shader(input, 0)
    do i = 1, size(outputs)
      outputs(i) = create_unified_buffer(4*n, BUFFER_READ_ONLY)
      if (i < 3) call next_queue(pool)
      if (i >= 3) call least_busy_queue(pool)
      call bind_buffer_to_shader(outputs(i), 1)
      call dispatch_compute(program, [n], integers=[n], reals=[real(i, real32)])
    end do
    call finish_queue_pool(pool)
    do i = 1, size(outputs)
      call read_buffer(outputs(i), found)
      call check(all(abs(found - 3*i) <= 0), 'the result of each queue')
    end do
    call unbind_shader_buffers
    call destroy_queue_pool(pool)
    call check(.not. queue_pool_is_valid(pool), 'destroyed')
    call next_queue(pool, stat)
    call check(stat == ONEBUF_INVALID_HANDLE, 'no pool any more')
    if (.not. is('opencl')) return
    host = gpu_add_device('host')
    moved = compile_compute_program('k', [BUFFER_READ_WRITE], opencl_c='kernel void k(global int *x) { x[0] = N; }', &
      compiler_options='-DN=3', graft_to=host, stat=stat, errmsg=message)
    call check(stat == ONEBUF_UNSUPPORTED .and. .not. program_is_valid(moved), 'the host runs no moved programs')
    moved = compile_compute_program('k', [BUFFER_READ_WRITE], opencl_c='kernel void k(global int *x) { x[0] = N; }', &
      compiler_options='-DN=3')
    call check(program_is_valid(moved), 'an option of the compiler')
  end subroutine

  subroutine live
    type(live_view) :: view
    type(gpu_pipeline) :: none
    character(:), allocatable :: path, name
    logical :: there

    ! The folder's name is unique on the machine.
    name = 'objects'//trim(folder(index(folder, '/', back=.true.) + 1:))
    call publish_gpu(view, name)
    path = live_view_path(view)
    inquire (file=path, exist=there)
    call check(there, 'the socket '//path)
    call publish_gpu(view, name, stat)
    call check(stat == ONEBUF_BUSY, 'the variable is in use')
    call publish_pipeline(view, 'none', none, stat)
    call check(stat == ONEBUF_INVALID_HANDLE, 'a pipeline that has not run')
    call unpublish_gpu(view)
    inquire (file=path, exist=there)
    call check(.not. there, 'the socket is gone')
  end subroutine
end program
