! Messages name what a Fortran program has: none of Rust's and C's names.
program messages
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32
  use gpu_unified_buffers
  use gpu_fence_primitives
  use gpu_errors, only: fortran_words
  use gain, only: gain_program
  use checks, only: check
  implicit none
  character(64) :: device
  type(unified_buffer) :: b, none
  type(compute_program) :: program, no_program
  type(gpu_fence) :: no_fence
  integer :: stat, answer
  integer(int32) :: x(64)
  character(2000) :: m

  call get_command_argument(1, device)
  call gpu_open(trim(device))
  program = gain_program()
  b = create_unified_buffer(64, BUFFER_READ_WRITE)
  call unbind_shader_buffers

  ! The first binding point without a buffer, not the last.
  call dispatch_compute(program, [64], integers=[64], reals=[1.0_real32], stat=stat, errmsg=m)
  call expect('dispatch_compute: no buffer is bound to binding point 0')
  call bind_buffer_to_shader(b, 0)
  call dispatch_compute(program, [64], integers=[64], reals=[1.0_real32], stat=stat, errmsg=m)
  call expect('dispatch_compute: no buffer is bound to binding point 1')
  call dispatch_compute(program, [64], reals=[1.0_real32], stat=stat, errmsg=m)
  call expect('argument 3 is a real(real32) where the program has an integer(int32)')
  call dispatch_compute(no_program, [64], stat=stat, errmsg=m)
  call expect('dispatch_compute: no program, or one that was destroyed')

  call read_buffer(none, x, stat=stat, errmsg=m)
  call expect('read_buffer: no buffer: it was not created, or was destroyed')
  call read_buffer(b, x, stat=stat, errmsg=m)
  call expect('read_buffer: invalid argument: 256 bytes at offset 0 of a buffer of 64')
  answer = gpu_fence_wait(no_fence, 1, stat, m)
  call expect('gpu_fence_wait: no fence: it was not created, or was destroyed')
  call gpu_open('no such device', stat, m)
  call expect('gpu_open: device `no such device` is not available')
  b = create_unified_buffer(2_int64**61, BUFFER_READ_WRITE, stat=stat, errmsg=m)
  call expect('create_unified_buffer: ')
  program = compile_compute_program('gain', [BUFFER_READ_ONLY], stat=stat, errmsg=m)
  call expect('compile_compute_program: ')
  program = compile_compute_program('other', [BUFFER_READ_ONLY], opencl_c='kernel void gain(global int *x) { *x = 1; }', &
    stat=stat, errmsg=m)
  if (index(device, 'opencl') == 1) call expect('other')
  program = compile_compute_program('gain', [BUFFER_READ_ONLY, ARG_LOCAL], &
    opencl_c='kernel void gain(global int *x) { *x = 1; }', stat=stat, errmsg=m)
  call expect('compile_compute_program: ')

  ! Phrases that no call above can produce on every device.
  call words('not supported: x needs its kernels in GLSL: `Source::with_glsl`', 'not supported: x needs its kernels in GLSL: glsl=')
  call words('argument 1 of kernel `k`: a value of type [u8] (4 bytes) where a read view of u8 is declared', &
    'argument 1 of kernel `k`: a value (4 bytes) where a read buffer is declared')
  call words('memory with this alignment: use `read` and `write`', 'memory with this alignment: use read_buffer and write_buffer')
  call words('nothing to replace', 'nothing to replace')
  print '(2a)', 'messages speak Fortran on ', gpu_device_name()

contains

  subroutine expect(part)
    character(*), intent(in) :: part

    call check(stat /= 0 .and. index(m, part) > 0, 'expected '//part//', told '//trim(m))
    call check(index(m, '::') == 0 .and. index(m, 'onebuf_') == 0 .and. index(m, 'handle') == 0 .and. index(m, 'u8') == 0 &
      .and. index(m, ' hub') == 0, 'a foreign name: '//trim(m))
    m = ''
  end subroutine

  subroutine words(theirs, ours)
    character(*), intent(in) :: theirs, ours

    call check(fortran_words(theirs) == ours, fortran_words(theirs))
  end subroutine
end program
