! get_cpu_pointer(buffer, element_size): a type(c_ptr); null, without a stop, if the buffer cannot be mapped.
program cpu_pointer
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int64, real32
  use gpu_unified_buffers
  use checks, only: check
  implicit none
  type(unified_buffer) :: b, none
  type(c_ptr) :: address
  real(real32), pointer :: x(:)
  real(real32) :: found(8)

  b = create_unified_buffer(32, BUFFER_READ_WRITE)
  address = get_cpu_pointer(b, 4)
  call check(c_associated(address), 'a pointer')
  call c_f_pointer(address, x, [8])
  x = 3
  call read_buffer(b, found)
  call check(all(abs(found - 3) <= 0), 'what was written through it')
  call check(c_associated(get_cpu_pointer(b, 4_int64), address), 'an int64 element size')
  ! Whoever cannot map takes another way.
  if (.not. c_associated(get_cpu_pointer(none, 4))) print '(a)', 'takes another way'
  call check(.not. c_associated(get_cpu_pointer(b, 5)), 'no whole number of elements')
  print '(a)', 'row cpu_pointer works'
end program
