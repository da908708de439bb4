! Compute programs on unified buffers. The arguments of a kernel are its buffers, by their binding points from 0 on,
! then its integers, then its reals. In GLSL integers and reals are one std140 uniform block, bound after the buffers.
module gpu_compute
  use, intrinsic :: iso_fortran_env, only: int32, real32
  use onebuf_c
  use gpu_errors, only: report, refuse
  use gpu_session, only: session, need_session
  use gpu_fence_primitives, only: gpu_fence
  use gpu_buffer_core
  implicit none
  private
  public :: compute_program, native_kernel, onebuf_native_call, native_argument, native_arg
  public :: compile_compute_program, program_is_valid, destroy_compute_program
  public :: bind_buffer_to_shader, unbind_shader_buffers, dispatch_compute
  public :: MAX_BINDINGS

  integer, parameter :: MAX_BINDINGS = 16

  ! Assigned variables share the program; it is freed with the last of them.
  type :: compute_program
    type(onebuf_handle) :: handle
    integer :: binding_count = 0
    integer :: bindings(MAX_BINDINGS) = 0
    integer :: integer_count = 0
    integer :: real_count = 0
  contains
    procedure, private :: assign
    generic :: assignment(=) => assign
    final :: finish
  end type

  ! An argument of a launch: the buffer's bytes, or the value.
  type :: native_arg
    type(c_ptr) :: data = c_null_ptr
    integer(c_size_t) :: bytes = 0
    logical :: writable = .false.
  end type

  ! The buffers at the binding points, for all programs. They are kept alive until others are bound there.
  type(unified_buffer), save :: bound(0:MAX_BINDINGS - 1)

  abstract interface
    ! A kernel in Fortran, for the host: called once for a whole launch. It returns zero on success.
    function native_kernel(user, launch) bind(c)
      import :: c_int32_t, c_ptr, onebuf_native_call
      type(c_ptr), value :: user
      type(onebuf_native_call), intent(in) :: launch
      integer(c_int32_t) :: native_kernel
    end function
  end interface

contains

  ! Compiles a kernel, in each language that is given; the device takes the one it supports. `bindings` states how the
  ! CPU accesses each of its buffers (BUFFER_WRITE_ONLY: the kernel only reads it), from binding point 0 on. The caller
  ! guarantees that the kernel does just that and stays inside its buffers.
  function compile_compute_program(kernel, bindings, opencl_c, glsl, native, integers, reals, stat, errmsg) &
    result(program)
    character(*), intent(in) :: kernel
    integer, intent(in) :: bindings(:)
    character(*), intent(in), optional :: opencl_c, glsl
    procedure(native_kernel), optional :: native
    integer, intent(in), optional :: integers, reals
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(compute_program) :: program
    character(*), parameter :: me = 'compile_compute_program'
    character(:), allocatable :: wrong
    type(c_funptr) :: run

    program%binding_count = size(bindings)
    program%bindings(:min(size(bindings), MAX_BINDINGS)) = bindings(:min(size(bindings), MAX_BINDINGS))
    if (present(integers)) program%integer_count = integers
    if (present(reals)) program%real_count = reals
    wrong = mistake(program, bindings)
    if (wrong /= '') then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': '//wrong, stat, errmsg)
      return
    end if
    call need_session(stat, errmsg)
    if (session%hub%id == 0) return
    run = c_null_funptr
    if (present(native)) run = c_funloc(native)
    call report(build(program, kernel, run, opencl_c, glsl), me, stat, errmsg)
  end function

  function mistake(program, bindings) result(wrong)
    type(compute_program), intent(in) :: program
    integer, intent(in) :: bindings(:)
    character(:), allocatable :: wrong

    wrong = ''
    if (size(bindings) > MAX_BINDINGS) wrong = 'more than 16 bindings'
    if (any(bindings < BUFFER_READ_ONLY .or. bindings > BUFFER_READ_WRITE)) &
      wrong = 'a binding is none of BUFFER_READ_ONLY, BUFFER_WRITE_ONLY and BUFFER_READ_WRITE'
    if (program%integer_count < 0 .or. program%real_count < 0) wrong = 'a negative number of values'
  end function

  ! Builds the program and declares its one kernel, which keeps the program alive.
  function build(program, kernel, run, opencl_c, glsl) result(status)
    type(compute_program), intent(inout) :: program
    character(*), intent(in) :: kernel
    type(c_funptr), intent(in) :: run
    character(*), intent(in), optional :: opencl_c, glsl
    integer(c_int32_t) :: status, ignored
    type(onebuf_program_options) :: options
    type(onebuf_native), target :: natives(1)
    type(onebuf_shader), target :: shaders(1)
    type(onebuf_handle) :: built
    character(kind=c_char, len=:), allocatable, target :: name, text, shader

    name = kernel//c_null_char
    options%size = int(storage_size(options)/8, c_size_t)
    if (present(opencl_c)) then
      text = opencl_c//c_null_char
      options%opencl_c = c_loc(text)
    end if
    if (present(glsl)) then
      shader = glsl//c_null_char
      shaders(1) = onebuf_shader(c_loc(name), c_loc(shader))
      options%shaders = c_loc(shaders)
      options%shader_count = 1
    end if
    if (c_associated(run)) then
      natives(1) = onebuf_native(c_loc(name), run, c_null_ptr)
      options%natives = c_loc(natives)
      options%native_count = 1
    end if
    status = onebuf_program_build(session%devices(1), options, built)
    if (status /= ONEBUF_OK) return
    status = declare(program, built, name)
    ignored = onebuf_program_free(built)
  end function

  function declare(program, built, name) result(status)
    type(compute_program), intent(inout) :: program
    type(onebuf_handle), intent(in) :: built
    character(kind=c_char, len=*), intent(in) :: name
    integer(c_int32_t) :: status
    type(onebuf_param) :: params(program%binding_count + program%integer_count + program%real_count)
    integer :: i

    do i = 1, program%binding_count
      params(i)%kind = ONEBUF_ARG_BUFFER
      params(i)%access = kernel_access(program%bindings(i))
    end do
    do i = 1, size(params) - program%binding_count
      params(program%binding_count + i)%kind = value_kind(program, i)
      params(program%binding_count + i)%bytes = 4
    end do
    status = onebuf_kernel_create(built, name, params, int(size(params), c_size_t), 0_c_int32_t, program%handle)
  end function

  ! Integers come first. An int32 and a real32 have the same size.
  pure function value_kind(program, index) result(kind)
    type(compute_program), intent(in) :: program
    integer, intent(in) :: index
    integer(c_int32_t) :: kind

    kind = merge(ONEBUF_ARG_INTEGER, ONEBUF_ARG_FLOAT, index <= program%integer_count)
  end function

  ! Whether the variable holds a program.
  pure function program_is_valid(program) result(valid)
    type(compute_program), intent(in) :: program
    logical :: valid

    valid = program%handle%id /= 0
  end function

  ! Releases the program. Dispatched work still completes.
  subroutine destroy_compute_program(program)
    type(compute_program), intent(inout), target :: program

    call report(onebuf_own(c_loc(program%handle%id), 0_c_int64_t), 'destroy_compute_program')
    program%handle%id = 0
  end subroutine

  ! Binds a buffer to a binding point, for every dispatch until another is bound there. It is kept alive meanwhile.
  subroutine bind_buffer_to_shader(buffer, binding_point, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(in) :: binding_point
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'bind_buffer_to_shader: '

    if (binding_point < 0 .or. binding_point >= MAX_BINDINGS) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//'binding points are 0 to 15', stat, errmsg)
    else if (.not. buffer_is_valid(buffer)) then
      call refuse(ONEBUF_INVALID_HANDLE, me//'no buffer, or one that was destroyed', stat, errmsg)
    else
      if (bound(binding_point)%handle%id /= buffer%handle%id) bound(binding_point) = buffer
      if (present(stat)) stat = 0
    end if
  end subroutine

  ! Releases all bound buffers.
  subroutine unbind_shader_buffers
    type(unified_buffer) :: none

    bound = none
  end subroutine

  ! Launches a program on the bound buffers, with a number of work-items in one to three dimensions. The launch waits
  ! for earlier accesses by the CPU and other kernels; the CPU's next access waits for it. `fence` is a fence that the
  ! launch will reach.
  subroutine dispatch_compute(program, work_items, integers, reals, group, fence, stat, errmsg)
    type(compute_program), intent(in) :: program
    integer, intent(in) :: work_items(:)
    integer(int32), intent(in), optional :: integers(:)
    real(real32), intent(in), optional :: reals(:)
    integer, intent(in), optional :: group(:)
    type(gpu_fence), intent(out), optional :: fence
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'dispatch_compute'
    integer(int32), target :: values(program%integer_count + program%real_count)
    character(80) :: wrong
    integer(c_int32_t) :: status

    ! A blank first character of `wrong` means that nothing is wrong.
    wrong(1:1) = ' '
    call check_sizes(work_items, group, wrong)
    call gather(program, integers, reals, values, wrong)
    call check_bound(program, wrong)
    if (wrong(1:1) /= ' ') then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': '//trim(wrong), stat, errmsg)
      return
    end if
    status = launch(program, grid_of(work_items, group), values, fence)
    ! On the host the kernel has run already.
    if (status == ONEBUF_OK .and. session%device_count > 1) status = onebuf_queue_flush(session%queue)
    call report(status, me, stat, errmsg)
  end subroutine

  subroutine check_sizes(work_items, group, wrong)
    integer, intent(in) :: work_items(:)
    integer, intent(in), optional :: group(:)
    character(*), intent(inout) :: wrong

    if (size(work_items) < 1 .or. size(work_items) > 3) wrong = 'work-items have one to three dimensions'
    if (any(work_items < 1)) wrong = 'at least one work-item in each dimension'
    if (.not. present(group)) return
    if (size(group) /= size(work_items)) wrong = 'groups have as many dimensions as the work-items'
    if (any(group < 1)) wrong = 'at least one work-item in each dimension of a group'
  end subroutine

  ! All values in order, as bits.
  subroutine gather(program, integers, reals, values, wrong)
    type(compute_program), intent(in) :: program
    integer(int32), intent(in), optional :: integers(:)
    real(real32), intent(in), optional :: reals(:)
    integer(int32), intent(out) :: values(:)
    character(*), intent(inout) :: wrong
    integer :: given(2)

    given = 0
    if (present(integers)) given(1) = size(integers)
    if (present(reals)) given(2) = size(reals)
    values = 0
    if (any(given /= [program%integer_count, program%real_count])) then
      wrong = 'as many integers and reals as the program was compiled with'
      return
    end if
    if (given(1) > 0) values(:given(1)) = integers
    if (given(2) > 0) values(given(1) + 1:) = transfer(reals, values)
  end subroutine

  ! Checks that the program's access to each bound buffer is within the access that the buffer was created for.
  subroutine check_bound(program, wrong)
    type(compute_program), intent(in) :: program
    character(*), intent(inout) :: wrong
    integer :: i

    do i = 1, program%binding_count
      if (bound(i - 1)%handle%id == 0) then
        write (wrong, '(a, i0)') 'no buffer is bound to binding point ', i - 1
      else if (all(bound(i - 1)%access_mode /= [BUFFER_READ_WRITE, program%bindings(i)])) then
        write (wrong, '(a, i0, a)') 'the buffer at binding point ', i - 1, ' was made for another access'
      end if
    end do
    if (program%handle%id == 0) wrong = 'no program, or one that was destroyed'
  end subroutine

  function launch(program, grid, values, fence) result(status)
    type(compute_program), intent(in) :: program
    type(onebuf_grid), intent(in) :: grid
    integer(int32), intent(in), target :: values(:)
    type(gpu_fence), intent(inout), optional, target :: fence
    integer(c_int32_t) :: status
    type(onebuf_arg) :: args(program%binding_count + size(values))
    type(onebuf_handle), target :: reached
    type(c_ptr) :: wanted
    integer :: i

    do i = 1, program%binding_count
      ! Ends the CPU's access.
      args(i)%kind = ONEBUF_ARG_TURN
      args(i)%access = kernel_access(program%bindings(i))
      args(i)%buffer = bound(i - 1)%handle
    end do
    do i = 1, size(values)
      args(program%binding_count + i)%kind = value_kind(program, i)
      args(program%binding_count + i)%value = c_loc(values(i))
      args(program%binding_count + i)%bytes = 4
    end do
    wanted = c_null_ptr
    if (present(fence)) wanted = c_loc(reached)
    status = onebuf_queue_launch(session%queue, program%handle, grid, args, int(size(args), c_size_t), wanted)
    if (status /= ONEBUF_OK .or. .not. present(fence)) return
    fence%handle = reached
    status = onebuf_own(c_loc(fence%handle%id), reached%id)
  end function

  pure function grid_of(work_items, group) result(grid)
    integer, intent(in) :: work_items(:)
    integer, intent(in), optional :: group(:)
    type(onebuf_grid) :: grid

    grid%dims = int(size(work_items), c_size_t)
    grid%global(:size(work_items)) = int(work_items, c_size_t)
    if (present(group)) grid%local(:size(group)) = int(group, c_size_t)
  end function

  ! An argument of a kernel in Fortran, counted from 1, in the order of the binding points, integers and reals.
  function native_argument(launch, index) result(argument)
    type(onebuf_native_call), intent(in) :: launch
    integer, intent(in) :: index
    type(native_arg) :: argument
    type(onebuf_native_arg), pointer :: all(:)

    if (index < 1 .or. index > launch%arg_count) return
    call c_f_pointer(launch%args, all, [launch%arg_count])
    argument%data = all(index)%data
    argument%bytes = all(index)%bytes
    argument%writable = all(index)%writable /= 0
  end function

  impure elemental subroutine assign(to, from)
    class(compute_program), intent(out), target :: to
    class(compute_program), intent(in) :: from

    call report(onebuf_own(c_loc(to%handle%id), from%handle%id), 'assigning a compute_program')
    to%handle = from%handle
    to%binding_count = from%binding_count
    to%bindings = from%bindings
    to%integer_count = from%integer_count
    to%real_count = from%real_count
  end subroutine

  impure elemental subroutine finish(program)
    type(compute_program), intent(inout), target :: program

    call report(onebuf_disown(c_loc(program%handle%id)), 'ending a compute_program')
  end subroutine
end module
