! Rings: every frame has a slot of its own, slots come in turn, and a slot is not given out while the GPU uses it.
program rings
  use, intrinsic :: iso_fortran_env, only: int64, real32
  use gpu_unified_buffers
  use gain, only: gain_program
  use checks, only: check
  implicit none
  integer, parameter :: n = 2048, frames = 12
  type(buffer_ring) :: inputs, outputs, none
  type(unified_buffer) :: input, output, first
  type(compute_program) :: program
  real(real32) :: x(n), y(n)
  integer :: frame, stat
  character(64) :: device
  character(200) :: message

  call get_command_argument(1, device)
  call gpu_open(trim(device))
  program = gain_program()
  call create_buffer_ring(inputs, 3, 4*n, BUFFER_READ_WRITE, MEMORY_STREAMING)
  call create_buffer_ring(outputs, 3, 4_int64*n, BUFFER_READ_WRITE)
  call check(ring_is_valid(inputs), 'a ring')
  call check(ring_slots(inputs) == 3, 'its slots')
  do frame = 1, frames
    call ring_next(inputs, input)
    call ring_next(outputs, output, 60000000000_int64)
    ! What this slot had three frames ago is still there.
    if (frame > 3) then
      call read_buffer(output, y)
      call check(all(abs(y - 2*(frame - 3)) <= 0), 'the frame of three rounds ago')
    end if
    x = real(frame, real32)
    call write_buffer(input, x)
    call bind_buffer_to_shader(input, 0)
    call bind_buffer_to_shader(output, 1)
    call dispatch_compute(program, [n], integers=[n], reals=[2.0_real32])
  end do
  call ring_next(outputs, first)
  call read_buffer(first, y)
  call check(all(abs(y - 2*(frames - 2)) <= 0), 'the oldest frame')

  call ring_next(none, input, stat=stat, errmsg=message)
  call check(stat == ONEBUF_INVALID_HANDLE .and. index(message, 'no ring') > 0, 'no ring')
  call create_buffer_ring(none, 0, 64, BUFFER_READ_WRITE, stat=stat)
  call check(stat == ONEBUF_INVALID_ARGUMENT, 'no slots')
  call create_buffer_ring(none, 2, 2_int64**61, BUFFER_READ_WRITE, stat=stat, errmsg=message)
  call check(stat /= 0 .and. index(message, 'create_buffer_ring: ') == 1, 'more than there is')
  call check(.not. ring_is_valid(none), 'it is invalid')
  print '(2a)', 'rings work on ', gpu_device_name()
end program
