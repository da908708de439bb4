! sync_to_gpu(buffer), sync_from_gpu(buffer), destroy_unified_buffer(buffer).
program sync_destroy
  use gpu_unified_buffers
  use checks, only: check
  implicit none
  type(unified_buffer) :: b
  integer, pointer :: p(:)
  integer :: found(4)

  b = create_unified_buffer(16, BUFFER_READ_WRITE)
  call get_array_pointer(b, p)
  p = [1, 2, 3, 4]
  call sync_to_gpu(b)
  call check(.not. buffer_is_mapped(b), 'the GPU''s turn')
  call sync_from_gpu(b)
  call check(buffer_is_mapped(b), 'the CPU''s turn')
  call read_buffer(b, found)
  call check(all(found == [1, 2, 3, 4]), 'the contents stay')
  call destroy_unified_buffer(b)
  call check(.not. buffer_is_valid(b), 'destroyed')
  call destroy_unified_buffer(b)
  print '(a)', 'row sync_destroy works'
end program
