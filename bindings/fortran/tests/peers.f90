! One buffer in two processes that take turns. `peers NAME` offers it and starts `peers NAME attach`.
program peers
  use, intrinsic :: iso_fortran_env, only: int32
  use gpu_unified_buffers
  use checks, only: check
  implicit none
  integer, parameter :: n = 3000, soon = 30000
  integer(int32) :: i, found(n)
  integer :: stat
  character(200) :: name
  character(8) :: role
  character(400) :: message

  call get_command_argument(1, name)
  call get_command_argument(2, role)
  call gpu_open('host')
  if (role == 'attach') then
    call guest
  else
    call owner
  end if

contains

  subroutine owner
    type(unified_buffer) :: b
    type(buffer_offer) :: offer
    type(buffer_peer) :: peer
    type(peer_info) :: info
    character(300) :: me
    logical :: there

    b = create_unified_buffer(4*n, BUFFER_READ_WRITE)
    call write_buffer(b, [(i, i=1, n)])
    call offer_buffer(offer, b, trim(name), element_bytes=4)
    call offer_buffer(offer, b, trim(name), stat=stat)
    call check(stat == ONEBUF_BUSY, 'the variable is in use')
    inquire (file=offer_path(offer), exist=there)
    call check(there, 'the socket')
    call check(.not. peer_is_valid(peer), 'no peer yet')
    call accept_peer(offer, peer, 0, stat)
    call check(stat == ONEBUF_TIMEOUT, 'no process has attached')
    call get_command_argument(0, me)
    call execute_command_line(trim(me)//' '//trim(name)//' attach', wait=.false.)
    call accept_peer(offer, peer, soon)
    call check(peer_is_valid(peer), 'a peer')
    call get_peer_info(peer, info)
    call check(info%process_id > 0 .and. info%our_turn .and. .not. info%has_left, 'its process, and our turn')
    call check_peer(peer)
    call hand_to_peer(peer)
    call wait_for_peer(peer, soon)
    call read_buffer(b, found)
    call check(all(found == [(10*i, i=1, n)]), 'what the peer wrote')
    call get_peer_info(peer, info)
    call check(info%round == 2, 'two hand-overs')
    call hand_to_peer(peer)
    call wait_for_peer(peer, soon, stat)
    call check(stat == ONEBUF_PEER_LOST, 'the peer has left')
    call leave_peer(peer)
    call withdraw_offer(offer)
    print '(a)', 'processes take turns'
  end subroutine

  subroutine guest
    type(unified_buffer) :: b
    type(buffer_peer) :: peer

    call attach_buffer(peer, b, 'no-such-offer-'//trim(name), BUFFER_READ_WRITE, stat=stat, errmsg=message)
    call check(stat == ONEBUF_UNAVAILABLE, 'no such offer: '//trim(message))
    call check(.not. buffer_is_valid(b), 'and no buffer')
    call attach_buffer(peer, b, trim(name), BUFFER_READ_WRITE, element_bytes=4, timeout_ms=soon)
    call check(buffer_size_bytes(b) == 4*n, 'the size of the buffer')
    call wait_for_peer(peer, soon)
    call read_buffer(b, found)
    call check(all(found == [(i, i=1, n)]), 'what the owner wrote')
    call write_buffer(b, 10*found)
    call hand_to_peer(peer)
    call wait_for_peer(peer, soon)
    call leave_peer(peer)
    call read_buffer(b, found, stat=stat)
    call check(stat == ONEBUF_PEER_LOST, 'the buffer went with the peer')
  end subroutine
end program
