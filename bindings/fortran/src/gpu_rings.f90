! Rings of buffers: several frames in flight, each in a slot of its own. A slot comes again when the GPU has finished with it.
module gpu_rings
  use, intrinsic :: iso_fortran_env, only: int32, int64
  use onebuf_c
  use gpu_errors, only: report, refuse, succeed
  use gpu_buffer_core, only: unified_buffer, buffer_handle, create_unified_buffer
  use gpu_buffer_access, only: timeout_of
  implicit none
  private
  public :: buffer_ring, create_buffer_ring, ring_is_valid, ring_next, ring_slots

  type :: buffer_ring
    private
    type(unified_buffer), allocatable :: slots(:)
    integer :: last = 0
  end type

  interface create_buffer_ring
    module procedure create_int32, create_int64
  end interface

  interface ring_next
    module procedure next_int32, next_int64
  end interface

contains

  ! Creates a ring of `slots` buffers, each as create_unified_buffer would create it. On failure the ring is invalid.
  subroutine create_int64(ring, slots, size, access_mode, memory_hint, stat, errmsg)
    type(buffer_ring), intent(inout), target :: ring
    integer, intent(in) :: slots
    integer(int64), intent(in) :: size
    integer, intent(in) :: access_mode
    integer, intent(in), optional :: memory_hint
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(300) :: message
    integer :: i, code

    ring%last = 0
    if (allocated(ring%slots)) deallocate (ring%slots)
    if (slots < 1) then
      call refuse(ONEBUF_INVALID_ARGUMENT, 'create_buffer_ring: at least one slot', stat, errmsg)
      return
    end if
    allocate (ring%slots(slots))
    do i = 1, slots
      ring%slots(i) = create_unified_buffer(size, access_mode, memory_hint, code, message)
      if (code == 0) cycle
      deallocate (ring%slots)
      call refuse(int(code, c_int32_t), 'create_buffer_ring: '//trim(message), stat, errmsg)
      return
    end do
    call succeed(stat, errmsg)
  end subroutine

  subroutine create_int32(ring, slots, size, access_mode, memory_hint, stat, errmsg)
    type(buffer_ring), intent(inout), target :: ring
    integer, intent(in) :: slots
    integer(int32), intent(in) :: size
    integer, intent(in) :: access_mode
    integer, intent(in), optional :: memory_hint
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call create_int64(ring, slots, int(size, int64), access_mode, memory_hint, stat, errmsg)
  end subroutine

  ! Whether the ring has its buffers.
  function ring_is_valid(ring, stat, errmsg) result(valid)
    type(buffer_ring), intent(in) :: ring
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: valid

    valid = allocated(ring%slots)
    call succeed(stat, errmsg)
  end function

  ! The number of slots; zero for an invalid ring.
  function ring_slots(ring, stat, errmsg) result(count)
    type(buffer_ring), intent(in) :: ring
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer :: count

    count = 0
    if (allocated(ring%slots)) count = size(ring%slots)
    call succeed(stat, errmsg)
  end function

  ! The next slot's buffer, after the GPU has finished with it; ONEBUF_TIMEOUT, and the same slot next time, if that takes longer.
  subroutine next_int64(ring, buffer, timeout_ns, stat, errmsg)
    type(buffer_ring), intent(inout) :: ring
    type(unified_buffer), intent(inout), target :: buffer
    integer(int64), intent(in) :: timeout_ns
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'ring_next'
    integer(c_int32_t) :: status
    integer :: slot

    if (.not. allocated(ring%slots)) then
      call refuse(ONEBUF_INVALID_HANDLE, me//': no ring, or one that could not be created', stat, errmsg)
      return
    end if
    slot = modulo(ring%last, size(ring%slots)) + 1
    status = onebuf_buffer_wait_ns(buffer_handle(ring%slots(slot)), ONEBUF_READ_WRITE, max(timeout_ns, 0_int64))
    call report(status, me, stat, errmsg)
    if (status /= ONEBUF_OK) return
    ring%last = slot
    buffer = ring%slots(slot)
  end subroutine

  subroutine next_int32(ring, buffer, timeout_ns, stat, errmsg)
    type(buffer_ring), intent(inout) :: ring
    type(unified_buffer), intent(inout), target :: buffer
    integer(int32), intent(in), optional :: timeout_ns
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call next_int64(ring, buffer, timeout_of(timeout_ns), stat, errmsg)
  end subroutine
end module
