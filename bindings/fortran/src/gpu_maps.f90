! Maps of a part of a buffer: without waiting for the GPU, or without its earlier contents. While one is open, nothing else uses the buffer if
! the CPU may write, and nothing else writes it if the CPU only reads. get_array_pointer(buffer, pointer) is the shorter way to a whole buffer.
module gpu_maps
  use, intrinsic :: iso_fortran_env, only: int32, int64
  use onebuf_c
  use gpu_errors, only: report, refuse, succeed, is_unused
  use gpu_buffer_core, only: unified_buffer, buffer_handle, buffer_size_bytes, buffer_access_mode, cpu_access, mode_exists, &
    offset_of
  use gpu_buffer_access, only: fits, GPU_DEFAULT_TIMEOUT_NS
  implicit none
  private
  public :: buffer_map, open_buffer_map, start_buffer_map, map_is_ready, wait_for_map, map_address, close_buffer_map, map_is_valid
  public :: map_elements, map_bytes

  ! A map, until close_buffer_map. Open it in a variable that holds none.
  type :: buffer_map
    private
    type(onebuf_mapping) :: handle
    type(c_ptr) :: address = c_null_ptr
    integer(int64) :: bytes = 0
  end type

  ! Each of `offset` and `bytes` as int32 and as int64.
  interface open_buffer_map
    module procedure open_int32_int32, open_int32_int64, open_int64_int32, open_int64_int64
  end interface

  interface start_buffer_map
    module procedure start_int32_int32, start_int32_int64, start_int64_int32, start_int64_int64
  end interface

  interface wait_for_map
    module procedure wait_int32, wait_int64
  end interface

contains

  ! Maps `bytes` bytes of the buffer from byte `offset` on, all from there on without `bytes`, and waits for the GPU's last use of it. Then
  ! get_array_pointer(map, pointer) points to them. `access_mode` is what the CPU does, the buffer's own without it. With `discard` the CPU only
  ! writes, and earlier contents are not brought to it.
  subroutine open_int32_int32(map, buffer, offset, bytes, access_mode, discard, stat, errmsg)
    type(buffer_map), intent(inout) :: map
    type(unified_buffer), intent(in) :: buffer
    integer(int32), intent(in), optional :: offset, bytes
    integer, intent(in), optional :: access_mode
    logical, intent(in), optional :: discard
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call open_now(map, buffer, offset_of(offset), offset_of(bytes), access_mode, discard, stat, errmsg)
  end subroutine

  subroutine open_int32_int64(map, buffer, offset, bytes, access_mode, discard, stat, errmsg)
    type(buffer_map), intent(inout) :: map
    type(unified_buffer), intent(in) :: buffer
    integer(int32), intent(in), optional :: offset
    integer(int64), intent(in) :: bytes
    integer, intent(in), optional :: access_mode
    logical, intent(in), optional :: discard
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call open_now(map, buffer, offset_of(offset), bytes, access_mode, discard, stat, errmsg)
  end subroutine

  subroutine open_int64_int32(map, buffer, offset, bytes, access_mode, discard, stat, errmsg)
    type(buffer_map), intent(inout) :: map
    type(unified_buffer), intent(in) :: buffer
    integer(int64), intent(in) :: offset
    integer(int32), intent(in), optional :: bytes
    integer, intent(in), optional :: access_mode
    logical, intent(in), optional :: discard
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call open_now(map, buffer, offset, offset_of(bytes), access_mode, discard, stat, errmsg)
  end subroutine

  subroutine open_int64_int64(map, buffer, offset, bytes, access_mode, discard, stat, errmsg)
    type(buffer_map), intent(inout) :: map
    type(unified_buffer), intent(in) :: buffer
    integer(int64), intent(in) :: offset, bytes
    integer, intent(in), optional :: access_mode
    logical, intent(in), optional :: discard
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call open_now(map, buffer, offset, bytes, access_mode, discard, stat, errmsg)
  end subroutine

  ! Asks for the same map, and returns at once. Until wait_for_map nothing is mapped, and others may use the buffer.
  subroutine start_int32_int32(map, buffer, offset, bytes, access_mode, discard, stat, errmsg)
    type(buffer_map), intent(inout) :: map
    type(unified_buffer), intent(in) :: buffer
    integer(int32), intent(in), optional :: offset, bytes
    integer, intent(in), optional :: access_mode
    logical, intent(in), optional :: discard
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call start(map, buffer, offset_of(offset), offset_of(bytes), access_mode, discard, stat, errmsg)
  end subroutine

  subroutine start_int32_int64(map, buffer, offset, bytes, access_mode, discard, stat, errmsg)
    type(buffer_map), intent(inout) :: map
    type(unified_buffer), intent(in) :: buffer
    integer(int32), intent(in), optional :: offset
    integer(int64), intent(in) :: bytes
    integer, intent(in), optional :: access_mode
    logical, intent(in), optional :: discard
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call start(map, buffer, offset_of(offset), bytes, access_mode, discard, stat, errmsg)
  end subroutine

  subroutine start_int64_int32(map, buffer, offset, bytes, access_mode, discard, stat, errmsg)
    type(buffer_map), intent(inout) :: map
    type(unified_buffer), intent(in) :: buffer
    integer(int64), intent(in) :: offset
    integer(int32), intent(in), optional :: bytes
    integer, intent(in), optional :: access_mode
    logical, intent(in), optional :: discard
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call start(map, buffer, offset, offset_of(bytes), access_mode, discard, stat, errmsg)
  end subroutine

  subroutine start_int64_int64(map, buffer, offset, bytes, access_mode, discard, stat, errmsg)
    type(buffer_map), intent(inout) :: map
    type(unified_buffer), intent(in) :: buffer
    integer(int64), intent(in) :: offset, bytes
    integer, intent(in), optional :: access_mode
    logical, intent(in), optional :: discard
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call start(map, buffer, offset, bytes, access_mode, discard, stat, errmsg)
  end subroutine

  subroutine open_now(map, buffer, offset, bytes, access_mode, discard, stat, errmsg)
    type(buffer_map), intent(inout) :: map
    type(unified_buffer), intent(in) :: buffer
    integer(int64), intent(in) :: offset, bytes
    integer, intent(in), optional :: access_mode
    logical, intent(in), optional :: discard
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'open_buffer_map'
    type(onebuf_map_options) :: options
    integer(c_int32_t) :: status

    if (.not. ready(map, buffer, options, me, offset, bytes, access_mode, discard, stat, errmsg)) return
    status = onebuf_buffer_to_device(buffer_handle(buffer))
    if (status == ONEBUF_OK) status = onebuf_buffer_map_with(buffer_handle(buffer), options, map%address, map%handle)
    if (status /= ONEBUF_OK) map%address = c_null_ptr
    call report(status, me, stat, errmsg)
  end subroutine

  subroutine start(map, buffer, offset, bytes, access_mode, discard, stat, errmsg)
    type(buffer_map), intent(inout) :: map
    type(unified_buffer), intent(in) :: buffer
    integer(int64), intent(in) :: offset, bytes
    integer, intent(in), optional :: access_mode
    logical, intent(in), optional :: discard
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'start_buffer_map'
    type(onebuf_map_options) :: options
    integer(c_int32_t) :: status

    if (.not. ready(map, buffer, options, me, offset, bytes, access_mode, discard, stat, errmsg)) return
    status = onebuf_buffer_to_device(buffer_handle(buffer))
    if (status == ONEBUF_OK) status = onebuf_buffer_map_async(buffer_handle(buffer), options, map%handle)
    call report(status, me, stat, errmsg)
  end subroutine

  ! Fills in the options, and what the map knows about itself. A mistake has been reported.
  function ready(map, buffer, options, me, offset, bytes, access_mode, discard, stat, errmsg) result(go)
    type(buffer_map), intent(inout) :: map
    type(unified_buffer), intent(in) :: buffer
    type(onebuf_map_options), intent(inout) :: options
    character(*), intent(in) :: me
    integer(int64), intent(in) :: offset, bytes
    integer, intent(in), optional :: access_mode
    logical, intent(in), optional :: discard
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: go
    integer :: mode

    go = .false.
    if (.not. is_unused(map%handle%id, me, 'a map: close it first', stat, errmsg)) return
    mode = buffer_access_mode(buffer)
    if (present(access_mode)) mode = access_mode
    if (.not. mode_exists(me, mode, stat, errmsg)) return
    if (offset < 0 .or. bytes < 0) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': the offset or the size is negative', stat, errmsg)
      return
    end if
    options%size = int(storage_size(options)/8, c_size_t)
    options%access = cpu_access(mode)
    if (present(discard)) then
      if (discard) options%access = ONEBUF_WRITE
      options%discard = merge(1_c_int32_t, 0_c_int32_t, discard)
    end if
    options%offset = int(offset, c_size_t)
    options%bytes = int(bytes, c_size_t)
    map%address = c_null_ptr
    map%bytes = bytes
    if (bytes == 0) map%bytes = buffer_size_bytes(buffer) - offset
    go = .true.
  end function

  ! Whether wait_for_map would return without waiting for work. Never waits. Work that failed is an error.
  function map_is_ready(map, stat, errmsg) result(is_ready)
    type(buffer_map), intent(in) :: map
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: is_ready
    logical(c_bool) :: done

    done = .false.
    call report(onebuf_mapping_poll(map%handle, done), 'map_is_ready', stat, errmsg, returns=.true.)
    is_ready = logical(done)
  end function

  ! Waits for the GPU's last use of the buffer and maps it: at most this many milliseconds, ten seconds without `timeout_ms`.
  ! ONEBUF_TIMEOUT if that takes longer; the wait may be repeated.
  subroutine wait_int64(map, timeout_ms, stat, errmsg)
    type(buffer_map), intent(inout) :: map
    integer(int64), intent(in) :: timeout_ms
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: address
    integer(c_int32_t) :: status

    status = onebuf_mapping_wait(map%handle, max(timeout_ms, 0_int64), address)
    if (status == ONEBUF_OK) map%address = address
    call report(status, 'wait_for_map', stat, errmsg)
  end subroutine

  subroutine wait_int32(map, timeout_ms, stat, errmsg)
    type(buffer_map), intent(inout) :: map
    integer(int32), intent(in), optional :: timeout_ms
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(int64) :: time

    time = GPU_DEFAULT_TIMEOUT_NS/1000000
    if (present(timeout_ms)) time = int(timeout_ms, int64)
    call wait_int64(map, time, stat, errmsg)
  end subroutine

  ! The CPU's address of the first mapped byte; null if nothing is mapped yet.
  function map_address(map, stat, errmsg) result(address)
    type(buffer_map), intent(in) :: map
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: address

    address = map%address
    call succeed(stat, errmsg)
  end function

  ! Ends the map, also one that was only asked for: what the CPU wrote is the GPU's, and pointers to it end.
  subroutine close_buffer_map(map, stat, errmsg)
    type(buffer_map), intent(inout) :: map
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(buffer_map) :: none

    call report(onebuf_mapping_unmap(map%handle), 'close_buffer_map', stat, errmsg)
    map = none
  end subroutine

  ! Whether the variable holds a map, open or asked for.
  function map_is_valid(map, stat, errmsg) result(valid)
    type(buffer_map), intent(in) :: map
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: valid

    valid = map%handle%id /= 0
    call succeed(stat, errmsg)
  end function

  ! --- For the other modules --------------------------------------------------------------------------------------------

  pure function map_bytes(map) result(bytes)
    type(buffer_map), intent(in) :: map
    integer(int64) :: bytes

    bytes = map%bytes
  end function

  ! The address of the elements of an open map: null on failure.
  subroutine map_elements(map, element_size, count, me, address, stat, errmsg)
    type(buffer_map), intent(in) :: map
    integer(int64), intent(in) :: element_size, count
    character(*), intent(in) :: me
    type(c_ptr), intent(out) :: address
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    address = c_null_ptr
    if (.not. fits(me, map%bytes, element_size, count, stat, errmsg)) return
    if (c_associated(map%address)) then
      address = map%address
      call succeed(stat, errmsg)
    else if (map%handle%id == 0) then
      call refuse(ONEBUF_INVALID_HANDLE, me//': no map: it was not opened, or was closed', stat, errmsg)
    else
      call refuse(ONEBUF_BUSY, me//': nothing is mapped yet: call wait_for_map first', stat, errmsg)
    end if
  end subroutine
end module
