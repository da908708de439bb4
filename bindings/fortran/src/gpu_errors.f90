! How failures are reported: by stat= and errmsg= if given. Without stat= a subroutine prints the message and stops the program; a function
! prints it and returns an invalid result, unless gpu_stop_on_failure(.true.) was called.
module gpu_errors
  use, intrinsic :: iso_fortran_env, only: error_unit
  use onebuf_c
  implicit none
  private
  public :: gpu_stop_on_failure
  public :: report, refuse, told, succeed, say, text_of, taken_text, fortran_words, is_unused

  logical, save :: stops_always = .false.

  interface
    function strlen(text) bind(c)
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
      integer(c_size_t) :: strlen
    end function
  end interface

  ! Phrases of the library's messages, and what a Fortran program calls the same.
  type :: phrase
    character(64) :: theirs
    character(72) :: ours
  end type

  type(phrase), parameter :: phrases(*) = [ &
    phrase('the null handle where a buffer is needed', 'no buffer: it was not created, or was destroyed'), &
    phrase('the null handle where a fence is needed', 'no fence: it was not created, or was destroyed'), &
    phrase('the null handle where a kernel is needed', 'no program: it was not compiled, or was destroyed'), &
    phrase('the null handle where a pool is needed', 'no pool: it was not created, or was destroyed'), &
    phrase('the null handle where a factored matrix is needed', 'no factors: factor the matrix first'), &
    phrase('the null handle where a device is needed', 'no device is open'), &
    phrase('the null handle where a queue is needed', 'no device is open'), &
    phrase('the null handle where a hub is needed', 'no device is open'), &
    phrase('no device of this hub fits', 'no device of this machine fits'), &
    phrase('of another hub', 'of another session'), &
    phrase('`Signature::offsets`', 'an offset, which Fortran programs cannot'), &
    phrase('`Source::with_glsl`', 'glsl='), &
    phrase('`Source::spirv`', 'opencl_c='), &
    phrase('`memory_kind(MemoryKind::Exportable)`', 'exportable memory'), &
    phrase('`Hub::notes`', 'explain_devices()'), &
    phrase('`Hub::unavailable`', 'explain_devices()'), &
    phrase(' to `HubBuilder::only`, or remove it from `without`', ' in the program'), &
    phrase('`Queue::launch_fenced`', 'fence= of dispatch_compute'), &
    phrase('`memory_kind(MemoryKind::HostPages)`, `allocate_on(&hub.host())`', 'gpu_open(''host'')'), &
    phrase('`memory_kind(MemoryKind::HostPages)`', 'gpu_open(''host'')'), &
    phrase('use `read` and `write`', 'use read_buffer and write_buffer'), &
    phrase('`read` and `write` copy', 'read_buffer and write_buffer copy'), &
    phrase('; a view''s `address()` is for unsafe code', ''), &
    phrase(': use `address()`', ''), &
    phrase(': use `cl_mem()`', ''), &
    phrase(': use onebuf_view_address()', ''), &
    phrase(': use onebuf_view_cl_mem()', ''), &
    phrase('a value of type [u8] (', 'a value ('), &
    phrase(' view of u8', ' buffer'), &
    phrase('local memory of u8', 'local memory'), &
    phrase('share the buffer with the host too', 'open another device'), &
    phrase('a floating-point number of 4 bytes', 'a real(real32)'), &
    phrase('a floating-point number of 8 bytes', 'a real(real64)'), &
    phrase('an integer of 4 bytes', 'an integer(int32)'), &
    phrase('an integer of 8 bytes', 'an integer(int64)'), &
    phrase(' is NULL', ' is missing')]

contains

  ! Whether a function that fails without stat= stops the program. Subroutines always do.
  subroutine gpu_stop_on_failure(stops, stat, errmsg)
    logical, intent(in) :: stops
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    stops_always = stops
    call succeed(stat, errmsg)
  end subroutine

  ! Reports the status of a call of onebuf; `what` names the operation. A function passes `returns`: see `refuse`.
  subroutine report(status, what, stat, errmsg, returns)
    integer(c_int32_t), intent(in) :: status
    character(*), intent(in) :: what
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical, intent(in), optional :: returns

    if (status == ONEBUF_OK) then
      if (present(stat)) stat = 0
    else
      call refuse(status, what//': '//told(), stat, errmsg, returns)
    end if
  end subroutine

  ! Reports a failure. With `returns` true this comes back without stat=, too: the caller returns an invalid result.
  subroutine refuse(status, message, stat, errmsg, returns)
    integer(c_int32_t), intent(in) :: status
    character(*), intent(in) :: message
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical, intent(in), optional :: returns
    logical :: goes_on

    if (present(errmsg)) errmsg = message
    if (present(stat)) then
      stat = int(status)
      return
    end if
    goes_on = .false.
    if (present(returns)) goes_on = returns .and. .not. stops_always
    if (goes_on .and. present(errmsg)) return
    call say(message)
    if (.not. goes_on) error stop 1
  end subroutine

  ! Sets stat= of a call that cannot fail; errmsg= keeps its value, as for every success.
  subroutine succeed(stat, errmsg)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    if (present(stat)) stat = 0
    if (.not. present(errmsg)) return
  end subroutine

  ! Whether a variable holds nothing, by the id of its handle. If it does, that has been reported: `holds` says what, and what to do.
  function is_unused(id, me, holds, stat, errmsg) result(unused)
    integer(c_int64_t), intent(in) :: id
    character(*), intent(in) :: me, holds
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: unused

    unused = id == 0
    if (.not. unused) call refuse(ONEBUF_BUSY, me//': the variable holds '//holds, stat, errmsg)
  end function

  ! Writes a line to standard error.
  subroutine say(message)
    character(*), intent(in) :: message

    write (error_unit, '(2a)') 'onebuf: ', message
  end subroutine

  ! The library's message about its last failure, in Fortran's words.
  function told() result(text)
    character(:), allocatable :: text

    text = fortran_words(text_of(onebuf_last_error_message()))
  end function

  ! A message without names of C and Rust.
  function fortran_words(message) result(text)
    character(*), intent(in) :: message
    character(:), allocatable :: text
    integer :: i

    text = message
    do i = 1, size(phrases)
      call replace(text, trim(phrases(i)%theirs), trim(phrases(i)%ours))
    end do
  end function

  ! Replaces every occurrence. What replaces it is not searched again.
  subroutine replace(text, old, new)
    character(:), allocatable, intent(inout) :: text
    character(*), intent(in) :: old, new
    integer :: at, from

    from = 1
    do
      at = index(text(from:), old)
      if (at == 0) return
      at = from + at - 1
      text = text(:at - 1)//new//text(at + len(old):)
      from = at + len(new)
    end do
  end subroutine

  ! Converts a C string.
  function text_of(pointer) result(text)
    type(c_ptr), intent(in) :: pointer
    character(:), allocatable :: text
    character(kind=c_char), pointer :: letters(:)
    integer :: i

    call c_f_pointer(pointer, letters, [strlen(pointer)])
    allocate (character(size(letters)) :: text)
    do i = 1, size(letters)
      text(i:i) = letters(i)
    end do
  end function

  ! Converts a onebuf_string and frees it.
  function taken_text(string) result(text)
    type(onebuf_string), intent(in) :: string
    character(:), allocatable :: text
    integer(c_int32_t) :: ignored

    text = text_of(onebuf_string_data(string))
    ignored = onebuf_string_free(string)
  end function
end module
