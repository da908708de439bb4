! Memory by a file descriptor: two buffers over the same bytes. `descriptors DEVICE`.
program descriptors
  use, intrinsic :: iso_fortran_env, only: int32, int64
  use gpu_unified_buffers
  use checks, only: check
  implicit none
  integer, parameter :: n = 3*2**18
  type(unified_buffer) :: ours, theirs, apart, none
  type(shared_memory) :: memory, other, nothing
  integer(int32), allocatable :: given(:), found(:)
  integer(int32), pointer :: x(:)
  integer :: stat, i
  character(400) :: message
  character(64) :: device

  call get_command_argument(1, device)
  call gpu_open(trim(device))
  ours = create_unified_buffer(4*n, BUFFER_READ_WRITE, memory_kind=MEMORY_KIND_EXPORTABLE, stat=stat, errmsg=message)
  if (stat == ONEBUF_UNSUPPORTED) then
    print '(2a)', 'skip: ', trim(message)
    stop
  end if
  call check(stat == 0, 'memory to be shared: '//trim(message))
  call check(buffer_memory_kind(ours) == MEMORY_KIND_EXPORTABLE, 'its kind')
  apart = create_unified_buffer(4*n, BUFFER_READ_WRITE, memory_kind=MEMORY_KIND_EXPORTABLE)
  memory%kind = DESCRIPTOR_OPAQUE
  call export_buffer(ours, memory, stat=stat, errmsg=message)
  ! HIP has the other kind.
  if (stat == ONEBUF_UNSUPPORTED) call export_buffer(ours, memory, DESCRIPTOR_DMA_BUF, stat, message)
  call check(stat == 0, 'a descriptor: '//trim(message))
  call check(memory%descriptor >= 0 .and. memory%bytes == 4*n, 'of the buffer')
  call check(memory%allocation_bytes >= memory%offset + memory%bytes, 'in an allocation')
  theirs = import_buffer(memory, BUFFER_READ_WRITE)
  call check(buffer_size_bytes(theirs) == 4*n, 'a buffer again')

  ! Every element, from both sides; separate memory is the control.
  allocate (given(n), found(n))
  given = [(i*31, i=1, n)]
  call write_buffer(ours, given)
  call read_buffer(theirs, found)
  call check(all(found == given), 'written here, read there')
  given = -given
  call write_buffer(theirs, given)
  call read_buffer(ours, found)
  call check(all(found == given), 'written there, read here')
  call read_buffer(apart, found)
  call check(.not. any(found == given), 'other memory')
  call get_array_pointer(ours, x, stat=stat, errmsg=message)
  call check(stat == ONEBUF_UNSUPPORTED .and. .not. associated(x), 'no pointer to memory that others write: '//trim(message))

  ! What is refused.
  other = memory
  other%bytes = memory%allocation_bytes + 1
  none = import_buffer(other, BUFFER_READ_WRITE, stat)
  call check(stat == ONEBUF_INVALID_ARGUMENT, 'more than the allocation')
  call check(.not. buffer_is_valid(none), 'nothing was made')
  other%bytes = -1
  none = import_buffer(other, BUFFER_READ_WRITE, stat)
  call check(stat == ONEBUF_INVALID_ARGUMENT, 'a negative size')
  none = import_buffer(memory, 9, stat)
  call check(stat == ONEBUF_INVALID_ARGUMENT, 'no such access mode')
  none = import_buffer(nothing, BUFFER_READ_WRITE, stat, device=1)
  call check(stat == ONEBUF_INVALID_ARGUMENT, 'no descriptor')
  call export_buffer(ours, nothing, 7, stat)
  call check(stat == ONEBUF_INVALID_ARGUMENT .and. nothing%descriptor == -1, 'no such kind')
  none = create_unified_buffer(4096, BUFFER_READ_WRITE)
  call export_buffer(none, nothing, stat=stat, errmsg=message)
  call check(stat == ONEBUF_UNSUPPORTED .and. index(message, '::') == 0, 'memory that is not shared: '//trim(message))

  ! The descriptor keeps the memory; closing it keeps the buffer.
  call destroy_unified_buffer(ours)
  other = memory
  call close_descriptor(memory)
  call check(memory%descriptor == -1, 'closed')
  call close_descriptor(other, stat)
  call check(stat == ONEBUF_INVALID_ARGUMENT, 'closed already')
  call close_descriptor(memory)
  call read_buffer(theirs, found)
  call check(all(found == given), 'the memory is still there')
  print '(2a)', 'descriptors work on ', gpu_device_name()
end program
