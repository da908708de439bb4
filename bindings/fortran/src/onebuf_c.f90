! The functions of onebuf.h that these modules call; onebuf.h documents them.
module onebuf_c
  use, intrinsic :: iso_c_binding
  implicit none
  public

  integer(c_int32_t), parameter :: ONEBUF_OK = 0
  integer(c_int32_t), parameter :: ONEBUF_UNAVAILABLE = 1
  integer(c_int32_t), parameter :: ONEBUF_UNSUPPORTED = 2
  integer(c_int32_t), parameter :: ONEBUF_COPY_FORBIDDEN = 3
  integer(c_int32_t), parameter :: ONEBUF_NOT_SHARED = 4
  integer(c_int32_t), parameter :: ONEBUF_BUSY = 5
  integer(c_int32_t), parameter :: ONEBUF_OUT_OF_MEMORY = 6
  integer(c_int32_t), parameter :: ONEBUF_DEVICE_LOST = 7
  integer(c_int32_t), parameter :: ONEBUF_INVALID_ARGUMENT = 9
  integer(c_int32_t), parameter :: ONEBUF_BUILD = 11
  integer(c_int32_t), parameter :: ONEBUF_TIMEOUT = 12
  integer(c_int32_t), parameter :: ONEBUF_DRIVER = 13
  integer(c_int32_t), parameter :: ONEBUF_INVALID_HANDLE = 100

  integer(c_int32_t), parameter :: ONEBUF_READ_WRITE = 0
  integer(c_int32_t), parameter :: ONEBUF_READ = 1
  integer(c_int32_t), parameter :: ONEBUF_WRITE = 2

  integer(c_int32_t), parameter :: ONEBUF_ARG_BUFFER = 1
  integer(c_int32_t), parameter :: ONEBUF_ARG_VALUE = 2
  integer(c_int32_t), parameter :: ONEBUF_ARG_TURN = 5
  integer(c_int32_t), parameter :: ONEBUF_ARG_INTEGER = 6
  integer(c_int32_t), parameter :: ONEBUF_ARG_FLOAT = 7

  ! The handle of every object is a number in a structure.
  type, bind(c) :: onebuf_handle
    integer(c_int64_t) :: id = 0
  end type

  type, bind(c) :: onebuf_buffer_options
    integer(c_size_t) :: size = 0
    type(c_ptr) :: devices = c_null_ptr
    integer(c_size_t) :: device_count = 0
    integer(c_int32_t) :: access = 0
    integer(c_int32_t) :: host_access = 0
    integer(c_int32_t) :: copies = 0
    integer(c_int32_t) :: hint = 0
    integer(c_int32_t) :: memory_kind = 0
    integer(c_int32_t) :: route = 0
    integer(c_int32_t) :: sync = 0
    integer(c_int32_t) :: trust_declared = 0
    type(onebuf_handle) :: allocate_on
  end type

  type, bind(c) :: onebuf_shader
    type(c_ptr) :: name = c_null_ptr
    type(c_ptr) :: text = c_null_ptr
  end type

  type, bind(c) :: onebuf_native
    type(c_ptr) :: name = c_null_ptr
    type(c_funptr) :: run = c_null_funptr
    type(c_ptr) :: user = c_null_ptr
  end type

  type, bind(c) :: onebuf_program_options
    integer(c_size_t) :: size = 0
    type(c_ptr) :: opencl_c = c_null_ptr
    type(c_ptr) :: file = c_null_ptr
    type(c_ptr) :: spirv = c_null_ptr
    integer(c_size_t) :: spirv_bytes = 0
    type(c_ptr) :: binary = c_null_ptr
    integer(c_size_t) :: binary_bytes = 0
    type(c_ptr) :: natives = c_null_ptr
    integer(c_size_t) :: native_count = 0
    type(c_ptr) :: compiler_options = c_null_ptr
    type(c_ptr) :: shaders = c_null_ptr
    integer(c_size_t) :: shader_count = 0
  end type

  type, bind(c) :: onebuf_param
    integer(c_int32_t) :: kind = 0
    integer(c_int32_t) :: access = 0
    integer(c_size_t) :: bytes = 0
    integer(c_size_t) :: bytes_per_item = 0
  end type

  type, bind(c) :: onebuf_arg
    integer(c_int32_t) :: kind = 0
    integer(c_int32_t) :: access = 0
    type(onebuf_handle) :: buffer
    type(onebuf_handle) :: view
    type(c_ptr) :: value = c_null_ptr
    integer(c_size_t) :: bytes = 0
  end type

  type, bind(c) :: onebuf_grid
    integer(c_size_t) :: dims = 1
    integer(c_size_t) :: global(3) = 1
    integer(c_size_t) :: local(3) = 0
    integer(c_size_t) :: offset(3) = 0
  end type

  ! An argument of a launch, as a kernel in Fortran gets it.
  type, bind(c) :: onebuf_native_arg
    type(c_ptr) :: data
    integer(c_size_t) :: bytes
    integer(c_int32_t) :: writable
  end type

  ! A launch, as a kernel in Fortran gets it.
  type, bind(c) :: onebuf_native_call
    integer(c_size_t) :: global(3)
    integer(c_size_t) :: offset(3)
    type(c_ptr) :: args
    integer(c_size_t) :: arg_count
  end type

  interface
    function onebuf_last_error_message() bind(c)
      import :: c_ptr
      type(c_ptr) :: onebuf_last_error_message
    end function

    function onebuf_string_data(string) bind(c)
      import :: c_ptr, onebuf_handle
      type(onebuf_handle), value :: string
      type(c_ptr) :: onebuf_string_data
    end function

    function onebuf_string_size(string) bind(c)
      import :: c_size_t, onebuf_handle
      type(onebuf_handle), value :: string
      integer(c_size_t) :: onebuf_string_size
    end function

    function onebuf_string_free(string) bind(c)
      import :: c_int32_t, onebuf_handle
      type(onebuf_handle), value :: string
      integer(c_int32_t) :: onebuf_string_free
    end function

    function onebuf_hub_discover(options, hub) bind(c)
      import :: c_int32_t, c_ptr, onebuf_handle
      type(c_ptr), value :: options
      type(onebuf_handle), intent(out) :: hub
      integer(c_int32_t) :: onebuf_hub_discover
    end function

    function onebuf_hub_free(hub) bind(c)
      import :: c_int32_t, onebuf_handle
      type(onebuf_handle), value :: hub
      integer(c_int32_t) :: onebuf_hub_free
    end function

    function onebuf_hub_device(hub, selector, device) bind(c)
      import :: c_int32_t, c_char, onebuf_handle
      type(onebuf_handle), value :: hub
      character(kind=c_char), intent(in) :: selector(*)
      type(onebuf_handle), intent(out) :: device
      integer(c_int32_t) :: onebuf_hub_device
    end function

    function onebuf_device_id(device, text) bind(c)
      import :: c_int32_t, onebuf_handle
      type(onebuf_handle), value :: device
      type(onebuf_handle), intent(out) :: text
      integer(c_int32_t) :: onebuf_device_id
    end function

    function onebuf_queue_create(device, options, queue) bind(c)
      import :: c_int32_t, c_ptr, onebuf_handle
      type(onebuf_handle), value :: device
      type(c_ptr), value :: options
      type(onebuf_handle), intent(out) :: queue
      integer(c_int32_t) :: onebuf_queue_create
    end function

    function onebuf_queue_free(queue) bind(c)
      import :: c_int32_t, onebuf_handle
      type(onebuf_handle), value :: queue
      integer(c_int32_t) :: onebuf_queue_free
    end function

    function onebuf_queue_flush(queue) bind(c)
      import :: c_int32_t, onebuf_handle
      type(onebuf_handle), value :: queue
      integer(c_int32_t) :: onebuf_queue_flush
    end function

    function onebuf_queue_fence(queue, fence) bind(c)
      import :: c_int32_t, onebuf_handle
      type(onebuf_handle), value :: queue
      type(onebuf_handle), intent(out) :: fence
      integer(c_int32_t) :: onebuf_queue_fence
    end function

    function onebuf_fence_poll(fence, done) bind(c)
      import :: c_int32_t, c_bool, onebuf_handle
      type(onebuf_handle), value :: fence
      logical(c_bool), intent(out) :: done
      integer(c_int32_t) :: onebuf_fence_poll
    end function

    function onebuf_fence_wait_ns(fence, timeout_ns) bind(c)
      import :: c_int32_t, c_int64_t, onebuf_handle
      type(onebuf_handle), value :: fence
      integer(c_int64_t), value :: timeout_ns
      integer(c_int32_t) :: onebuf_fence_wait_ns
    end function

    function onebuf_buffer_create(hub, bytes, options, buffer) bind(c)
      import :: c_int32_t, c_size_t, onebuf_handle, onebuf_buffer_options
      type(onebuf_handle), value :: hub
      integer(c_size_t), value :: bytes
      type(onebuf_buffer_options), intent(in) :: options
      type(onebuf_handle), intent(out) :: buffer
      integer(c_int32_t) :: onebuf_buffer_create
    end function

    function onebuf_buffer_size(buffer, bytes) bind(c)
      import :: c_int32_t, c_size_t, onebuf_handle
      type(onebuf_handle), value :: buffer
      integer(c_size_t), intent(out) :: bytes
      integer(c_int32_t) :: onebuf_buffer_size
    end function

    function onebuf_buffer_explain(buffer, text) bind(c)
      import :: c_int32_t, onebuf_handle
      type(onebuf_handle), value :: buffer
      type(onebuf_handle), intent(out) :: text
      integer(c_int32_t) :: onebuf_buffer_explain
    end function

    function onebuf_buffer_to_host(buffer, access, data) bind(c)
      import :: c_int32_t, c_ptr, onebuf_handle
      type(onebuf_handle), value :: buffer
      integer(c_int32_t), value :: access
      type(c_ptr), intent(out) :: data
      integer(c_int32_t) :: onebuf_buffer_to_host
    end function

    function onebuf_buffer_to_device(buffer) bind(c)
      import :: c_int32_t, onebuf_handle
      type(onebuf_handle), value :: buffer
      integer(c_int32_t) :: onebuf_buffer_to_device
    end function

    function onebuf_buffer_wait_ns(buffer, access, timeout_ns) bind(c)
      import :: c_int32_t, c_int64_t, onebuf_handle
      type(onebuf_handle), value :: buffer
      integer(c_int32_t), value :: access
      integer(c_int64_t), value :: timeout_ns
      integer(c_int32_t) :: onebuf_buffer_wait_ns
    end function

    function onebuf_buffer_store(buffer, offset, data, bytes) bind(c)
      import :: c_int32_t, c_size_t, c_ptr, onebuf_handle
      type(onebuf_handle), value :: buffer
      integer(c_size_t), value :: offset
      type(c_ptr), value :: data
      integer(c_size_t), value :: bytes
      integer(c_int32_t) :: onebuf_buffer_store
    end function

    function onebuf_buffer_load(buffer, offset, data, bytes) bind(c)
      import :: c_int32_t, c_size_t, c_ptr, onebuf_handle
      type(onebuf_handle), value :: buffer
      integer(c_size_t), value :: offset
      type(c_ptr), value :: data
      integer(c_size_t), value :: bytes
      integer(c_int32_t) :: onebuf_buffer_load
    end function

    function onebuf_program_build(device, options, program) bind(c)
      import :: c_int32_t, onebuf_handle, onebuf_program_options
      type(onebuf_handle), value :: device
      type(onebuf_program_options), intent(in) :: options
      type(onebuf_handle), intent(out) :: program
      integer(c_int32_t) :: onebuf_program_build
    end function

    function onebuf_program_free(program) bind(c)
      import :: c_int32_t, onebuf_handle
      type(onebuf_handle), value :: program
      integer(c_int32_t) :: onebuf_program_free
    end function

    function onebuf_kernel_create(program, name, params, param_count, flags, kernel) bind(c)
      import :: c_int32_t, c_size_t, c_char, onebuf_handle, onebuf_param
      type(onebuf_handle), value :: program
      character(kind=c_char), intent(in) :: name(*)
      type(onebuf_param), intent(in) :: params(*)
      integer(c_size_t), value :: param_count
      integer(c_int32_t), value :: flags
      type(onebuf_handle), intent(out) :: kernel
      integer(c_int32_t) :: onebuf_kernel_create
    end function

    function onebuf_queue_launch(queue, kernel, grid, args, arg_count, fence) bind(c)
      import :: c_int32_t, c_size_t, c_ptr, onebuf_handle, onebuf_grid, onebuf_arg
      type(onebuf_handle), value :: queue
      type(onebuf_handle), value :: kernel
      type(onebuf_grid), intent(in) :: grid
      type(onebuf_arg), intent(in) :: args(*)
      integer(c_size_t), value :: arg_count
      type(c_ptr), value :: fence
      integer(c_int32_t) :: onebuf_queue_launch
    end function

    function onebuf_ledger_asked_bytes(hub, bytes) bind(c)
      import :: c_int32_t, c_int64_t, onebuf_handle
      type(onebuf_handle), value :: hub
      integer(c_int64_t), intent(out) :: bytes
      integer(c_int32_t) :: onebuf_ledger_asked_bytes
    end function

    function onebuf_ledger_implied_bytes(hub, bytes) bind(c)
      import :: c_int32_t, c_int64_t, onebuf_handle
      type(onebuf_handle), value :: hub
      integer(c_int64_t), intent(out) :: bytes
      integer(c_int32_t) :: onebuf_ledger_implied_bytes
    end function

    function onebuf_own(owner, id) bind(c)
      import :: c_int32_t, c_int64_t, c_ptr
      type(c_ptr), value :: owner
      integer(c_int64_t), value :: id
      integer(c_int32_t) :: onebuf_own
    end function

    function onebuf_disown(owner) bind(c)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: owner
      integer(c_int32_t) :: onebuf_disown
    end function
  end interface
end module
