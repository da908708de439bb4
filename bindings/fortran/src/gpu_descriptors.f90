! Memory that other APIs, libraries and processes share by a file descriptor.
module gpu_descriptors
  use, intrinsic :: iso_fortran_env, only: int64
  use onebuf_c
  use gpu_errors, only: report, refuse, succeed
  use gpu_session, only: session, need_device
  use gpu_buffer_core, only: unified_buffer, buffer_handle, kernel_access, mode_exists, give_buffer
  implicit none
  private
  public :: shared_memory, export_buffer, import_buffer, close_descriptor, DESCRIPTOR_OPAQUE, DESCRIPTOR_DMA_BUF

  ! The kinds of descriptors: one that only drivers of the same vendor understand; a dma-buf, for cameras, codecs and displays, too.
  integer, parameter :: DESCRIPTOR_OPAQUE = 0
  integer, parameter :: DESCRIPTOR_DMA_BUF = 1

  ! A buffer in memory behind a descriptor.
  type :: shared_memory
    ! The file descriptor; -1: none.
    integer :: descriptor = -1
    integer :: kind = DESCRIPTOR_OPAQUE
    ! The size of the allocation, and where the buffer lies in it. Without `bytes` it is the rest of the allocation.
    integer(int64) :: allocation_bytes = 0
    integer(int64) :: offset = 0
    integer(int64) :: bytes = 0
  end type

  interface
    function close_file(descriptor) bind(c, name='close') result(status)
      import :: c_int
      integer(c_int), value :: descriptor
      integer(c_int) :: status
    end function
  end interface

contains

  ! Returns a descriptor of the buffer's memory, which holds the newest contents then. The buffer was created with
  ! `memory_kind=MEMORY_KIND_EXPORTABLE`. Others can write the memory from now on: the buffer has no CPU pointer any more, and the program
  ! orders their work and its own. Close the descriptor with close_descriptor; it keeps the memory allocated.
  subroutine export_buffer(buffer, memory, kind, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    type(shared_memory), intent(out) :: memory
    integer, intent(in), optional :: kind
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(onebuf_exported) :: found
    integer(c_int32_t) :: status

    if (present(kind)) memory%kind = kind
    status = onebuf_buffer_to_device(buffer_handle(buffer))
    if (status == ONEBUF_OK) status = onebuf_buffer_export(buffer_handle(buffer), int(memory%kind, c_int32_t), found)
    if (status == ONEBUF_OK) memory = shared_memory(int(found%fd), int(found%kind), int(found%allocation_bytes, int64), &
      int(found%offset, int64), int(found%bytes, int64))
    call report(status, 'export_buffer', stat, errmsg)
  end subroutine

  ! Memory that other code exported, as a buffer on a device. The descriptor stays the caller's. The caller guarantees that the device's driver
  ! can import it, and that its size is true: drivers cannot detect a forged descriptor.
  function import_buffer(memory, access_mode, stat, errmsg, device) result(buffer)
    type(shared_memory), intent(in) :: memory
    integer, intent(in) :: access_mode
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    type(unified_buffer) :: buffer
    character(*), parameter :: me = 'import_buffer'
    type(onebuf_import_options) :: options
    type(onebuf_buffer) :: handle
    integer(c_int32_t) :: status
    integer :: number

    if (.not. mode_exists(me, access_mode, stat, errmsg, returns=.true.)) return
    if (min(memory%allocation_bytes, memory%offset, memory%bytes) < 0) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': a size or the offset is negative', stat, errmsg, returns=.true.)
      return
    end if
    number = need_device(me, device, stat, errmsg, returns=.true.)
    if (number == 0) return
    options%size = int(storage_size(options)/8, c_size_t)
    options%fd = int(memory%descriptor, c_int32_t)
    options%kind = int(memory%kind, c_int32_t)
    options%allocation_bytes = int(memory%allocation_bytes, c_size_t)
    options%offset = int(memory%offset, c_size_t)
    options%bytes = int(memory%bytes, c_size_t)
    options%access = kernel_access(access_mode)
    options%devices = c_loc(session%devices)
    options%device_count = int(session%open_count, c_size_t)
    status = onebuf_buffer_import(session%hub, session%devices(number), options, handle)
    call give_buffer(buffer, handle, access_mode, status, me, stat, errmsg)
  end function

  ! Closes the descriptor, if there is one. Buffers stay.
  subroutine close_descriptor(memory, stat, errmsg)
    type(shared_memory), intent(inout) :: memory
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(c_int) :: status

    status = 0
    if (memory%descriptor >= 0) status = close_file(int(memory%descriptor, c_int))
    memory%descriptor = -1
    if (status == 0) then
      call succeed(stat, errmsg)
    else
      call refuse(ONEBUF_INVALID_ARGUMENT, 'close_descriptor: the descriptor is not open', stat, errmsg)
    end if
  end subroutine
end module
