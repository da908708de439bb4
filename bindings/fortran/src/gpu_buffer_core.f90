! Untyped buffers: created, shared by assignment, handed between CPU and GPU, read and written as bytes.
module gpu_buffer_core
  use, intrinsic :: iso_fortran_env, only: int32, int64
  use onebuf_c
  use gpu_errors, only: report, refuse, succeed, taken_text
  use gpu_session, only: session, need_session, gpu_device_name
  use gpu_fence_primitives, only: gpu_fence, set_fence
  implicit none
  private
  public :: unified_buffer, create_unified_buffer, destroy_unified_buffer, buffer_is_valid
  public :: buffer_size_bytes, buffer_access_mode, buffer_memory_hint, buffer_gl_name, buffer_persistent_pointer
  public :: buffer_is_mapped, buffer_is_coherent, buffer_read_fence, buffer_write_fence
  public :: explain_buffer, get_cpu_pointer, sync_to_gpu, sync_from_gpu, flush_buffer_range
  public :: BUFFER_READ_ONLY, BUFFER_WRITE_ONLY, BUFFER_READ_WRITE
  public :: MEMORY_CPU_PREFERRED, MEMORY_GPU_PREFERRED, MEMORY_COHERENT, MEMORY_STREAMING
  public :: GPU_DEFAULT_TIMEOUT_NS
  public :: store_elements, load_elements, open_for_cpu, element_count, kernel_access, offset_of, timeout_of, NO_TIMEOUT
  public :: buffer_handle, make_buffer, set_buffer, shape_of

  ! How the CPU accesses a buffer. If the CPU only writes it, kernels only read it.
  integer, parameter :: BUFFER_READ_ONLY = 1
  integer, parameter :: BUFFER_WRITE_ONLY = 2
  integer, parameter :: BUFFER_READ_WRITE = 3

  ! The expected use of a buffer.
  integer, parameter :: MEMORY_CPU_PREFERRED = 1
  integer, parameter :: MEMORY_GPU_PREFERRED = 2
  integer, parameter :: MEMORY_COHERENT = 3
  integer, parameter :: MEMORY_STREAMING = 4

  ! The timeout of write_buffer_safe and read_buffer_safe if none is given: ten seconds.
  integer(int64), parameter :: GPU_DEFAULT_TIMEOUT_NS = 10000000000_int64

  ! A timeout that means the library's own.
  integer(int64), parameter :: NO_TIMEOUT = -1

  ! Memory that CPU and GPU both access. Assigned variables share it, and it is freed with the last of them.
  !
  ! Compilers differ in what they copy and finalize implicitly. So the library counts variables, by their addresses: a
  ! copy that no assignment made (a value argument, a structure constructor, source=) owns nothing and frees nothing,
  ! and one address owns at most one buffer. INTENT(OUT) in the assignment matters: for INTENT(INOUT) gfortran assigns
  ! components by way of a temporary, whose address is reused soon.
  type :: unified_buffer
    private
    type(onebuf_buffer) :: handle
    integer(int64) :: size_bytes = 0
    integer :: access_mode = BUFFER_READ_WRITE
    integer :: memory_hint = MEMORY_COHERENT
    integer :: gl_name = 0
  contains
    procedure, private :: assign
    generic :: assignment(=) => assign
    final :: finish
  end type

  ! A generic name has each of `size` and `alignment` as int32 and as int64.
  interface create_unified_buffer
    module procedure create_int32, create_int64, create_int32_int64, create_int64_int64
  end interface

  ! Without stat= these are pure, so that they may stand in specification expressions.
  interface buffer_size_bytes
    module procedure size_only, size_with_stat
  end interface

  interface buffer_access_mode
    module procedure mode_only, mode_with_stat
  end interface

  interface buffer_memory_hint
    module procedure hint_only, hint_with_stat
  end interface

  interface buffer_gl_name
    module procedure name_only, name_with_stat
  end interface

  interface get_cpu_pointer
    module procedure pointer_int32, pointer_int64
  end interface

  interface flush_buffer_range
    module procedure flush_int32_int32, flush_int32_int64, flush_int64_int32, flush_int64_int64
  end interface

contains

  ! Creates a buffer of `size` bytes, which are zero. Assign the result: buffers are owned by variables. `alignment` is a power of two.
  function create_int64(size, access_mode, memory_hint, stat, errmsg, alignment) result(buffer)
    integer(int64), intent(in) :: size
    integer, intent(in) :: access_mode
    integer, intent(in), optional :: memory_hint
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(int32), intent(in), optional :: alignment
    type(unified_buffer) :: buffer

    call create(buffer, size, access_mode, offset_of(alignment), memory_hint, stat, errmsg)
  end function

  function create_int32(size, access_mode, memory_hint, stat, errmsg, alignment) result(buffer)
    integer(int32), intent(in) :: size
    integer, intent(in) :: access_mode
    integer, intent(in), optional :: memory_hint
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(int32), intent(in), optional :: alignment
    type(unified_buffer) :: buffer

    call create(buffer, int(size, int64), access_mode, offset_of(alignment), memory_hint, stat, errmsg)
  end function

  function create_int64_int64(size, access_mode, memory_hint, stat, errmsg, alignment) result(buffer)
    integer(int64), intent(in) :: size
    integer, intent(in) :: access_mode
    integer, intent(in), optional :: memory_hint
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(int64), intent(in) :: alignment
    type(unified_buffer) :: buffer

    call create(buffer, size, access_mode, alignment, memory_hint, stat, errmsg)
  end function

  function create_int32_int64(size, access_mode, memory_hint, stat, errmsg, alignment) result(buffer)
    integer(int32), intent(in) :: size
    integer, intent(in) :: access_mode
    integer, intent(in), optional :: memory_hint
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(int64), intent(in) :: alignment
    type(unified_buffer) :: buffer

    call create(buffer, int(size, int64), access_mode, alignment, memory_hint, stat, errmsg)
  end function

  subroutine create(buffer, size, access_mode, alignment, memory_hint, stat, errmsg)
    type(unified_buffer), intent(inout) :: buffer
    integer(int64), intent(in) :: size, alignment
    integer, intent(in) :: access_mode
    integer, intent(in), optional :: memory_hint
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(onebuf_pool) :: no_pool

    call make_buffer(buffer, 'create_unified_buffer', size, access_mode, alignment, no_pool, 0_int64, memory_hint, stat, &
      errmsg)
  end subroutine

  ! Creates a buffer in a function's result, which gets an owner when it is assigned; in a pool unless that is null.
  subroutine make_buffer(buffer, me, size, access_mode, alignment, pool, timeout_ms, memory_hint, stat, errmsg)
    type(unified_buffer), intent(inout) :: buffer
    character(*), intent(in) :: me
    integer(int64), intent(in) :: size, alignment, timeout_ms
    integer, intent(in) :: access_mode
    type(onebuf_pool), intent(in) :: pool
    integer, intent(in), optional :: memory_hint
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(onebuf_buffer_options) :: options
    integer(c_int32_t) :: status
    character(:), allocatable :: wrong

    buffer%access_mode = access_mode
    if (present(memory_hint)) buffer%memory_hint = memory_hint
    wrong = mistake(size, alignment, buffer)
    if (wrong /= '') then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': '//wrong, stat, errmsg, returns=.true.)
      return
    end if
    call need_session(stat, errmsg, returns=.true.)
    if (session%hub%id == 0) return
    options = shape_of(access_mode, buffer%memory_hint)
    options%align = int(alignment, c_size_t)
    ! What the CPU does not do is not asked for: the driver may choose write-combined or cached memory. Where the library
    ! needs both kinds of access itself, because the CPU reaches the memory by copies, it is asked for both.
    ! Pools keep buffers of full access.
    if (session%open_count == 1 .and. pool%id == 0) options%host_access = host_access(access_mode)
    status = obtain(size, options, pool, timeout_ms, buffer)
    if (status == ONEBUF_UNSUPPORTED .and. options%host_access /= ONEBUF_HOST_READ_WRITE) then
      options%host_access = ONEBUF_HOST_READ_WRITE
      status = obtain(size, options, pool, timeout_ms, buffer)
    end if
    call report(status, me, stat, errmsg, returns=.true.)
    if (status /= ONEBUF_OK) return
    buffer%size_bytes = size
    buffer%gl_name = gl_name_of(buffer)
  end subroutine

  ! The options of a buffer that all open devices and the CPU use.
  function shape_of(access_mode, memory_hint) result(options)
    integer, intent(in) :: access_mode, memory_hint
    type(onebuf_buffer_options) :: options

    options%size = int(storage_size(options)/8, c_size_t)
    options%devices = c_loc(session%devices)
    options%device_count = int(session%device_count, c_size_t)
    options%access = kernel_access(access_mode)
    options%hint = int(memory_hint, c_int32_t)
    ! Device memory that is mapped for the CPU needs only one allocation; CPU memory might need a second one for the
    ! device. Among several devices the library chooses.
    if (session%open_count == 1) options%allocate_on = session%devices(1)
  end function

  function obtain(size, options, pool, timeout_ms, buffer) result(status)
    integer(int64), intent(in) :: size, timeout_ms
    type(onebuf_buffer_options), intent(in) :: options
    type(onebuf_pool), intent(in) :: pool
    type(unified_buffer), intent(inout) :: buffer
    integer(c_int32_t) :: status

    if (pool%id == 0) then
      status = onebuf_buffer_create(session%hub, int(size, c_size_t), options, buffer%handle)
    else
      status = onebuf_pool_get(pool, int(size, c_size_t), options, timeout_ms, buffer%handle)
    end if
  end function

  ! Names a buffer in a function's result, which gets an owner when it is assigned.
  subroutine set_buffer(buffer, handle, access_mode)
    type(unified_buffer), intent(inout) :: buffer
    type(onebuf_buffer), intent(in) :: handle
    integer, intent(in) :: access_mode
    integer(c_size_t) :: bytes

    buffer%handle = handle
    buffer%access_mode = access_mode
    if (onebuf_buffer_size(handle, bytes) == ONEBUF_OK) buffer%size_bytes = int(bytes, int64)
  end subroutine

  ! The name of the OpenGL buffer, if the first device is one of OpenGL's; 0 if not.
  function gl_name_of(buffer) result(name)
    type(unified_buffer), intent(in) :: buffer
    integer :: name
    type(onebuf_view) :: view
    integer(c_int32_t) :: found, ignored

    name = 0
    if (index(gpu_device_name(), 'gl') /= 1) return
    if (onebuf_view_take(buffer%handle, session%queues(1), ONEBUF_READ, view) /= ONEBUF_OK) return
    if (onebuf_view_gl_name(view, found) == ONEBUF_OK) name = int(found)
    ignored = onebuf_view_free(view)
  end function

  ! What is wrong with a request; empty if nothing is.
  function mistake(size, alignment, buffer) result(wrong)
    integer(int64), intent(in) :: size, alignment
    type(unified_buffer), intent(in) :: buffer
    character(:), allocatable :: wrong

    wrong = ''
    if (size <= 0) wrong = 'the size must be at least one byte'
    if (buffer%access_mode < BUFFER_READ_ONLY .or. buffer%access_mode > BUFFER_READ_WRITE) &
      wrong = 'no such access_mode: choose BUFFER_READ_ONLY, BUFFER_WRITE_ONLY or BUFFER_READ_WRITE'
    if (buffer%memory_hint < MEMORY_CPU_PREFERRED .or. buffer%memory_hint > MEMORY_STREAMING) &
      wrong = 'no such memory_hint: choose one of the MEMORY_ constants'
    if (alignment < 0 .or. iand(alignment, alignment - 1) /= 0) wrong = 'the alignment must be a power of two'
  end function

  ! Releases the buffer: it is freed if this was the last variable that shared it, after the GPU has finished using it.
  subroutine destroy_unified_buffer(buffer, stat, errmsg)
    type(unified_buffer), intent(inout), target :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_own(c_loc(buffer%handle%id), 0_c_int64_t), 'destroy_unified_buffer', stat, errmsg)
    buffer%handle%id = 0
    buffer%size_bytes = 0
    buffer%gl_name = 0
  end subroutine

  ! Whether the variable holds a buffer that exists.
  function buffer_is_valid(buffer, stat, errmsg) result(valid)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: valid
    integer(c_size_t) :: bytes

    valid = .false.
    if (buffer%handle%id /= 0) valid = onebuf_buffer_size(buffer%handle, bytes) == ONEBUF_OK
    call succeed(stat, errmsg)
  end function

  ! Size in bytes; zero for no buffer.
  pure function size_only(buffer) result(bytes)
    type(unified_buffer), intent(in) :: buffer
    integer(int64) :: bytes

    bytes = buffer%size_bytes
  end function

  function size_with_stat(buffer, stat, errmsg) result(bytes)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out) :: stat
    character(*), intent(inout), optional :: errmsg
    integer(int64) :: bytes

    bytes = buffer%size_bytes
    call succeed(stat, errmsg)
  end function

  ! How the CPU accesses it: BUFFER_READ_ONLY, BUFFER_WRITE_ONLY or BUFFER_READ_WRITE.
  pure function mode_only(buffer) result(mode)
    type(unified_buffer), intent(in) :: buffer
    integer :: mode

    mode = buffer%access_mode
  end function

  function mode_with_stat(buffer, stat, errmsg) result(mode)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out) :: stat
    character(*), intent(inout), optional :: errmsg
    integer :: mode

    mode = buffer%access_mode
    call succeed(stat, errmsg)
  end function

  ! The expected use: one of the MEMORY_ constants.
  pure function hint_only(buffer) result(hint)
    type(unified_buffer), intent(in) :: buffer
    integer :: hint

    hint = buffer%memory_hint
  end function

  function hint_with_stat(buffer, stat, errmsg) result(hint)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out) :: stat
    character(*), intent(inout), optional :: errmsg
    integer :: hint

    hint = buffer%memory_hint
    call succeed(stat, errmsg)
  end function

  ! The name of the OpenGL buffer in the library's context; 0 if the device is not one of OpenGL's.
  pure function name_only(buffer) result(name)
    type(unified_buffer), intent(in) :: buffer
    integer :: name

    name = buffer%gl_name
  end function

  function name_with_stat(buffer, stat, errmsg) result(name)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out) :: stat
    character(*), intent(inout), optional :: errmsg
    integer :: name

    name = buffer%gl_name
    call succeed(stat, errmsg)
  end function

  ! The CPU's address of the buffer if it is the CPU's turn; null if it is not. Never waits and maps nothing: see get_cpu_pointer.
  function buffer_persistent_pointer(buffer, stat, errmsg) result(address)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: address
    type(onebuf_buffer_state) :: state

    state = state_of(buffer, 'buffer_persistent_pointer', stat, errmsg)
    address = state%data
  end function

  ! Whether it is the CPU's turn: whether the buffer is mapped for it.
  function buffer_is_mapped(buffer, stat, errmsg) result(mapped)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: mapped
    type(onebuf_buffer_state) :: state

    state = state_of(buffer, 'buffer_is_mapped', stat, errmsg)
    mapped = state%mapped /= 0
  end function

  ! Whether CPU and GPU access one memory and see each other's stores without a driver call.
  function buffer_is_coherent(buffer, stat, errmsg) result(coherent)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: coherent
    type(onebuf_buffer_state) :: state

    state = state_of(buffer, 'buffer_is_coherent', stat, errmsg)
    coherent = state%coherent /= 0
  end function

  function state_of(buffer, me, stat, errmsg) result(state)
    type(unified_buffer), intent(in) :: buffer
    character(*), intent(in) :: me
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(onebuf_buffer_state) :: state

    state%size = int(storage_size(state)/8, c_size_t)
    call report(onebuf_buffer_get_state(buffer%handle, state), me, stat, errmsg, returns=.true.)
  end function

  ! A fence that the GPU reaches when all its uses of the buffer so far have ended: the CPU may then write. Invalid if there were none.
  function buffer_read_fence(buffer, stat, errmsg) result(fence)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(gpu_fence) :: fence
    type(onebuf_fence) :: handle

    call report(onebuf_buffer_uses(buffer%handle, handle), 'buffer_read_fence', stat, errmsg, returns=.true.)
    call set_fence(fence, handle)
  end function

  ! A fence that the GPU reaches when its writes to the buffer so far have ended: the CPU may then read. Invalid if there were none.
  function buffer_write_fence(buffer, stat, errmsg) result(fence)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(gpu_fence) :: fence
    type(onebuf_fence) :: handle

    call report(onebuf_buffer_fence(buffer%handle, handle), 'buffer_write_fence', stat, errmsg, returns=.true.)
    call set_fence(fence, handle)
  end function

  ! Explains where the buffer is allocated, by which route each device accesses it, and why no better route was chosen.
  function explain_buffer(buffer, stat, errmsg) result(text)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(:), allocatable :: text
    type(onebuf_string) :: string
    integer(c_int32_t) :: status

    text = ''
    status = onebuf_buffer_explain(buffer%handle, string)
    call report(status, 'explain_buffer', stat, errmsg, returns=.true.)
    if (status == ONEBUF_OK) text = taken_text(string)
  end function

  ! The CPU's address of the buffer's elements, given the element size in bytes; null on failure. Waits for the GPU's last use. Valid
  ! until the next dispatch that has the buffer bound, or sync_to_gpu; then ask for it again.
  function pointer_int64(buffer, element_size, stat, errmsg) result(address)
    type(unified_buffer), intent(in) :: buffer
    integer(int64), intent(in) :: element_size
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: address

    call open_for_cpu(buffer, element_size, -1_int64, 'get_cpu_pointer', address, stat, errmsg, returns=.true.)
  end function

  function pointer_int32(buffer, element_size, stat, errmsg) result(address)
    type(unified_buffer), intent(in) :: buffer
    integer(int32), intent(in) :: element_size
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: address

    address = pointer_int64(buffer, int(element_size, int64), stat, errmsg)
  end function

  ! The CPU has finished: the GPU sees what it wrote. Dispatches do this automatically.
  subroutine sync_to_gpu(buffer, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_buffer_to_device(buffer%handle), 'sync_to_gpu', stat, errmsg)
  end subroutine

  ! Waits for the GPU's last use: the CPU sees what it wrote. Reads and pointers do this automatically.
  subroutine sync_from_gpu(buffer, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: ignored

    call report(onebuf_buffer_to_host(buffer%handle, cpu_access(buffer), ignored), 'sync_from_gpu', &
      stat, errmsg)
  end subroutine

  ! The CPU has written `bytes` bytes from `offset` on: completes these stores, so that a GPU that shares the memory coherently sees them.
  ! Other GPUs see them at the next dispatch, which hands the buffer over. A range outside of the buffer is an error.
  subroutine flush_int64_int64(buffer, offset, bytes, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    integer(int64), intent(in) :: offset, bytes
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'flush_buffer_range: '

    if (.not. buffer_is_valid(buffer)) then
      call refuse(ONEBUF_INVALID_HANDLE, me//'no buffer, or one that was destroyed', stat, errmsg)
    else if (buffer%access_mode == BUFFER_READ_ONLY) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//'a BUFFER_READ_ONLY buffer is not written by the CPU', &
        stat, errmsg)
    else if (offset < 0 .or. bytes < 0 .or. offset > buffer%size_bytes - bytes) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//'the range is not inside the buffer', stat, errmsg)
    else
      call report(onebuf_buffer_flush(buffer%handle, int(offset, c_size_t), int(bytes, c_size_t)), &
        'flush_buffer_range', stat, errmsg)
    end if
  end subroutine

  subroutine flush_int32_int32(buffer, offset, bytes, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    integer(int32), intent(in) :: offset, bytes
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call flush_int64_int64(buffer, int(offset, int64), int(bytes, int64), stat, errmsg)
  end subroutine

  subroutine flush_int32_int64(buffer, offset, bytes, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    integer(int32), intent(in) :: offset
    integer(int64), intent(in) :: bytes
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call flush_int64_int64(buffer, int(offset, int64), bytes, stat, errmsg)
  end subroutine

  subroutine flush_int64_int32(buffer, offset, bytes, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    integer(int64), intent(in) :: offset
    integer(int32), intent(in) :: bytes
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call flush_int64_int64(buffer, offset, int(bytes, int64), stat, errmsg)
  end subroutine

  ! --- For the other modules --------------------------------------------------------------------------------------------

  elemental function buffer_handle(buffer) result(handle)
    type(unified_buffer), intent(in) :: buffer
    type(onebuf_buffer) :: handle

    handle = buffer%handle
  end function

  ! An optional offset or alignment: zero if it is absent.
  pure function offset_of(offset) result(value)
    integer(int32), intent(in), optional :: offset
    integer(int64) :: value

    value = 0
    if (present(offset)) value = int(offset, int64)
  end function

  ! An optional timeout: the default one if it is absent.
  pure function timeout_of(timeout_ns) result(value)
    integer(int32), intent(in), optional :: timeout_ns
    integer(int64) :: value

    value = GPU_DEFAULT_TIMEOUT_NS
    if (present(timeout_ns)) value = max(int(timeout_ns, int64), 0_int64)
  end function

  ! Writes elements at an offset, both counted in elements, with a timeout in nanoseconds.
  subroutine store_elements(buffer, data, element_bits, count, me, timeout_ns, offset, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    type(c_ptr), intent(in) :: data
    integer, intent(in) :: element_bits
    integer(int64), intent(in) :: count, timeout_ns, offset
    character(*), intent(in) :: me
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(c_size_t) :: first, bytes
    integer(c_int32_t) :: status

    if (.not. moves(buffer, BUFFER_READ_ONLY, me, element_bits, count, first, bytes, offset, stat, errmsg)) &
      return
    status = ONEBUF_OK
    if (timeout_ns >= 0) status = onebuf_buffer_wait_ns(buffer%handle, ONEBUF_READ_WRITE, timeout_ns)
    if (status == ONEBUF_OK) status = onebuf_buffer_store(buffer%handle, first, data, bytes)
    call report(status, me, stat, errmsg)
  end subroutine

  ! Reads elements at an offset, both counted in elements, with a timeout in nanoseconds.
  subroutine load_elements(buffer, data, element_bits, count, me, timeout_ns, offset, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    type(c_ptr), intent(in) :: data
    integer, intent(in) :: element_bits
    integer(int64), intent(in) :: count, timeout_ns, offset
    character(*), intent(in) :: me
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(c_size_t) :: first, bytes
    integer(c_int32_t) :: status

    if (.not. moves(buffer, BUFFER_WRITE_ONLY, me, element_bits, count, first, bytes, offset, stat, errmsg)) &
      return
    status = ONEBUF_OK
    if (timeout_ns >= 0) status = onebuf_buffer_wait_ns(buffer%handle, ONEBUF_READ, timeout_ns)
    if (status == ONEBUF_OK) status = onebuf_buffer_load(buffer%handle, first, data, bytes)
    call report(status, me, stat, errmsg)
  end subroutine

  ! Whether there is something to transfer, and which bytes. Errors have been reported. One mode forbids the transfer.
  function moves(buffer, forbidden, me, element_bits, count, first, bytes, offset, stat, errmsg) result(go)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(in) :: forbidden, element_bits
    integer(int64), intent(in) :: count, offset
    character(*), intent(in) :: me
    integer(c_size_t), intent(out) :: first, bytes
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: go

    bytes = int(count, c_size_t)*(element_bits/8)
    first = 0
    ! Limited, so that the product does not overflow; the library refuses what lies behind the end.
    if (offset > 0) first = int(min(offset, buffer%size_bytes + 1), c_size_t)*(element_bits/8)
    go = .false.
    if (buffer%access_mode == forbidden) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': the buffer was made for the CPU to '// &
        merge('read, not to write ', 'write, not to read ', forbidden == BUFFER_READ_ONLY)//'it', stat, errmsg)
    else if (offset < 0) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': the offset is negative', stat, errmsg)
    else if (count == 0) then
      if (present(stat)) stat = 0
    else
      go = .true.
    end if
  end function

  ! Gives the buffer to the CPU and returns the address of the elements: null on failure. A count that is not negative
  ! is the required number of elements.
  subroutine open_for_cpu(buffer, element_size, count, me, address, stat, errmsg, returns)
    type(unified_buffer), intent(in) :: buffer
    integer(int64), intent(in) :: element_size, count
    character(*), intent(in) :: me
    type(c_ptr), intent(out) :: address
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical, intent(in), optional :: returns

    address = c_null_ptr
    if (element_size < 1) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': an element has at least one byte', stat, errmsg, returns)
    else if (mod(buffer%size_bytes, element_size) /= 0) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': the buffer does not hold a whole number of elements', &
        stat, errmsg, returns)
    else if (count > buffer%size_bytes/element_size) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': the shape has more elements than the buffer', stat, errmsg, returns)
    else
      call report(onebuf_buffer_to_host(buffer%handle, cpu_access(buffer), address), me, stat, errmsg, returns)
    end if
  end subroutine

  ! Number of elements of a shape; an impossibly large number for an invalid shape.
  pure function element_count(shape) result(count)
    integer(int64), intent(in) :: shape(:)
    integer(int64) :: count
    integer :: i

    count = 1
    do i = 1, size(shape)
      if (shape(i) < 0 .or. count > huge(count)/max(shape(i), 1_int64)) then
        count = huge(count)
        return
      end if
      count = count*shape(i)
    end do
  end function

  ! How kernels access a buffer of a mode: the reverse of the CPU's access.
  pure function kernel_access(mode) result(access)
    integer, intent(in) :: mode
    integer(c_int32_t) :: access

    access = ONEBUF_READ_WRITE
    if (mode == BUFFER_WRITE_ONLY) access = ONEBUF_READ
    if (mode == BUFFER_READ_ONLY) access = ONEBUF_WRITE
  end function

  pure function cpu_access(buffer) result(access)
    type(unified_buffer), intent(in) :: buffer
    integer(c_int32_t) :: access

    access = ONEBUF_READ_WRITE
    if (buffer%access_mode == BUFFER_READ_ONLY) access = ONEBUF_READ
    if (buffer%access_mode == BUFFER_WRITE_ONLY) access = ONEBUF_WRITE
  end function

  pure function host_access(mode) result(access)
    integer, intent(in) :: mode
    integer(c_int32_t) :: access

    access = ONEBUF_HOST_READ_WRITE
    if (mode == BUFFER_READ_ONLY) access = ONEBUF_HOST_READ
    if (mode == BUFFER_WRITE_ONLY) access = ONEBUF_HOST_WRITE
  end function

  ! --- Variables that share a buffer -----------------------------------------------------------------------------------

  impure elemental subroutine assign(to, from)
    class(unified_buffer), intent(out), target :: to
    class(unified_buffer), intent(in) :: from

    call report(onebuf_own(c_loc(to%handle%id), from%handle%id), 'assigning a unified_buffer')
    to%handle = from%handle
    to%size_bytes = from%size_bytes
    to%access_mode = from%access_mode
    to%memory_hint = from%memory_hint
    to%gl_name = from%gl_name
  end subroutine

  ! Nothing is written here: gfortran 12 finalizes array components at wrong addresses.
  impure elemental subroutine finish(buffer)
    type(unified_buffer), intent(inout), target :: buffer

    call report(onebuf_disown(c_loc(buffer%handle%id)), 'ending a unified_buffer')
  end subroutine
end module
