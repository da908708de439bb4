! Memory, streams and events that the program created with CUDA or HIP, used with buffers of these modules without a copy. Native handles
! are type(c_ptr). `device` is the number of a CUDA or HIP device that is open: the first one without it.
module gpu_streams
  use, intrinsic :: iso_fortran_env, only: int32, int64
  use onebuf_c
  use gpu_errors, only: report, refuse
  use gpu_session, only: session, need_device, use_queue
  use gpu_fence_primitives, only: gpu_fence, set_fence
  use gpu_buffer_core, only: unified_buffer, give_buffer, mode_exists
  use gpu_foreign, only: wrap_options, hand_to_queue
  implicit none
  private
  public :: pointer_info, get_pointer_info, wrap_device_pointer, wrap_device_allocation, open_ipc_memory
  public :: gpu_use_stream, stream_fence, wrap_stream_event, hand_to_stream
  public :: POINTER_DEVICE, POINTER_MANAGED, POINTER_HOST

  ! The kinds of memory at an address: cudaMalloc and the like; cudaMallocManaged; cudaMallocHost and cudaHostRegister.
  integer, parameter :: POINTER_DEVICE = 0
  integer, parameter :: POINTER_MANAGED = 1
  integer, parameter :: POINTER_HOST = 2

  type :: pointer_info
    ! The allocation's first address and its size in bytes.
    type(c_ptr) :: start = c_null_ptr
    integer(int64) :: bytes = 0
    ! The CPU's address; null if it has none.
    type(c_ptr) :: host = c_null_ptr
    integer :: kind = POINTER_DEVICE
    ! The driver's number of the device that allocated it.
    integer :: device_number = -1
    ! Whether other APIs can import the allocation.
    logical :: exportable = .false.
  end type

  interface wrap_device_pointer
    module procedure pointer_int32, pointer_int64
  end interface

  interface wrap_device_allocation
    module procedure allocation_int32, allocation_int64
  end interface

  interface open_ipc_memory
    module procedure ipc_int32, ipc_int64
  end interface

contains

  ! Asks the driver about a pointer.
  subroutine get_pointer_info(pointer, info, stat, errmsg, device)
    type(c_ptr), intent(in) :: pointer
    type(pointer_info), intent(out) :: info
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    character(*), parameter :: me = 'get_pointer_info'
    type(onebuf_pointer_info) :: found
    integer(c_int32_t) :: status
    integer :: number

    number = need_device(me, device, stat, errmsg, returns=.false.)
    if (number == 0) return
    found%size = int(storage_size(found)/8, c_size_t)
    status = onebuf_pointer_query(session%devices(number), pointer, found)
    call report(status, me, stat, errmsg)
    if (status /= ONEBUF_OK) return
    info%start = found%start
    info%bytes = int(found%bytes, int64)
    info%host = found%host
    info%kind = int(found%kind)
    info%device_number = int(found%device_number)
    info%exportable = found%exportable /= 0
  end subroutine

  ! Wraps `bytes` bytes at a device pointer (cudaMalloc, hipMalloc, managed or pinned memory). It must stay allocated while the buffer
  ! exists. The size and the device are checked with the driver. The other open devices see it where a route is proven; explain_buffer
  ! says which do.
  function pointer_int64(pointer, bytes, access_mode, stat, errmsg, device) result(buffer)
    type(c_ptr), intent(in) :: pointer
    integer(int64), intent(in) :: bytes
    integer, intent(in) :: access_mode
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    type(unified_buffer) :: buffer

    call open_pointer(buffer, pointer, bytes, access_mode, stat, errmsg, device)
  end function

  function pointer_int32(pointer, bytes, access_mode, stat, errmsg, device) result(buffer)
    type(c_ptr), intent(in) :: pointer
    integer(int32), intent(in) :: bytes
    integer, intent(in) :: access_mode
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    type(unified_buffer) :: buffer

    call open_pointer(buffer, pointer, int(bytes, int64), access_mode, stat, errmsg, device)
  end function

  subroutine open_pointer(buffer, pointer, bytes, access_mode, stat, errmsg, device)
    type(unified_buffer), intent(inout) :: buffer
    type(c_ptr), intent(in) :: pointer
    integer(int64), intent(in) :: bytes
    integer, intent(in) :: access_mode
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    character(*), parameter :: me = 'wrap_device_pointer'
    type(onebuf_buffer) :: handle
    integer(c_int32_t) :: status
    integer :: number

    number = ready(me, bytes, access_mode, device, stat, errmsg)
    if (number == 0) return
    status = onebuf_buffer_wrap_pointer(session%devices(number), pointer, int(bytes, c_size_t), wrap_options(), handle)
    call give_buffer(buffer, handle, access_mode, status, me, stat, errmsg)
  end subroutine

  ! Wraps an allocation of cuMemCreate or hipMemCreate: `allocation` is its handle as a number, `bytes` its size.
  function allocation_int64(allocation, bytes, access_mode, stat, errmsg, device) result(buffer)
    integer(int64), intent(in) :: allocation, bytes
    integer, intent(in) :: access_mode
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    type(unified_buffer) :: buffer

    call open_allocation(buffer, allocation, bytes, access_mode, stat, errmsg, device)
  end function

  function allocation_int32(allocation, bytes, access_mode, stat, errmsg, device) result(buffer)
    integer(int64), intent(in) :: allocation
    integer(int32), intent(in) :: bytes
    integer, intent(in) :: access_mode
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    type(unified_buffer) :: buffer

    call open_allocation(buffer, allocation, int(bytes, int64), access_mode, stat, errmsg, device)
  end function

  subroutine open_allocation(buffer, allocation, bytes, access_mode, stat, errmsg, device)
    type(unified_buffer), intent(inout) :: buffer
    integer(int64), intent(in) :: allocation, bytes
    integer, intent(in) :: access_mode
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    character(*), parameter :: me = 'wrap_device_allocation'
    type(onebuf_buffer) :: handle
    integer(c_int32_t) :: status
    integer :: number

    number = ready(me, bytes, access_mode, device, stat, errmsg)
    if (number == 0) return
    status = onebuf_buffer_wrap_allocation(session%devices(number), allocation, int(bytes, c_size_t), &
      wrap_options(), handle)
    call give_buffer(buffer, handle, access_mode, status, me, stat, errmsg)
  end subroutine

  ! Opens memory of another process: `handle` has the 64 bytes of a cudaIpcMemHandle_t or hipIpcMemHandle_t, `offset` is where the buffer
  ! begins in the allocation. That process keeps the memory allocated while the buffer exists.
  function ipc_int64(handle, offset, bytes, access_mode, stat, errmsg, device) result(buffer)
    integer(c_int8_t), intent(in) :: handle(64)
    integer(int64), intent(in) :: offset, bytes
    integer, intent(in) :: access_mode
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    type(unified_buffer) :: buffer

    call open_ipc(buffer, handle, offset, bytes, access_mode, stat, errmsg, device)
  end function

  function ipc_int32(handle, offset, bytes, access_mode, stat, errmsg, device) result(buffer)
    integer(c_int8_t), intent(in) :: handle(64)
    integer(int32), intent(in) :: offset, bytes
    integer, intent(in) :: access_mode
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    type(unified_buffer) :: buffer

    call open_ipc(buffer, handle, int(offset, int64), int(bytes, int64), access_mode, stat, errmsg, device)
  end function

  subroutine open_ipc(buffer, handle, offset, bytes, access_mode, stat, errmsg, device)
    type(unified_buffer), intent(inout) :: buffer
    integer(c_int8_t), intent(in) :: handle(64)
    integer(int64), intent(in) :: offset, bytes
    integer, intent(in) :: access_mode
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    character(*), parameter :: me = 'open_ipc_memory'
    type(onebuf_buffer) :: opened
    integer(c_int32_t) :: status
    integer :: number

    if (offset < 0) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': the offset is negative', stat, errmsg, returns=.true.)
      return
    end if
    number = ready(me, bytes, access_mode, device, stat, errmsg)
    if (number == 0) return
    status = onebuf_buffer_open_ipc(session%devices(number), handle, int(offset, c_size_t), int(bytes, c_size_t), opened)
    call give_buffer(buffer, opened, access_mode, status, me, stat, errmsg)
  end subroutine

  ! From now on dispatches to the device go to the program's own stream, among its own work there. c_null_ptr is the default stream. The
  ! stream must live until gpu_close or another gpu_use_stream.
  subroutine gpu_use_stream(stream, stat, errmsg, device)
    type(c_ptr), intent(in) :: stream
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    character(*), parameter :: me = 'gpu_use_stream'
    type(onebuf_queue) :: queue
    integer(c_int32_t) :: status
    integer :: number

    number = need_device(me, device, stat, errmsg, returns=.false.)
    if (number == 0) return
    status = onebuf_queue_wrap_stream(session%devices(number), stream, queue)
    if (status == ONEBUF_OK) call use_queue(number, queue)
    call report(status, me, stat, errmsg)
  end subroutine

  ! A fence that everything enqueued on the program's stream so far will reach: for foreign_writes_end_at.
  function stream_fence(stream, stat, errmsg, device) result(fence)
    type(c_ptr), intent(in) :: stream
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    type(gpu_fence) :: fence
    character(*), parameter :: me = 'stream_fence'
    type(onebuf_queue) :: queue
    type(onebuf_fence) :: handle
    integer(c_int32_t) :: status, ignored
    integer :: number

    number = need_device(me, device, stat, errmsg, returns=.true.)
    if (number == 0) return
    status = onebuf_queue_wrap_stream(session%devices(number), stream, queue)
    if (status == ONEBUF_OK) then
      status = onebuf_queue_fence(queue, handle)
      ignored = onebuf_queue_free(queue)
    end if
    call report(status, me, stat, errmsg, returns=.true.)
    if (status == ONEBUF_OK) call set_fence(fence, handle)
  end function

  ! A CUevent or hipEvent_t that was recorded, as a fence. The event must live until the fence was reached.
  function wrap_stream_event(event, stat, errmsg, device) result(fence)
    type(c_ptr), intent(in) :: event
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    type(gpu_fence) :: fence
    character(*), parameter :: me = 'wrap_stream_event'
    type(onebuf_fence) :: handle
    integer(c_int32_t) :: status
    integer :: number

    number = need_device(me, device, stat, errmsg, returns=.true.)
    if (number == 0) return
    status = onebuf_fence_wrap_stream_event(session%devices(number), event, handle)
    call report(status, me, stat, errmsg, returns=.true.)
    if (status == ONEBUF_OK) call set_fence(fence, handle)
  end function

  ! Makes the newest contents visible on the program's stream, and orders it after all work on the buffer: for work that the program
  ! enqueues there.
  subroutine hand_to_stream(buffer, stream, stat, errmsg, device)
    type(unified_buffer), intent(in) :: buffer
    type(c_ptr), intent(in) :: stream
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    character(*), parameter :: me = 'hand_to_stream'
    type(onebuf_queue) :: queue
    integer(c_int32_t) :: status
    integer :: number

    number = need_device(me, device, stat, errmsg, returns=.false.)
    if (number == 0) return
    status = onebuf_queue_wrap_stream(session%devices(number), stream, queue)
    call hand_to_queue(buffer, queue, status, me, stat, errmsg)
  end subroutine

  ! The number of the device; 0 if something is wrong, which has been reported.
  function ready(me, bytes, access_mode, device, stat, errmsg) result(number)
    character(*), intent(in) :: me
    integer(int64), intent(in) :: bytes
    integer, intent(in) :: access_mode
    integer, intent(in), optional :: device
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer :: number

    number = 0
    if (.not. mode_exists(me, access_mode, stat, errmsg, returns=.true.)) return
    if (bytes < 1) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': the size must be at least one byte', stat, errmsg, returns=.true.)
    else
      number = need_device(me, device, stat, errmsg, returns=.true.)
    end if
  end function
end module
