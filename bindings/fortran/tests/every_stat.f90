! Every procedure takes stat= and errmsg=, and succeeds with a stat of zero and an unchanged message.
program every_stat
  use, intrinsic :: iso_c_binding, only: c_associated, c_ptr
  use, intrinsic :: iso_fortran_env, only: int64, real32
  use gpu_unified_buffers
  use gpu_fence_primitives
  use gain, only: gain_program
  use checks, only: check
  implicit none
  integer, parameter :: n = 1024
  character(*), parameter :: blank = 'unchanged'
  type(unified_buffer) :: a, b
  type(compute_program) :: program
  type(buffer_pool) :: pool
  type(pool_counts) :: counts
  type(write_batch) :: batch
  type(gpu_fence) :: fence
  type(matrix_factors) :: factors
  type(c_ptr) :: address
  real(real32) :: x(n)
  real(real32), pointer :: p(:)
  integer(int64) :: asked, implied
  integer :: stat, number
  logical :: yes
  character(40) :: m
  character(:), allocatable :: text

  m = blank
  call gpu_stop_on_failure(.false., stat, m)
  call fine('gpu_stop_on_failure')
  call gpu_open(stat=stat, errmsg=m)
  call fine('gpu_open')
  number = gpu_add_device('host', stat, m)
  call fine('gpu_add_device')
  number = gpu_device_count(stat, m)
  call fine('gpu_device_count')
  text = gpu_device_name(stat=stat, errmsg=m)
  call fine('gpu_device_name')
  text = explain_devices(stat, m)
  call fine('explain_devices')
  a = create_unified_buffer(4*n, BUFFER_READ_WRITE, stat=stat, errmsg=m)
  call fine('create_unified_buffer')
  pool = create_buffer_pool(stat=stat, errmsg=m)
  call fine('create_buffer_pool')
  b = pool_buffer(pool, 4*n, BUFFER_READ_WRITE, stat=stat, errmsg=m)
  call fine('pool_buffer')
  call get_pool_counts(pool, counts, stat, m)
  call fine('get_pool_counts')
  call trim_pool(pool, 0, stat, m)
  call fine('trim_pool')
  yes = pool_is_valid(pool, stat, m)
  call fine('pool_is_valid')
  yes = buffer_is_valid(a, stat, m)
  call fine('buffer_is_valid')
  asked = buffer_size_bytes(a, stat, m)
  call fine('buffer_size_bytes')
  number = buffer_access_mode(a, stat, m)
  call fine('buffer_access_mode')
  number = buffer_memory_hint(a, stat, m)
  call fine('buffer_memory_hint')
  number = buffer_gl_name(a, stat, m)
  call fine('buffer_gl_name')
  address = buffer_persistent_pointer(a, stat, m)
  call fine('buffer_persistent_pointer')
  yes = buffer_is_mapped(a, stat, m)
  call fine('buffer_is_mapped')
  yes = buffer_is_coherent(a, stat, m)
  call fine('buffer_is_coherent')
  text = explain_buffer(a, stat, m)
  call fine('explain_buffer')
  address = get_cpu_pointer(a, 4, stat, m)
  call fine('get_cpu_pointer')
  call get_array_pointer(a, p, stat=stat, errmsg=m)
  call fine('get_array_pointer')
  x = 1
  call write_buffer(a, x, stat=stat, errmsg=m)
  call fine('write_buffer')
  call write_buffer_safe(a, x, stat=stat, errmsg=m)
  call fine('write_buffer_safe')
  call read_buffer(a, x, stat=stat, errmsg=m)
  call fine('read_buffer')
  call read_buffer_safe(a, x, stat=stat, errmsg=m)
  call fine('read_buffer_safe')
  call flush_buffer_range(a, 0, 4*n, stat, m)
  call fine('flush_buffer_range')
  call open_write_batch(batch, a, stat, m)
  call fine('open_write_batch')
  call add_to_batch(batch, x, 0, stat, m)
  call fine('add_to_batch')
  number = batch_size(batch, stat, m)
  call fine('batch_size')
  call flush_write_batch(batch, stat, m)
  call fine('flush_write_batch')
  call sync_to_gpu(a, stat, m)
  call fine('sync_to_gpu')
  call sync_from_gpu(a, stat, m)
  call fine('sync_from_gpu')
  program = gain_program()
  yes = program_is_valid(program, stat, m)
  call fine('program_is_valid')
  call bind_buffer_to_shader(a, 0, stat, m)
  call fine('bind_buffer_to_shader')
  call bind_buffer_to_shader(b, 1)
  call dispatch_compute(program, [n], integers=[n], reals=[2.0_real32], fence=fence, stat=stat, errmsg=m)
  call fine('dispatch_compute')
  number = gpu_fence_wait(fence, 60000000000_int64, stat, m)
  call fine('gpu_fence_wait')
  yes = gpu_fence_is_signaled(fence, stat, m)
  call fine('gpu_fence_is_signaled')
  yes = gpu_fence_is_valid(fence, stat, m)
  call fine('gpu_fence_is_valid')
  call gpu_fence_destroy(fence, stat, m)
  call fine('gpu_fence_destroy')
  fence = gpu_fence_create(stat, m)
  call fine('gpu_fence_create')
  fence = buffer_read_fence(a, stat, m)
  call fine('buffer_read_fence')
  fence = buffer_write_fence(b, stat, m)
  call fine('buffer_write_fence')
  yes = factors_are_valid(factors, stat, m)
  call fine('factors_are_valid')
  call destroy_factors(factors, stat, m)
  call fine('destroy_factors')
  call gpu_bytes_moved(asked, implied, stat, m)
  call fine('gpu_bytes_moved')
  call unbind_shader_buffers(stat, m)
  call fine('unbind_shader_buffers')
  call destroy_compute_program(program, stat, m)
  call fine('destroy_compute_program')
  call destroy_unified_buffer(b, stat, m)
  call fine('destroy_unified_buffer')
  call destroy_buffer_pool(pool, stat, m)
  call fine('destroy_buffer_pool')
  call gpu_close(stat, m)
  call fine('gpu_close')
  if (number < 0 .or. yes .or. c_associated(address) .or. len(text) < 0) continue
  print '(a)', 'every procedure takes stat='

contains

  subroutine fine(what)
    character(*), intent(in) :: what

    call check(stat == 0 .and. m == blank, what//': '//trim(m))
    stat = -1
  end subroutine
end program
