! Reads and writes that return at once, work that waits for an event, and the library's log in a procedure of the program.
module receiver
  use, intrinsic :: iso_fortran_env, only: error_unit
  implicit none

contains

  recursive subroutine receive(level, part, message)
    integer, intent(in) :: level
    character(*), intent(in) :: part, message

    write (error_unit, '(i0, 4a)') level, ' ', part, ': ', message
  end subroutine
end module

program without_waiting
  use, intrinsic :: iso_fortran_env, only: real32
  use gpu_unified_buffers
  use gpu_fence_primitives, only: gpu_fence
  use gain, only: gain_program
  use receiver, only: receive
  implicit none
  integer, parameter :: n = 1024*64
  type(unified_buffer) :: input, next_input, output
  type(compute_program) :: program
  type(buffer_transfer) :: reading, writing
  real(real32) :: x(n)
  real(real32), pointer :: y(:)
  integer :: worked = 0

  call gpu_log_to(receive, LOG_INFO)
  input = create_unified_buffer(4*n, BUFFER_WRITE_ONLY)
  next_input = create_unified_buffer(4*n, BUFFER_WRITE_ONLY)
  output = create_unified_buffer(4*n, BUFFER_READ_ONLY)
  program = gain_program()
  x = 10
  call write_buffer(input, x)
  call bind_buffer_to_shader(input, 0)
  call bind_buffer_to_shader(output, 1)

  call dispatch_compute(program, [n], integers=[n], reals=[2.0_real32])
  call read_buffer_async(reading, output)            ! returns at once
  call write_buffer_async(writing, next_input, x)    ! x is copied, and may change now
  do while (.not. transfer_is_done(reading))
    call other_work()
  end do
  call wait_for_transfer(reading, timeout_ms=1000)
  call get_array_pointer(reading, y)                 ! points to what was read, until close_transfer

  print '(3a, f6.1)', 'on ', gpu_device_name(), ' the last element is', y(n)
  call close_transfer(reading)
  call wait_for_transfer(writing)
  call close_transfer(writing)
  call wait_for_an_event
  call gpu_log_to_stderr()

contains

  subroutine other_work
    worked = worked + 1
  end subroutine

  ! The kernel runs when the CPU says so. Only drivers of OpenCL can do that.
  subroutine wait_for_an_event
    type(user_event) :: arrived
    type(gpu_fence) :: done
    integer :: stat

    call create_user_event(arrived, stat)
    if (stat == ONEBUF_UNSUPPORTED) return
    call destroy_user_event(arrived)

    call create_user_event(arrived)
    done = user_event_fence(arrived)
    call gpu_wait_for_fence(done)
    call dispatch_compute(program, [n], integers=[n], reals=[2.0_real32])  ! does not run yet
    call complete_user_event(arrived)                                      ! now it does
    call destroy_user_event(arrived)

    call read_buffer(output, x)
    if (any(abs(x - 20) > 0)) error stop 'wrong'
    print '(a)', 'and again, after an event'
  end subroutine
end program
