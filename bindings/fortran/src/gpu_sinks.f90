! Sinks of frames for pipelines: memory, files, the network. A pipeline keeps what it needs of a closed sink.
module gpu_sinks
  use, intrinsic :: iso_fortran_env, only: int32, int64, real64
  use onebuf_c
  use gpu_errors, only: report, succeed, is_unused
  use gpu_session, only: c_text
  implicit none
  private
  public :: frame_sink, open_memory_sink, open_file_sink, open_npy_sink, open_udp_sink
  public :: finish_sink, close_sink, sink_is_valid, udp_sent, get_udp_sent
  public :: sink_handle

  character(*), parameter :: USED = 'a sink: close it first'

  ! A sink, until close_sink. Open it into a variable that holds none.
  type :: frame_sink
    private
    type(onebuf_sink) :: handle
  end type

  ! Counters of a UDP sink.
  type :: udp_sent
    integer(int64) :: frames = 0
    integer(int64) :: packets = 0
    integer(int64) :: bytes = 0
    ! How often the other end reported that nothing listens there.
    integer(int64) :: refused = 0
  end type

  interface open_memory_sink
    module procedure memory_int32, memory_int64
  end interface

  interface open_npy_sink
    module procedure npy_int32, npy_int64
  end interface

contains

  ! Appends frames to `bytes` bytes at an address, such as c_loc of an array. The memory stays allocated, and unused by others, until the
  ! sink is closed and the pipeline destroyed. A frame that does not fit stops the pipeline.
  subroutine memory_int64(sink, address, bytes, stat, errmsg)
    type(frame_sink), intent(inout) :: sink
    type(c_ptr), intent(in) :: address
    integer(int64), intent(in) :: bytes
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'open_memory_sink'

    if (.not. is_unused(sink%handle%id, me, USED, stat, errmsg)) return
    call report(onebuf_sink_memory(address, int(max(bytes, 0_int64), c_size_t), sink%handle), me, stat, errmsg)
  end subroutine

  subroutine memory_int32(sink, address, bytes, stat, errmsg)
    type(frame_sink), intent(inout) :: sink
    type(c_ptr), intent(in) :: address
    integer(int32), intent(in) :: bytes
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call memory_int64(sink, address, int(bytes, int64), stat, errmsg)
  end subroutine

  ! Appends frames to a file as raw bytes. An existing file is truncated.
  subroutine open_file_sink(sink, path, stat, errmsg)
    type(frame_sink), intent(inout) :: sink
    character(*), intent(in) :: path
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'open_file_sink'

    if (.not. is_unused(sink%handle%id, me, USED, stat, errmsg)) return
    call report(onebuf_sink_file(c_text(path), sink%handle), me, stat, errmsg)
  end subroutine

  ! Writes frames to a NumPy file. `element` is NumPy's type: `<f4` is real32, `<c8` complex. `shape` is Fortran's shape of a frame; the
  ! file has the axes in C's order, the reverse.
  subroutine npy_int64(sink, path, element, shape, stat, errmsg)
    type(frame_sink), intent(inout) :: sink
    character(*), intent(in) :: path, element
    integer(int64), intent(in) :: shape(:)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'open_npy_sink'

    if (.not. is_unused(sink%handle%id, me, USED, stat, errmsg)) return
    call report(onebuf_sink_npy(c_text(path), c_text(element), int(shape(size(shape):1:-1), c_size_t), &
      int(size(shape), c_size_t), sink%handle), me, stat, errmsg)
  end subroutine

  subroutine npy_int32(sink, path, element, shape, stat, errmsg)
    type(frame_sink), intent(inout) :: sink
    character(*), intent(in) :: path, element
    integer(int32), intent(in) :: shape(:)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call npy_int64(sink, path, element, int(shape, int64), stat, errmsg)
  end subroutine

  ! Sends frames as UDP packets to an address such as `127.0.0.1:5000`, as the stream of that number, a random one without it.
  ! Several threads send each frame, each from a port of its own.
  subroutine open_udp_sink(sink, address, stream, bytes_per_s, threads, stat, errmsg)
    type(frame_sink), intent(inout) :: sink
    character(*), intent(in) :: address
    integer, intent(in), optional :: stream
    real(real64), intent(in), optional :: bytes_per_s
    integer, intent(in), optional :: threads
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'open_udp_sink'
    type(onebuf_udp_sink_options) :: options
    character(kind=c_char, len=:), allocatable, target :: text

    if (.not. is_unused(sink%handle%id, me, USED, stat, errmsg)) return
    text = address//c_null_char
    options%size = int(storage_size(options)/8, c_size_t)
    options%address = c_loc(text)
    if (present(stream)) then
      options%one_stream = 1
      options%stream = int(stream, c_int32_t)
    end if
    if (present(bytes_per_s)) options%bytes_per_s = bytes_per_s
    if (present(threads)) options%threads = int(threads, c_size_t)
    call report(onebuf_sink_udp(options, sink%handle), me, stat, errmsg)
  end subroutine

  ! Announces the end of a UDP stream after a run, so that the receiver's pipeline ends.
  subroutine finish_sink(sink, stat, errmsg)
    type(frame_sink), intent(in) :: sink
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_sink_finish(sink%handle), 'finish_sink', stat, errmsg)
  end subroutine

  ! Closes a sink. A pipeline that has it still works.
  subroutine close_sink(sink, stat, errmsg)
    type(frame_sink), intent(inout) :: sink
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_sink_free(sink%handle), 'close_sink', stat, errmsg)
    sink%handle%id = 0
  end subroutine

  ! Whether the variable holds a sink.
  function sink_is_valid(sink, stat, errmsg) result(valid)
    type(frame_sink), intent(in) :: sink
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: valid

    valid = sink%handle%id /= 0
    call succeed(stat, errmsg)
  end function

  ! Reads the counters of a UDP sink, also while a pipeline runs.
  subroutine get_udp_sent(sink, sent, stat, errmsg)
    type(frame_sink), intent(in) :: sink
    type(udp_sent), intent(out) :: sent
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(onebuf_udp_sent) :: found

    found%size = int(storage_size(found)/8, c_size_t)
    call report(onebuf_sink_udp_sent(sink%handle, found), 'get_udp_sent', stat, errmsg)
    sent = udp_sent(found%frames, found%packets, found%bytes, found%refused)
  end subroutine

  ! --- For the other modules --------------------------------------------------------------------------------------------

  pure function sink_handle(sink) result(handle)
    type(frame_sink), intent(in) :: sink
    type(onebuf_sink) :: handle

    handle = sink%handle
  end function
end module
