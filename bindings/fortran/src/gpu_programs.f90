! Compute programs on unified buffers. The arguments of a kernel are those that `bindings` lists, then its integers, then its reals.
! Buffers have binding points from 0 on, in their order. In GLSL all values are one std140 uniform block, bound after the buffers.
module gpu_programs
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
  use onebuf_c
  use gpu_errors, only: report, refuse, succeed
  use gpu_session, only: session, need_device
  use gpu_fence_primitives, only: gpu_fence, adopt_fence
  use gpu_buffer_core
  use gpu_extents, only: extents, extents_of, check_sizes, grid_of
  implicit none
  private
  public :: compute_program, native_kernel, onebuf_native_call, native_argument, native_arg
  public :: compile_compute_program, program_is_valid, destroy_compute_program
  public :: bind_buffer_to_shader, unbind_shader_buffers, dispatch_compute
  public :: kernel_value, kernel_argument, local_memory
  public :: ARG_INT32, ARG_INT64, ARG_REAL32, ARG_REAL64, ARG_LOCAL
  public :: MAX_BINDINGS, MAX_ARGUMENTS
  public :: dispatch_on

  integer, parameter :: MAX_BINDINGS = 16
  integer, parameter :: MAX_ARGUMENTS = 64

  ! Arguments that are no buffers, for `bindings`: scalars, and local memory of each work-group.
  integer, parameter :: ARG_INT32 = 11
  integer, parameter :: ARG_INT64 = 12
  integer, parameter :: ARG_REAL32 = 13
  integer, parameter :: ARG_REAL64 = 14
  integer, parameter :: ARG_LOCAL = 15

  ! Assigned variables share the program; it is freed with the last of them.
  type :: compute_program
    private
    type(onebuf_kernel) :: handle
    ! The number of the device that it was compiled for.
    integer :: device = 1
    ! The arguments in order: BUFFER_ and ARG_ constants.
    integer :: argument_count = 0
    integer :: arguments(MAX_ARGUMENTS) = 0
  contains
    procedure, private :: assign
    generic :: assignment(=) => assign
    final :: finish
  end type

  ! A scalar argument of a launch, or a number of bytes of local memory.
  type :: kernel_value
    private
    integer :: kind = 0
    integer(int32) :: bits(2) = 0
    integer(int64) :: local_bytes = 0
  end type

  ! The same inside of a launch, without initial values: a launch sets as many as it needs.
  type :: slot
    integer :: kind
    integer(int32) :: bits(2)
    integer(int64) :: local_bytes
  end type

  interface program_is_valid
    module procedure valid_only, valid_with_stat
  end interface

  ! Makes an argument of a scalar: an integer or real of 32 or 64 bits.
  interface kernel_argument
    module procedure value_int32, value_int64, value_real32, value_real64
  end interface

  ! Makes an argument of local memory: bytes for each work-group.
  interface local_memory
    module procedure local_int32, local_int64
  end interface

  ! Each of `work_items` and `group` as int32 and as int64.
  interface dispatch_compute
    module procedure dispatch_int32, dispatch_int64, dispatch_int32_int64, dispatch_int64_int64
  end interface

  ! An argument of a launch: the buffer's bytes, or the value.
  type :: native_arg
    type(c_ptr) :: data = c_null_ptr
    integer(c_size_t) :: bytes = 0
    logical :: writable = .false.
  end type

  ! The buffers at the binding points, for all programs. They are kept alive until others are bound there.
  type(unified_buffer), save, target :: bound(0:MAX_BINDINGS - 1)

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
  ! CPU accesses each of its buffers (BUFFER_WRITE_ONLY: the kernel only reads it), from binding point 0 on, and where scalars (ARG_INT32
  ! and so on) and local memory (ARG_LOCAL) stand among them. The caller guarantees that the kernel does just that and stays inside its
  ! buffers. `device` is a number from gpu_add_device; the first device without it. `compiler_options` are those of OpenCL's compiler.
  ! With `graft_to`, the number of a CUDA or HIP device, OpenCL compiles the program on `device`, and it runs in the other one's queue.
  function compile_compute_program(kernel, bindings, opencl_c, glsl, native, integers, reals, stat, errmsg, cuda_c, hip_c, &
    device, ptx, compiler_options, graft_to) result(program)
    character(*), intent(in) :: kernel
    integer, intent(in) :: bindings(:)
    character(*), intent(in), optional :: opencl_c, glsl
    procedure(native_kernel), optional :: native
    integer, intent(in), optional :: integers, reals
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), intent(in), optional :: cuda_c, hip_c
    integer, intent(in), optional :: device
    character(*), intent(in), optional :: ptx, compiler_options
    integer, intent(in), optional :: graft_to
    type(compute_program) :: program
    character(*), parameter :: me = 'compile_compute_program'
    character(:), allocatable :: wrong
    type(c_funptr) :: run
    integer :: counts(2), number

    counts = 0
    if (present(integers)) counts(1) = integers
    if (present(reals)) counts(2) = reals
    wrong = mistake(bindings, counts)
    if (wrong /= '') then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': '//wrong, stat, errmsg, returns=.true.)
      return
    end if
    program%argument_count = size(bindings) + sum(counts)
    program%arguments(:size(bindings)) = bindings
    program%arguments(size(bindings) + 1:size(bindings) + counts(1)) = ARG_INT32
    program%arguments(size(bindings) + counts(1) + 1:program%argument_count) = ARG_REAL32
    number = need_device(me, device, stat, errmsg, returns=.true.)
    if (number == 0) return
    program%device = number
    if (present(graft_to)) number = need_device(me, graft_to, stat, errmsg, returns=.true.)
    if (number == 0) return
    run = c_null_funptr
    if (present(native)) run = c_funloc(native)
    call report(build(program, number, kernel, run, opencl_c, glsl, cuda_c, hip_c, ptx, compiler_options), me, stat, errmsg, &
      returns=.true.)
  end function

  function mistake(bindings, counts) result(wrong)
    integer, intent(in) :: bindings(:), counts(2)
    character(:), allocatable :: wrong

    wrong = ''
    if (count(is_buffer(bindings)) > MAX_BINDINGS) wrong = 'more than 16 buffers'
    if (any(.not. is_buffer(bindings) .and. (bindings < ARG_INT32 .or. bindings > ARG_LOCAL))) &
      wrong = 'a binding is none of BUFFER_READ_ONLY, BUFFER_WRITE_ONLY and BUFFER_READ_WRITE, and no ARG_ constant'
    if (any(counts < 0)) wrong = 'a negative number of values'
    if (size(bindings) + sum(max(counts, 0)) > MAX_ARGUMENTS) wrong = 'more than 64 arguments'
  end function

  elemental function is_buffer(argument) result(yes)
    integer, intent(in) :: argument
    logical :: yes

    yes = argument >= BUFFER_READ_ONLY .and. argument <= BUFFER_READ_WRITE
  end function

  ! Builds the program, moves it to device `to` if that is another one, and declares its one kernel, which keeps the program alive.
  function build(program, to, kernel, run, opencl_c, glsl, cuda_c, hip_c, ptx, compiler_options) result(status)
    type(compute_program), intent(inout) :: program
    integer, intent(in) :: to
    character(*), intent(in) :: kernel
    type(c_funptr), intent(in) :: run
    character(*), intent(in), optional :: opencl_c, glsl, cuda_c, hip_c, ptx, compiler_options
    integer(c_int32_t) :: status, ignored
    type(onebuf_program_options) :: options
    type(onebuf_native), target :: natives(1)
    type(onebuf_shader), target :: shaders(1)
    type(onebuf_program) :: built, moved
    character(kind=c_char, len=:), allocatable, target :: name, text, shader, cuda, hip, assembly, flags

    name = kernel//c_null_char
    options%size = int(storage_size(options)/8, c_size_t)
    if (present(opencl_c)) then
      text = opencl_c//c_null_char
      options%opencl_c = c_loc(text)
    end if
    if (present(cuda_c)) then
      cuda = cuda_c//c_null_char
      options%cuda_c = c_loc(cuda)
    end if
    if (present(hip_c)) then
      hip = hip_c//c_null_char
      options%hip_c = c_loc(hip)
    end if
    if (present(ptx)) then
      assembly = ptx//c_null_char
      options%ptx = c_loc(assembly)
    end if
    if (present(compiler_options)) then
      flags = compiler_options//c_null_char
      options%compiler_options = c_loc(flags)
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
    status = onebuf_program_build(session%devices(program%device), options, built)
    if (status /= ONEBUF_OK) return
    if (to /= program%device) then
      status = onebuf_program_graft(built, session%devices(to), c_null_ptr, moved)
      ignored = onebuf_program_free(built)
      if (status /= ONEBUF_OK) return
      built = moved
      program%device = to
    end if
    status = declare(program, built, name)
    ignored = onebuf_program_free(built)
  end function

  function declare(program, built, name) result(status)
    type(compute_program), intent(inout) :: program
    type(onebuf_program), intent(in) :: built
    character(kind=c_char, len=*), intent(in) :: name
    integer(c_int32_t) :: status
    type(onebuf_param) :: params(program%argument_count)
    integer :: i

    do i = 1, size(params)
      params(i)%kind = kind_of(program%arguments(i))
      if (is_buffer(program%arguments(i))) then
        params(i)%access = kernel_access(program%arguments(i))
      else if (params(i)%kind /= ONEBUF_ARG_LOCAL) then
        params(i)%bytes = bytes_of(program%arguments(i))
      end if
    end do
    status = onebuf_kernel_create(built, name, params, int(size(params), c_size_t), 0_c_int32_t, program%handle)
  end function

  ! The kind of an argument in the C interface.
  pure function kind_of(argument) result(kind)
    integer, intent(in) :: argument
    integer(c_int32_t) :: kind

    select case (argument)
    case (ARG_INT32, ARG_INT64)
      kind = ONEBUF_ARG_INTEGER
    case (ARG_REAL32, ARG_REAL64)
      kind = ONEBUF_ARG_FLOAT
    case (ARG_LOCAL)
      kind = ONEBUF_ARG_LOCAL
    case default
      kind = ONEBUF_ARG_BUFFER
    end select
  end function

  pure function bytes_of(argument) result(bytes)
    integer, intent(in) :: argument
    integer(c_size_t) :: bytes

    bytes = merge(8_c_size_t, 4_c_size_t, argument == ARG_INT64 .or. argument == ARG_REAL64)
  end function

  ! Whether the variable holds a program.
  pure function valid_only(program) result(valid)
    type(compute_program), intent(in) :: program
    logical :: valid

    valid = program%handle%id /= 0
  end function

  function valid_with_stat(program, stat, errmsg) result(valid)
    type(compute_program), intent(in) :: program
    integer, intent(out) :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: valid

    valid = program%handle%id /= 0
    call succeed(stat, errmsg)
  end function

  ! Releases the program. Dispatched work still completes.
  subroutine destroy_compute_program(program, stat, errmsg)
    type(compute_program), intent(inout), target :: program
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_own(c_loc(program%handle%id), 0_c_int64_t), 'destroy_compute_program', stat, errmsg)
    program%handle%id = 0
  end subroutine

  ! Binds a buffer to a binding point, for every dispatch until another is bound there. It is kept alive meanwhile.
  subroutine bind_buffer_to_shader(buffer, binding, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(in) :: binding
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'bind_buffer_to_shader: '
    type(onebuf_buffer) :: before, now

    if (binding < 0 .or. binding >= MAX_BINDINGS) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//'binding points are 0 to 15', stat, errmsg)
    else if (.not. buffer_is_valid(buffer)) then
      call refuse(ONEBUF_INVALID_HANDLE, me//'no buffer, or one that was destroyed', stat, errmsg)
    else
      before = buffer_handle(bound(binding))
      now = buffer_handle(buffer)
      if (before%id /= now%id) bound(binding) = buffer
      if (present(stat)) stat = 0
    end if
  end subroutine

  ! Releases all bound buffers.
  subroutine unbind_shader_buffers(stat, errmsg)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(unified_buffer) :: none

    bound = none
    call succeed(stat, errmsg)
  end subroutine

  ! --- Values -----------------------------------------------------------------------------------------------------------

  pure function value_int32(value) result(made)
    integer(int32), intent(in) :: value
    type(kernel_value) :: made

    made%kind = ARG_INT32
    made%bits(1) = value
  end function

  pure function value_int64(value) result(made)
    integer(int64), intent(in) :: value
    type(kernel_value) :: made

    made%kind = ARG_INT64
    made%bits = transfer(value, made%bits)
  end function

  pure function value_real32(value) result(made)
    real(real32), intent(in) :: value
    type(kernel_value) :: made

    made%kind = ARG_REAL32
    made%bits(1) = transfer(value, made%bits(1))
  end function

  pure function value_real64(value) result(made)
    real(real64), intent(in) :: value
    type(kernel_value) :: made

    made%kind = ARG_REAL64
    made%bits = transfer(value, made%bits)
  end function

  pure function local_int32(bytes) result(made)
    integer(int32), intent(in) :: bytes
    type(kernel_value) :: made

    made%kind = ARG_LOCAL
    made%local_bytes = int(bytes, int64)
  end function

  pure function local_int64(bytes) result(made)
    integer(int64), intent(in) :: bytes
    type(kernel_value) :: made

    made%kind = ARG_LOCAL
    made%local_bytes = bytes
  end function

  ! --- Launches ---------------------------------------------------------------------------------------------------------

  ! Launches a program on the bound buffers, with a number of work-items in one to three dimensions. The launch waits
  ! for earlier accesses by the CPU and other kernels; the CPU's next access waits for it. `arguments` are the values of the ARG_
  ! arguments, in order; `integers` and `reals` those that the program was compiled with by these names. `fence` is a fence that the
  ! launch will reach.
  subroutine dispatch_int32(program, work_items, integers, reals, group, fence, stat, errmsg, arguments)
    type(compute_program), intent(in) :: program
    integer(int32), intent(in) :: work_items(:)
    integer(int32), intent(in), optional :: integers(:)
    real(real32), intent(in), optional :: reals(:)
    integer(int32), intent(in), optional :: group(:)
    type(gpu_fence), intent(out), optional, target :: fence
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(kernel_value), intent(in), optional :: arguments(:)

    call dispatch(program, extents_of(work_items), extents_of(group), integers, reals, fence, stat, errmsg, arguments)
  end subroutine

  subroutine dispatch_int64(program, work_items, integers, reals, group, fence, stat, errmsg, arguments)
    type(compute_program), intent(in) :: program
    integer(int64), intent(in) :: work_items(:)
    integer(int32), intent(in), optional :: integers(:)
    real(real32), intent(in), optional :: reals(:)
    integer(int32), intent(in), optional :: group(:)
    type(gpu_fence), intent(out), optional, target :: fence
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(kernel_value), intent(in), optional :: arguments(:)

    call dispatch(program, extents_of(work_items), extents_of(group), integers, reals, fence, stat, errmsg, arguments)
  end subroutine

  subroutine dispatch_int32_int64(program, work_items, integers, reals, group, fence, stat, errmsg, arguments)
    type(compute_program), intent(in) :: program
    integer(int32), intent(in) :: work_items(:)
    integer(int32), intent(in), optional :: integers(:)
    real(real32), intent(in), optional :: reals(:)
    integer(int64), intent(in) :: group(:)
    type(gpu_fence), intent(out), optional, target :: fence
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(kernel_value), intent(in), optional :: arguments(:)

    call dispatch(program, extents_of(work_items), extents_of(group), integers, reals, fence, stat, errmsg, arguments)
  end subroutine

  subroutine dispatch_int64_int64(program, work_items, integers, reals, group, fence, stat, errmsg, arguments)
    type(compute_program), intent(in) :: program
    integer(int64), intent(in) :: work_items(:)
    integer(int32), intent(in), optional :: integers(:)
    real(real32), intent(in), optional :: reals(:)
    integer(int64), intent(in) :: group(:)
    type(gpu_fence), intent(out), optional, target :: fence
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(kernel_value), intent(in), optional :: arguments(:)

    call dispatch(program, extents_of(work_items), extents_of(group), integers, reals, fence, stat, errmsg, arguments)
  end subroutine

  subroutine dispatch(program, work_items, group, integers, reals, fence, stat, errmsg, arguments)
    type(compute_program), intent(in) :: program
    type(extents), intent(in) :: work_items, group
    integer(int32), intent(in), optional :: integers(:)
    real(real32), intent(in), optional :: reals(:)
    type(gpu_fence), intent(inout), optional, target :: fence
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(kernel_value), intent(in), optional :: arguments(:)
    character(*), parameter :: me = 'dispatch_compute'
    type(slot), target :: values(MAX_ARGUMENTS)
    character(120) :: wrong
    integer(c_int32_t) :: status
    integer :: given

    ! A blank first character of `wrong` means that nothing is wrong.
    wrong(1:1) = ' '
    call prepare(program, work_items, group, values, given, integers, reals, arguments, wrong)
    if (wrong(1:1) == ' ') call check_bound(program, wrong)
    if (wrong(1:1) /= ' ') then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': '//trim(wrong), stat, errmsg)
      return
    end if
    status = launch(program, session%queues(program%device), grid_of(work_items, group), values(:given), fence)
    ! On the host the kernel has run already.
    if (status == ONEBUF_OK .and. session%device_count > 1) status = onebuf_queue_flush(session%queues(program%device))
    call report(status, me, stat, errmsg)
  end subroutine

  ! Launches a program on these buffers, from binding point 0 on, and on that queue: for other modules. `me` names the caller.
  subroutine dispatch_on(me, program, queue, buffers, work_items, group, integers, reals, stat, errmsg, arguments)
    character(*), intent(in) :: me
    type(compute_program), intent(in) :: program
    type(onebuf_queue), intent(in) :: queue
    type(onebuf_buffer), intent(in) :: buffers(:)
    type(extents), intent(in) :: work_items, group
    integer(int32), intent(in), optional :: integers(:)
    real(real32), intent(in), optional :: reals(:)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(kernel_value), intent(in), optional :: arguments(:)
    type(slot), target :: values(MAX_ARGUMENTS)
    character(120) :: wrong
    integer :: given

    wrong(1:1) = ' '
    call prepare(program, work_items, group, values, given, integers, reals, arguments, wrong)
    if (wrong(1:1) == ' ' .and. count(is_buffer(program%arguments)) /= size(buffers)) &
      write (wrong, '(i0, a, i0)') size(buffers), ' buffers for a program with ', count(is_buffer(program%arguments))
    if (wrong(1:1) /= ' ') then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': '//trim(wrong), stat, errmsg)
    else
      call report(launch(program, queue, grid_of(work_items, group), values(:given), buffers=buffers), me, stat, errmsg)
    end if
  end subroutine

  ! Checks everything but the buffers, and collects the values.
  subroutine prepare(program, work_items, group, values, given, integers, reals, arguments, wrong)
    type(compute_program), intent(in) :: program
    type(extents), intent(in) :: work_items, group
    type(slot), intent(inout) :: values(:)
    integer, intent(out) :: given
    integer(int32), intent(in), optional :: integers(:)
    real(real32), intent(in), optional :: reals(:)
    type(kernel_value), intent(in), optional :: arguments(:)
    character(*), intent(inout) :: wrong

    given = 0
    call check_program(program, wrong)
    if (wrong(1:1) == ' ') call check_sizes(work_items, group, wrong)
    if (wrong(1:1) == ' ') call gather(values, given, integers, reals, arguments, wrong)
    if (wrong(1:1) == ' ') call check_values(program, values(:given), wrong)
  end subroutine

  subroutine check_program(program, wrong)
    type(compute_program), intent(in) :: program
    character(*), intent(inout) :: wrong

    if (program%handle%id == 0) then
      wrong = 'no program, or one that was destroyed'
    else if (program%device > session%open_count) then
      wrong = 'the program''s device is not open any more'
    end if
  end subroutine

  ! All values in order.
  subroutine gather(values, given, integers, reals, arguments, wrong)
    type(slot), intent(inout) :: values(:)
    integer, intent(out) :: given
    integer(int32), intent(in), optional :: integers(:)
    real(real32), intent(in), optional :: reals(:)
    type(kernel_value), intent(in), optional :: arguments(:)
    character(*), intent(inout) :: wrong
    integer :: counts(3), i

    counts = 0
    if (present(arguments)) counts(1) = size(arguments)
    if (present(integers)) counts(2) = size(integers)
    if (present(reals)) counts(3) = size(reals)
    given = sum(counts)
    if (given > size(values)) then
      wrong = 'more than 64 values'
      return
    end if
    do i = 1, counts(1)
      values(i) = slot(arguments(i)%kind, arguments(i)%bits, arguments(i)%local_bytes)
    end do
    do i = 1, counts(2)
      values(counts(1) + i)%kind = ARG_INT32
      values(counts(1) + i)%bits(1) = integers(i)
    end do
    do i = 1, counts(3)
      values(counts(1) + counts(2) + i)%kind = ARG_REAL32
      values(counts(1) + counts(2) + i)%bits(1) = transfer(reals(i), 0_int32)
    end do
  end subroutine

  ! Checks that each value has the type that the program was compiled with.
  subroutine check_values(program, values, wrong)
    type(compute_program), intent(in) :: program
    type(slot), intent(in) :: values(:)
    character(*), intent(inout) :: wrong
    integer :: i, at

    at = 0
    do i = 1, program%argument_count
      if (is_buffer(program%arguments(i))) cycle
      at = at + 1
      if (at > size(values)) then
        write (wrong, '(a, i0, 2a)') 'argument ', i, ' is missing: ', word(program%arguments(i))
        return
      else if (values(at)%kind /= program%arguments(i)) then
        write (wrong, '(a, i0, 4a)') 'argument ', i, ' is ', trim(word(values(at)%kind)), &
          ' where the program has ', word(program%arguments(i))
        return
      end if
    end do
    if (at < size(values)) write (wrong, '(i0, a, i0, a)') size(values), ' values for a program with ', at, ' of them'
  end subroutine

  pure function word(argument) result(text)
    integer, intent(in) :: argument
    character(19) :: text

    text = 'no value'
    if (argument == ARG_INT32) text = 'an integer(int32)'
    if (argument == ARG_INT64) text = 'an integer(int64)'
    if (argument == ARG_REAL32) text = 'a real(real32)'
    if (argument == ARG_REAL64) text = 'a real(real64)'
    if (argument == ARG_LOCAL) text = 'local memory'
  end function

  ! Checks that the program's access to each bound buffer is within the access that the buffer was created for. Tells the first mistake.
  subroutine check_bound(program, wrong)
    type(compute_program), intent(in) :: program
    character(*), intent(inout) :: wrong
    type(onebuf_buffer) :: handle
    integer :: i, point

    point = -1
    do i = 1, program%argument_count
      if (.not. is_buffer(program%arguments(i))) cycle
      point = point + 1
      handle = buffer_handle(bound(point))
      if (handle%id == 0) then
        write (wrong, '(a, i0)') 'no buffer is bound to binding point ', point
        return
      else if (all(buffer_access_mode(bound(point)) /= [BUFFER_READ_WRITE, program%arguments(i)])) then
        write (wrong, '(a, i0, a)') 'the buffer at binding point ', point, ' was made for another access'
        return
      end if
    end do
  end subroutine

  ! Without `buffers` the bound ones are used.
  function launch(program, queue, grid, values, fence, buffers) result(status)
    type(compute_program), intent(in) :: program
    type(onebuf_queue), intent(in) :: queue
    type(onebuf_grid), intent(in) :: grid
    type(slot), intent(in), target :: values(:)
    type(gpu_fence), intent(inout), optional, target :: fence
    type(onebuf_buffer), intent(in), optional :: buffers(0:)
    integer(c_int32_t) :: status
    ! Compilers put arrays of unknown size on the heap.
    type(onebuf_arg) :: few(8)
    type(onebuf_arg), allocatable :: many(:)

    if (program%argument_count <= size(few)) then
      status = launch_with(few(:program%argument_count), program, queue, grid, values, fence, buffers)
    else
      allocate (many(program%argument_count))
      status = launch_with(many, program, queue, grid, values, fence, buffers)
    end if
  end function

  function launch_with(args, program, queue, grid, values, fence, buffers) result(status)
    type(onebuf_arg), intent(inout), contiguous :: args(:)
    type(compute_program), intent(in) :: program
    type(onebuf_queue), intent(in) :: queue
    type(onebuf_grid), intent(in) :: grid
    type(slot), intent(in), target :: values(:)
    type(gpu_fence), intent(inout), optional, target :: fence
    type(onebuf_buffer), intent(in), optional :: buffers(0:)
    integer(c_int32_t) :: status
    type(onebuf_fence), target :: reached
    type(c_ptr) :: wanted
    integer :: i, point, at

    point = -1
    at = 0
    do i = 1, program%argument_count
      if (is_buffer(program%arguments(i))) then
        point = point + 1
        ! Ends the CPU's access.
        args(i)%kind = ONEBUF_ARG_TURN
        args(i)%access = kernel_access(program%arguments(i))
        if (present(buffers)) then
          args(i)%buffer = buffers(point)
        else
          args(i)%buffer = buffer_handle(bound(point))
        end if
        cycle
      end if
      at = at + 1
      args(i)%kind = kind_of(program%arguments(i))
      if (args(i)%kind == ONEBUF_ARG_LOCAL) then
        args(i)%bytes = int(max(values(at)%local_bytes, 0_int64), c_size_t)
      else
        args(i)%value = c_loc(values(at)%bits)
        args(i)%bytes = bytes_of(program%arguments(i))
      end if
    end do
    wanted = c_null_ptr
    if (present(fence)) wanted = c_loc(reached)
    status = onebuf_queue_launch(queue, program%handle, grid, args, int(size(args), c_size_t), wanted)
    if (status == ONEBUF_OK .and. present(fence)) status = adopt_fence(fence, reached)
  end function

  ! An argument of a kernel in Fortran, counted from 1, in the order of `bindings`, integers and reals. Without data if there is none.
  function native_argument(launch, index, stat, errmsg) result(argument)
    type(onebuf_native_call), intent(in) :: launch
    integer, intent(in) :: index
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(native_arg) :: argument
    type(onebuf_native_arg), pointer :: all(:)

    if (index < 1 .or. index > launch%arg_count) then
      call refuse(ONEBUF_INVALID_ARGUMENT, 'native_argument: the kernel has no argument of this number', stat, errmsg, &
        returns=.true.)
      return
    end if
    call succeed(stat, errmsg)
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
    to%device = from%device
    to%argument_count = from%argument_count
    to%arguments = from%arguments
  end subroutine

  impure elemental subroutine finish(program)
    type(compute_program), intent(inout), target :: program

    call report(onebuf_disown(c_loc(program%handle%id)), 'ending a compute_program')
  end subroutine
end module
