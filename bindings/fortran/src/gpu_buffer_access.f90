! The CPU's access to buffers: by pointers, in turn with the GPU, and by copies of elements.
module gpu_buffer_access
  use, intrinsic :: iso_fortran_env, only: int32, int64
  use onebuf_c
  use gpu_errors, only: report, refuse
  use gpu_buffer_core, only: unified_buffer, buffer_handle, buffer_is_valid, buffer_size_bytes, buffer_access_mode, cpu_access, &
    BUFFER_READ_ONLY, BUFFER_WRITE_ONLY
  implicit none
  private
  public :: get_cpu_pointer, sync_to_gpu, sync_from_gpu, flush_buffer_range, GPU_DEFAULT_TIMEOUT_NS
  public :: store_elements, load_elements, open_for_cpu, element_count, moves, fits, timeout_of, NO_TIMEOUT

  ! The timeout of write_buffer_safe and read_buffer_safe if none is given: ten seconds.
  integer(int64), parameter :: GPU_DEFAULT_TIMEOUT_NS = 10000000000_int64

  ! A timeout that means the library's own.
  integer(int64), parameter :: NO_TIMEOUT = -1

  interface get_cpu_pointer
    module procedure pointer_int32, pointer_int64
  end interface

  interface flush_buffer_range
    module procedure flush_int32_int32, flush_int32_int64, flush_int64_int32, flush_int64_int64
  end interface

contains

  ! The CPU's address of the buffer's elements, given the element size in bytes; null on failure. Waits for the GPU's last use. Valid
  ! until the next dispatch that has the buffer bound, or sync_to_gpu; then ask for it again.
  function pointer_int64(buffer, element_size, stat, errmsg) result(address)
    type(unified_buffer), intent(in) :: buffer
    integer(int64), intent(in) :: element_size
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: address

    call open_for_cpu(buffer, element_size, -1_int64, 'get_cpu_pointer', address, stat, errmsg, returns=.true.)
  end function

  function pointer_int32(buffer, element_size, stat, errmsg) result(address)
    type(unified_buffer), intent(in) :: buffer
    integer(int32), intent(in) :: element_size
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: address

    address = pointer_int64(buffer, int(element_size, int64), stat, errmsg)
  end function

  ! The CPU has finished: the GPU sees what it wrote. Dispatches do this automatically.
  subroutine sync_to_gpu(buffer, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_buffer_to_device(buffer_handle(buffer)), 'sync_to_gpu', stat, errmsg)
  end subroutine

  ! Waits for the GPU's last use: the CPU sees what it wrote. Reads and pointers do this automatically.
  subroutine sync_from_gpu(buffer, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: ignored

    call report(onebuf_buffer_to_host(buffer_handle(buffer), cpu_access(buffer_access_mode(buffer)), ignored), 'sync_from_gpu', &
      stat, errmsg)
  end subroutine

  ! The CPU has written `bytes` bytes from `offset` on: completes these stores, so that a GPU that shares the memory coherently sees them.
  ! Other GPUs see them at the next dispatch, which hands the buffer over. A range outside of the buffer is an error.
  subroutine flush_int64_int64(buffer, offset, bytes, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    integer(int64), intent(in) :: offset, bytes
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'flush_buffer_range: '

    if (.not. buffer_is_valid(buffer)) then
      call refuse(ONEBUF_INVALID_HANDLE, me//'no buffer, or one that was destroyed', stat, errmsg)
    else if (buffer_access_mode(buffer) == BUFFER_READ_ONLY) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//'a BUFFER_READ_ONLY buffer is not written by the CPU', &
        stat, errmsg)
    else if (offset < 0 .or. bytes < 0 .or. offset > buffer_size_bytes(buffer) - bytes) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//'the range is not inside the buffer', stat, errmsg)
    else
      call report(onebuf_buffer_flush(buffer_handle(buffer), int(offset, c_size_t), int(bytes, c_size_t)), &
        'flush_buffer_range', stat, errmsg)
    end if
  end subroutine

  subroutine flush_int32_int32(buffer, offset, bytes, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    integer(int32), intent(in) :: offset, bytes
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call flush_int64_int64(buffer, int(offset, int64), int(bytes, int64), stat, errmsg)
  end subroutine

  subroutine flush_int32_int64(buffer, offset, bytes, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    integer(int32), intent(in) :: offset
    integer(int64), intent(in) :: bytes
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call flush_int64_int64(buffer, int(offset, int64), bytes, stat, errmsg)
  end subroutine

  subroutine flush_int64_int32(buffer, offset, bytes, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    integer(int64), intent(in) :: offset
    integer(int32), intent(in) :: bytes
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call flush_int64_int64(buffer, offset, int(bytes, int64), stat, errmsg)
  end subroutine

  ! --- For the other modules --------------------------------------------------------------------------------------------

  ! An optional timeout: the default one if it is absent.
  pure function timeout_of(timeout_ns) result(value)
    integer(int32), intent(in), optional :: timeout_ns
    integer(int64) :: value

    value = GPU_DEFAULT_TIMEOUT_NS
    if (present(timeout_ns)) value = max(int(timeout_ns, int64), 0_int64)
  end function

  ! Writes elements at an offset, both counted in elements, with a timeout in nanoseconds.
  subroutine store_elements(buffer, data, element_bits, count, me, timeout_ns, offset, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    type(c_ptr), intent(in) :: data
    integer, intent(in) :: element_bits
    integer(int64), intent(in) :: count, timeout_ns, offset
    character(*), intent(in) :: me
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(c_size_t) :: first, bytes
    integer(c_int32_t) :: status

    if (.not. moves(buffer, BUFFER_READ_ONLY, me, element_bits, count, first, bytes, offset, stat, errmsg)) &
      return
    status = ONEBUF_OK
    if (timeout_ns >= 0) status = onebuf_buffer_wait_ns(buffer_handle(buffer), ONEBUF_READ_WRITE, timeout_ns)
    if (status == ONEBUF_OK) status = onebuf_buffer_store(buffer_handle(buffer), first, data, bytes)
    call report(status, me, stat, errmsg)
  end subroutine

  ! Reads elements at an offset, both counted in elements, with a timeout in nanoseconds.
  subroutine load_elements(buffer, data, element_bits, count, me, timeout_ns, offset, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    type(c_ptr), intent(in) :: data
    integer, intent(in) :: element_bits
    integer(int64), intent(in) :: count, timeout_ns, offset
    character(*), intent(in) :: me
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(c_size_t) :: first, bytes
    integer(c_int32_t) :: status

    if (.not. moves(buffer, BUFFER_WRITE_ONLY, me, element_bits, count, first, bytes, offset, stat, errmsg)) &
      return
    status = ONEBUF_OK
    if (timeout_ns >= 0) status = onebuf_buffer_wait_ns(buffer_handle(buffer), ONEBUF_READ, timeout_ns)
    if (status == ONEBUF_OK) status = onebuf_buffer_load(buffer_handle(buffer), first, data, bytes)
    call report(status, me, stat, errmsg)
  end subroutine

  ! Whether there is something to transfer, and which bytes. Errors have been reported. One mode forbids the transfer.
  function moves(buffer, forbidden, me, element_bits, count, first, bytes, offset, stat, errmsg) result(go)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(in) :: forbidden, element_bits
    integer(int64), intent(in) :: count, offset
    character(*), intent(in) :: me
    integer(c_size_t), intent(out) :: first, bytes
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: go

    bytes = int(count, c_size_t)*(element_bits/8)
    first = 0
    ! Limited, so that the product does not overflow; the library refuses what lies behind the end.
    if (offset > 0) first = int(min(offset, buffer_size_bytes(buffer) + 1), c_size_t)*(element_bits/8)
    go = .false.
    if (buffer_access_mode(buffer) == forbidden) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': the buffer was made for the CPU to '// &
        merge('read, not to write ', 'write, not to read ', forbidden == BUFFER_READ_ONLY)//'it', stat, errmsg)
    else if (offset < 0) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': the offset is negative', stat, errmsg)
    else if (count == 0) then
      if (present(stat)) stat = 0
    else
      go = .true.
    end if
  end function

  ! Gives the buffer to the CPU and returns the address of the elements: null on failure. A count that is not negative
  ! is the required number of elements.
  subroutine open_for_cpu(buffer, element_size, count, me, address, stat, errmsg, returns)
    type(unified_buffer), intent(in) :: buffer
    integer(int64), intent(in) :: element_size, count
    character(*), intent(in) :: me
    type(c_ptr), intent(out) :: address
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical, intent(in), optional :: returns

    address = c_null_ptr
    if (.not. fits(me, buffer_size_bytes(buffer), element_size, count, stat, errmsg, returns)) return
    call report(onebuf_buffer_to_host(buffer_handle(buffer), cpu_access(buffer_access_mode(buffer)), address), me, stat, errmsg, &
      returns)
  end subroutine

  ! Whether this many elements fit into `bytes` bytes. A mistake has been reported.
  function fits(me, bytes, element_size, count, stat, errmsg, returns) result(yes)
    character(*), intent(in) :: me
    integer(int64), intent(in) :: bytes, element_size, count
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical, intent(in), optional :: returns
    logical :: yes

    yes = .false.
    if (element_size < 1) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': an element has at least one byte', stat, errmsg, returns)
    else if (mod(bytes, element_size) /= 0) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': the buffer does not hold a whole number of elements', &
        stat, errmsg, returns)
    else if (count > bytes/element_size) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': the shape has more elements than the buffer', stat, errmsg, returns)
    else
      yes = .true.
    end if
  end function

  ! Number of elements of a shape; an impossibly large number for an invalid shape.
  pure function element_count(shape) result(count)
    integer(int64), intent(in) :: shape(:)
    integer(int64) :: count
    integer :: i

    count = 1
    do i = 1, size(shape)
      if (shape(i) < 0 .or. count > huge(count)/max(shape(i), 1_int64)) then
        count = huge(count)
        return
      end if
      count = count*shape(i)
    end do
  end function
end module
