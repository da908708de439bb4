! Compute programs on unified buffers. The arguments of a kernel are those that `bindings` lists, then its integers, then its reals.
! Buffers have binding points from 0 on, in their order. In GLSL all values are one std140 uniform block, bound after the buffers.
module gpu_programs
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
  use onebuf_c
  use gpu_errors, only: report, refuse, succeed
  use gpu_native_kernels, only: native_kernel
  use gpu_program_build, only: build_kernel
  use gpu_session, only: session, need_device
  use gpu_fence_primitives, only: gpu_fence, adopt_fence
  use gpu_buffer_core
  use gpu_extents, only: extents, extents_of, tell_sizes
  implicit none
  private
  public :: compute_program
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
    ! The same as the C interface has them.
    integer(c_int32_t) :: kinds(MAX_ARGUMENTS) = 0
    integer(c_int32_t) :: accesses(MAX_ARGUMENTS) = 0
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

  ! A onebuf_arg without initial values: a launch sets those that it needs.
  type, bind(c) :: plain_arg
    integer(c_int32_t) :: kind, access
    integer(c_int64_t) :: buffer, view
    type(c_ptr) :: value
    integer(c_size_t) :: bytes
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

  ! The buffers at the binding points, for all programs. They are kept alive until others are bound there.
  type(unified_buffer), save, target :: bound(0:MAX_BINDINGS - 1)
  ! What every launch needs of them.
  type(onebuf_buffer), save :: bound_handles(0:MAX_BINDINGS - 1)
  integer, save :: bound_modes(0:MAX_BINDINGS - 1) = BUFFER_READ_WRITE

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
    integer(c_int32_t) :: status
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
    do number = 1, program%argument_count
      program%kinds(number) = kind_of(program%arguments(number))
      program%accesses(number) = kernel_access(program%arguments(number))
    end do
    number = need_device(me, device, stat, errmsg, returns=.true.)
    if (number == 0) return
    program%device = number
    if (present(graft_to)) number = need_device(me, graft_to, stat, errmsg, returns=.true.)
    if (number == 0) return
    run = c_null_funptr
    if (present(native)) run = c_funloc(native)
    status = build_kernel(program%device, number, kernel, declared(program%arguments(:program%argument_count)), run, &
      program%handle, opencl_c, glsl, cuda_c, hip_c, ptx, compiler_options)
    if (status == ONEBUF_OK) program%device = number
    call report(status, me, stat, errmsg, returns=.true.)
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

  ! The arguments of a kernel for the C interface.
  function declared(arguments) result(params)
    integer, intent(in) :: arguments(:)
    type(onebuf_param) :: params(size(arguments))
    integer :: i

    do i = 1, size(params)
      params(i)%kind = kind_of(arguments(i))
      if (is_buffer(arguments(i))) then
        params(i)%access = kernel_access(arguments(i))
      else if (params(i)%kind /= ONEBUF_ARG_LOCAL) then
        params(i)%bytes = bytes_of(arguments(i))
      end if
    end do
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
    type(onebuf_buffer) :: now

    if (binding < 0 .or. binding >= MAX_BINDINGS) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//'binding points are 0 to 15', stat, errmsg)
    else if (.not. buffer_is_valid(buffer)) then
      call refuse(ONEBUF_INVALID_HANDLE, me//'no buffer, or one that was destroyed', stat, errmsg)
    else
      now = buffer_handle(buffer)
      if (bound_handles(binding)%id /= now%id) bound(binding) = buffer
      bound_handles(binding) = now
      bound_modes(binding) = buffer_access_mode(buffer)
      if (present(stat)) stat = 0
    end if
  end subroutine

  ! Releases all bound buffers.
  subroutine unbind_shader_buffers(stat, errmsg)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(unified_buffer) :: none

    bound = none
    bound_handles = buffer_handle(none)
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
    type(extents) :: sizes

    if (size(work_items) == 1 .and. .not. present(group)) then
      ! The most common form: this module is compiled apart from that of the extents, and a call takes longer.
      sizes%grid%dims = 1
      sizes%grid%global(1) = int(work_items(1), c_size_t)
      sizes%fit = work_items(1) >= 1
    else
      sizes = extents_of(work_items, group)
    end if
    call launch('dispatch_compute', program, session%queues(program%device), session%device_count > 1, bound_handles, &
      bound_modes, sizes, integers, reals, arguments, fence, stat, errmsg)
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

    call launch('dispatch_compute', program, session%queues(program%device), session%device_count > 1, bound_handles, &
      bound_modes, extents_of(work_items, group), integers, reals, arguments, fence, stat, errmsg)
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

    call launch('dispatch_compute', program, session%queues(program%device), session%device_count > 1, bound_handles, &
      bound_modes, extents_of(work_items, group), integers, reals, arguments, fence, stat, errmsg)
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

    call launch('dispatch_compute', program, session%queues(program%device), session%device_count > 1, bound_handles, &
      bound_modes, extents_of(work_items, group), integers, reals, arguments, fence, stat, errmsg)
  end subroutine

  ! Launches a program on these buffers, from binding point 0 on, and on that queue: for other modules. `me` names the caller.
  subroutine dispatch_on(me, program, queue, buffers, sizes, integers, reals, stat, errmsg, arguments)
    character(*), intent(in) :: me
    type(compute_program), intent(in) :: program
    type(onebuf_queue), intent(in) :: queue
    type(onebuf_buffer), intent(in) :: buffers(:)
    type(extents), intent(in) :: sizes
    integer(int32), intent(in), optional :: integers(:)
    real(real32), intent(in), optional :: reals(:)
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(kernel_value), intent(in), optional :: arguments(:)
    integer, parameter :: any_mode(0:MAX_BINDINGS - 1) = BUFFER_READ_WRITE
    character(120) :: wrong
    integer :: needed

    needed = count(is_buffer(program%arguments))
    if (program%handle%id /= 0 .and. needed /= size(buffers)) then
      write (wrong, '(i0, a, i0)') size(buffers), ' buffers for a program with ', needed
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': '//trim(wrong), stat, errmsg)
    else
      call launch(me, program, queue, .false., buffers, any_mode, sizes, integers, reals, arguments, stat=stat, errmsg=errmsg)
    end if
  end subroutine

  ! Checks and launches in one pass over the arguments; the library reads the values where the caller has them. `buffers` and `modes` are
  ! those of the binding points. `flushes`: so that the device begins, which the host has done.
  subroutine launch(me, program, queue, flushes, buffers, modes, sizes, integers, reals, arguments, fence, stat, errmsg)
    character(*), intent(in) :: me
    type(compute_program), intent(in) :: program
    type(onebuf_queue), intent(in) :: queue
    logical, intent(in) :: flushes
    type(onebuf_buffer), intent(in) :: buffers(0:*)
    integer, intent(in) :: modes(0:*)
    type(extents), intent(in) :: sizes
    integer(int32), intent(in), optional, target :: integers(:)
    real(real32), intent(in), optional, target :: reals(:)
    type(kernel_value), intent(in), optional, target :: arguments(:)
    type(gpu_fence), intent(inout), optional, target :: fence
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(plain_arg), target :: plain(MAX_ARGUMENTS)
    type(onebuf_arg), pointer, contiguous :: args(:)
    type(onebuf_fence), target :: reached
    type(c_ptr) :: wanted, first
    integer(c_int32_t) :: status
    integer :: counts(3), i, point, at, what
    logical :: fits

    counts = 0
    if (present(arguments)) counts(1) = size(arguments)
    if (present(integers)) counts(2) = size(integers)
    if (present(reals)) counts(3) = size(reals)
    fits = program%handle%id /= 0 .and. program%device <= session%open_count .and. sizes%fit
    point = 0
    at = 0
    do i = 1, program%argument_count
      if (.not. fits) exit
      what = program%arguments(i)
      plain(i)%view = 0
      if (is_buffer(what)) then
        fits = buffers(point)%id /= 0 .and. (modes(point) == BUFFER_READ_WRITE .or. modes(point) == what)
        ! Ends the CPU's access.
        plain(i)%kind = ONEBUF_ARG_TURN
        plain(i)%access = program%accesses(i)
        plain(i)%buffer = buffers(point)%id
        plain(i)%value = c_null_ptr
        plain(i)%bytes = 0
        point = point + 1
        cycle
      end if
      plain(i)%kind = program%kinds(i)
      plain(i)%access = 0
      plain(i)%buffer = 0
      plain(i)%bytes = bytes_of(what)
      at = at + 1
      if (at <= counts(1)) then
        fits = arguments(at)%kind == what
        plain(i)%value = c_loc(arguments(at)%bits)
        if (what == ARG_LOCAL) then
          plain(i)%value = c_null_ptr
          plain(i)%bytes = int(max(arguments(at)%local_bytes, 0_int64), c_size_t)
        end if
      else if (at <= counts(1) + counts(2)) then
        fits = what == ARG_INT32
        plain(i)%value = c_loc(integers(at - counts(1)))
      else
        fits = what == ARG_REAL32 .and. at <= sum(counts)
        if (fits) plain(i)%value = c_loc(reals(at - counts(1) - counts(2)))
      end if
    end do
    if (.not. fits .or. at /= sum(counts)) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': '//mistake_in(program, buffers, modes, sizes, counts, arguments), stat, errmsg)
      return
    end if
    wanted = c_null_ptr
    if (present(fence)) wanted = c_loc(reached)
    first = c_loc(plain)
    call c_f_pointer(first, args, [program%argument_count])
    status = onebuf_queue_launch(queue, program%handle, sizes%grid, args, int(program%argument_count, c_size_t), wanted)
    if (status == ONEBUF_OK .and. present(fence)) status = adopt_fence(fence, reached)
    if (status == ONEBUF_OK .and. flushes) status = onebuf_queue_flush(queue)
    if (status /= ONEBUF_OK) then
      call report(status, me, stat, errmsg)
    else if (present(stat)) then
      stat = 0
    end if
  end subroutine

  ! What is wrong with a launch.
  function mistake_in(program, buffers, modes, sizes, counts, arguments) result(text)
    type(compute_program), intent(in) :: program
    type(onebuf_buffer), intent(in) :: buffers(0:*)
    integer, intent(in) :: modes(0:*), counts(3)
    type(extents), intent(in) :: sizes
    type(kernel_value), intent(in), optional :: arguments(:)
    character(:), allocatable :: text
    integer :: kinds(MAX_ARGUMENTS)
    character(120) :: wrong

    wrong = ''
    if (program%handle%id == 0) then
      wrong = 'no program, or one that was destroyed'
    else if (program%device > session%open_count) then
      wrong = 'the program''s device is not open any more'
    else
      call tell_sizes(sizes, wrong)
    end if
    if (wrong == '' .and. sum(counts) > size(kinds)) wrong = 'more than 64 values'
    if (wrong == '') then
      if (present(arguments)) kinds(:counts(1)) = arguments%kind
      kinds(counts(1) + 1:counts(1) + counts(2)) = ARG_INT32
      kinds(counts(1) + counts(2) + 1:sum(counts)) = ARG_REAL32
      call tell_values(program, kinds(:sum(counts)), wrong)
    end if
    if (wrong == '') call tell_buffers(program, buffers, modes, wrong)
    text = trim(wrong)
  end function

  ! Says which value does not have the type that the program was compiled with.
  subroutine tell_values(program, kinds, wrong)
    type(compute_program), intent(in) :: program
    integer, intent(in) :: kinds(:)
    character(*), intent(inout) :: wrong
    integer :: i, at

    at = 0
    do i = 1, program%argument_count
      if (is_buffer(program%arguments(i))) cycle
      at = at + 1
      if (at > size(kinds)) then
        write (wrong, '(a, i0, 2a)') 'argument ', i, ' is missing: ', word(program%arguments(i))
        return
      else if (kinds(at) /= program%arguments(i)) then
        write (wrong, '(a, i0, 4a)') 'argument ', i, ' is ', trim(word(kinds(at))), &
          ' where the program has ', word(program%arguments(i))
        return
      end if
    end do
    if (at < size(kinds)) write (wrong, '(i0, a, i0, a)') size(kinds), ' values for a program with ', at, ' of them'
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

  ! Says which binding point has no buffer, or one that was created for less access than the program's.
  subroutine tell_buffers(program, buffers, modes, wrong)
    type(compute_program), intent(in) :: program
    type(onebuf_buffer), intent(in) :: buffers(0:*)
    integer, intent(in) :: modes(0:*)
    character(*), intent(inout) :: wrong
    integer :: i, point

    point = -1
    do i = 1, program%argument_count
      if (.not. is_buffer(program%arguments(i))) cycle
      point = point + 1
      if (buffers(point)%id == 0) then
        write (wrong, '(a, i0)') 'no buffer is bound to binding point ', point
        return
      else if (all(modes(point) /= [BUFFER_READ_WRITE, program%arguments(i)])) then
        write (wrong, '(a, i0, a)') 'the buffer at binding point ', point, ' was made for another access'
        return
      end if
    end do
  end subroutine

  impure elemental subroutine assign(to, from)
    class(compute_program), intent(out), target :: to
    class(compute_program), intent(in) :: from

    call report(onebuf_own(c_loc(to%handle%id), from%handle%id), 'assigning a compute_program')
    to%handle = from%handle
    to%device = from%device
    to%argument_count = from%argument_count
    to%arguments = from%arguments
    to%kinds = from%kinds
    to%accesses = from%accesses
  end subroutine

  impure elemental subroutine finish(program)
    type(compute_program), intent(inout), target :: program

    call report(onebuf_disown(c_loc(program%handle%id)), 'ending a compute_program')
  end subroutine
end module
