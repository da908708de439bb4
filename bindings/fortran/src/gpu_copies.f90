! Copies between buffers, and fills.
module gpu_copies
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
  use onebuf_c
  use gpu_errors, only: report, refuse
  use gpu_buffer_core, only: unified_buffer, buffer_handle, buffer_size_bytes
  implicit none
  private
  public :: copy_buffer, fill_buffer

  interface copy_buffer
    module procedure copy_all, copy_int32, copy_int64
  end interface

  ! Sets all elements of a buffer to a value.
  interface fill_buffer
    module procedure fill_int32, fill_int64, fill_real32, fill_real64
  end interface

contains

  ! Copies a whole buffer into one of at least its size, and waits. The two may be on different devices.
  subroutine copy_all(from, to, stat, errmsg)
    type(unified_buffer), intent(in) :: from, to
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call copy_int64(from, to, buffer_size_bytes(from), 0_int64, 0_int64, stat, errmsg)
  end subroutine

  ! Copies `bytes` bytes between offsets in bytes, and waits.
  subroutine copy_int64(from, to, bytes, from_offset, to_offset, stat, errmsg)
    type(unified_buffer), intent(in) :: from, to
    integer(int64), intent(in) :: bytes, from_offset, to_offset
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'copy_buffer'
    integer(c_int32_t) :: status

    if (min(bytes, from_offset, to_offset) < 0) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': a size or offset is negative', stat, errmsg)
      return
    end if
    status = onebuf_buffer_to_device(buffer_handle(from))
    if (status == ONEBUF_OK) status = onebuf_buffer_to_device(buffer_handle(to))
    if (status == ONEBUF_OK) status = onebuf_bridge_copy(buffer_handle(from), int(from_offset, c_size_t), &
      buffer_handle(to), int(to_offset, c_size_t), int(bytes, c_size_t), c_null_ptr)
    call report(status, me, stat, errmsg)
  end subroutine

  subroutine copy_int32(from, to, bytes, from_offset, to_offset, stat, errmsg)
    type(unified_buffer), intent(in) :: from, to
    integer(int32), intent(in) :: bytes, from_offset, to_offset
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call copy_int64(from, to, int(bytes, int64), int(from_offset, int64), int(to_offset, int64), stat, errmsg)
  end subroutine

  subroutine fill_int32(buffer, value, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    integer(int32), intent(in) :: value
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call fill(buffer, transfer(value, [0_c_int8_t]), stat, errmsg)
  end subroutine

  subroutine fill_int64(buffer, value, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    integer(int64), intent(in) :: value
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call fill(buffer, transfer(value, [0_c_int8_t]), stat, errmsg)
  end subroutine

  subroutine fill_real32(buffer, value, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    real(real32), intent(in) :: value
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call fill(buffer, transfer(value, [0_c_int8_t]), stat, errmsg)
  end subroutine

  subroutine fill_real64(buffer, value, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    real(real64), intent(in) :: value
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call fill(buffer, transfer(value, [0_c_int8_t]), stat, errmsg)
  end subroutine

  subroutine fill(buffer, pattern, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    integer(c_int8_t), intent(in) :: pattern(:)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(c_int8_t), target :: bytes(size(pattern))
    integer(c_int32_t) :: status

    bytes = pattern
    status = onebuf_buffer_to_device(buffer_handle(buffer))
    if (status == ONEBUF_OK) status = onebuf_buffer_fill(buffer_handle(buffer), 0_c_size_t, &
      int(buffer_size_bytes(buffer), c_size_t), c_loc(bytes), int(size(bytes), c_size_t))
    call report(status, 'fill_buffer', stat, errmsg)
  end subroutine
end module
