! Regions: parts of a buffer that are used as buffers of their own. Kernels on regions that do not overlap run at the same time.
module gpu_regions
  use, intrinsic :: iso_fortran_env, only: int32, int64
  use onebuf_c
  use gpu_errors, only: report, refuse
  use gpu_session, only: session, need_session
  use gpu_buffer_core, only: unified_buffer, buffer_handle, buffer_access_mode, kernel_access, mode_exists, give_buffer
  implicit none
  private
  public :: buffer_region, region_alignment

  ! Each of `offset` and `bytes` as int32 and as int64.
  interface buffer_region
    module procedure region_int32_int32, region_int32_int64, region_int64_int32, region_int64_int64
  end interface

contains

  ! The `bytes` bytes of a buffer from byte `offset` on, as a buffer. Assign the result; it keeps the memory allocated. The offset is a
  ! multiple of region_alignment(). Without `access_mode` the region has the buffer's; it allows no more than that. This ends the CPU's turn
  ! on the whole buffer: while the CPU has a pointer to the whole, its regions cannot be used, and the reverse. A region has no regions.
  function region_int64_int64(buffer, offset, bytes, access_mode, stat, errmsg) result(region)
    type(unified_buffer), intent(in) :: buffer
    integer(int64), intent(in) :: offset, bytes
    integer, intent(in), optional :: access_mode
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(unified_buffer) :: region

    call open_region(region, buffer, offset, bytes, access_mode, stat, errmsg)
  end function

  function region_int32_int32(buffer, offset, bytes, access_mode, stat, errmsg) result(region)
    type(unified_buffer), intent(in) :: buffer
    integer(int32), intent(in) :: offset, bytes
    integer, intent(in), optional :: access_mode
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(unified_buffer) :: region

    call open_region(region, buffer, int(offset, int64), int(bytes, int64), access_mode, stat, errmsg)
  end function

  function region_int32_int64(buffer, offset, bytes, access_mode, stat, errmsg) result(region)
    type(unified_buffer), intent(in) :: buffer
    integer(int32), intent(in) :: offset
    integer(int64), intent(in) :: bytes
    integer, intent(in), optional :: access_mode
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(unified_buffer) :: region

    call open_region(region, buffer, int(offset, int64), bytes, access_mode, stat, errmsg)
  end function

  function region_int64_int32(buffer, offset, bytes, access_mode, stat, errmsg) result(region)
    type(unified_buffer), intent(in) :: buffer
    integer(int64), intent(in) :: offset
    integer(int32), intent(in) :: bytes
    integer, intent(in), optional :: access_mode
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(unified_buffer) :: region

    call open_region(region, buffer, offset, int(bytes, int64), access_mode, stat, errmsg)
  end function

  subroutine open_region(region, buffer, offset, bytes, access_mode, stat, errmsg)
    type(unified_buffer), intent(inout) :: region
    type(unified_buffer), intent(in) :: buffer
    integer(int64), intent(in) :: offset, bytes
    integer, intent(in), optional :: access_mode
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'buffer_region'
    type(onebuf_buffer) :: handle
    integer(c_int32_t) :: status
    integer :: mode

    mode = buffer_access_mode(buffer)
    if (present(access_mode)) mode = access_mode
    if (.not. mode_exists(me, mode, stat, errmsg, returns=.true.)) return
    if (offset < 0 .or. bytes < 1) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': the offset is negative, or there are no bytes', stat, errmsg, returns=.true.)
      return
    end if
    status = onebuf_buffer_to_device(buffer_handle(buffer))
    if (status == ONEBUF_OK) status = onebuf_buffer_region(buffer_handle(buffer), int(offset, c_size_t), int(bytes, c_size_t), &
      kernel_access(mode), handle)
    call give_buffer(region, handle, mode, status, me, stat, errmsg)
  end subroutine

  ! What offsets of regions are multiples of, in bytes: the largest number of the open devices.
  function region_alignment(stat, errmsg) result(bytes)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(int64) :: bytes
    integer(c_size_t) :: one
    integer(c_int32_t) :: status
    integer :: i

    bytes = 0
    call need_session(stat, errmsg, returns=.true.)
    if (session%hub%id == 0) return
    status = ONEBUF_OK
    do i = 1, session%device_count
      if (status == ONEBUF_OK) status = onebuf_device_region_align(session%devices(i), one)
      if (status == ONEBUF_OK) bytes = max(bytes, int(one, int64))
    end do
    call report(status, 'region_alignment', stat, errmsg, returns=.true.)
  end function
end module
