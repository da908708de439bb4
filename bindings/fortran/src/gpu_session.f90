! The device that everything here runs on. The first use opens a default; gpu_open chooses one.
module gpu_session
  use, intrinsic :: iso_fortran_env, only: int64
  use onebuf_c
  use gpu_errors, only: report, taken_text
  implicit none
  private
  public :: gpu_open, gpu_close, gpu_device_name, gpu_bytes_moved
  public :: session, need_session

  type :: session_handles
    type(onebuf_handle) :: hub, queue
    ! The device, and the host.
    type(onebuf_handle) :: devices(2)
    integer :: device_count = 0
  end type

  type(session_handles), target, save, protected :: session

contains

  ! Opens a device: by id (`opencl:0`), API (`opencl`), type (`gpu`) or a part of its name. Without a name it opens the device
  ! that ONEBUF_DEVICE names, else the first OpenCL, OpenGL or Vulkan device, else the host. Call it before starting threads.
  ! Objects created on an earlier device stay there.
  subroutine gpu_open(device, stat, errmsg)
    character(*), intent(in), optional :: device
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(session_handles) :: new
    integer(c_int32_t) :: status

    status = onebuf_hub_discover(c_null_ptr, new%hub)
    if (status == ONEBUF_OK) call choose(new, requested(device), status)
    if (status == ONEBUF_OK) status = onebuf_hub_device(new%hub, c_text('host'), new%devices(2))
    if (status == ONEBUF_OK) status = onebuf_queue_create(new%devices(1), c_null_ptr, new%queue)
    call report(status, 'gpu_open', stat, errmsg)
    if (status == ONEBUF_OK) then
      new%device_count = merge(1, 2, new%devices(1)%id == new%devices(2)%id)
      call gpu_close
      session = new
    else
      call close_handles(new)
    end if
  end subroutine

  ! Releases the device; existing buffers, programs and fences keep it alive.
  subroutine gpu_close
    type(session_handles) :: none

    call close_handles(session)
    session = none
  end subroutine

  ! The id of the device, such as `opencl:0`.
  function gpu_device_name() result(name)
    character(:), allocatable :: name
    type(onebuf_handle) :: text

    call need_session
    call report(onebuf_device_id(session%devices(1), text), 'gpu_device_name')
    name = taken_text(text)
  end function

  ! Number of bytes moved since the device was opened: requested and implied.
  subroutine gpu_bytes_moved(asked, implied)
    integer(int64), intent(out) :: asked, implied

    call need_session
    call report(onebuf_ledger_asked_bytes(session%hub, asked), 'gpu_bytes_moved')
    call report(onebuf_ledger_implied_bytes(session%hub, implied), 'gpu_bytes_moved')
  end subroutine

  ! Opens the default device.
  subroutine need_session(stat, errmsg)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    if (session%hub%id == 0) then
      call gpu_open(stat=stat, errmsg=errmsg)
    else if (present(stat)) then
      stat = 0
    end if
  end subroutine

  subroutine choose(new, name, status)
    type(session_handles), intent(inout) :: new
    character(*), intent(in) :: name
    integer(c_int32_t), intent(out) :: status
    character(6), parameter :: any(4) = ['opencl', 'gl    ', 'vulkan', 'host  ']
    integer :: i

    status = ONEBUF_UNAVAILABLE
    if (name /= '') status = onebuf_hub_device(new%hub, c_text(name), new%devices(1))
    if (name /= '') return
    do i = 1, size(any)
      status = onebuf_hub_device(new%hub, c_text(trim(any(i))), new%devices(1))
      if (status == ONEBUF_OK) return
    end do
  end subroutine

  ! The requested device; empty for any.
  function requested(device) result(name)
    character(*), intent(in), optional :: device
    character(:), allocatable :: name
    character(256) :: value

    if (present(device)) then
      name = device
    else
      call get_environment_variable('ONEBUF_DEVICE', value)
      name = trim(value)
    end if
  end function

  subroutine close_handles(old)
    type(session_handles), intent(in) :: old
    integer(c_int32_t) :: ignored

    ! Freeing null handles is no error.
    ignored = onebuf_queue_free(old%queue)
    ignored = onebuf_hub_free(old%hub)
  end subroutine

  pure function c_text(text) result(letters)
    character(*), intent(in) :: text
    character(kind=c_char) :: letters(len(text) + 1)
    integer :: i

    do i = 1, len(text)
      letters(i) = text(i:i)
    end do
    letters(len(text) + 1) = c_null_char
  end function
end module
