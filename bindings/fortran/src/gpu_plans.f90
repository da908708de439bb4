! Where a buffer would be allocated, and the experiments that decide it.
module gpu_plans
  use, intrinsic :: iso_fortran_env, only: int32, int64
  use onebuf_c
  use gpu_errors, only: report, taken_text
  use gpu_session, only: session, need_session
  use gpu_buffer_core, only: shape_of, MEMORY_COHERENT, mode_exists
  implicit none
  private
  public :: plan_buffer, gpu_run_doctor, gpu_doctor_helper

  interface plan_buffer
    module procedure plan_int32, plan_int64
  end interface

contains

  ! What create_unified_buffer would do: where the buffer would be allocated, by which route each device would access it, and why no
  ! better route was chosen. With `json` the same as JSON.
  function plan_int64(size, access_mode, memory_hint, json, stat, errmsg) result(text)
    integer(int64), intent(in) :: size
    integer, intent(in) :: access_mode
    integer, intent(in), optional :: memory_hint
    logical, intent(in), optional :: json
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(:), allocatable :: text

    call plan(text, size, access_mode, memory_hint, json, stat, errmsg)
  end function

  function plan_int32(size, access_mode, memory_hint, json, stat, errmsg) result(text)
    integer(int32), intent(in) :: size
    integer, intent(in) :: access_mode
    integer, intent(in), optional :: memory_hint
    logical, intent(in), optional :: json
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(:), allocatable :: text

    call plan(text, int(size, int64), access_mode, memory_hint, json, stat, errmsg)
  end function

  subroutine plan(text, size, access_mode, memory_hint, json, stat, errmsg)
    character(:), allocatable, intent(out) :: text
    integer(int64), intent(in) :: size
    integer, intent(in) :: access_mode
    integer, intent(in), optional :: memory_hint
    logical, intent(in), optional :: json
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'plan_buffer'
    type(onebuf_string) :: string
    integer(c_int32_t) :: status
    integer :: hint
    logical :: as_json

    text = ''
    if (.not. mode_exists(me, access_mode, stat, errmsg, returns=.true.)) return
    call need_session(stat, errmsg, returns=.true.)
    if (session%hub%id == 0) return
    hint = MEMORY_COHERENT
    if (present(memory_hint)) hint = memory_hint
    as_json = .false.
    if (present(json)) as_json = json
    if (as_json) then
      status = onebuf_buffer_plan_json(session%hub, int(max(size, 0_int64), c_size_t), shape_of(access_mode, hint), string)
    else
      status = onebuf_buffer_plan(session%hub, int(max(size, 0_int64), c_size_t), shape_of(access_mode, hint), string)
    end if
    call report(status, me, stat, errmsg, returns=.true.)
    if (status == ONEBUF_OK) text = taken_text(string)
  end subroutine

  ! Tests the routes between the machine's devices that have no verdict yet, which takes seconds for each, and stores the verdicts: devices
  ! that are opened afterwards use them. Returns all verdicts as JSON. `helper` is the path of the program `onebuf`, or of a program that
  ! begins with gpu_doctor_helper: without it, this program itself. `fresh` repeats experiments that were made.
  function gpu_run_doctor(helper, reach_bytes, fresh, stat, errmsg) result(json)
    character(*), intent(in), optional :: helper
    integer(int64), intent(in), optional :: reach_bytes
    logical, intent(in), optional :: fresh
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(:), allocatable :: json
    character(*), parameter :: me = 'gpu_run_doctor'
    type(onebuf_doctor_options) :: options
    type(onebuf_string) :: string
    character(kind=c_char, len=:), allocatable, target :: path
    integer(c_int32_t) :: status

    json = ''
    call need_session(stat, errmsg, returns=.true.)
    if (session%hub%id == 0) return
    path = '/proc/self/exe'//c_null_char
    if (present(helper)) path = helper//c_null_char
    options%size = int(storage_size(options)/8, c_size_t)
    options%helper = c_loc(path)
    if (present(reach_bytes)) options%reach_bytes = max(reach_bytes, 0_int64)
    if (present(fresh)) options%fresh = merge(1_c_int32_t, 0_c_int32_t, fresh)
    status = onebuf_doctor_run(session%hub, options, string)
    call report(status, me, stat, errmsg, returns=.true.)
    if (status == ONEBUF_OK) json = taken_text(string)
  end function

  ! Call this first in a program that gpu_run_doctor uses as its helper. It does nothing unless the doctor started the process; then it
  ! runs an experiment and does not return.
  subroutine gpu_doctor_helper(stat, errmsg)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_doctor_helper_main(), 'gpu_doctor_helper', stat, errmsg)
  end subroutine
end module
