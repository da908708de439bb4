! The library's log, sent to a procedure of the program.
module gpu_log
  use onebuf_c
  use gpu_errors, only: report, refuse, text_of, fortran_words
  implicit none
  private
  public :: log_procedure, gpu_log_to, gpu_log_to_stderr, LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG, LOG_TRACE

  ! Severity of a message.
  integer, parameter :: LOG_ERROR = 1
  integer, parameter :: LOG_WARN = 2
  integer, parameter :: LOG_INFO = 3
  integer, parameter :: LOG_DEBUG = 4
  integer, parameter :: LOG_TRACE = 5

  abstract interface
    ! Receives one message. `part` names the part of the library that it comes from. Any thread may call it, several at once: compile it as the
    ! callbacks of a pipeline. It must not call these modules.
    subroutine log_procedure(level, part, message)
      integer, intent(in) :: level
      character(*), intent(in) :: part, message
    end subroutine
  end interface

  procedure(log_procedure), pointer, save :: receiver => null()

contains

  ! Sends messages of this level and of graver ones to a procedure, LOG_WARN and graver without `level`, and none to standard error. The
  ! environment variable ONEBUF_LOG is ignored then.
  subroutine gpu_log_to(receive, level, stat, errmsg)
    procedure(log_procedure) :: receive
    integer, intent(in), optional :: level
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'gpu_log_to'
    integer(c_int32_t) :: status
    integer :: wanted

    wanted = LOG_WARN
    if (present(level)) wanted = level
    if (wanted < LOG_ERROR .or. wanted > LOG_TRACE) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': no such level: choose LOG_ERROR to LOG_TRACE', stat, errmsg)
      return
    end if
    ! After this the earlier procedure is not running.
    status = onebuf_log_to(0_c_int32_t, c_null_funptr, c_null_ptr)
    if (status == ONEBUF_OK) then
      receiver => receive
      status = onebuf_log_to(int(wanted, c_int32_t), c_funloc(receive_callback), c_null_ptr)
    end if
    call report(status, me, stat, errmsg)
  end subroutine

  ! Sends messages to standard error again, those that ONEBUF_LOG selects. The procedure is not called any more.
  subroutine gpu_log_to_stderr(stat, errmsg)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_log_to(0_c_int32_t, c_null_funptr, c_null_ptr), 'gpu_log_to_stderr', stat, errmsg)
  end subroutine

  subroutine receive_callback(user, level, part, message) bind(c, name='onebuf_fortran_log')
    type(c_ptr), value :: user
    integer(c_int32_t), value :: level
    type(c_ptr), value :: part, message

    if (c_associated(user)) return
    call receiver(int(level), text_of(part), fortran_words(text_of(message)))
  end subroutine
end module
