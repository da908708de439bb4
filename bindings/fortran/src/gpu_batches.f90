! Grouped small writes: collected, then made in one hand-over.
module gpu_batches
  use, intrinsic :: iso_fortran_env, only: int64
  use onebuf_c
  use gpu_errors, only: report, refuse, succeed
  use gpu_buffer_core, only: unified_buffer, buffer_handle, buffer_is_valid, buffer_size_bytes, buffer_access_mode, &
    BUFFER_READ_ONLY
  implicit none
  private
  public :: write_batch, open_write_batch, flush_write_batch, batch_size, add_elements

  ! One write: where its bytes begin, in the buffer and among the collected ones.
  type :: entry
    integer(int64) :: offset = 0
    integer(int64) :: start = 0
    integer(int64) :: bytes = 0
  end type

  ! Writes to one buffer that are not made yet. A batch that ends without flush_write_batch makes none of them.
  type :: write_batch
    private
    type(unified_buffer) :: buffer
    type(entry), allocatable :: entries(:)
    integer :: count = 0
    integer(c_signed_char), allocatable :: bytes(:)
    integer(int64) :: used = 0
  end type

contains

  ! Begins a batch of writes to the buffer. Writes that were collected before are dropped.
  subroutine open_write_batch(batch, buffer, stat, errmsg)
    type(write_batch), intent(inout), target :: batch
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'open_write_batch: '

    if (.not. buffer_is_valid(buffer)) then
      call refuse(ONEBUF_INVALID_HANDLE, me//'no buffer, or one that was destroyed', stat, errmsg)
    else if (buffer_access_mode(buffer) == BUFFER_READ_ONLY) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//'the buffer was made for the CPU to read, not to write it', stat, errmsg)
    else
      batch%buffer = buffer
      batch%count = 0
      batch%used = 0
      if (.not. allocated(batch%entries)) allocate (batch%entries(16))
      if (.not. allocated(batch%bytes)) allocate (batch%bytes(1024))
      call succeed(stat, errmsg)
    end if
  end subroutine

  ! The number of writes that were collected.
  function batch_size(batch, stat, errmsg) result(count)
    type(write_batch), intent(in) :: batch
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer :: count

    count = batch%count
    call succeed(stat, errmsg)
  end function

  ! Makes all writes, in the order in which they were added. If that fails they stay in the batch.
  subroutine flush_write_batch(batch, stat, errmsg)
    type(write_batch), intent(inout), target :: batch
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(onebuf_write_t) :: writes(batch%count)
    integer :: i
    integer(c_int32_t) :: status

    if (batch%count == 0) then
      call succeed(stat, errmsg)
      return
    end if
    do i = 1, batch%count
      writes(i)%offset = int(batch%entries(i)%offset, c_size_t)
      writes(i)%data = c_loc(batch%bytes(batch%entries(i)%start))
      writes(i)%bytes = int(batch%entries(i)%bytes, c_size_t)
    end do
    status = onebuf_buffer_store_many(buffer_handle(batch%buffer), writes, int(batch%count, c_size_t))
    call report(status, 'flush_write_batch', stat, errmsg)
    if (status /= ONEBUF_OK) return
    batch%count = 0
    batch%used = 0
  end subroutine

  ! Collects elements for an offset, both counted in elements.
  subroutine add_elements(batch, data, element_bits, count, offset, stat, errmsg)
    type(write_batch), intent(inout) :: batch
    type(c_ptr), intent(in) :: data
    integer, intent(in) :: element_bits
    integer(int64), intent(in) :: count, offset
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'add_to_batch: '
    integer(c_signed_char), pointer :: given(:)
    integer(int64) :: bytes, room

    bytes = count*(element_bits/8)
    room = buffer_size_bytes(batch%buffer)
    if (.not. allocated(batch%entries)) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//'call open_write_batch first', stat, errmsg)
    else if (offset < 0 .or. bytes > room .or. offset > (room - bytes)/(element_bits/8)) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//'the elements do not lie inside the buffer', stat, errmsg)
    else
      call succeed(stat, errmsg)
      if (bytes == 0) return
      call make_room(batch, bytes)
      batch%count = batch%count + 1
      batch%entries(batch%count) = entry(offset*(element_bits/8), batch%used + 1, bytes)
      call c_f_pointer(data, given, [bytes])
      batch%bytes(batch%used + 1:batch%used + bytes) = given
      batch%used = batch%used + bytes
    end if
  end subroutine

  subroutine make_room(batch, bytes)
    type(write_batch), intent(inout) :: batch
    integer(int64), intent(in) :: bytes
    type(entry), allocatable :: entries(:)
    integer(c_signed_char), allocatable :: longer(:)

    if (batch%count == size(batch%entries)) then
      allocate (entries(2*batch%count))
      entries(:batch%count) = batch%entries
      call move_alloc(entries, batch%entries)
    end if
    if (batch%used + bytes > size(batch%bytes, kind=int64)) then
      allocate (longer(2*(batch%used + bytes)))
      longer(:batch%used) = batch%bytes(:batch%used)
      call move_alloc(longer, batch%bytes)
    end if
  end subroutine
end module
