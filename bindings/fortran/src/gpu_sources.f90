! Sources of frames for pipelines: memory, files, a computed signal, the network. A pipeline keeps what it needs of a closed source.
module gpu_sources
  use, intrinsic :: iso_fortran_env, only: int32, int64, real64
  use onebuf_c
  use onebuf_c, only: plane_wave => onebuf_wave
  use gpu_errors, only: report, succeed, is_unused, taken_text
  use gpu_session, only: c_text
  implicit none
  private
  public :: frame_source, open_memory_source, open_file_source, open_npy_source, open_synthetic_source
  public :: open_udp_source, open_tcp_source, close_source, source_is_valid, source_address
  public :: udp_counts, get_udp_counts, plane_wave, REPEAT_FOREVER
  public :: source_handle

  ! Repeats without end.
  integer, parameter :: REPEAT_FOREVER = -1

  character(*), parameter :: USED = 'a source: close it first'

  ! A source, until close_source. Open it into a variable that holds none.
  type :: frame_source
    private
    type(onebuf_source) :: handle
  end type

  ! Counters of a UDP source: frames, packets that were useful, lost, late, duplicate, of other streams and malformed.
  type :: udp_counts
    integer(int64) :: frames = 0
    integer(int64) :: incomplete_frames = 0
    integer(int64) :: packets = 0
    integer(int64) :: lost = 0
    integer(int64) :: late = 0
    integer(int64) :: duplicate = 0
    integer(int64) :: stray = 0
    integer(int64) :: malformed = 0
    ! Packets that the system dropped because the receive buffer was full.
    integer(int64) :: kernel_drops = 0
    ! Bytes of all packets, and the calls that received them.
    integer(int64) :: bytes = 0
    integer(int64) :: batches = 0
  end type

  interface open_memory_source
    module procedure memory_int32, memory_int64
  end interface

contains

  ! Plays frames that are stored one after another at an address, such as c_loc of an array. The memory stays allocated and unchanged
  ! until the source is closed and the pipeline destroyed.
  subroutine memory_int64(source, address, bytes, repeats, stat, errmsg)
    type(frame_source), intent(inout) :: source
    type(c_ptr), intent(in) :: address
    integer(int64), intent(in) :: bytes
    integer, intent(in), optional :: repeats
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'open_memory_source'

    if (.not. is_unused(source%handle%id, me, USED, stat, errmsg)) return
    call report(onebuf_source_memory(address, int(max(bytes, 0_int64), c_size_t), times(repeats), source%handle), me, &
      stat, errmsg)
  end subroutine

  subroutine memory_int32(source, address, bytes, repeats, stat, errmsg)
    type(frame_source), intent(inout) :: source
    type(c_ptr), intent(in) :: address
    integer(int32), intent(in) :: bytes
    integer, intent(in), optional :: repeats
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call memory_int64(source, address, int(bytes, int64), repeats, stat, errmsg)
  end subroutine

  ! Plays the frames of a file of raw bytes: once, or as often as `repeats` says.
  subroutine open_file_source(source, path, repeats, stat, errmsg)
    type(frame_source), intent(inout) :: source
    character(*), intent(in) :: path
    integer, intent(in), optional :: repeats
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'open_file_source'

    if (.not. is_unused(source%handle%id, me, USED, stat, errmsg)) return
    call report(onebuf_source_file(c_text(path), times(repeats), source%handle), me, stat, errmsg)
  end subroutine

  ! Plays the frames of a NumPy file, whose first axis in C order counts them. `element` is NumPy's type: `<f4` is real32, `<c8` complex.
  subroutine open_npy_source(source, path, element, repeats, stat, errmsg)
    type(frame_source), intent(inout) :: source
    character(*), intent(in) :: path, element
    integer, intent(in), optional :: repeats
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'open_npy_source'

    if (.not. is_unused(source%handle%id, me, USED, stat, errmsg)) return
    call report(onebuf_source_npy(c_text(path), c_text(element), times(repeats), source%handle), me, stat, errmsg)
  end subroutine

  ! Plays a computed signal: plane waves and noise on a line of sensors, `samples` complex numbers (real32) for each of `channels`
  ! sensors. Endless without `frames`.
  subroutine open_synthetic_source(source, channels, samples, frames, noise, seed, waves, stat, errmsg)
    type(frame_source), intent(inout) :: source
    integer, intent(in) :: channels, samples
    integer, intent(in), optional :: frames
    real(real64), intent(in), optional :: noise
    integer, intent(in), optional :: seed
    type(plane_wave), intent(in), optional, target :: waves(:)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'open_synthetic_source'
    type(onebuf_synthetic_options) :: options
    type(plane_wave), allocatable, target :: list(:)

    if (.not. is_unused(source%handle%id, me, USED, stat, errmsg)) return
    options%size = int(storage_size(options)/8, c_size_t)
    options%channels = int(max(channels, 0), c_size_t)
    options%samples = int(max(samples, 0), c_size_t)
    if (present(frames)) options%frames = int(max(frames, 0), c_int64_t)
    if (present(noise)) options%noise = noise
    if (present(seed)) options%seed = int(seed, c_int64_t)
    if (present(waves)) then
      list = waves
      options%waves = c_loc(list)
      options%wave_count = int(size(list), c_size_t)
    end if
    call report(onebuf_source_synthetic(options, source%handle), me, stat, errmsg)
  end subroutine

  ! Receives frames as UDP packets at an address such as `0.0.0.0:5000`: of the stream of that number, of the first one without it.
  ! Several sockets receive a frame by as many threads.
  subroutine open_udp_source(source, address, stream, window, timeout_ms, sockets, busy_poll_us, cpus, stat, errmsg)
    type(frame_source), intent(inout) :: source
    character(*), intent(in) :: address
    integer, intent(in), optional :: stream, window, timeout_ms, sockets, busy_poll_us
    ! Processors that the threads are pinned to.
    integer, intent(in), optional :: cpus(:)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'open_udp_source'
    type(onebuf_udp_source_options) :: options
    character(kind=c_char, len=:), allocatable, target :: text
    integer(c_int32_t), allocatable, target :: list(:)

    if (.not. is_unused(source%handle%id, me, USED, stat, errmsg)) return
    text = address//c_null_char
    options%size = int(storage_size(options)/8, c_size_t)
    options%address = c_loc(text)
    if (present(stream)) then
      options%one_stream = 1
      options%stream = int(stream, c_int32_t)
    end if
    if (present(window)) options%window = int(max(window, 0), c_size_t)
    if (present(timeout_ms)) options%timeout_ms = int(max(timeout_ms, 0), c_int64_t)
    if (present(sockets)) options%sockets = int(sockets, c_size_t)
    if (present(busy_poll_us)) options%busy_poll_us = int(max(busy_poll_us, 0), c_int64_t)
    if (present(cpus)) then
      list = int(cpus, c_int32_t)
      options%cpus = c_loc(list)
      options%cpu_count = int(size(list), c_size_t)
    end if
    call report(onebuf_source_udp(options, source%handle), me, stat, errmsg)
  end subroutine

  ! Receives frames as raw bytes over TCP, from the sender at an address; with `listen` the sender connects to it.
  subroutine open_tcp_source(source, address, listen, timeout_ms, stat, errmsg)
    type(frame_source), intent(inout) :: source
    character(*), intent(in) :: address
    logical, intent(in), optional :: listen
    integer, intent(in), optional :: timeout_ms
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'open_tcp_source'
    type(onebuf_tcp_source_options) :: options
    character(kind=c_char, len=:), allocatable, target :: text

    if (.not. is_unused(source%handle%id, me, USED, stat, errmsg)) return
    text = address//c_null_char
    options%size = int(storage_size(options)/8, c_size_t)
    options%address = c_loc(text)
    if (present(listen)) options%listen = merge(1_c_int32_t, 0_c_int32_t, listen)
    if (present(timeout_ms)) options%timeout_ms = int(max(timeout_ms, 0), c_int64_t)
    call report(onebuf_source_tcp(options, source%handle), me, stat, errmsg)
  end subroutine

  ! Closes a source. A pipeline that has it still works.
  subroutine close_source(source, stat, errmsg)
    type(frame_source), intent(inout) :: source
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_source_free(source%handle), 'close_source', stat, errmsg)
    source%handle%id = 0
  end subroutine

  ! Whether the variable holds a source.
  function source_is_valid(source, stat, errmsg) result(valid)
    type(frame_source), intent(in) :: source
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: valid

    valid = source%handle%id /= 0
    call succeed(stat, errmsg)
  end function

  ! The local address of a network source: host and port.
  function source_address(source, stat, errmsg) result(address)
    type(frame_source), intent(in) :: source
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(:), allocatable :: address
    type(onebuf_string) :: text
    integer(c_int32_t) :: status

    address = ''
    status = onebuf_source_address(source%handle, text)
    call report(status, 'source_address', stat, errmsg, returns=.true.)
    if (status == ONEBUF_OK) address = taken_text(text)
  end function

  ! Reads the counters of a UDP source, also while a pipeline runs; those of one of its sockets, from 1, with `socket`.
  subroutine get_udp_counts(source, counts, stat, errmsg, socket)
    type(frame_source), intent(in) :: source
    type(udp_counts), intent(out) :: counts
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: socket
    character(*), parameter :: me = 'get_udp_counts'
    type(onebuf_udp_counts) :: found

    found%size = int(storage_size(found)/8, c_size_t)
    if (present(socket)) then
      call report(onebuf_source_udp_socket_counts(source%handle, int(socket - 1, c_size_t), found), me, stat, errmsg)
    else
      call report(onebuf_source_udp_counts(source%handle, found), me, stat, errmsg)
    end if
    counts = udp_counts(found%frames, found%incomplete_frames, found%packets, found%lost_packets, found%late_packets, &
      found%duplicate_packets, found%stray_packets, found%malformed_packets, found%kernel_drops, found%bytes, found%batches)
  end subroutine

  ! --- For the other modules --------------------------------------------------------------------------------------------

  pure function source_handle(source) result(handle)
    type(frame_source), intent(in) :: source
    type(onebuf_source) :: handle

    handle = source%handle
  end function

  pure function times(repeats) result(number)
    integer, intent(in), optional :: repeats
    integer(c_int64_t) :: number

    number = 1
    if (present(repeats)) number = int(repeats, c_int64_t)
  end function
end module
