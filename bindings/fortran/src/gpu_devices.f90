! What a device is, and its native handles.
module gpu_devices
  use, intrinsic :: iso_fortran_env, only: int64
  use onebuf_c
  use gpu_errors, only: report
  use gpu_session, only: session, need_device, c_text
  implicit none
  private
  public :: device_info, get_device_info, gpu_native_handle, gpu_native_queue, gpu_device_has
  public :: DEVICE_OTHER, DEVICE_CPU, DEVICE_GPU, DEVICE_ACCELERATOR

  integer, parameter :: DEVICE_OTHER = 0
  integer, parameter :: DEVICE_CPU = 1
  integer, parameter :: DEVICE_GPU = 2
  integer, parameter :: DEVICE_ACCELERATOR = 3

  ! Numbers that the driver does not report are zero.
  type :: device_info
    ! One of the DEVICE_ constants.
    integer :: kind = DEVICE_OTHER
    integer :: compute_units = 0
    integer(int64) :: memory_bytes = 0
    integer(int64) :: max_buffer_bytes = 0
    integer(int64) :: local_memory_bytes = 0
    ! The largest number of work-items of a group, in all and in each dimension.
    integer(int64) :: max_group_size = 0
    integer(int64) :: max_group_sizes(3) = 0
    ! Whether CPU and device share one memory.
    logical :: unified_memory = .false.
    ! The chip, as 32 hexadecimal digits, and as domain, bus, device and function on the PCI bus. Blank and -1 if unknown.
    character(32) :: uuid = ''
    integer :: pci(4) = -1
  end type

contains

  ! Queries an open device: the first one without a number.
  subroutine get_device_info(info, stat, errmsg, device)
    type(device_info), intent(out) :: info
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    character(*), parameter :: me = 'get_device_info'
    type(onebuf_device_info) :: found
    integer(c_int32_t) :: status
    integer :: number

    number = need_device(me, device, stat, errmsg, returns=.false.)
    if (number == 0) return
    found%size = int(storage_size(found)/8, c_size_t)
    status = onebuf_device_query(session%devices(number), found)
    call report(status, me, stat, errmsg)
    if (status /= ONEBUF_OK) return
    info%kind = int(found%kind)
    info%compute_units = int(found%compute_units)
    info%memory_bytes = found%memory_bytes
    info%max_buffer_bytes = found%max_buffer_bytes
    info%local_memory_bytes = found%local_memory_bytes
    info%max_group_size = int(found%max_group_size, int64)
    info%max_group_sizes = int(found%max_group_sizes, int64)
    info%unified_memory = found%unified_memory /= 0
    if (found%has_uuid /= 0) write (info%uuid, '(16z2.2)') found%uuid
    if (found%has_pci /= 0) info%pci = int(found%pci)
  end subroutine

  ! Whether a device has a feature: `svm_fine`, `out_of_order`, or an extension of its driver.
  function gpu_device_has(feature, stat, errmsg, device) result(has)
    character(*), intent(in) :: feature
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    logical :: has
    character(*), parameter :: me = 'gpu_device_has'
    logical(c_bool) :: found
    integer :: number

    has = .false.
    number = need_device(me, device, stat, errmsg, returns=.true.)
    if (number == 0) return
    found = .false.
    call report(onebuf_device_has(session%devices(number), c_text(feature), found), me, stat, errmsg, returns=.true.)
    has = logical(found)
  end function

  ! A native handle of a device, by the name of its type: `cl_context`, `cl_device_id`, `CUcontext`, `VkDevice`, `EGLContext` and so
  ! on. Null, with a message that lists the names that there are, if the device has none. Valid while the device is open.
  function gpu_native_handle(name, stat, errmsg, device) result(handle)
    character(*), intent(in) :: name
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    type(c_ptr) :: handle
    character(*), parameter :: me = 'gpu_native_handle'
    integer :: number

    handle = c_null_ptr
    number = need_device(me, device, stat, errmsg, returns=.true.)
    if (number == 0) return
    call report(onebuf_device_native(session%devices(number), c_text(name), handle), me, stat, errmsg, returns=.true.)
  end function

  ! The native queue that dispatches use: a cl_command_queue, CUstream, hipStream_t or VkQueue. Null if the API has none.
  function gpu_native_queue(stat, errmsg, device) result(queue)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    type(c_ptr) :: queue
    character(*), parameter :: me = 'gpu_native_queue'
    integer :: number

    queue = c_null_ptr
    number = need_device(me, device, stat, errmsg, returns=.true.)
    if (number == 0) return
    call report(onebuf_queue_native(session%queues(number), queue), me, stat, errmsg, returns=.true.)
  end function
end module
