! A check that reports where it failed.
module checks
  use, intrinsic :: iso_fortran_env, only: error_unit
  use onebuf_c, only: onebuf_buffer, onebuf_buffer_size, ONEBUF_OK, c_size_t
  use gpu_unified_buffers, only: unified_buffer, buffer_size_bytes
  implicit none
  private
  public :: check, alive

contains

  subroutine check(holds, what)
    logical, intent(in) :: holds
    character(*), intent(in) :: what

    if (holds) return
    write (error_unit, '(2a)') 'failed: ', what
    error stop 1
  end subroutine

  ! Whether the buffer with this handle still exists. The last buffer without owners is freed when the next variable ends, so one
  ! ends here.
  function alive(handle)
    type(onebuf_buffer), intent(in) :: handle
    logical :: alive
    integer(c_size_t) :: bytes

    call end_a_variable
    alive = onebuf_buffer_size(handle, bytes) == ONEBUF_OK
  end function

  subroutine end_a_variable
    type(unified_buffer) :: one

    if (buffer_size_bytes(one) /= 0) error stop 'a new variable is not empty'
  end subroutine
end module
