! Frames of a pipeline, as its callbacks get them.
module gpu_frames
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32
  use onebuf_c
  use gpu_errors, only: refuse, succeed
  use gpu_buffer_core, only: unified_buffer, destroy_unified_buffer, set_buffer
  use gpu_extents, only: extents, extents_of
  use gpu_programs, only: compute_program, kernel_value, dispatch_on
  implicit none
  private
  public :: pipeline_frame, frame_number, frame_tag, get_frame_buffer, dispatch_frame
  public :: fill_procedure, frame_procedure, new_frame
  public :: FRAME_FILLED, FRAME_INCOMPLETE, FRAME_IDLE, FRAME_END
  public :: MAX_SLOT_BUFFERS

  integer, parameter :: MAX_SLOT_BUFFERS = 16

  ! What a source did: the slot holds the next frame; an incomplete one, which is counted and dropped; no data came for a while; there
  ! are no more frames.
  integer, parameter :: FRAME_FILLED = 0
  integer, parameter :: FRAME_INCOMPLETE = 1
  integer, parameter :: FRAME_IDLE = 2
  integer, parameter :: FRAME_END = 3

  ! One frame, valid during the callback.
  type :: pipeline_frame
    private
    integer(int64) :: number = 0
    integer :: tag = 0
    integer :: buffer_count = 0
    type(onebuf_buffer) :: buffers(MAX_SLOT_BUFFERS)
    integer :: modes(MAX_SLOT_BUFFERS) = 0
    type(onebuf_queue) :: queue
  end type

  abstract interface
    ! Fills a slot. `answer` is FRAME_FILLED at the beginning, `stat` zero; another `stat` stops the pipeline.
    subroutine fill_procedure(frame, answer, stat)
      import :: pipeline_frame
      type(pipeline_frame), intent(in) :: frame
      integer, intent(inout) :: answer, stat
    end subroutine

    ! A stage, which dispatches the work of one frame without waiting, or a sink, which consumes a result. `stat` is zero at the
    ! beginning; another value stops the pipeline.
    subroutine frame_procedure(frame, stat)
      import :: pipeline_frame
      type(pipeline_frame), intent(in) :: frame
      integer, intent(inout) :: stat
    end subroutine
  end interface

  ! Each of `work_items` and `group` as int32 and as int64.
  interface dispatch_frame
    module procedure dispatch_int32, dispatch_int64, dispatch_int32_int64, dispatch_int64_int64
  end interface

contains

  ! The number of the frame, from zero.
  function frame_number(frame, stat, errmsg) result(number)
    type(pipeline_frame), intent(in) :: frame
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(int64) :: number

    number = frame%number
    call succeed(stat, errmsg)
  end function

  ! The tag that was given with the callback: it tells the pipelines and stages that share a procedure apart.
  function frame_tag(frame, stat, errmsg) result(tag)
    type(pipeline_frame), intent(in) :: frame
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer :: tag

    tag = frame%tag
    call succeed(stat, errmsg)
  end function

  ! One of the slot's buffers, counted from 1 in the order of pipeline_add_buffer. The variable borrows it: the pipeline owns it. Use it
  ! during the callback only, and do not assign it to other variables.
  subroutine get_frame_buffer(frame, index, buffer, stat, errmsg)
    type(pipeline_frame), intent(in) :: frame
    integer, intent(in) :: index
    type(unified_buffer), intent(inout) :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call destroy_unified_buffer(buffer, stat, errmsg)
    if (index < 1 .or. index > frame%buffer_count) then
      call refuse(ONEBUF_INVALID_ARGUMENT, 'get_frame_buffer: the slot has no buffer of this number', stat, errmsg)
    else
      call set_buffer(buffer, frame%buffers(index), frame%modes(index))
    end if
  end subroutine

  ! Launches a program on buffers of the frame, on the stage's device. `buffers` are the numbers of the slot's buffers, from binding
  ! point 0 on. Like dispatch_compute otherwise.
  subroutine dispatch_int32(frame, program, buffers, work_items, integers, reals, group, stat, errmsg, arguments)
    type(pipeline_frame), intent(in) :: frame
    type(compute_program), intent(in) :: program
    integer, intent(in) :: buffers(:)
    integer(int32), intent(in) :: work_items(:)
    integer(int32), intent(in), optional :: integers(:)
    real(real32), intent(in), optional :: reals(:)
    integer(int32), intent(in), optional :: group(:)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(kernel_value), intent(in), optional :: arguments(:)

    call dispatch(frame, program, buffers, extents_of(work_items, group), integers, reals, stat, errmsg, arguments)
  end subroutine

  subroutine dispatch_int64(frame, program, buffers, work_items, integers, reals, group, stat, errmsg, arguments)
    type(pipeline_frame), intent(in) :: frame
    type(compute_program), intent(in) :: program
    integer, intent(in) :: buffers(:)
    integer(int64), intent(in) :: work_items(:)
    integer(int32), intent(in), optional :: integers(:)
    real(real32), intent(in), optional :: reals(:)
    integer(int32), intent(in), optional :: group(:)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(kernel_value), intent(in), optional :: arguments(:)

    call dispatch(frame, program, buffers, extents_of(work_items, group), integers, reals, stat, errmsg, arguments)
  end subroutine

  subroutine dispatch_int32_int64(frame, program, buffers, work_items, integers, reals, group, stat, errmsg, arguments)
    type(pipeline_frame), intent(in) :: frame
    type(compute_program), intent(in) :: program
    integer, intent(in) :: buffers(:)
    integer(int32), intent(in) :: work_items(:)
    integer(int32), intent(in), optional :: integers(:)
    real(real32), intent(in), optional :: reals(:)
    integer(int64), intent(in) :: group(:)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(kernel_value), intent(in), optional :: arguments(:)

    call dispatch(frame, program, buffers, extents_of(work_items, group), integers, reals, stat, errmsg, arguments)
  end subroutine

  subroutine dispatch_int64_int64(frame, program, buffers, work_items, integers, reals, group, stat, errmsg, arguments)
    type(pipeline_frame), intent(in) :: frame
    type(compute_program), intent(in) :: program
    integer, intent(in) :: buffers(:)
    integer(int64), intent(in) :: work_items(:)
    integer(int32), intent(in), optional :: integers(:)
    real(real32), intent(in), optional :: reals(:)
    integer(int64), intent(in) :: group(:)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(kernel_value), intent(in), optional :: arguments(:)

    call dispatch(frame, program, buffers, extents_of(work_items, group), integers, reals, stat, errmsg, arguments)
  end subroutine

  subroutine dispatch(frame, program, buffers, sizes, integers, reals, stat, errmsg, arguments)
    type(pipeline_frame), intent(in) :: frame
    type(compute_program), intent(in) :: program
    integer, intent(in) :: buffers(:)
    type(extents), intent(in) :: sizes
    integer(int32), intent(in), optional :: integers(:)
    real(real32), intent(in), optional :: reals(:)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(kernel_value), intent(in), optional :: arguments(:)
    character(*), parameter :: me = 'dispatch_frame'

    if (frame%queue%id == 0) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': only stages dispatch work', stat, errmsg)
    else if (any(buffers < 1 .or. buffers > frame%buffer_count)) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': the slot has no buffer of such a number', stat, errmsg)
    else
      call dispatch_on(me, program, frame%queue, frame%buffers(buffers), sizes, integers, reals, stat, errmsg, arguments)
    end if
  end subroutine

  ! A frame of the library, for the pipelines' module. `modes` are the access modes of the slot's buffers.
  function new_frame(raw, modes, tag) result(frame)
    type(onebuf_frame), intent(in) :: raw
    integer, intent(in) :: modes(:), tag
    type(pipeline_frame) :: frame
    type(onebuf_buffer), pointer :: buffers(:)

    frame%number = raw%number
    frame%tag = tag
    frame%queue = raw%queue
    frame%buffer_count = min(int(raw%buffer_count), size(modes))
    call c_f_pointer(raw%buffers, buffers, [frame%buffer_count])
    frame%buffers(:frame%buffer_count) = buffers
    frame%modes(:frame%buffer_count) = modes(:frame%buffer_count)
  end function
end module
