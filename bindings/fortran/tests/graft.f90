! A kernel that OpenCL compiled runs in the queue of the CUDA device of the same chip, and one in NVIDIA's assembly. `graft PTX-FILE`: the
! text of a kernel `advance`.
program graft
  use, intrinsic :: iso_fortran_env, only: int32
  use gpu_unified_buffers
  use checks, only: check
  implicit none
  integer, parameter :: n = 3000
  character(*), parameter :: nl = new_line('a')
  character(*), parameter :: text = &
    'kernel void advance(global uint *p, uint first, uint n, uint mul, uint add) {'//nl// &
    '  uint i = (uint)get_global_id(0);'//nl// &
    '  if (i < n) p[first + i] = p[first + i] * mul + add + i;'//nl// &
    '}'
  type(compute_program) :: moved, native, none
  type(unified_buffer) :: b
  integer(int32) :: found(n), expected(n)
  integer :: cuda, stat, i
  character(400) :: message
  character(300) :: path

  call get_command_argument(1, path)
  call gpu_open('opencl:0')
  cuda = gpu_add_device('cuda:0')
  call check(cuda == 2, 'both APIs')
  b = create_unified_buffer(4*n, BUFFER_READ_WRITE)
  call write_buffer(b, [(i, i=1, n)])
  call bind_buffer_to_shader(b, 0)

  moved = compile_compute_program('advance', [BUFFER_READ_WRITE], opencl_c=text, integers=4, graft_to=cuda)
  call check(program_is_valid(moved), 'a program that moved')
  call dispatch_compute(moved, [n], integers=[0, n, 3, 5])
  expected = [(3*i + 5 + i - 1, i=1, n)]
  call read_buffer(b, found)
  call check(all(found == expected), 'every element, computed by the moved kernel')

  native = compile_compute_program('advance', [BUFFER_READ_WRITE], ptx=file(trim(path)), integers=4, device=cuda)
  call check(program_is_valid(native), 'a program in assembly')
  call dispatch_compute(native, [n], integers=[0, n, 2, 1])
  expected = [(2*expected(i) + 1 + i - 1, i=1, n)]
  call read_buffer(b, found)
  call check(all(found == expected), 'every element, computed by the kernel in assembly')
  none = compile_compute_program('advance', [BUFFER_READ_WRITE], ptx='garbage', integers=4, device=cuda, stat=stat, &
    errmsg=message)
  call check(stat == ONEBUF_BUILD, 'no assembly: '//trim(message))
  call check(.not. program_is_valid(none), 'nothing was made')
  none = compile_compute_program('advance', [BUFFER_READ_WRITE], ptx=file(trim(path)), integers=4, stat=stat, errmsg=message)
  call check(stat == ONEBUF_UNSUPPORTED, 'OpenCL takes no PTX: '//trim(message))
  print '(a)', 'kernels were moved'

contains

  ! The text of a file.
  function file(path) result(content)
    character(*), intent(in) :: path
    character(:), allocatable :: content
    integer :: unit, bytes

    open (newunit=unit, file=path, access='stream', action='read', status='old')
    inquire (unit=unit, size=bytes)
    allocate (character(bytes) :: content)
    read (unit) content
    close (unit)
  end function
end program
