! An external procedure of the program may be called gpu_compute: no module or procedure of onebuf has that name.
program own_gpu_compute
  use gpu_unified_buffers
  implicit none
  external :: gpu_compute

  call gpu_compute()
  print '(a)', 'row own_gpu_compute works'
end program

subroutine gpu_compute()
  use gpu_unified_buffers, only: unified_buffer, buffer_is_valid
  use checks, only: check
  implicit none
  type(unified_buffer) :: none

  call check(.not. buffer_is_valid(none), 'no buffer')
end subroutine
