! A cl_mem of the program's own, used by kernels of onebuf and by the CPU. Every reference that was added is released.
module opencl
  use, intrinsic :: iso_c_binding
  implicit none

  integer(c_int64_t), parameter :: CL_DEVICE_TYPE_ALL = int(z'FFFFFFFF', c_int64_t)
  integer(c_int64_t), parameter :: CL_MEM_READ_WRITE = 1
  integer(c_int32_t), parameter :: CL_TRUE = 1, CL_FALSE = 0
  integer(c_int32_t), parameter :: CL_MEM_REFERENCE_COUNT = int(z'1105', c_int32_t)

  interface
    function clGetPlatformIDs(entries, platforms, count) bind(c, name='clGetPlatformIDs') result(status)
      import :: c_int32_t, c_ptr
      integer(c_int32_t), value :: entries
      type(c_ptr), intent(out) :: platforms(*)
      type(c_ptr), value :: count
      integer(c_int32_t) :: status
    end function

    function clGetDeviceIDs(platform, kind, entries, devices, count) bind(c, name='clGetDeviceIDs') result(status)
      import :: c_int32_t, c_int64_t, c_ptr
      type(c_ptr), value :: platform
      integer(c_int64_t), value :: kind
      integer(c_int32_t), value :: entries
      type(c_ptr), intent(out) :: devices(*)
      type(c_ptr), value :: count
      integer(c_int32_t) :: status
    end function

    function clCreateContext(properties, count, devices, notify, user, status) bind(c, name='clCreateContext') result(context)
      import :: c_int32_t, c_ptr, c_funptr
      type(c_ptr), value :: properties
      integer(c_int32_t), value :: count
      type(c_ptr), intent(in) :: devices(*)
      type(c_funptr), value :: notify
      type(c_ptr), value :: user
      integer(c_int32_t), intent(out) :: status
      type(c_ptr) :: context
    end function

    function clCreateCommandQueue(context, device, properties, status) bind(c, name='clCreateCommandQueue') result(queue)
      import :: c_int32_t, c_int64_t, c_ptr
      type(c_ptr), value :: context, device
      integer(c_int64_t), value :: properties
      integer(c_int32_t), intent(out) :: status
      type(c_ptr) :: queue
    end function

    function clCreateBuffer(context, flags, bytes, host, status) bind(c, name='clCreateBuffer') result(mem)
      import :: c_int32_t, c_int64_t, c_size_t, c_ptr
      type(c_ptr), value :: context
      integer(c_int64_t), value :: flags
      integer(c_size_t), value :: bytes
      type(c_ptr), value :: host
      integer(c_int32_t), intent(out) :: status
      type(c_ptr) :: mem
    end function

    function clEnqueueWriteBuffer(queue, mem, wait, offset, bytes, data, count, list, event) &
      bind(c, name='clEnqueueWriteBuffer') result(status)
      import :: c_int32_t, c_size_t, c_ptr
      type(c_ptr), value :: queue, mem, data, list
      integer(c_int32_t), value :: wait, count
      integer(c_size_t), value :: offset, bytes
      type(c_ptr), intent(out) :: event
      integer(c_int32_t) :: status
    end function

    function clEnqueueReadBuffer(queue, mem, wait, offset, bytes, data, count, list, event) &
      bind(c, name='clEnqueueReadBuffer') result(status)
      import :: c_int32_t, c_size_t, c_ptr
      type(c_ptr), value :: queue, mem, data, list, event
      integer(c_int32_t), value :: wait, count
      integer(c_size_t), value :: offset, bytes
      integer(c_int32_t) :: status
    end function

    function clGetMemObjectInfo(mem, what, bytes, value, size) bind(c, name='clGetMemObjectInfo') result(status)
      import :: c_int32_t, c_size_t, c_ptr
      type(c_ptr), value :: mem
      integer(c_int32_t), value :: what
      integer(c_size_t), value :: bytes
      integer(c_int32_t), intent(out) :: value
      type(c_ptr), value :: size
      integer(c_int32_t) :: status
    end function

    function clReleaseEvent(event) bind(c, name='clReleaseEvent') result(status)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: event
      integer(c_int32_t) :: status
    end function
  end interface
end module

program foreign
  use, intrinsic :: iso_fortran_env, only: int64, real32
  use opencl
  use gpu_unified_buffers
  use gpu_fence_primitives
  use gain, only: gain_program
  use checks, only: check
  implicit none
  integer, parameter :: n = 2048
  type(c_ptr) :: platforms(1), devices(1), context, queue, mem, event
  integer(c_int32_t) :: status, before, after
  real(real32), target :: x(n), y(n)
  type(unified_buffer) :: input, output
  type(compute_program) :: program
  type(gpu_fence) :: written
  integer :: stat
  character(300) :: message

  call ok(clGetPlatformIDs(1, platforms, c_null_ptr))
  call ok(clGetDeviceIDs(platforms(1), CL_DEVICE_TYPE_ALL, 1, devices, c_null_ptr))
  context = clCreateContext(c_null_ptr, 1, devices, c_null_funptr, c_null_ptr, status)
  call ok(status)
  queue = clCreateCommandQueue(context, devices(1), 0_c_int64_t, status)
  call ok(status)
  mem = clCreateBuffer(context, CL_MEM_READ_WRITE, int(4*n, c_size_t), c_null_ptr, status)
  call ok(status)
  before = references()

  call gpu_open('opencl:0')
  program = gain_program()
  x = 4
  call ok(clEnqueueWriteBuffer(queue, mem, CL_FALSE, 0_c_size_t, int(4*n, c_size_t), c_loc(x), 0, c_null_ptr, event))
  input = wrap_cl_buffer(mem, BUFFER_READ_WRITE)
  call check(buffer_is_valid(input), 'wrapped')
  call check(buffer_size_bytes(input) == 4*n, 'its size')
  written = wrap_cl_event(event)
  call foreign_writes_end_at(input, written)
  output = create_unified_buffer(4*n, BUFFER_READ_ONLY)
  call bind_buffer_to_shader(input, 0)
  call bind_buffer_to_shader(output, 1)
  call dispatch_compute(program, [n], integers=[n], reals=[3.0_real32])
  call read_buffer(output, y)
  call check(all(abs(y - 12) <= 0), 'a kernel read what the program''s own command wrote')
  call write_buffer(input, 2*x)
  call hand_to_cl_queue(input, queue)
  y = 0
  call ok(clEnqueueReadBuffer(queue, mem, CL_TRUE, 0_c_size_t, int(4*n, c_size_t), c_loc(y), 0, c_null_ptr, c_null_ptr))
  call check(all(abs(y - 8) <= 0), 'the program''s own command reads what the CPU wrote')

  input = wrap_cl_buffer(c_null_ptr, BUFFER_READ_WRITE, stat, message)
  call check(stat /= 0 .and. len_trim(message) > 0, 'no cl_mem')
  call check(.not. buffer_is_valid(input), 'nothing is wrapped')
  input = wrap_cl_buffer(mem, 77, stat, message)
  call check(stat == ONEBUF_INVALID_ARGUMENT, 'no such mode')
  call gpu_fence_destroy(written)
  call unbind_shader_buffers
  call destroy_unified_buffer(output)
  call destroy_compute_program(program)
  call gpu_close
  after = references()
  call check(after == before, 'every reference is released')
  call ok(clReleaseEvent(event))
  print '(a)', 'foreign objects work'

contains

  subroutine ok(status)
    integer(c_int32_t), intent(in) :: status

    call check(status == 0, 'an OpenCL call')
  end subroutine

  function references() result(count)
    integer(c_int32_t) :: count

    call ok(clGetMemObjectInfo(mem, CL_MEM_REFERENCE_COUNT, 4_c_size_t, count, c_null_ptr))
  end function
end program
