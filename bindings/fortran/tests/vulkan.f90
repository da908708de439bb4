! A Vulkan program: these modules use its memory, and it fills a buffer of these modules on its queue. `vulkan DEVICE`.
module program_of_vulkan
  use, intrinsic :: iso_c_binding
  implicit none

  interface
    function vulkan_open(bytes) bind(c) result(status)
      import
      integer(c_size_t), value :: bytes
      integer(c_int) :: status
    end function

    subroutine vulkan_handles(handles, family, kind) bind(c)
      import
      type(c_ptr), intent(inout) :: handles(4)
      integer(c_int32_t), intent(out) :: family, kind
    end subroutine

    subroutine vulkan_buffer(buffer, memory, bytes) bind(c)
      import
      integer(c_int64_t), intent(out) :: buffer, memory, bytes
    end subroutine

    function vulkan_fill(queue, buffer, offset, bytes, word) bind(c) result(status)
      import
      type(c_ptr), value :: queue
      integer(c_int64_t), value :: buffer, offset, bytes
      integer(c_int32_t), value :: word
      integer(c_int) :: status
    end function

    subroutine vulkan_close() bind(c)
    end subroutine
  end interface
end module

program vulkan
  use, intrinsic :: iso_fortran_env, only: int32, int64
  use program_of_vulkan
  use gpu_unified_buffers
  use checks, only: check
  implicit none
  integer, parameter :: n = 4096
  type(vulkan_device) :: theirs
  type(c_ptr) :: handles(4)
  integer(c_int32_t) :: family, kind
  integer(int32) :: i, first(n), found(n)
  integer :: stat
  character(64) :: device
  character(400) :: message

  call get_command_argument(1, device)
  call gpu_open(trim(device))
  first = [(i, i=1, n)]
  call check(.not. vulkan_device_is_valid(theirs), 'no device')
  call wrap_vulkan_device(theirs, c_null_ptr, c_null_ptr, c_null_ptr, 0, [0], stat=stat, errmsg=message)
  call check(stat /= 0, 'null handles: '//trim(message))
  if (vulkan_open(int(4*n, c_size_t)) /= 0) stop
  call vulkan_handles(handles, family, kind)
  call wrap_vulkan_device(theirs, handles(1), handles(2), handles(3), int(family), [0], extensions=[character(8) ::])
  call check(vulkan_device_is_valid(theirs), 'the device')
  call wrap_vulkan_device(theirs, handles(1), handles(2), handles(3), int(family), [0], stat=stat)
  call check(stat == ONEBUF_BUSY, 'the variable is in use')
  call their_memory
  call our_buffer
  call gpu_close
  call release_vulkan_device(theirs)
  call check(.not. vulkan_device_is_valid(theirs), 'released')
  call vulkan_close
  print '(2a)', 'Vulkan programs work with ', trim(device)

contains

  ! The program's memory: written here, found by the program at its own address.
  subroutine their_memory
    type(vulkan_memory) :: memory
    type(unified_buffer) :: b
    integer(int32), pointer :: words(:)

    call vulkan_buffer(memory%buffer, memory%memory, memory%memory_bytes)
    memory%bytes = 4*n
    memory%mapped = handles(4)
    memory%memory_type = int(kind)
    b = wrap_vulkan_buffer(theirs, memory, 9, stat)
    call check(stat == ONEBUF_INVALID_ARGUMENT, 'no such mode')
    b = wrap_vulkan_buffer(theirs, memory, BUFFER_READ_WRITE)
    call check(buffer_size_bytes(b) == 4*n, 'its size')
    call write_buffer(b, first)
    call read_buffer(b, found)
    call check(all(found == first), 'what was written')
    call destroy_unified_buffer(b)
    call c_f_pointer(handles(4), words, [n])
    call check(all(words == first), 'and is in the memory of the program')
  end subroutine

  ! A buffer of these modules, which the program fills on the queue.
  subroutine our_buffer
    type(unified_buffer) :: b
    type(buffer_view) :: view
    type(c_ptr) :: queue
    integer(int64) :: vk_buffer, offset
    integer :: number

    number = gpu_add_vulkan_device(theirs)
    call check(number == 2, 'the second device')
    b = create_unified_buffer(4*n, BUFFER_READ_WRITE)
    call write_buffer(b, first)
    call open_buffer_view(view, b, device=number)
    call get_vulkan_buffer(view, vk_buffer, offset)
    queue = gpu_native_queue(device=number)
    call check(c_associated(queue) .and. vk_buffer /= 0, 'the VkQueue and the VkBuffer')
    call check(vulkan_fill(queue, vk_buffer, offset, 4_int64*n, 77) == 0, 'the fill')
    call close_buffer_view(view)
    call read_buffer(b, found)
    call check(all(found == 77), 'what the program wrote')
    ! At once: before the program destroys its device.
    call destroy_unified_buffer(b)
  end subroutine
end program
