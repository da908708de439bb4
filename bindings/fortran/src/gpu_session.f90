! The devices that everything here runs on. The first use opens a default; gpu_open chooses one, gpu_add_device opens more.
module gpu_session
  use, intrinsic :: iso_fortran_env, only: int64
  use onebuf_c
  use gpu_errors, only: report, refuse, succeed, say, taken_text
  implicit none
  private
  public :: gpu_open, gpu_add_device, gpu_close, gpu_device_name, gpu_device_count, explain_devices, gpu_bytes_moved
  public :: MAX_DEVICES
  public :: session, need_session, need_device, c_text, use_queue, adopt_device

  integer, parameter :: MAX_DEVICES = 8

  type :: session_handles
    type(onebuf_hub) :: hub
    ! The open devices; behind them the host, unless it is one of them.
    type(onebuf_device) :: devices(MAX_DEVICES + 1)
    type(onebuf_queue) :: queues(MAX_DEVICES)
    ! The number of open devices, and of those including the host.
    integer :: open_count = 0
    integer :: device_count = 0
  end type

  type(session_handles), target, save, protected :: session

contains

  ! Opens a device: by id (`opencl:0`), API (`opencl`), type (`gpu`) or a part of its name. Without a name it opens the device
  ! that ONEBUF_DEVICE names, else the first OpenCL, OpenGL or Vulkan device, else the host. Call it before starting threads.
  ! Objects created on an earlier device stay there. `trace_events` is the number of events that a trace keeps, none without it.
  subroutine gpu_open(device, stat, errmsg, trace_events)
    character(*), intent(in), optional :: device
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: trace_events

    call open_session(requested(device), .false., stat, errmsg, trace_events)
  end subroutine

  ! Opens one more device, and returns its number; 0 on failure. Buffers and programs created from now on can use it.
  function gpu_add_device(device, stat, errmsg) result(number)
    character(*), intent(in) :: device
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer :: number
    character(*), parameter :: me = 'gpu_add_device'
    type(onebuf_device) :: found
    type(onebuf_queue) :: queue
    integer(c_int32_t) :: status

    number = 0
    if (session%hub%id == 0) then
      call open_session(device, .true., stat, errmsg)
      number = session%open_count
      return
    end if
    status = onebuf_hub_device(session%hub, c_text(device), found)
    if (status /= ONEBUF_OK) then
      call report(status, me, stat, errmsg, returns=.true.)
      return
    end if
    do number = session%open_count, 1, -1
      if (session%devices(number)%id == found%id) exit
    end do
    call succeed(stat, errmsg)
    if (number > 0) return
    if (session%open_count == MAX_DEVICES) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': at most 8 devices are open at a time', stat, errmsg, returns=.true.)
      return
    end if
    status = open_queue(found, queue)
    call report(status, me, stat, errmsg, returns=.true.)
    if (status /= ONEBUF_OK) return
    call add(session, found, queue)
    number = session%open_count
    call report(name_host(session), me, stat, errmsg, returns=.true.)
  end function

  ! Releases the devices; existing buffers, programs and fences keep them alive.
  subroutine gpu_close(stat, errmsg)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(session_handles) :: none

    call close_handles(session)
    session = none
    call succeed(stat, errmsg)
  end subroutine

  ! The number of open devices.
  function gpu_device_count(stat, errmsg) result(count)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer :: count

    count = session%open_count
    call succeed(stat, errmsg)
  end function

  ! The id of an open device, such as `opencl:0`; of the first one without a number.
  function gpu_device_name(device, stat, errmsg) result(name)
    integer, intent(in), optional :: device
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(:), allocatable :: name
    type(onebuf_string) :: text
    integer(c_int32_t) :: status
    integer :: number

    name = ''
    number = need_device('gpu_device_name', device, stat, errmsg, returns=.true.)
    if (number == 0) return
    status = onebuf_device_id(session%devices(number), text)
    call report(status, 'gpu_device_name', stat, errmsg, returns=.true.)
    if (status == ONEBUF_OK) name = taken_text(text)
  end function

  ! The devices of this machine, one in a line, and which APIs are unavailable, and why.
  function explain_devices(stat, errmsg) result(text)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(:), allocatable :: text
    character(*), parameter :: me = 'explain_devices'
    type(onebuf_device) :: device
    type(onebuf_string) :: id, name, missing
    integer(c_size_t) :: i, count
    integer(c_int32_t) :: status

    text = ''
    call need_session(stat, errmsg, returns=.true.)
    if (session%hub%id == 0) return
    status = onebuf_hub_device_count(session%hub, count)
    i = 0
    do while (status == ONEBUF_OK .and. i < count)
      status = onebuf_hub_device_at(session%hub, i, device)
      if (status == ONEBUF_OK) status = onebuf_device_id(device, id)
      if (status == ONEBUF_OK) status = onebuf_device_name(device, name)
      if (status == ONEBUF_OK) text = text//taken_text(id)//': '//taken_text(name)//new_line('a')
      i = i + 1
    end do
    if (status == ONEBUF_OK) status = onebuf_hub_missing(session%hub, missing)
    call report(status, me, stat, errmsg, returns=.true.)
    if (status == ONEBUF_OK) text = text//taken_text(missing)
  end function

  ! Number of bytes moved since the device was opened: requested and implied.
  subroutine gpu_bytes_moved(asked, implied, stat, errmsg)
    integer(int64), intent(out) :: asked, implied
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(c_int32_t) :: status

    asked = 0
    implied = 0
    call need_session(stat, errmsg)
    if (session%hub%id == 0) return
    status = onebuf_ledger_asked_bytes(session%hub, asked)
    if (status == ONEBUF_OK) status = onebuf_ledger_implied_bytes(session%hub, implied)
    call report(status, 'gpu_bytes_moved', stat, errmsg)
  end subroutine

  ! --- For the other modules --------------------------------------------------------------------------------------------

  ! Opens the default device, if none is open.
  subroutine need_session(stat, errmsg, returns)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical, intent(in), optional :: returns
    logical :: goes_on

    goes_on = .false.
    if (present(returns)) goes_on = returns
    if (session%hub%id == 0) then
      call open_session(requested(), goes_on, stat, errmsg)
    else if (present(stat)) then
      stat = 0
    end if
  end subroutine

  ! The number of an open device, the first one if none is given; 0 if there is none, which has been reported.
  function need_device(me, device, stat, errmsg, returns) result(number)
    character(*), intent(in) :: me
    integer, intent(in), optional :: device
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical, intent(in) :: returns
    integer :: number

    number = 0
    call need_session(stat, errmsg, returns)
    if (session%hub%id == 0) return
    number = 1
    if (present(device)) number = device
    if (number >= 1 .and. number <= session%open_count) return
    number = 0
    call refuse(ONEBUF_INVALID_ARGUMENT, me//': no device of this number is open: see gpu_add_device', stat, errmsg, &
      returns)
  end function

  ! Replaces the queue of an open device, which frees the one before.
  subroutine use_queue(number, queue)
    integer, intent(in) :: number
    type(onebuf_queue), intent(in) :: queue
    integer(c_int32_t) :: ignored

    ignored = onebuf_queue_free(session%queues(number))
    session%queues(number) = queue
  end subroutine

  ! Opens a device of the program, such as its OpenGL context, with that queue. Returns its number; 0 if there are too many.
  function adopt_device(device, queue) result(number)
    type(onebuf_device), intent(in) :: device
    type(onebuf_queue), intent(in) :: queue
    integer :: number
    integer(c_int32_t) :: ignored

    number = 0
    if (session%open_count == MAX_DEVICES) return
    call add(session, device, queue)
    number = session%open_count
    ignored = name_host(session)
  end function

  subroutine open_session(name, returns, stat, errmsg, trace_events)
    character(*), intent(in) :: name
    logical, intent(in) :: returns
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: trace_events
    type(session_handles) :: new
    type(onebuf_hub_options) :: options
    type(onebuf_device) :: device
    type(onebuf_queue) :: queue
    integer(c_int32_t) :: status

    options%size = int(storage_size(options)/8, c_size_t)
    if (present(trace_events)) options%trace_events = int(max(trace_events, 0), c_size_t)
    status = onebuf_hub_discover(options, new%hub)
    if (status == ONEBUF_OK) call choose(new%hub, name, device, status)
    if (status == ONEBUF_OK) status = open_queue(device, queue)
    if (status == ONEBUF_OK) then
      call add(new, device, queue)
      status = name_host(new)
    end if
    call report(status, 'gpu_open', stat, errmsg, returns)
    if (status == ONEBUF_OK) then
      call gpu_close
      session = new
    else
      call close_handles(new)
    end if
  end subroutine

  function open_queue(device, queue) result(status)
    type(onebuf_device), intent(in) :: device
    type(onebuf_queue), intent(out) :: queue
    integer(c_int32_t) :: status
    type(onebuf_queue_options) :: options

    options%size = int(storage_size(options)/8, c_size_t)
    status = onebuf_queue_create(device, options, queue)
  end function

  subroutine add(to, device, queue)
    type(session_handles), intent(inout) :: to
    type(onebuf_device), intent(in) :: device
    type(onebuf_queue), intent(in) :: queue

    to%open_count = to%open_count + 1
    to%devices(to%open_count) = device
    to%queues(to%open_count) = queue
  end subroutine

  ! Puts the host behind the devices, unless it is one of them.
  function name_host(of) result(status)
    type(session_handles), intent(inout) :: of
    integer(c_int32_t) :: status
    type(onebuf_device) :: host
    integer :: i

    status = onebuf_hub_device(of%hub, c_text('host'), host)
    if (status /= ONEBUF_OK) return
    of%device_count = of%open_count
    do i = 1, of%open_count
      if (of%devices(i)%id == host%id) return
    end do
    of%device_count = of%open_count + 1
    of%devices(of%device_count) = host
  end function

  ! The named device; without a name the first of the APIs that is there. Says so if that is not OpenCL's.
  subroutine choose(hub, name, device, status)
    type(onebuf_hub), intent(in) :: hub
    character(*), intent(in) :: name
    type(onebuf_device), intent(out) :: device
    integer(c_int32_t), intent(out) :: status
    character(6), parameter :: apis(4) = ['opencl', 'gl    ', 'vulkan', 'host  ']
    character(48), parameter :: words(2:4) = [character(48) :: 'no OpenCL found, using OpenGL', &
      'no OpenCL or OpenGL found, using Vulkan', 'no OpenCL, OpenGL or Vulkan found, using the CPU']
    integer :: i

    if (name /= '') then
      status = onebuf_hub_device(hub, c_text(trim(name)), device)
      return
    end if
    do i = 1, size(apis)
      status = onebuf_hub_device(hub, c_text(trim(apis(i))), device)
      if (status == ONEBUF_OK) exit
    end do
    if (status == ONEBUF_OK .and. i > 1) call say(trim(words(i)))
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
    integer :: i

    ! Freeing null handles is no error.
    do i = 1, old%open_count
      ignored = onebuf_queue_free(old%queues(i))
    end do
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
