! What pipelines are made of, and the callbacks that the library calls. For gpu_pipelines alone.
module gpu_pipeline_parts
  use, intrinsic :: iso_fortran_env, only: int64
  use onebuf_c
  use gpu_session, only: session
  use gpu_buffer_core, only: shape_of
  use gpu_frames, only: fill_procedure, frame_procedure, new_frame, FRAME_FILLED, MAX_SLOT_BUFFERS
  implicit none
  private
  public :: parts, enter, leave, build, MAX_STAGES

  integer, parameter :: MAX_STAGES = 16
  integer, parameter :: MAX_PIPELINES = 64

  ! A stage, and as stage zero the sink.
  type :: step
    procedure(frame_procedure), pointer, nopass :: run => null()
    integer :: tag = 0
    integer :: device = 0
    character(64) :: name = ''
  end type

  type, bind(c) :: ticket
    integer(c_int32_t) :: pipeline = 0
    integer(c_int32_t) :: step = 0
  end type

  type :: parts
    integer :: slots = 0
    integer :: when_full = 0
    integer :: buffer_count = 0
    integer(int64) :: sizes(MAX_SLOT_BUFFERS) = 0
    integer :: modes(MAX_SLOT_BUFFERS) = 0
    integer :: hints(MAX_SLOT_BUFFERS) = 0
    procedure(fill_procedure), pointer, nopass :: fill => null()
    integer :: fill_tag = 0
    integer :: stage_count = 0
    type(step) :: steps(0:MAX_STAGES)
    type(onebuf_source) :: feed
    integer :: feed_buffer = 1
    type(onebuf_sink) :: drain
    integer :: drain_buffer = 1
    ! The library's `user` pointers point to these: the number of the pipeline and of the step.
    type(ticket) :: tickets(0:MAX_STAGES)
  end type

  type :: place
    type(parts), pointer :: parts => null()
  end type

  ! Callbacks find their pipeline here, because a C pointer cannot point to a type with procedures.
  type(place), save :: places(MAX_PIPELINES)

contains

  ! Gives the parts a number; false if there is none left.
  function enter(these) result(entered)
    type(parts), intent(inout), target :: these
    logical :: entered
    integer :: number, i

    entered = .false.
    do number = 1, MAX_PIPELINES
      if (associated(places(number)%parts)) cycle
      places(number)%parts => these
      these%tickets = [(ticket(int(number, c_int32_t), int(i, c_int32_t)), i=0, MAX_STAGES)]
      entered = .true.
      exit
    end do
  end function

  subroutine leave(these)
    type(parts), intent(in) :: these

    places(these%tickets(0)%pipeline)%parts => null()
  end subroutine

  ! Creates the pipeline.
  function build(from, handle) result(status)
    type(parts), intent(in), target :: from
    type(onebuf_pipeline), intent(out) :: handle
    integer(c_int32_t) :: status
    type(onebuf_pipeline_options) :: options
    type(onebuf_buffer_options), target :: shapes(from%buffer_count)
    type(onebuf_slot_buffer), target :: buffers(from%buffer_count)
    type(onebuf_stage), target :: stages(from%stage_count)
    character(kind=c_char), target :: names(65, from%stage_count)
    integer :: i

    do i = 1, from%buffer_count
      shapes(i) = shape_of(from%modes(i), from%hints(i))
      buffers(i)%bytes = int(from%sizes(i), c_size_t)
      buffers(i)%options = c_loc(shapes(i))
    end do
    do i = 1, from%stage_count
      names(:, i) = transfer(trim(from%steps(i)%name)//repeat(c_null_char, 65), names(:, i), size(names, 1))
      stages(i)%name = c_loc(names(1, i))
      stages(i)%device = session%devices(from%steps(i)%device)
      stages(i)%run = c_funloc(run_callback)
      stages(i)%user = c_loc(from%tickets(i))
    end do
    options%size = int(storage_size(options)/8, c_size_t)
    options%depth = int(from%slots, c_size_t)
    options%buffers = c_loc(buffers)
    options%buffer_count = int(from%buffer_count, c_size_t)
    options%stages = c_loc(stages)
    options%stage_count = int(from%stage_count, c_size_t)
    options%when_full = int(from%when_full, c_int32_t)
    options%feed = from%feed
    options%feed_buffer = int(max(from%feed_buffer, 1) - 1, c_size_t)
    options%drain = from%drain
    options%drain_buffer = int(max(from%drain_buffer, 1) - 1, c_size_t)
    options%source_user = c_loc(from%tickets(0))
    options%sink_user = c_loc(from%tickets(0))
    if (associated(from%fill)) options%source = c_funloc(fill_callback)
    if (associated(from%steps(0)%run)) options%sink = c_funloc(run_callback)
    status = onebuf_pipeline_create(session%hub, options, handle)
  end function

  function fill_callback(user, frame, filled) result(status) bind(c, name='onebuf_fortran_fill')
    type(c_ptr), value :: user
    type(onebuf_frame), intent(in) :: frame
    integer(c_int32_t), intent(inout) :: filled
    integer(c_int32_t) :: status
    type(ticket), pointer :: this
    type(parts), pointer :: of
    integer :: answer, stat

    call c_f_pointer(user, this)
    of => places(this%pipeline)%parts
    answer = FRAME_FILLED
    stat = 0
    call of%fill(new_frame(frame, of%modes(:of%buffer_count), of%fill_tag), answer, stat)
    filled = int(answer, c_int32_t)
    status = int(stat, c_int32_t)
  end function

  function run_callback(user, frame) result(status) bind(c, name='onebuf_fortran_run')
    type(c_ptr), value :: user
    type(onebuf_frame), intent(in) :: frame
    integer(c_int32_t) :: status
    type(ticket), pointer :: this
    type(parts), pointer :: of
    integer :: stat

    call c_f_pointer(user, this)
    of => places(this%pipeline)%parts
    stat = 0
    call of%steps(this%step)%run(new_frame(frame, of%modes(:of%buffer_count), of%steps(this%step)%tag), stat)
    status = int(stat, c_int32_t)
  end function
end module
