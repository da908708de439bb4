! Untyped buffers: created, and shared by assignment. gpu_buffer_access has the CPU's access to them, gpu_buffer_state what is known about one.
module gpu_buffer_core
  use, intrinsic :: iso_fortran_env, only: int32, int64
  use onebuf_c
  use gpu_errors, only: report, refuse, succeed
  use gpu_session, only: session, need_session, gpu_device_name
  implicit none
  private
  public :: unified_buffer, create_unified_buffer, destroy_unified_buffer, buffer_is_valid
  public :: buffer_size_bytes, buffer_access_mode, buffer_memory_hint, buffer_gl_name
  public :: BUFFER_READ_ONLY, BUFFER_WRITE_ONLY, BUFFER_READ_WRITE
  public :: MEMORY_CPU_PREFERRED, MEMORY_GPU_PREFERRED, MEMORY_COHERENT, MEMORY_STREAMING
  public :: MEMORY_KIND_ANY, MEMORY_KIND_HOST_PAGES, MEMORY_KIND_FINE_SVM, MEMORY_KIND_COARSE_SVM, MEMORY_KIND_MAPPED_DEVICE
  public :: MEMORY_KIND_ON_CHIP, MEMORY_KIND_DEVICE, MEMORY_KIND_EXPORTABLE
  public :: buffer_handle, make_buffer, set_buffer, give_buffer, shape_of, mode_exists, kernel_access, cpu_access, offset_of

  ! How the CPU accesses a buffer. If the CPU only writes it, kernels only read it.
  integer, parameter :: BUFFER_READ_ONLY = 1
  integer, parameter :: BUFFER_WRITE_ONLY = 2
  integer, parameter :: BUFFER_READ_WRITE = 3

  ! The expected use of a buffer.
  integer, parameter :: MEMORY_CPU_PREFERRED = 1
  integer, parameter :: MEMORY_GPU_PREFERRED = 2
  integer, parameter :: MEMORY_COHERENT = 3
  integer, parameter :: MEMORY_STREAMING = 4

  ! The kind of memory that is allocated, for programs that need one: ordinary pages; SVM that CPU and GPU access at the same time, or in
  ! turn; device memory that the driver maps for the CPU; memory on the chip; device memory that the CPU reaches by copies; device memory that
  ! export_buffer shares.
  integer, parameter :: MEMORY_KIND_ANY = 0
  integer, parameter :: MEMORY_KIND_HOST_PAGES = 1
  integer, parameter :: MEMORY_KIND_FINE_SVM = 2
  integer, parameter :: MEMORY_KIND_COARSE_SVM = 3
  integer, parameter :: MEMORY_KIND_MAPPED_DEVICE = 4
  integer, parameter :: MEMORY_KIND_ON_CHIP = 5
  integer, parameter :: MEMORY_KIND_DEVICE = 6
  integer, parameter :: MEMORY_KIND_EXPORTABLE = 7

  ! Memory that CPU and GPU both access. Assigned variables share it, and it is freed with the last of them.
  !
  ! Compilers differ in what they copy and finalize implicitly. So the library counts variables, by their addresses: a
  ! copy that no assignment made (a value argument, a structure constructor, source=) owns nothing and frees nothing,
  ! and one address owns at most one buffer. INTENT(OUT) in the assignment matters: for INTENT(INOUT) gfortran assigns
  ! components by way of a temporary, whose address is reused soon.
  type :: unified_buffer
    private
    type(onebuf_buffer) :: handle
    integer(int64) :: size_bytes = 0
    integer :: access_mode = BUFFER_READ_WRITE
    integer :: memory_hint = MEMORY_COHERENT
    integer :: gl_name = 0
  contains
    procedure, private :: assign
    generic :: assignment(=) => assign
    final :: finish
  end type

  ! A generic name has each of `size` and `alignment` as int32 and as int64.
  interface create_unified_buffer
    module procedure create_int32, create_int64, create_int32_int64, create_int64_int64
  end interface

  ! Without stat= these are pure, so that they may stand in specification expressions.
  interface buffer_size_bytes
    module procedure size_only, size_with_stat
  end interface

  interface buffer_access_mode
    module procedure mode_only, mode_with_stat
  end interface

  interface buffer_memory_hint
    module procedure hint_only, hint_with_stat
  end interface

  interface buffer_gl_name
    module procedure name_only, name_with_stat
  end interface

contains

  ! Creates a buffer of `size` bytes, which are zero. Assign the result: buffers are owned by variables. `alignment` is a power of two.
  function create_int64(size, access_mode, memory_hint, stat, errmsg, alignment, memory_kind) result(buffer)
    integer(int64), intent(in) :: size
    integer, intent(in) :: access_mode
    integer, intent(in), optional :: memory_hint
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(int32), intent(in), optional :: alignment
    integer, intent(in), optional :: memory_kind
    type(unified_buffer) :: buffer

    call create(buffer, size, access_mode, offset_of(alignment), memory_hint, stat, errmsg, memory_kind)
  end function

  function create_int32(size, access_mode, memory_hint, stat, errmsg, alignment, memory_kind) result(buffer)
    integer(int32), intent(in) :: size
    integer, intent(in) :: access_mode
    integer, intent(in), optional :: memory_hint
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(int32), intent(in), optional :: alignment
    integer, intent(in), optional :: memory_kind
    type(unified_buffer) :: buffer

    call create(buffer, int(size, int64), access_mode, offset_of(alignment), memory_hint, stat, errmsg, memory_kind)
  end function

  function create_int64_int64(size, access_mode, memory_hint, stat, errmsg, alignment, memory_kind) result(buffer)
    integer(int64), intent(in) :: size
    integer, intent(in) :: access_mode
    integer, intent(in), optional :: memory_hint
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(int64), intent(in) :: alignment
    integer, intent(in), optional :: memory_kind
    type(unified_buffer) :: buffer

    call create(buffer, size, access_mode, alignment, memory_hint, stat, errmsg, memory_kind)
  end function

  function create_int32_int64(size, access_mode, memory_hint, stat, errmsg, alignment, memory_kind) result(buffer)
    integer(int32), intent(in) :: size
    integer, intent(in) :: access_mode
    integer, intent(in), optional :: memory_hint
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(int64), intent(in) :: alignment
    integer, intent(in), optional :: memory_kind
    type(unified_buffer) :: buffer

    call create(buffer, int(size, int64), access_mode, alignment, memory_hint, stat, errmsg, memory_kind)
  end function

  subroutine create(buffer, size, access_mode, alignment, memory_hint, stat, errmsg, memory_kind)
    type(unified_buffer), intent(inout) :: buffer
    integer(int64), intent(in) :: size, alignment
    integer, intent(in) :: access_mode
    integer, intent(in), optional :: memory_hint
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: memory_kind
    type(onebuf_pool) :: no_pool

    call make_buffer(buffer, 'create_unified_buffer', size, access_mode, alignment, no_pool, 0_int64, memory_hint, stat, &
      errmsg, memory_kind)
  end subroutine

  ! Creates a buffer in a function's result, which gets an owner when it is assigned; in a pool unless that is null.
  subroutine make_buffer(buffer, me, size, access_mode, alignment, pool, timeout_ms, memory_hint, stat, errmsg, &
    memory_kind)
    type(unified_buffer), intent(inout) :: buffer
    character(*), intent(in) :: me
    integer(int64), intent(in) :: size, alignment, timeout_ms
    integer, intent(in) :: access_mode
    type(onebuf_pool), intent(in) :: pool
    integer, intent(in), optional :: memory_hint
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: memory_kind
    type(onebuf_buffer_options) :: options
    integer(c_int32_t) :: status
    character(:), allocatable :: wrong

    buffer%access_mode = access_mode
    if (present(memory_hint)) buffer%memory_hint = memory_hint
    wrong = mistake(size, alignment, buffer, memory_kind)
    if (wrong /= '') then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': '//wrong, stat, errmsg, returns=.true.)
      return
    end if
    call need_session(stat, errmsg, returns=.true.)
    if (session%hub%id == 0) return
    options = shape_of(access_mode, buffer%memory_hint)
    options%align = int(alignment, c_size_t)
    if (present(memory_kind)) call choose_kind(options, memory_kind)
    ! What the CPU does not do is not asked for: the driver may choose write-combined or cached memory. Where the library
    ! needs both kinds of access itself, because the CPU reaches the memory by copies, it is asked for both.
    ! Pools keep buffers of full access.
    if (session%open_count == 1 .and. pool%id == 0) options%host_access = host_access(access_mode)
    status = obtain(size, options, pool, timeout_ms, buffer)
    if (status == ONEBUF_UNSUPPORTED .and. options%host_access /= ONEBUF_HOST_READ_WRITE) then
      options%host_access = ONEBUF_HOST_READ_WRITE
      status = obtain(size, options, pool, timeout_ms, buffer)
    end if
    call report(status, me, stat, errmsg, returns=.true.)
    if (status /= ONEBUF_OK) return
    buffer%size_bytes = size
    buffer%gl_name = gl_name_of(buffer)
  end subroutine

  ! The options of a buffer that all open devices and the CPU use.
  function shape_of(access_mode, memory_hint) result(options)
    integer, intent(in) :: access_mode, memory_hint
    type(onebuf_buffer_options) :: options

    options%size = int(storage_size(options)/8, c_size_t)
    options%devices = c_loc(session%devices)
    options%device_count = int(session%device_count, c_size_t)
    options%access = kernel_access(access_mode)
    options%hint = int(memory_hint, c_int32_t)
    ! Device memory that is mapped for the CPU needs only one allocation; CPU memory might need a second one for the
    ! device. Among several devices the library chooses.
    if (session%open_count == 1) options%allocate_on = session%devices(1)
  end function

  ! The kind decides where the memory is allocated.
  subroutine choose_kind(options, memory_kind)
    type(onebuf_buffer_options), intent(inout) :: options
    integer, intent(in) :: memory_kind

    if (memory_kind == MEMORY_KIND_ANY) return
    options%memory_kind = int(memory_kind, c_int32_t)
    options%allocate_on%id = 0
  end subroutine

  function obtain(size, options, pool, timeout_ms, buffer) result(status)
    integer(int64), intent(in) :: size, timeout_ms
    type(onebuf_buffer_options), intent(in) :: options
    type(onebuf_pool), intent(in) :: pool
    type(unified_buffer), intent(inout) :: buffer
    integer(c_int32_t) :: status

    if (pool%id == 0) then
      status = onebuf_buffer_create(session%hub, int(size, c_size_t), options, buffer%handle)
    else
      status = onebuf_pool_get(pool, int(size, c_size_t), options, timeout_ms, buffer%handle)
    end if
  end function

  ! Names a buffer in a function's result, which gets an owner when it is assigned.
  subroutine set_buffer(buffer, handle, access_mode)
    type(unified_buffer), intent(inout) :: buffer
    type(onebuf_buffer), intent(in) :: handle
    integer, intent(in) :: access_mode
    integer(c_size_t) :: bytes

    buffer%handle = handle
    buffer%access_mode = access_mode
    if (onebuf_buffer_size(handle, bytes) == ONEBUF_OK) buffer%size_bytes = int(bytes, int64)
  end subroutine

  ! Reports the status of a function that makes a buffer, and names the buffer in its result.
  subroutine give_buffer(buffer, handle, access_mode, status, me, stat, errmsg)
    type(unified_buffer), intent(inout) :: buffer
    type(onebuf_buffer), intent(in) :: handle
    integer, intent(in) :: access_mode
    integer(c_int32_t), intent(in) :: status
    character(*), intent(in) :: me
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(status, me, stat, errmsg, returns=.true.)
    if (status == ONEBUF_OK) call set_buffer(buffer, handle, access_mode)
  end subroutine

  ! Whether an access mode exists. A mistake has been reported.
  function mode_exists(me, access_mode, stat, errmsg, returns) result(exists)
    character(*), intent(in) :: me
    integer, intent(in) :: access_mode
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical, intent(in), optional :: returns
    logical :: exists

    exists = access_mode >= BUFFER_READ_ONLY .and. access_mode <= BUFFER_READ_WRITE
    if (.not. exists) call refuse(ONEBUF_INVALID_ARGUMENT, me//': no such access_mode: choose BUFFER_READ_ONLY, '// &
      'BUFFER_WRITE_ONLY or BUFFER_READ_WRITE', stat, errmsg, returns)
  end function

  ! The name of the OpenGL buffer, if the first device is one of OpenGL's; 0 if not.
  function gl_name_of(buffer) result(name)
    type(unified_buffer), intent(in) :: buffer
    integer :: name
    type(onebuf_view) :: view
    integer(c_int32_t) :: found, ignored

    name = 0
    if (index(gpu_device_name(), 'gl') /= 1) return
    if (onebuf_view_take(buffer%handle, session%queues(1), ONEBUF_READ, view) /= ONEBUF_OK) return
    if (onebuf_view_gl_name(view, found) == ONEBUF_OK) name = int(found)
    ignored = onebuf_view_free(view)
  end function

  ! What is wrong with a request; empty if nothing is.
  function mistake(size, alignment, buffer, memory_kind) result(wrong)
    integer(int64), intent(in) :: size, alignment
    type(unified_buffer), intent(in) :: buffer
    integer, intent(in), optional :: memory_kind
    character(:), allocatable :: wrong

    wrong = ''
    if (size <= 0) wrong = 'the size must be at least one byte'
    if (buffer%access_mode < BUFFER_READ_ONLY .or. buffer%access_mode > BUFFER_READ_WRITE) &
      wrong = 'no such access_mode: choose BUFFER_READ_ONLY, BUFFER_WRITE_ONLY or BUFFER_READ_WRITE'
    if (buffer%memory_hint < MEMORY_CPU_PREFERRED .or. buffer%memory_hint > MEMORY_STREAMING) &
      wrong = 'no such memory_hint: choose one of the MEMORY_ constants'
    if (alignment < 0 .or. iand(alignment, alignment - 1) /= 0) wrong = 'the alignment must be a power of two'
    if (.not. present(memory_kind)) return
    if (memory_kind < MEMORY_KIND_ANY .or. memory_kind > MEMORY_KIND_EXPORTABLE) &
      wrong = 'no such memory_kind: choose one of the MEMORY_KIND_ constants'
  end function

  ! Releases the buffer: it is freed if this was the last variable that shared it, after the GPU has finished using it.
  subroutine destroy_unified_buffer(buffer, stat, errmsg)
    type(unified_buffer), intent(inout), target :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_own(c_loc(buffer%handle%id), 0_c_int64_t), 'destroy_unified_buffer', stat, errmsg)
    buffer%handle%id = 0
    buffer%size_bytes = 0
    buffer%gl_name = 0
  end subroutine

  ! Whether the variable holds a buffer that exists.
  function buffer_is_valid(buffer, stat, errmsg) result(valid)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: valid
    integer(c_size_t) :: bytes

    valid = .false.
    if (buffer%handle%id /= 0) valid = onebuf_buffer_size(buffer%handle, bytes) == ONEBUF_OK
    call succeed(stat, errmsg)
  end function

  ! Size in bytes; zero for no buffer.
  pure function size_only(buffer) result(bytes)
    type(unified_buffer), intent(in) :: buffer
    integer(int64) :: bytes

    bytes = buffer%size_bytes
  end function

  function size_with_stat(buffer, stat, errmsg) result(bytes)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out) :: stat
    character(*), intent(inout), optional :: errmsg
    integer(int64) :: bytes

    bytes = buffer%size_bytes
    call succeed(stat, errmsg)
  end function

  ! How the CPU accesses it: BUFFER_READ_ONLY, BUFFER_WRITE_ONLY or BUFFER_READ_WRITE.
  pure function mode_only(buffer) result(mode)
    type(unified_buffer), intent(in) :: buffer
    integer :: mode

    mode = buffer%access_mode
  end function

  function mode_with_stat(buffer, stat, errmsg) result(mode)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out) :: stat
    character(*), intent(inout), optional :: errmsg
    integer :: mode

    mode = buffer%access_mode
    call succeed(stat, errmsg)
  end function

  ! The expected use: one of the MEMORY_ constants.
  pure function hint_only(buffer) result(hint)
    type(unified_buffer), intent(in) :: buffer
    integer :: hint

    hint = buffer%memory_hint
  end function

  function hint_with_stat(buffer, stat, errmsg) result(hint)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out) :: stat
    character(*), intent(inout), optional :: errmsg
    integer :: hint

    hint = buffer%memory_hint
    call succeed(stat, errmsg)
  end function

  ! The name of the OpenGL buffer in the library's context; 0 if the device is not one of OpenGL's.
  pure function name_only(buffer) result(name)
    type(unified_buffer), intent(in) :: buffer
    integer :: name

    name = buffer%gl_name
  end function

  function name_with_stat(buffer, stat, errmsg) result(name)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out) :: stat
    character(*), intent(inout), optional :: errmsg
    integer :: name

    name = buffer%gl_name
    call succeed(stat, errmsg)
  end function

  ! --- For the other modules --------------------------------------------------------------------------------------------

  elemental function buffer_handle(buffer) result(handle)
    type(unified_buffer), intent(in) :: buffer
    type(onebuf_buffer) :: handle

    handle = buffer%handle
  end function

  ! An optional offset or alignment: zero if it is absent.
  pure function offset_of(offset) result(value)
    integer(int32), intent(in), optional :: offset
    integer(int64) :: value

    value = 0
    if (present(offset)) value = int(offset, int64)
  end function

  ! How kernels access a buffer of a mode: the reverse of the CPU's access.
  pure function kernel_access(mode) result(access)
    integer, intent(in) :: mode
    integer(c_int32_t) :: access

    access = ONEBUF_READ_WRITE
    if (mode == BUFFER_WRITE_ONLY) access = ONEBUF_READ
    if (mode == BUFFER_READ_ONLY) access = ONEBUF_WRITE
  end function

  ! How the CPU accesses a buffer of a mode.
  pure function cpu_access(mode) result(access)
    integer, intent(in) :: mode
    integer(c_int32_t) :: access

    access = ONEBUF_READ_WRITE
    if (mode == BUFFER_READ_ONLY) access = ONEBUF_READ
    if (mode == BUFFER_WRITE_ONLY) access = ONEBUF_WRITE
  end function

  pure function host_access(mode) result(access)
    integer, intent(in) :: mode
    integer(c_int32_t) :: access

    access = ONEBUF_HOST_READ_WRITE
    if (mode == BUFFER_READ_ONLY) access = ONEBUF_HOST_READ
    if (mode == BUFFER_WRITE_ONLY) access = ONEBUF_HOST_WRITE
  end function

  ! --- Variables that share a buffer -----------------------------------------------------------------------------------

  impure elemental subroutine assign(to, from)
    class(unified_buffer), intent(out), target :: to
    class(unified_buffer), intent(in) :: from

    call report(onebuf_own(c_loc(to%handle%id), from%handle%id), 'assigning a unified_buffer')
    to%handle = from%handle
    to%size_bytes = from%size_bytes
    to%access_mode = from%access_mode
    to%memory_hint = from%memory_hint
    to%gl_name = from%gl_name
  end subroutine

  ! Nothing is written here: gfortran 12 finalizes array components at wrong addresses.
  impure elemental subroutine finish(buffer)
    type(unified_buffer), intent(inout), target :: buffer

    call report(onebuf_disown(c_loc(buffer%handle%id)), 'ending a unified_buffer')
  end subroutine
end module
