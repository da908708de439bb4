! One buffer in two processes. Its owner offers it under a name, the other process attaches to it, and the two take turns.
module gpu_peers
  use, intrinsic :: iso_fortran_env, only: int64
  use onebuf_c
  use gpu_errors, only: report, succeed, taken_text, is_unused
  use gpu_session, only: session, need_session
  use gpu_buffer_core, only: unified_buffer, buffer_handle, set_buffer, destroy_unified_buffer, shape_of, mode_exists, &
    MEMORY_COHERENT
  implicit none
  private
  public :: buffer_offer, offer_buffer, offer_path, accept_peer, withdraw_offer
  public :: buffer_peer, attach_buffer, hand_to_peer, wait_for_peer, check_peer, leave_peer, peer_is_valid
  public :: peer_info, get_peer_info

  ! An offer, until withdraw_offer.
  type :: buffer_offer
    private
    type(onebuf_offer) :: handle
  end type

  ! The process at the other end, until leave_peer.
  type :: buffer_peer
    private
    type(onebuf_peer) :: handle
  end type

  type :: peer_info
    integer :: process_id = 0
    integer :: user_id = 0
    ! The number of hand-overs, in both directions.
    integer(int64) :: round = 0
    logical :: our_turn = .false.
    ! Whether the peer left in good order, rather than by dying.
    logical :: has_left = .false.
  end type

contains

  ! Offers a buffer to processes of the same user. `element_bytes` is the size of an element, the same on both sides. An offered buffer
  ! has no CPU pointer: use read_buffer and write_buffer.
  subroutine offer_buffer(offer, buffer, name, element_bytes, stat, errmsg)
    type(buffer_offer), intent(inout) :: offer
    type(unified_buffer), intent(in) :: buffer
    character(*), intent(in) :: name
    integer, intent(in), optional :: element_bytes
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'offer_buffer'
    type(onebuf_offer_options) :: options
    character(kind=c_char, len=:), allocatable, target :: text
    integer(c_int32_t) :: status

    if (.not. is_unused(offer%handle%id, me, 'an offer: withdraw it first', stat, errmsg)) return
    text = name//c_null_char
    options%size = int(storage_size(options)/8, c_size_t)
    options%name = c_loc(text)
    if (present(element_bytes)) options%element_bytes = int(max(element_bytes, 0), c_size_t)
    status = onebuf_buffer_to_device(buffer_handle(buffer))
    if (status == ONEBUF_OK) status = onebuf_offer_open(buffer_handle(buffer), options, offer%handle)
    call report(status, me, stat, errmsg)
  end subroutine

  ! The path of the offer's socket.
  function offer_path(offer, stat, errmsg) result(path)
    type(buffer_offer), intent(in) :: offer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(:), allocatable :: path
    type(onebuf_string) :: text
    integer(c_int32_t) :: status

    path = ''
    status = onebuf_offer_path(offer%handle, text)
    call report(status, 'offer_path', stat, errmsg, returns=.true.)
    if (status == ONEBUF_OK) path = taken_text(text)
  end function

  ! Waits up to this many milliseconds for a process to attach. It is then this process's turn.
  subroutine accept_peer(offer, peer, timeout_ms, stat, errmsg)
    type(buffer_offer), intent(in) :: offer
    type(buffer_peer), intent(inout) :: peer
    integer, intent(in) :: timeout_ms
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'accept_peer'

    if (.not. is_unused(peer%handle%id, me, 'a peer: leave it first', stat, errmsg)) return
    call report(onebuf_offer_accept(offer%handle, int(max(timeout_ms, 0), c_int64_t), peer%handle), me, stat, errmsg)
  end subroutine

  ! Ends the offer. An attached process stays.
  subroutine withdraw_offer(offer, stat, errmsg)
    type(buffer_offer), intent(inout) :: offer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_offer_free(offer%handle), 'withdraw_offer', stat, errmsg)
    offer%handle%id = 0
  end subroutine

  ! Attaches to a buffer that another process offers. It is the owner's turn then: call wait_for_peer. `buffer` is empty on failure.
  subroutine attach_buffer(peer, buffer, name, access_mode, element_bytes, timeout_ms, stat, errmsg)
    type(buffer_peer), intent(inout) :: peer
    type(unified_buffer), intent(inout), target :: buffer
    character(*), intent(in) :: name
    integer, intent(in) :: access_mode
    integer, intent(in), optional :: element_bytes, timeout_ms
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'attach_buffer'
    type(onebuf_attach_options) :: options
    type(onebuf_buffer_options) :: shape
    type(onebuf_buffer) :: handle
    type(unified_buffer) :: attached
    character(kind=c_char, len=:), allocatable, target :: text
    integer(c_int32_t) :: status

    call destroy_unified_buffer(buffer)
    if (.not. mode_exists(me, access_mode, stat, errmsg)) return
    if (.not. is_unused(peer%handle%id, me, 'a peer: leave it first', stat, errmsg)) return
    call need_session(stat, errmsg)
    if (session%hub%id == 0) return
    text = name//c_null_char
    options%size = int(storage_size(options)/8, c_size_t)
    options%name = c_loc(text)
    if (present(element_bytes)) options%element_bytes = int(max(element_bytes, 0), c_size_t)
    if (present(timeout_ms)) options%timeout_ms = int(max(timeout_ms, 0), c_int64_t)
    shape = shape_of(access_mode, MEMORY_COHERENT)
    ! The memory is where the owner allocated it.
    shape%allocate_on%id = 0
    status = onebuf_peer_attach(session%hub, options, shape, peer%handle, handle)
    call report(status, me, stat, errmsg)
    if (status /= ONEBUF_OK) return
    call set_buffer(attached, handle, access_mode)
    buffer = attached
  end subroutine

  ! Waits for all work on the buffer, and gives the other process its turn.
  subroutine hand_to_peer(peer, stat, errmsg)
    type(buffer_peer), intent(in) :: peer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_peer_hand_over(peer%handle), 'hand_to_peer', stat, errmsg)
  end subroutine

  ! Waits up to this many milliseconds for the other process to hand the buffer over. ONEBUF_PEER_LOST if that process is gone.
  subroutine wait_for_peer(peer, timeout_ms, stat, errmsg)
    type(buffer_peer), intent(in) :: peer
    integer, intent(in) :: timeout_ms
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_peer_wait(peer%handle, int(max(timeout_ms, 0), c_int64_t)), 'wait_for_peer', stat, errmsg)
  end subroutine

  ! Checks, during this process's turn, that the other process is still there: ONEBUF_PEER_LOST if not.
  subroutine check_peer(peer, stat, errmsg)
    type(buffer_peer), intent(in) :: peer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_peer_check(peer%handle), 'check_peer', stat, errmsg)
  end subroutine

  ! Ends the connection: an owner has its buffer to itself again, an attached buffer cannot be used any more.
  subroutine leave_peer(peer, stat, errmsg)
    type(buffer_peer), intent(inout) :: peer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_peer_free(peer%handle), 'leave_peer', stat, errmsg)
    peer%handle%id = 0
  end subroutine

  ! Whether the variable holds a peer.
  function peer_is_valid(peer, stat, errmsg) result(valid)
    type(buffer_peer), intent(in) :: peer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: valid

    valid = peer%handle%id /= 0
    call succeed(stat, errmsg)
  end function

  ! Queries the peer.
  subroutine get_peer_info(peer, info, stat, errmsg)
    type(buffer_peer), intent(in) :: peer
    type(peer_info), intent(out) :: info
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(onebuf_peer_info) :: found

    found%size = int(storage_size(found)/8, c_size_t)
    call report(onebuf_peer_query(peer%handle, found), 'get_peer_info', stat, errmsg)
    info = peer_info(int(found%pid), int(found%uid), found%round, found%our_turn /= 0, found%left /= 0)
  end subroutine
end module
