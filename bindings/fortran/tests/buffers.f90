! Reads, writes and pointers of every type and rank, and every way to report an error.
program buffers
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env
  use gpu_unified_buffers
  use checks, only: check
  implicit none
  ! Several whole pages and a part of one.
  integer, parameter :: n = 3*4096 + 40
  character(64) :: device

  call get_command_argument(1, device)
  call gpu_open(trim(device))
  call one_memory
  call types
  call ranks
  call offsets_and_sections
  call pointers
  call turns
  call wrong_arguments
  call wrong_modes
  call freed
  print '(2a)', 'buffers work on ', gpu_device_name()

contains

  function made(elements, element_size) result(buffer)
    integer, intent(in) :: elements, element_size
    type(unified_buffer) :: buffer

    buffer = create_unified_buffer(elements*element_size, BUFFER_READ_WRITE, MEMORY_COHERENT)
  end function

  ! CPU and GPU share one memory, whatever the mode and the hint.
  subroutine one_memory
    type(unified_buffer) :: b
    integer :: mode, hint

    do mode = BUFFER_READ_ONLY, BUFFER_READ_WRITE
      do hint = MEMORY_CPU_PREFERRED, MEMORY_STREAMING
        b = create_unified_buffer(65536, mode, hint)
        call check(index(explain_buffer(b), 'staged') == 0, explain_buffer(b))
      end do
    end do
  end subroutine

  ! Every element is written and found through a pointer, then written through the pointer and found by a read.
  subroutine types
    type(unified_buffer) :: b
    real(real32), allocatable :: x4(:)
    real(real64), allocatable :: x8(:)
    integer(int32), allocatable :: i4(:)
    integer(int64), allocatable :: i8(:)
    complex(real32), allocatable :: z4(:)
    complex(real64), allocatable :: z8(:)
    real(real32), pointer :: px4(:)
    real(real64), pointer :: px8(:)
    integer(int32), pointer :: pi4(:)
    integer(int64), pointer :: pi8(:)
    complex(real32), pointer :: pz4(:)
    complex(real64), pointer :: pz8(:)
    integer :: i

    allocate (i4(n), i8(n), x4(n), x8(n), z4(n), z8(n))
    i4 = [(i, i=1, n)]
    i8 = -10000000000_int64*i4
    x4 = real(i4, real32)/4
    x8 = real(i4, real64)/3
    z4 = cmplx(x4, -x4, real32)
    z8 = cmplx(x8, 1, real64)

    b = made(n, 4)
    call write_buffer(b, x4)
    call get_array_pointer(b, px4)
    call check(size(px4) == n .and. all(same(px4 - x4)), 'real32 in')
    px4 = 2*px4
    x4 = 0
    call read_buffer(b, x4)
    call check(all(same(x4 - real(i4, real32)/2)), 'real32 out')

    call write_buffer(b, i4)
    call get_array_pointer(b, pi4)
    call check(size(pi4) == n .and. all(pi4 == i4), 'int32 in')
    pi4 = -pi4
    i4 = 0
    call read_buffer(b, i4)
    call check(all(i4 == [(-i, i=1, n)]), 'int32 out')

    b = made(n, 8)
    call write_buffer(b, x8)
    call get_array_pointer(b, px8)
    call check(size(px8) == n .and. all(abs(px8 - x8) <= 0), 'real64 in')
    px8 = -px8
    call read_buffer(b, x8)
    call check(all(x8 < 0), 'real64 out')

    call write_buffer(b, i8)
    call get_array_pointer(b, pi8)
    call check(size(pi8) == n .and. all(pi8 == i8), 'int64 in')
    pi8 = pi8 + 1
    call read_buffer(b, i8)
    call check(all(modulo(i8, 10_int64) == 1), 'int64 out')

    call write_buffer(b, z4)
    call get_array_pointer(b, pz4)
    call check(size(pz4) == n .and. all(abs(pz4 - z4) <= 0), 'complex32 in')
    pz4 = conjg(pz4)
    call read_buffer(b, z4)
    call check(all(aimag(z4) > 0), 'complex32 out')

    b = made(n, 16)
    call write_buffer(b, z8)
    call get_array_pointer(b, pz8)
    call check(size(pz8) == n .and. all(abs(pz8 - z8) <= 0), 'complex64 in')
    pz8 = pz8*(0, 1)
    call read_buffer(b, z8)
    call check(all(abs(real(z8) + 1) <= 0), 'complex64 out')
  end subroutine

  elemental logical function same(difference)
    real(real32), intent(in) :: difference

    same = abs(difference) <= 0
  end function

  subroutine ranks
    type(unified_buffer) :: b
    integer(int32) :: two(6, 7), three(2, 3, 7), flat(42), i
    integer(int32), pointer :: p2(:, :), p3(:, :, :)

    b = made(42, 4)
    flat = [(i, i=1, 42)]
    two = reshape(flat, [6, 7])
    call write_buffer(b, two)
    call get_array_pointer(b, p3, [2, 3, 7])
    call check(all(p3 == reshape(flat, [2, 3, 7])), 'rank 2 to 3')
    three = -p3
    call write_buffer(b, three)
    call get_array_pointer(b, p2, [6, 7])
    call check(all(p2 == -two), 'rank 3 to 2')
    p2(6, 7) = 5
    call read_buffer(b, three)
    call check(three(2, 3, 7) == 5 .and. three(1, 1, 1) == -1, 'rank 3 read')
    call read_buffer(b, two)
    call check(two(6, 7) == 5 .and. two(1, 1) == -1, 'rank 2 read')
    call write_buffer_safe(b, reshape(flat, [6, 7]), 10000000000_int64)
    call write_buffer_safe(b, flat(:6), 10000000000_int64, offset=36)
    call read_buffer_safe(b, three, 10000000000_int64)
    call check(three(2, 3, 7) == 6 .and. three(1, 1, 1) == 1, 'with a timeout')
  end subroutine

  ! Offsets count elements; sections that are not contiguous are written and read completely.
  subroutine offsets_and_sections
    type(unified_buffer) :: b
    integer(int32) :: all_of(10), few(3), i

    b = made(10, 4)
    call write_buffer(b, [(10*i, i=1, 3)], offset=7)
    call read_buffer(b, all_of)
    call check(all(all_of == [(0, i=1, 7), 10, 20, 30]), 'an offset')
    few = 0
    call read_buffer(b, few(1:3:2), offset=8)
    call check(all(few == [20, 0, 30]), 'a section read')
    call write_buffer(b, all_of(10:8:-1))
    call read_buffer(b, few)
    call check(all(few == [30, 20, 10]), 'a section written')
    call write_buffer(b, all_of(1:0))
    call read_buffer(b, few(1:0), offset=10)
  end subroutine

  subroutine pointers
    type(unified_buffer) :: b
    type(c_ptr) :: first, again
    integer(int32), pointer :: p(:)

    b = made(1024, 4)
    first = get_cpu_pointer(b, 4)
    call c_f_pointer(first, p, [1024])
    p = 3
    again = get_cpu_pointer(b, 8)
    call check(c_associated(first, again), 'one place while it is the CPU''s turn')
    call get_array_pointer(b, p, [10])
    call check(size(p) == 10 .and. all(p == 3), 'a part of it')
    call check(buffer_size_bytes(b) == 4096, 'its size')
    call check(len(explain_buffer(b)) > 0, 'its explanation')
  end subroutine

  ! Hand-overs may be repeated, and writes do not disturb a pointer.
  subroutine turns
    type(unified_buffer) :: b
    integer(int32), pointer :: p(:)
    integer(int32) :: found(2)
    integer :: i

    b = made(2048, 4)
    do i = 1, 3
      call sync_to_gpu(b)
      call sync_to_gpu(b)
      call sync_from_gpu(b)
      call sync_from_gpu(b)
      call get_array_pointer(b, p)
      p(2048) = i
      call write_buffer(b, [100 + i])
      call check(p(1) == 100 + i, 'a write is seen through the pointer')
      call flush_buffer_range(b, 0_int64, 8192_int64)
      call sync_to_gpu(b)
      call read_buffer(b, found(1:1))
      call read_buffer(b, found(2:2), offset=2047)
      call check(all(found == [100 + i, i]), 'both arrived')
    end do
  end subroutine

  subroutine wrong_arguments
    type(unified_buffer) :: b, none
    integer(int32) :: x(4)
    integer(int32), pointer :: p(:), q(:, :)
    type(c_ptr) :: address
    integer :: stat
    character(300) :: message

    b = create_unified_buffer(0, BUFFER_READ_WRITE, stat=stat, errmsg=message)
    call refused(stat, message, ONEBUF_INVALID_ARGUMENT, 'at least one byte')
    b = create_unified_buffer(16, 7, stat=stat, errmsg=message)
    call refused(stat, message, ONEBUF_INVALID_ARGUMENT, 'access_mode')
    b = create_unified_buffer(16, BUFFER_READ_WRITE, 9, stat, message)
    call refused(stat, message, ONEBUF_INVALID_ARGUMENT, 'memory_hint')
    call check(.not. buffer_is_valid(b), 'a refused buffer')
    b = create_unified_buffer(4611686018427387904_int64, BUFFER_READ_WRITE, stat=stat, errmsg=message)
    call check(stat /= 0, 'more than there is')
    call check(.not. buffer_is_valid(b), 'more than there is: '//trim(message))

    b = create_unified_buffer(18_int64, BUFFER_READ_WRITE, stat=stat)
    call check(stat == 0, 'a good one')
    call write_buffer(b, x, offset=1, stat=stat, errmsg=message)
    call refused(stat, message, ONEBUF_INVALID_ARGUMENT, 'write_buffer: ')
    call read_buffer(b, x, offset=-1, stat=stat, errmsg=message)
    call refused(stat, message, ONEBUF_INVALID_ARGUMENT, 'negative')
    call get_array_pointer(b, p, stat=stat, errmsg=message)
    call refused(stat, message, ONEBUF_INVALID_ARGUMENT, 'whole number')
    call check(.not. associated(p), 'no pointer')
    address = get_cpu_pointer(b, 0, stat, message)
    call refused(stat, message, ONEBUF_INVALID_ARGUMENT, 'at least one byte')
    call check(.not. c_associated(address), 'no address')
    call flush_buffer_range(b, 10_int64, 9_int64, stat, message)
    call refused(stat, message, ONEBUF_INVALID_ARGUMENT, 'inside')
    call flush_buffer_range(b, 10_int64, 8_int64, stat)
    call check(stat == 0, 'a good range')

    b = create_unified_buffer(16, BUFFER_READ_WRITE)
    call get_array_pointer(b, q, [2, 3], stat, message)
    call refused(stat, message, ONEBUF_INVALID_ARGUMENT, 'more elements')
    call get_array_pointer(b, q, [-2, -2], stat, message)
    call refused(stat, message, ONEBUF_INVALID_ARGUMENT, 'more elements')

    call sync_to_gpu(none, stat, message)
    call refused(stat, message, ONEBUF_INVALID_HANDLE, 'no buffer')
    call sync_from_gpu(none, stat, message)
    call refused(stat, message, ONEBUF_INVALID_HANDLE, 'no buffer')
    call write_buffer(none, x, stat=stat, errmsg=message)
    call refused(stat, message, ONEBUF_INVALID_HANDLE, 'no buffer')
    call flush_buffer_range(none, 0_int64, 0_int64, stat, message)
    call refused(stat, message, ONEBUF_INVALID_HANDLE, 'destroyed')
    call gpu_open('no such device', stat, message)
    call refused(stat, message, ONEBUF_UNAVAILABLE, 'no such device')
    call write_buffer(b, x, stat=stat)
    call check(stat == 0, 'the device that was open still is')
  end subroutine

  subroutine refused(stat, message, expected, part)
    integer, intent(in) :: stat, expected
    character(*), intent(in) :: message, part

    call check(stat == expected .and. index(message, part) > 0, 'expected '//part//', told '//trim(message))
  end subroutine

  subroutine wrong_modes
    type(unified_buffer) :: input, output
    integer(int32) :: x(4)
    integer :: stat
    character(300) :: message

    x = 1
    input = create_unified_buffer(16, BUFFER_WRITE_ONLY, MEMORY_STREAMING)
    output = create_unified_buffer(16, BUFFER_READ_ONLY, MEMORY_CPU_PREFERRED)
    call write_buffer(input, x)
    call read_buffer(input, x, stat=stat, errmsg=message)
    call refused(stat, message, ONEBUF_INVALID_ARGUMENT, 'write, not to read it')
    call read_buffer(output, x)
    call check(all(x == 0), 'a new buffer is empty')
    call write_buffer(output, x, stat=stat, errmsg=message)
    call refused(stat, message, ONEBUF_INVALID_ARGUMENT, 'read, not to write it')
    call flush_buffer_range(output, 0_int64, 4_int64, stat, message)
    call refused(stat, message, ONEBUF_INVALID_ARGUMENT, 'BUFFER_READ_ONLY')
  end subroutine

  ! A buffer may be destroyed while a pointer to it exists: its persistent map ends with it.
  subroutine freed
    type(unified_buffer) :: b
    integer(int32), pointer :: p(:)
    integer :: i

    do i = 1, 100
      b = create_unified_buffer(65536, BUFFER_READ_WRITE, MEMORY_GPU_PREFERRED)
      call get_array_pointer(b, p)
      p = i
      call destroy_unified_buffer(b)
      call check(.not. buffer_is_valid(b), 'destroyed')
    end do
  end subroutine
end program
