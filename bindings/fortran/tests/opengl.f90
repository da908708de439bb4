! An OpenGL program: its own shader works on buffers of these modules, and kernels of another device on its own buffer. `opengl DEVICE`.
module program_of_opengl
  use, intrinsic :: iso_c_binding
  implicit none

  interface
    function gl_open() bind(c) result(status)
      import
      integer(c_int) :: status
    end function

    function gl_make(words, bytes) bind(c) result(name)
      import
      integer(c_int32_t), intent(in) :: words(*)
      integer(c_size_t), value :: bytes
      integer(c_int32_t) :: name
    end function

    subroutine gl_run(name, items) bind(c)
      import
      integer(c_int32_t), value :: name, items
    end subroutine

    subroutine gl_read(name, words, bytes) bind(c)
      import
      integer(c_int32_t), value :: name
      integer(c_int32_t), intent(out) :: words(*)
      integer(c_size_t), value :: bytes
    end subroutine

    subroutine gl_close() bind(c)
    end subroutine
  end interface
end module

program opengl
  use, intrinsic :: iso_fortran_env, only: int32
  use program_of_opengl
  use gpu_unified_buffers
  use gpu_fence_primitives
  use checks, only: check
  implicit none
  integer, parameter :: n = 1024
  type(gl_context) :: context
  integer(int32) :: i, first(n), found(n)
  integer :: stat
  character(64) :: device
  character(400) :: message

  call get_command_argument(1, device)
  call gpu_open(trim(device))
  first = [(i, i=1, n)]
  call wrap_gl_context(context, stat, message)
  call check(stat == ONEBUF_INVALID_ARGUMENT, 'no context is current: '//trim(message))
  call check(.not. gl_context_is_valid(context), 'and none was wrapped')
  if (gl_open() /= 0) stop
  call wrap_gl_context(context)
  call check(gl_context_is_valid(context), 'the context')
  call wrap_gl_context(context, stat)
  call check(stat == ONEBUF_BUSY, 'the variable is in use')
  call their_buffer
  call our_buffer
  call gpu_close
  call release_gl_context(context)
  call check(.not. gl_context_is_valid(context), 'released')
  call gl_close
  print '(2a)', 'OpenGL programs work with ', trim(device)

contains

  ! A buffer of the program: these modules write it, its shader works on it, and these modules read it.
  subroutine their_buffer
    type(unified_buffer) :: b
    type(gpu_fence) :: done
    integer(c_int32_t) :: name

    name = gl_make(first, int(4*n, c_size_t))
    call check(gl_buffer_bytes(context, int(name)) == 4*n, 'its size')
    call check(gl_buffer_bytes(context, 4711, stat) == 0, 'no such buffer')
    call check(stat == ONEBUF_INVALID_ARGUMENT, 'and it says so')
    b = wrap_gl_buffer(context, 4711, BUFFER_READ_WRITE, stat)
    call check(stat == ONEBUF_INVALID_ARGUMENT, 'nothing to wrap')
    b = wrap_gl_buffer(context, int(name), BUFFER_READ_WRITE)
    call read_buffer(b, found)
    call check(all(found == first), 'what the program wrote')
    call write_buffer(b, first + 5)
    call hand_to_gl(b, context)
    call gl_run(name, int(n, c_int32_t))
    done = gl_fence(context)
    call foreign_writes_end_at(b, done)
    call read_buffer(b, found)
    call check(all(found == 2*(first + 5) + 1), 'what its shader made of it')
    call destroy_unified_buffer(b)
  end subroutine

  ! A buffer of these modules: the program binds it in its own shader.
  subroutine our_buffer
    type(unified_buffer) :: b
    type(buffer_view) :: view
    integer :: number, name

    number = gpu_add_gl_context(context)
    call check(number == 2, 'the second device')
    b = create_unified_buffer(4*n, BUFFER_READ_WRITE)
    call write_buffer(b, first)
    call open_buffer_view(view, b, device=number)
    name = view_gl_name(view)
    call check(name /= 0, 'its name in the context')
    call gl_run(int(name, c_int32_t), int(n, c_int32_t))
    call close_buffer_view(view)
    call read_buffer(b, found)
    call check(all(found == 2*first + 1), 'what the shader of the program wrote')
    call open_buffer_view(view, b, device=number)
    call gl_read(int(view_gl_name(view), c_int32_t), found, int(4*n, c_size_t))
    call close_buffer_view(view)
    call check(all(found == 2*first + 1), 'and reads')
    ! At once: before the program destroys its context.
    call destroy_unified_buffer(b)
  end subroutine
end program
