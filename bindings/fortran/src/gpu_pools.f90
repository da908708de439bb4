! Pools: buffers that are reused, by size, instead of being allocated again.
module gpu_pools
  use, intrinsic :: iso_fortran_env, only: int32, int64
  use onebuf_c
  use gpu_errors, only: report, refuse, succeed
  use gpu_session, only: session, need_session
  use gpu_buffer_core, only: unified_buffer, make_buffer, offset_of
  implicit none
  private
  public :: buffer_pool, create_buffer_pool, destroy_buffer_pool, pool_is_valid
  public :: pool_buffer, trim_pool, pool_counts, get_pool_counts

  ! Assigned variables share the pool; it is freed with the last of them. Its buffers stay usable.
  type :: buffer_pool
    private
    type(onebuf_pool) :: handle
  contains
    procedure, private :: assign
    generic :: assignment(=) => assign
    final :: finish
  end type

  ! Counters of a pool.
  type :: pool_counts
    ! Requests served by a reused buffer, and those that needed an allocation.
    integer(int64) :: reused = 0
    integer(int64) :: allocated = 0
    ! Buffers in use, and buffers ready for reuse.
    integer(int64) :: live = 0
    integer(int64) :: idle = 0
    integer(int64) :: live_bytes = 0
    integer(int64) :: idle_bytes = 0
    ! Maximum of the bytes held, including idle buffers.
    integer(int64) :: peak_bytes = 0
  end type

  interface create_buffer_pool
    module procedure create_int32, create_int64
  end interface

  interface pool_buffer
    module procedure buffer_int32, buffer_int64
  end interface

  interface trim_pool
    module procedure trim_int32, trim_int64
  end interface

contains

  ! Creates a pool that holds at most this many bytes, including idle buffers; without a limit, or with zero, any number.
  function create_int32(limit_bytes, stat, errmsg) result(pool)
    integer(int32), intent(in), optional :: limit_bytes
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(buffer_pool) :: pool

    call create(pool, offset_of(limit_bytes), stat, errmsg)
  end function

  function create_int64(limit_bytes, stat, errmsg) result(pool)
    integer(int64), intent(in) :: limit_bytes
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(buffer_pool) :: pool

    call create(pool, limit_bytes, stat, errmsg)
  end function

  subroutine create(pool, limit_bytes, stat, errmsg)
    type(buffer_pool), intent(inout) :: pool
    integer(int64), intent(in) :: limit_bytes
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'create_buffer_pool'

    if (limit_bytes < 0) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': the limit is negative', stat, errmsg, returns=.true.)
      return
    end if
    call need_session(stat, errmsg, returns=.true.)
    if (session%hub%id == 0) return
    call report(onebuf_pool_create(session%hub, limit_bytes, pool%handle), me, stat, errmsg, returns=.true.)
  end subroutine

  ! Gets a buffer of the pool, as create_unified_buffer would create it; its contents are unspecified. destroy_unified_buffer returns it.
  ! At the limit it waits up to `timeout_ms` milliseconds for buffers to be returned, not at all without that.
  function buffer_int64(pool, size, access_mode, memory_hint, stat, errmsg, alignment, timeout_ms) result(buffer)
    type(buffer_pool), intent(in) :: pool
    integer(int64), intent(in) :: size
    integer, intent(in) :: access_mode
    integer, intent(in), optional :: memory_hint
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: alignment, timeout_ms
    type(unified_buffer) :: buffer

    call get(buffer, pool, size, access_mode, memory_hint, stat, errmsg, alignment, timeout_ms)
  end function

  function buffer_int32(pool, size, access_mode, memory_hint, stat, errmsg, alignment, timeout_ms) result(buffer)
    type(buffer_pool), intent(in) :: pool
    integer(int32), intent(in) :: size
    integer, intent(in) :: access_mode
    integer, intent(in), optional :: memory_hint
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: alignment, timeout_ms
    type(unified_buffer) :: buffer

    call get(buffer, pool, int(size, int64), access_mode, memory_hint, stat, errmsg, alignment, timeout_ms)
  end function

  subroutine get(buffer, pool, size, access_mode, memory_hint, stat, errmsg, alignment, timeout_ms)
    type(unified_buffer), intent(inout) :: buffer
    type(buffer_pool), intent(in) :: pool
    integer(int64), intent(in) :: size
    integer, intent(in) :: access_mode
    integer, intent(in), optional :: memory_hint
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: alignment, timeout_ms
    integer(int64) :: align, time

    align = 0
    if (present(alignment)) align = int(alignment, int64)
    time = 0
    if (present(timeout_ms)) time = int(max(timeout_ms, 0), int64)
    if (pool%handle%id == 0) then
      call refuse(ONEBUF_INVALID_HANDLE, 'pool_buffer: no pool, or one that was destroyed', stat, errmsg, returns=.true.)
    else
      call make_buffer(buffer, 'pool_buffer', size, access_mode, align, pool%handle, time, memory_hint, stat, errmsg)
    end if
  end subroutine

  ! Whether the variable holds a pool.
  function pool_is_valid(pool, stat, errmsg) result(valid)
    type(buffer_pool), intent(in) :: pool
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: valid

    valid = pool%handle%id /= 0
    call succeed(stat, errmsg)
  end function

  ! Frees idle buffers until at most this many bytes of them are left: none without a number.
  subroutine trim_int32(pool, keep_bytes, stat, errmsg)
    type(buffer_pool), intent(in) :: pool
    integer(int32), intent(in), optional :: keep_bytes
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call trim_int64(pool, offset_of(keep_bytes), stat, errmsg)
  end subroutine

  subroutine trim_int64(pool, keep_bytes, stat, errmsg)
    type(buffer_pool), intent(in) :: pool
    integer(int64), intent(in) :: keep_bytes
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_pool_trim(pool%handle, max(keep_bytes, 0_int64), c_null_ptr), 'trim_pool', stat, errmsg)
  end subroutine

  ! Reads the counters.
  subroutine get_pool_counts(pool, counts, stat, errmsg)
    type(buffer_pool), intent(in) :: pool
    type(pool_counts), intent(out) :: counts
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(onebuf_pool_statistics) :: found

    found%size = int(storage_size(found)/8, c_size_t)
    call report(onebuf_pool_get_statistics(pool%handle, found), 'get_pool_counts', stat, errmsg)
    counts%reused = found%hits
    counts%allocated = found%misses
    counts%live = found%live_buffers
    counts%idle = found%idle_buffers
    counts%live_bytes = found%live_bytes
    counts%idle_bytes = found%idle_bytes
    counts%peak_bytes = found%peak_held_bytes
  end subroutine

  ! Releases the pool. Its buffers stay usable.
  subroutine destroy_buffer_pool(pool, stat, errmsg)
    type(buffer_pool), intent(inout), target :: pool
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_own(c_loc(pool%handle%id), 0_c_int64_t), 'destroy_buffer_pool', stat, errmsg)
    pool%handle%id = 0
  end subroutine

  ! The comment on unified_buffer explains why this is sufficient.
  impure elemental subroutine assign(to, from)
    class(buffer_pool), intent(out), target :: to
    class(buffer_pool), intent(in) :: from

    call report(onebuf_own(c_loc(to%handle%id), from%handle%id), 'assigning a buffer_pool')
    to%handle = from%handle
  end subroutine

  impure elemental subroutine finish(pool)
    type(buffer_pool), intent(inout), target :: pool

    call report(onebuf_disown(c_loc(pool%handle%id)), 'ending a buffer_pool')
  end subroutine
end module
