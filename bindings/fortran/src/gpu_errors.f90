! How failures are reported: by stat= and errmsg= if given, otherwise by a message and a stop.
module gpu_errors
  use, intrinsic :: iso_fortran_env, only: error_unit
  use onebuf_c
  implicit none
  private
  public :: report, refuse, text_of, taken_text

  interface
    function strlen(text) bind(c)
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
      integer(c_size_t) :: strlen
    end function
  end interface

contains

  ! Reports the status of a call of onebuf; `what` names the operation.
  subroutine report(status, what, stat, errmsg)
    integer(c_int32_t), intent(in) :: status
    character(*), intent(in) :: what
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    if (status == ONEBUF_OK) then
      if (present(stat)) stat = 0
    else
      call refuse(status, what//': '//text_of(onebuf_last_error_message()), stat, errmsg)
    end if
  end subroutine

  ! Reports a failure that these modules detected.
  subroutine refuse(status, message, stat, errmsg)
    integer(c_int32_t), intent(in) :: status
    character(*), intent(in) :: message
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    if (present(errmsg)) errmsg = message
    if (present(stat)) then
      stat = int(status)
      return
    end if
    write (error_unit, '(a)') message
    error stop 1
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
    type(onebuf_handle), intent(in) :: string
    character(:), allocatable :: text
    integer(c_int32_t) :: ignored

    text = text_of(onebuf_string_data(string))
    ignored = onebuf_string_free(string)
  end function
end module
