! How a program is built of its sources in several languages. For gpu_programs alone.
module gpu_program_build
  use onebuf_c
  use gpu_session, only: session
  implicit none
  private
  public :: build_kernel

contains

  ! Builds a program on device `on`, moves it to device `to` if that is another one, and declares its one kernel, which keeps the program
  ! alive. `run` is a kernel in Fortran, or null.
  function build_kernel(on, to, kernel, params, run, handle, opencl_c, glsl, cuda_c, hip_c, ptx, compiler_options) result(status)
    integer, intent(in) :: on, to
    character(*), intent(in) :: kernel
    type(onebuf_param), intent(in) :: params(:)
    type(c_funptr), intent(in) :: run
    type(onebuf_kernel), intent(inout) :: handle
    character(*), intent(in), optional :: opencl_c, glsl, cuda_c, hip_c, ptx, compiler_options
    integer(c_int32_t) :: status, ignored
    type(onebuf_program_options) :: options
    type(onebuf_native), target :: natives(1)
    type(onebuf_shader), target :: shaders(1)
    type(onebuf_program) :: built, moved
    character(kind=c_char, len=:), allocatable, target :: name, text, shader, cuda, hip, assembly, flags

    name = kernel//c_null_char
    options%size = int(storage_size(options)/8, c_size_t)
    if (present(opencl_c)) then
      text = opencl_c//c_null_char
      options%opencl_c = c_loc(text)
    end if
    if (present(cuda_c)) then
      cuda = cuda_c//c_null_char
      options%cuda_c = c_loc(cuda)
    end if
    if (present(hip_c)) then
      hip = hip_c//c_null_char
      options%hip_c = c_loc(hip)
    end if
    if (present(ptx)) then
      assembly = ptx//c_null_char
      options%ptx = c_loc(assembly)
    end if
    if (present(compiler_options)) then
      flags = compiler_options//c_null_char
      options%compiler_options = c_loc(flags)
    end if
    if (present(glsl)) then
      shader = glsl//c_null_char
      shaders(1) = onebuf_shader(c_loc(name), c_loc(shader))
      options%shaders = c_loc(shaders)
      options%shader_count = 1
    end if
    if (c_associated(run)) then
      natives(1) = onebuf_native(c_loc(name), run, c_null_ptr)
      options%natives = c_loc(natives)
      options%native_count = 1
    end if
    status = onebuf_program_build(session%devices(on), options, built)
    if (status /= ONEBUF_OK) return
    if (to /= on) then
      status = onebuf_program_graft(built, session%devices(to), c_null_ptr, moved)
      ignored = onebuf_program_free(built)
      if (status /= ONEBUF_OK) return
      built = moved
    end if
    status = onebuf_kernel_create(built, name, params, int(size(params), c_size_t), 0_c_int32_t, handle)
    ignored = onebuf_program_free(built)
  end function
end module
