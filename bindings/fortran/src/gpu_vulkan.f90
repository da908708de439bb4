! Vulkan objects of the program: its VkDevice becomes a device, and its memory is wrapped. Dispatchable handles are type(c_ptr), others are
! int64.
module gpu_vulkan
  use, intrinsic :: iso_fortran_env, only: int64
  use onebuf_c
  use gpu_errors, only: report, refuse, succeed, is_unused
  use gpu_session, only: session, need_session, adopt_device
  use gpu_buffer_core, only: unified_buffer, give_buffer, mode_exists
  use gpu_foreign, only: wrap_options
  implicit none
  private
  public :: vulkan_device, vulkan_memory, wrap_vulkan_device, release_vulkan_device, vulkan_device_is_valid
  public :: gpu_add_vulkan_device, wrap_vulkan_buffer

  ! A VkDevice of the program, until release_vulkan_device.
  type :: vulkan_device
    private
    type(onebuf_vk) :: handle
  end type

  ! A range of a VkBuffer, and the memory that it is bound to.
  type :: vulkan_memory
    ! The VkBuffer, with the usages STORAGE_BUFFER, TRANSFER_SRC and TRANSFER_DST; zero: one is created over `memory`.
    integer(int64) :: buffer = 0
    ! The first byte in the buffer, and the number of bytes.
    integer(int64) :: offset = 0
    integer(int64) :: bytes = 0
    ! The VkDeviceMemory, the buffer's offset in it and its whole size; zero: not stated, and the CPU accesses the buffer by copies.
    integer(int64) :: memory = 0
    integer(int64) :: memory_offset = 0
    integer(int64) :: memory_bytes = 0
    ! The CPU's address of the memory's first byte, if it stays mapped; its type must then be coherent.
    type(c_ptr) :: mapped = c_null_ptr
    integer :: memory_type = 0
    ! Whether the memory was allocated for export by opaque descriptors.
    logical :: exportable = .false.
  end type

contains

  ! Registers a VkDevice with the feature timelineSemaphore, of an instance for Vulkan 1.2 or newer. `queues` are the indices of queues of
  ! the family that only this library uses from now on. `extensions` are the names of those that the device was created with.
  subroutine wrap_vulkan_device(device, vk_instance, vk_physical_device, vk_device, queue_family, queues, extensions, stat, &
    errmsg)
    type(vulkan_device), intent(inout) :: device
    type(c_ptr), intent(in) :: vk_instance, vk_physical_device, vk_device
    integer, intent(in) :: queue_family, queues(:)
    character(*), intent(in), optional :: extensions(:)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'wrap_vulkan_device'
    type(onebuf_vk_handles) :: handles
    integer(c_int32_t), allocatable, target :: indices(:)
    character(kind=c_char), allocatable, target :: letters(:, :)
    type(c_ptr), allocatable, target :: names(:)
    integer :: i, length

    if (.not. is_unused(device%handle%id, me, 'a device: release it first', stat, errmsg)) return
    call need_session(stat, errmsg)
    if (session%hub%id == 0) return
    handles%size = int(storage_size(handles)/8, c_size_t)
    handles%instance = vk_instance
    handles%physical_device = vk_physical_device
    handles%device = vk_device
    indices = int(queues, c_int32_t)
    handles%queues = c_loc(indices)
    handles%queue_count = int(size(indices), c_size_t)
    handles%queue_family = int(queue_family, c_int32_t)
    if (present(extensions)) then
      length = len(extensions) + 1
      allocate (letters(length, size(extensions)), names(size(extensions)))
      do i = 1, size(extensions)
        letters(:, i) = transfer(trim(extensions(i))//repeat(c_null_char, length), letters(:, i), length)
        names(i) = c_loc(letters(1, i))
      end do
      handles%extensions = c_loc(names)
      handles%extension_count = int(size(names), c_size_t)
    end if
    call report(onebuf_vk_wrap(session%hub, handles, device%handle), me, stat, errmsg)
  end subroutine

  ! Ends the registration. Buffers made with it stay usable.
  subroutine release_vulkan_device(device, stat, errmsg)
    type(vulkan_device), intent(inout) :: device
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_vk_free(device%handle), 'release_vulkan_device', stat, errmsg)
    device%handle%id = 0
  end subroutine

  ! Whether the variable holds a device.
  function vulkan_device_is_valid(device, stat, errmsg) result(valid)
    type(vulkan_device), intent(in) :: device
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: valid

    valid = device%handle%id /= 0
    call succeed(stat, errmsg)
  end function

  ! Opens the VkDevice as a device, and returns its number; 0 on failure. Buffers created from now on are shared with it
  ! (open_buffer_view, then get_vulkan_buffer), and programs can be compiled for it.
  function gpu_add_vulkan_device(device, stat, errmsg) result(number)
    type(vulkan_device), intent(in) :: device
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer :: number
    character(*), parameter :: me = 'gpu_add_vulkan_device'
    type(onebuf_device) :: found
    type(onebuf_queue) :: queue
    type(onebuf_queue_options) :: options
    integer(c_int32_t) :: status, ignored

    number = 0
    options%size = int(storage_size(options)/8, c_size_t)
    status = onebuf_vk_device(device%handle, found)
    if (status == ONEBUF_OK) status = onebuf_queue_create(found, options, queue)
    call report(status, me, stat, errmsg, returns=.true.)
    if (status /= ONEBUF_OK) return
    number = adopt_device(found, queue)
    if (number > 0) return
    ignored = onebuf_queue_free(queue)
    call refuse(ONEBUF_INVALID_ARGUMENT, me//': at most 8 devices are open at a time', stat, errmsg, returns=.true.)
  end function

  ! Wraps memory of the VkDevice without a copy. The program's work on it is done (vkWaitForFences).
  function wrap_vulkan_buffer(device, memory, access_mode, stat, errmsg) result(buffer)
    type(vulkan_device), intent(in) :: device
    type(vulkan_memory), intent(in) :: memory
    integer, intent(in) :: access_mode
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(unified_buffer) :: buffer
    character(*), parameter :: me = 'wrap_vulkan_buffer'
    type(onebuf_vk_buffer) :: range
    type(onebuf_buffer) :: handle
    integer(c_int32_t) :: status

    if (.not. mode_exists(me, access_mode, stat, errmsg, returns=.true.)) return
    range%size = int(storage_size(range)/8, c_size_t)
    range%buffer = memory%buffer
    range%offset = memory%offset
    range%bytes = int(max(memory%bytes, 0_int64), c_size_t)
    range%memory = memory%memory
    range%memory_offset = memory%memory_offset
    range%memory_bytes = memory%memory_bytes
    range%mapped = memory%mapped
    range%memory_type = int(memory%memory_type, c_int32_t)
    range%exportable = merge(1_c_int32_t, 0_c_int32_t, memory%exportable)
    status = onebuf_buffer_wrap_vk(device%handle, range, wrap_options(), handle)
    call give_buffer(buffer, handle, access_mode, status, me, stat, errmsg)
  end function
end module
