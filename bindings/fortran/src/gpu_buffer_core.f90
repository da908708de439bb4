! Untyped buffers: created, shared by assignment, handed between CPU and GPU, read and written as bytes.
module gpu_buffer_core
  use, intrinsic :: iso_fortran_env, only: int32, int64
  use onebuf_c
  use gpu_errors, only: report, refuse, taken_text
  use gpu_session, only: session, need_session
  implicit none
  private
  public :: unified_buffer, create_unified_buffer, destroy_unified_buffer, buffer_is_valid
  public :: buffer_size_bytes, explain_buffer, get_cpu_pointer
  public :: sync_to_gpu, sync_from_gpu, flush_buffer_range
  public :: BUFFER_READ_ONLY, BUFFER_WRITE_ONLY, BUFFER_READ_WRITE
  public :: MEMORY_CPU_PREFERRED, MEMORY_GPU_PREFERRED, MEMORY_COHERENT, MEMORY_STREAMING
  public :: store_elements, load_elements, open_for_cpu, element_count, kernel_access, NO_TIMEOUT

  ! How the CPU accesses a buffer. If the CPU only writes it, kernels only read it.
  integer, parameter :: BUFFER_READ_ONLY = 1
  integer, parameter :: BUFFER_WRITE_ONLY = 2
  integer, parameter :: BUFFER_READ_WRITE = 3

  ! The expected use of a buffer.
  integer, parameter :: MEMORY_CPU_PREFERRED = 1
  integer, parameter :: MEMORY_GPU_PREFERRED = 2
  integer, parameter :: MEMORY_COHERENT = 3
  integer, parameter :: MEMORY_STREAMING = 4

  ! A timeout that means the library's own.
  integer(int64), parameter :: NO_TIMEOUT = -1

  ! Memory that CPU and GPU both access. Assigned variables share it, and it is freed with the last of them.
  !
  ! Compilers differ in what they copy and finalize implicitly. So the library counts variables, by their addresses: a
  ! copy that no assignment made (a value argument, a structure constructor, source=) owns nothing and frees nothing,
  ! and one address owns at most one buffer. INTENT(OUT) in the assignment matters: for INTENT(INOUT) gfortran assigns
  ! components by way of a temporary, whose address is reused soon.
  type :: unified_buffer
    type(onebuf_handle) :: handle
    integer(int64) :: size_bytes = 0
    integer :: access_mode = BUFFER_READ_WRITE
    integer :: memory_hint = MEMORY_COHERENT
  contains
    procedure, private :: assign
    generic :: assignment(=) => assign
    final :: finish
  end type

  interface create_unified_buffer
    module procedure create_int32, create_int64
  end interface

contains

  ! Creates a buffer of `size` bytes, which are zero. Assign the result: buffers are owned by variables.
  function create_int64(size, access_mode, memory_hint, stat, errmsg) result(buffer)
    integer(int64), intent(in) :: size
    integer, intent(in) :: access_mode
    integer, intent(in), optional :: memory_hint
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(unified_buffer) :: buffer
    type(onebuf_buffer_options) :: options
    character(:), allocatable :: wrong

    buffer%access_mode = access_mode
    if (present(memory_hint)) buffer%memory_hint = memory_hint
    wrong = mistake(size, buffer)
    if (wrong /= '') then
      call refuse(ONEBUF_INVALID_ARGUMENT, 'create_unified_buffer: '//wrong, stat, errmsg)
      return
    end if
    call need_session(stat, errmsg)
    if (session%hub%id == 0) return
    options%size = int(storage_size(options)/8, c_size_t)
    options%devices = c_loc(session%devices)
    options%device_count = int(session%device_count, c_size_t)
    options%access = kernel_access(access_mode)
    ! Device memory that is mapped for the CPU needs only one allocation; CPU memory might need a second one for the
    ! device.
    options%allocate_on = session%devices(1)
    options%hint = int(buffer%memory_hint, c_int32_t)
    call report(onebuf_buffer_create(session%hub, int(size, c_size_t), options, buffer%handle), &
      'create_unified_buffer', stat, errmsg)
    if (buffer%handle%id /= 0) buffer%size_bytes = size
  end function

  function create_int32(size, access_mode, memory_hint, stat, errmsg) result(buffer)
    integer(int32), intent(in) :: size
    integer, intent(in) :: access_mode
    integer, intent(in), optional :: memory_hint
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(unified_buffer) :: buffer

    ! Copies the handle: the result of the other function has no owner either.
    associate (made => create_int64(int(size, int64), access_mode, memory_hint, stat, errmsg))
      buffer%handle = made%handle
      buffer%size_bytes = made%size_bytes
      buffer%access_mode = made%access_mode
      buffer%memory_hint = made%memory_hint
    end associate
  end function

  ! What is wrong with a request; empty if nothing is.
  function mistake(size, buffer) result(wrong)
    integer(int64), intent(in) :: size
    type(unified_buffer), intent(in) :: buffer
    character(:), allocatable :: wrong

    wrong = ''
    if (size <= 0) wrong = 'the size must be at least one byte'
    if (buffer%access_mode < BUFFER_READ_ONLY .or. buffer%access_mode > BUFFER_READ_WRITE) &
      wrong = 'no such access_mode: choose BUFFER_READ_ONLY, BUFFER_WRITE_ONLY or BUFFER_READ_WRITE'
    if (buffer%memory_hint < MEMORY_CPU_PREFERRED .or. buffer%memory_hint > MEMORY_STREAMING) &
      wrong = 'no such memory_hint: choose one of the MEMORY_ constants'
  end function

  ! Releases the buffer: it is freed if this was the last variable that shared it, after the GPU has finished using it.
  subroutine destroy_unified_buffer(buffer)
    type(unified_buffer), intent(inout), target :: buffer

    call report(onebuf_own(c_loc(buffer%handle%id), 0_c_int64_t), 'destroy_unified_buffer')
    buffer%handle%id = 0
    buffer%size_bytes = 0
  end subroutine

  ! Whether the variable holds a buffer that exists.
  function buffer_is_valid(buffer) result(valid)
    type(unified_buffer), intent(in) :: buffer
    logical :: valid
    integer(c_size_t) :: bytes

    valid = .false.
    if (buffer%handle%id /= 0) valid = onebuf_buffer_size(buffer%handle, bytes) == ONEBUF_OK
  end function

  ! Size in bytes; zero for no buffer.
  pure function buffer_size_bytes(buffer) result(bytes)
    type(unified_buffer), intent(in) :: buffer
    integer(int64) :: bytes

    bytes = buffer%size_bytes
  end function

  ! Explains where the buffer is allocated, by which route each device accesses it, and why no better route was chosen.
  function explain_buffer(buffer) result(text)
    type(unified_buffer), intent(in) :: buffer
    character(:), allocatable :: text
    type(onebuf_handle) :: string

    call report(onebuf_buffer_explain(buffer%handle, string), 'explain_buffer')
    text = taken_text(string)
  end function

  ! The CPU's address of the buffer's elements, given the element size in bytes. Waits for the GPU's last use. Valid
  ! until the next dispatch that has the buffer bound, or sync_to_gpu; then ask for it again.
  function get_cpu_pointer(buffer, element_size, stat, errmsg) result(address)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(in) :: element_size
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: address

    call open_for_cpu(buffer, element_size, -1_int64, 'get_cpu_pointer', address, stat, errmsg)
  end function

  ! The CPU has finished: the GPU sees what it wrote. Dispatches do this automatically.
  subroutine sync_to_gpu(buffer, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_buffer_to_device(buffer%handle), 'sync_to_gpu', stat, errmsg)
  end subroutine

  ! Waits for the GPU's last use: the CPU sees what it wrote. Reads and pointers do this automatically.
  subroutine sync_from_gpu(buffer, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: ignored

    call report(onebuf_buffer_to_host(buffer%handle, cpu_access(buffer), ignored), 'sync_from_gpu', &
      stat, errmsg)
  end subroutine

  ! Announces that the CPU has written `size_bytes` bytes from `offset_bytes` on. The hand-over to the GPU makes all writes
  ! visible; a range outside of the buffer is an error.
  subroutine flush_buffer_range(buffer, offset_bytes, size_bytes, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    integer(int64), intent(in) :: offset_bytes, size_bytes
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'flush_buffer_range: '

    if (.not. buffer_is_valid(buffer)) then
      call refuse(ONEBUF_INVALID_HANDLE, me//'no buffer, or one that was destroyed', stat, errmsg)
    else if (buffer%access_mode == BUFFER_READ_ONLY) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//'a BUFFER_READ_ONLY buffer is not written by the CPU', &
        stat, errmsg)
    else if (offset_bytes < 0 .or. size_bytes < 0 .or. offset_bytes > buffer%size_bytes - size_bytes) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//'the range is not inside the buffer', stat, errmsg)
    else if (present(stat)) then
      stat = 0
    end if
  end subroutine

  ! --- For the typed modules --------------------------------------------------------------------------------------------

  ! Writes elements at an offset, both counted in elements, with a timeout in nanoseconds.
  subroutine store_elements(buffer, data, element_bits, count, me, timeout_ns, offset, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    type(c_ptr), intent(in) :: data
    integer, intent(in) :: element_bits, count
    character(*), intent(in) :: me
    integer(int64), intent(in) :: timeout_ns
    integer, intent(in), optional :: offset
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(c_size_t) :: first, bytes
    integer(c_int32_t) :: status

    if (.not. moves(buffer, BUFFER_READ_ONLY, me, element_bits, count, first, bytes, offset, stat, errmsg)) &
      return
    status = ONEBUF_OK
    if (timeout_ns >= 0) status = onebuf_buffer_wait_ns(buffer%handle, ONEBUF_READ_WRITE, timeout_ns)
    if (status == ONEBUF_OK) status = onebuf_buffer_store(buffer%handle, first, data, bytes)
    call report(status, me, stat, errmsg)
  end subroutine

  ! Reads elements at an offset, both counted in elements, with a timeout in nanoseconds.
  subroutine load_elements(buffer, data, element_bits, count, me, timeout_ns, offset, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    type(c_ptr), intent(in) :: data
    integer, intent(in) :: element_bits, count
    character(*), intent(in) :: me
    integer(int64), intent(in) :: timeout_ns
    integer, intent(in), optional :: offset
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer(c_size_t) :: first, bytes
    integer(c_int32_t) :: status

    if (.not. moves(buffer, BUFFER_WRITE_ONLY, me, element_bits, count, first, bytes, offset, stat, errmsg)) &
      return
    status = ONEBUF_OK
    if (timeout_ns >= 0) status = onebuf_buffer_wait_ns(buffer%handle, ONEBUF_READ, timeout_ns)
    if (status == ONEBUF_OK) status = onebuf_buffer_load(buffer%handle, first, data, bytes)
    call report(status, me, stat, errmsg)
  end subroutine

  ! Whether there is something to transfer, and which bytes. Errors have been reported. One mode forbids the transfer.
  function moves(buffer, forbidden, me, element_bits, count, first, bytes, offset, stat, errmsg) result(go)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(in) :: forbidden, element_bits, count
    character(*), intent(in) :: me
    integer(c_size_t), intent(out) :: first, bytes
    integer, intent(in), optional :: offset
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: go

    first = 0
    if (present(offset)) first = int(offset, c_size_t)*(element_bits/8)
    bytes = int(count, c_size_t)*(element_bits/8)
    go = .false.
    if (buffer%access_mode == forbidden) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': the buffer was made for the CPU to '// &
        merge('read, not to write ', 'write, not to read ', forbidden == BUFFER_READ_ONLY)//'it', stat, errmsg)
    else if (first < 0) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': the offset is negative', stat, errmsg)
    else if (count == 0) then
      if (present(stat)) stat = 0
    else
      go = .true.
    end if
  end function

  ! Gives the buffer to the CPU and returns the address of the elements: null on failure. A count that is not negative
  ! is the required number of elements.
  subroutine open_for_cpu(buffer, element_size, count, me, address, stat, errmsg)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(in) :: element_size
    integer(int64), intent(in) :: count
    character(*), intent(in) :: me
    type(c_ptr), intent(out) :: address
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    address = c_null_ptr
    if (element_size < 1) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': an element has at least one byte', stat, errmsg)
    else if (mod(buffer%size_bytes, int(element_size, int64)) /= 0) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': the buffer does not hold a whole number of elements', &
        stat, errmsg)
    else if (count > buffer%size_bytes/element_size) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': the shape has more elements than the buffer', stat, errmsg)
    else
      call report(onebuf_buffer_to_host(buffer%handle, cpu_access(buffer), address), me, stat, errmsg)
    end if
  end subroutine

  ! Number of elements of a shape; an impossibly large number for an invalid shape.
  pure function element_count(shape) result(count)
    integer, intent(in) :: shape(:)
    integer(int64) :: count
    integer :: i

    count = 1
    do i = 1, size(shape)
      if (shape(i) < 0 .or. count > huge(count)/max(shape(i), 1)) then
        count = huge(count)
        return
      end if
      count = count*shape(i)
    end do
  end function

  ! How kernels access a buffer of a mode: the reverse of the CPU's access.
  pure function kernel_access(mode) result(access)
    integer, intent(in) :: mode
    integer(c_int32_t) :: access

    access = ONEBUF_READ_WRITE
    if (mode == BUFFER_WRITE_ONLY) access = ONEBUF_READ
    if (mode == BUFFER_READ_ONLY) access = ONEBUF_WRITE
  end function

  pure function cpu_access(buffer) result(access)
    type(unified_buffer), intent(in) :: buffer
    integer(c_int32_t) :: access

    access = merge(ONEBUF_READ, ONEBUF_READ_WRITE, buffer%access_mode == BUFFER_READ_ONLY)
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
  end subroutine

  ! Nothing is written here: gfortran 12 finalizes array components at wrong addresses.
  impure elemental subroutine finish(buffer)
    type(unified_buffer), intent(inout), target :: buffer

    call report(onebuf_disown(c_loc(buffer%handle%id)), 'ending a unified_buffer')
  end subroutine
end module
