! Reads and writes that return at once. A transfer owns its memory on the CPU: what is written is copied when it starts, and what was read is
! there when it is done.
module gpu_transfers
  use, intrinsic :: iso_fortran_env, only: int32, int64
  use onebuf_c
  use gpu_errors, only: report, refuse, succeed, is_unused
  use gpu_buffer_core, only: unified_buffer, buffer_handle, buffer_size_bytes, offset_of, BUFFER_READ_ONLY, BUFFER_WRITE_ONLY
  use gpu_buffer_access, only: moves, fits, GPU_DEFAULT_TIMEOUT_NS
  implicit none
  private
  public :: buffer_transfer, read_buffer_async, transfer_is_done, wait_for_transfer, close_transfer, transfer_is_valid
  public :: start_write, transfer_elements, transfer_bytes

  ! A read or write under way, until close_transfer. Start it in a variable that holds none.
  type :: buffer_transfer
    private
    type(onebuf_transfer) :: handle
    integer(int64) :: bytes = 0
  end type

  ! Each of `offset` and `bytes` as int32 and as int64.
  interface read_buffer_async
    module procedure read_int32_int32, read_int32_int64, read_int64_int32, read_int64_int64
  end interface

  interface wait_for_transfer
    module procedure wait_int32, wait_int64
  end interface

contains

  ! Starts to read `bytes` bytes of the buffer from byte `offset` on: all from there on without `bytes`. It ends the CPU's turn, as a dispatch
  ! does. After wait_for_transfer get_array_pointer(transfer, pointer) points to what was read.
  subroutine read_int32_int32(transfer, buffer, offset, bytes, stat, errmsg)
    type(buffer_transfer), intent(inout) :: transfer
    type(unified_buffer), intent(in) :: buffer
    integer(int32), intent(in), optional :: offset, bytes
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(int64) :: count

    count = buffer_size_bytes(buffer) - offset_of(offset)
    if (present(bytes)) count = int(bytes, int64)
    call start_read(transfer, buffer, offset_of(offset), count, stat, errmsg)
  end subroutine

  subroutine read_int64_int32(transfer, buffer, offset, bytes, stat, errmsg)
    type(buffer_transfer), intent(inout) :: transfer
    type(unified_buffer), intent(in) :: buffer
    integer(int64), intent(in) :: offset
    integer(int32), intent(in), optional :: bytes
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(int64) :: count

    count = buffer_size_bytes(buffer) - offset
    if (present(bytes)) count = int(bytes, int64)
    call start_read(transfer, buffer, offset, count, stat, errmsg)
  end subroutine

  subroutine read_int32_int64(transfer, buffer, offset, bytes, stat, errmsg)
    type(buffer_transfer), intent(inout) :: transfer
    type(unified_buffer), intent(in) :: buffer
    integer(int32), intent(in), optional :: offset
    integer(int64), intent(in) :: bytes
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call start_read(transfer, buffer, offset_of(offset), bytes, stat, errmsg)
  end subroutine

  subroutine read_int64_int64(transfer, buffer, offset, bytes, stat, errmsg)
    type(buffer_transfer), intent(inout) :: transfer
    type(unified_buffer), intent(in) :: buffer
    integer(int64), intent(in) :: offset, bytes
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call start_read(transfer, buffer, offset, bytes, stat, errmsg)
  end subroutine

  subroutine start_read(transfer, buffer, offset, count, stat, errmsg)
    type(buffer_transfer), intent(inout) :: transfer
    type(unified_buffer), intent(in) :: buffer
    integer(int64), intent(in) :: offset, count
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'read_buffer_async'
    integer(c_size_t) :: first, bytes
    integer(c_int32_t) :: status

    if (.not. is_unused(transfer%handle%id, me, 'a transfer: close it first', stat, errmsg)) return
    if (count < 1) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': at least one byte inside the buffer', stat, errmsg)
      return
    end if
    if (.not. moves(buffer, BUFFER_WRITE_ONLY, me, 8, count, first, bytes, offset, stat, errmsg)) return
    status = onebuf_buffer_to_device(buffer_handle(buffer))
    if (status == ONEBUF_OK) status = onebuf_buffer_read_async(buffer_handle(buffer), first, bytes, transfer%handle)
    transfer%bytes = int(bytes, int64)
    call report(status, me, stat, errmsg)
  end subroutine

  ! Whether wait_for_transfer would return at once. Never waits. Work that failed is an error.
  function transfer_is_done(transfer, stat, errmsg) result(is_done)
    type(buffer_transfer), intent(in) :: transfer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: is_done
    logical(c_bool) :: done

    done = .false.
    call report(onebuf_transfer_poll(transfer%handle, done), 'transfer_is_done', stat, errmsg, returns=.true.)
    is_done = logical(done)
  end function

  ! Waits for the transfer, at most this many milliseconds, ten seconds without `timeout_ms`: ONEBUF_TIMEOUT if it takes longer. The transfer
  ! continues then, and the wait may be repeated.
  subroutine wait_int64(transfer, timeout_ms, stat, errmsg)
    type(buffer_transfer), intent(in) :: transfer
    integer(int64), intent(in) :: timeout_ms
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_transfer_wait(transfer%handle, max(timeout_ms, 0_int64)), 'wait_for_transfer', stat, errmsg)
  end subroutine

  subroutine wait_int32(transfer, timeout_ms, stat, errmsg)
    type(buffer_transfer), intent(in) :: transfer
    integer(int32), intent(in), optional :: timeout_ms
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(int64) :: time

    time = GPU_DEFAULT_TIMEOUT_NS/1000000
    if (present(timeout_ms)) time = int(timeout_ms, int64)
    call wait_int64(transfer, time, stat, errmsg)
  end subroutine

  ! Frees the transfer and the memory that was read; pointers to it end. Waits for one that is not done.
  subroutine close_transfer(transfer, stat, errmsg)
    type(buffer_transfer), intent(inout) :: transfer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_transfer_free(transfer%handle), 'close_transfer', stat, errmsg)
    transfer%handle%id = 0
    transfer%bytes = 0
  end subroutine

  ! Whether the variable holds a transfer.
  function transfer_is_valid(transfer, stat, errmsg) result(valid)
    type(buffer_transfer), intent(in) :: transfer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: valid

    valid = transfer%handle%id /= 0
    call succeed(stat, errmsg)
  end function

  ! --- For the other modules --------------------------------------------------------------------------------------------

  ! Starts to write elements at an offset, both counted in elements.
  subroutine start_write(transfer, buffer, data, element_bits, count, offset, stat, errmsg)
    type(buffer_transfer), intent(inout) :: transfer
    type(unified_buffer), intent(in) :: buffer
    type(c_ptr), intent(in) :: data
    integer, intent(in) :: element_bits
    integer(int64), intent(in) :: count, offset
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'write_buffer_async'
    integer(c_size_t) :: first, bytes
    integer(c_int32_t) :: status

    if (.not. is_unused(transfer%handle%id, me, 'a transfer: close it first', stat, errmsg)) return
    if (count < 1) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': at least one element', stat, errmsg)
      return
    end if
    if (.not. moves(buffer, BUFFER_READ_ONLY, me, element_bits, count, first, bytes, offset, stat, errmsg)) return
    status = onebuf_buffer_to_device(buffer_handle(buffer))
    if (status == ONEBUF_OK) status = onebuf_buffer_write_async(buffer_handle(buffer), first, data, bytes, transfer%handle)
    transfer%bytes = int(bytes, int64)
    call report(status, me, stat, errmsg)
  end subroutine

  ! The number of bytes that it moves.
  pure function transfer_bytes(transfer) result(bytes)
    type(buffer_transfer), intent(in) :: transfer
    integer(int64) :: bytes

    bytes = transfer%bytes
  end function

  ! The address of the elements of a transfer that is done: null on failure.
  subroutine transfer_elements(transfer, element_size, count, me, address, stat, errmsg)
    type(buffer_transfer), intent(in) :: transfer
    integer(int64), intent(in) :: element_size, count
    character(*), intent(in) :: me
    type(c_ptr), intent(out) :: address
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: found
    integer(c_int32_t) :: status

    address = c_null_ptr
    if (.not. fits(me, transfer%bytes, element_size, count, stat, errmsg)) return
    status = onebuf_transfer_data(transfer%handle, found, c_null_ptr)
    if (status == ONEBUF_OK) address = found
    call report(status, me, stat, errmsg)
  end subroutine
end module
