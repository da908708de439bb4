! Native objects of buffers, for code that the program runs itself: its own shaders, kernels and libraries on the device's queue.
module gpu_views
  use, intrinsic :: iso_fortran_env, only: int64
  use onebuf_c
  use gpu_errors, only: report, succeed, is_unused
  use gpu_session, only: session, need_device
  use gpu_buffer_core, only: unified_buffer, buffer_handle, buffer_access_mode, kernel_access
  implicit none
  private
  public :: buffer_view, open_buffer_view, close_buffer_view, view_is_valid
  public :: view_address, view_cl_mem, view_cuda_pointer, view_hip_pointer, view_gl_name, get_vulkan_buffer

  ! A buffer that the program's own code uses on a device. Its names and addresses are valid until close_buffer_view.
  type :: buffer_view
    private
    type(onebuf_view) :: handle
  end type

contains

  ! Gives the buffer to the program's own code on the queue of a device: ordered after all earlier work on it. Until
  ! close_buffer_view the CPU and other dispatches are refused if that code may write. It accesses the buffer as kernels do.
  subroutine open_buffer_view(view, buffer, stat, errmsg, device)
    type(buffer_view), intent(inout) :: view
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    character(*), parameter :: me = 'open_buffer_view'
    integer(c_int32_t) :: status
    integer :: number

    if (.not. is_unused(view%handle%id, me, 'an open view: close it first', stat, errmsg)) return
    number = need_device(me, device, stat, errmsg, returns=.false.)
    if (number == 0) return
    status = onebuf_buffer_to_device(buffer_handle(buffer))
    if (status == ONEBUF_OK) status = onebuf_view_take(buffer_handle(buffer), session%queues(number), &
      kernel_access(buffer_access_mode(buffer)), view%handle)
    call report(status, me, stat, errmsg)
  end subroutine

  ! Ends the use: later work on the buffer is ordered after what was enqueued.
  subroutine close_buffer_view(view, stat, errmsg)
    type(buffer_view), intent(inout) :: view
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_view_free(view%handle), 'close_buffer_view', stat, errmsg)
    view%handle%id = 0
  end subroutine

  ! Whether the view is open.
  function view_is_valid(view, stat, errmsg) result(valid)
    type(buffer_view), intent(in) :: view
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: valid

    valid = view%handle%id /= 0
    call succeed(stat, errmsg)
  end function

  ! The address that kernels use: an SVM pointer, or the CPU's on the host. Null for other memory.
  function view_address(view, stat, errmsg) result(address)
    type(buffer_view), intent(in) :: view
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: address

    call report(onebuf_view_address(view%handle, address), 'view_address', stat, errmsg, returns=.true.)
  end function

  ! The cl_mem. Null on devices of other APIs, and for memory that kernels access by its address: see view_address.
  function view_cl_mem(view, stat, errmsg) result(cl_mem)
    type(buffer_view), intent(in) :: view
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: cl_mem

    call report(onebuf_view_cl_mem(view%handle, cl_mem), 'view_cl_mem', stat, errmsg, returns=.true.)
  end function

  ! The CUdeviceptr, as a pointer. Null on devices of other APIs.
  function view_cuda_pointer(view, stat, errmsg) result(pointer)
    type(buffer_view), intent(in) :: view
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: pointer
    integer(c_int64_t) :: number

    call report(onebuf_view_cuda_ptr(view%handle, number), 'view_cuda_pointer', stat, errmsg, returns=.true.)
    pointer = transfer(int(number, c_intptr_t), pointer)
  end function

  ! The hipDeviceptr_t. Null on devices of other APIs.
  function view_hip_pointer(view, stat, errmsg) result(pointer)
    type(buffer_view), intent(in) :: view
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: pointer

    call report(onebuf_view_hip_ptr(view%handle, pointer), 'view_hip_pointer', stat, errmsg, returns=.true.)
  end function

  ! The name of the OpenGL buffer; 0 on devices of other APIs. On a device of gpu_add_gl_context the program's context knows it.
  function view_gl_name(view, stat, errmsg) result(name)
    type(buffer_view), intent(in) :: view
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer :: name
    integer(c_int32_t) :: found

    call report(onebuf_view_gl_name(view%handle, found), 'view_gl_name', stat, errmsg, returns=.true.)
    name = int(found)
  end function

  ! The VkBuffer, as a number, and the byte at which the buffer begins in it.
  subroutine get_vulkan_buffer(view, vk_buffer, offset, stat, errmsg)
    type(buffer_view), intent(in) :: view
    integer(int64), intent(out) :: vk_buffer, offset
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_view_vk_buffer(view%handle, vk_buffer, offset), 'get_vulkan_buffer', stat, errmsg)
  end subroutine
end module
