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
  integer(c_int32_t), parameter :: ONEBUF_ARG_LOCAL = 3
  integer(c_int32_t), parameter :: ONEBUF_ARG_TURN = 5
  integer(c_int32_t), parameter :: ONEBUF_ARG_INTEGER = 6
  integer(c_int32_t), parameter :: ONEBUF_ARG_FLOAT = 7

  integer(c_int32_t), parameter :: ONEBUF_F32 = 0
  integer(c_int32_t), parameter :: ONEBUF_F64 = 1
  integer(c_int32_t), parameter :: ONEBUF_C32 = 2
  integer(c_int32_t), parameter :: ONEBUF_C64 = 3

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
    integer(c_size_t) :: align = 0
    integer(c_int64_t) :: cl_flags = 0
    type(c_ptr) :: contents = c_null_ptr
    type(c_ptr) :: host_memory = c_null_ptr
    type(c_funptr) :: host_memory_done = c_null_funptr
    type(c_ptr) :: host_memory_user = c_null_ptr
    integer(c_int32_t) :: raw_addresses = 0
  end type

  type, bind(c) :: onebuf_one_write
    integer(c_size_t) :: offset = 0
    type(c_ptr) :: data = c_null_ptr
    integer(c_size_t) :: bytes = 0
  end type

  type, bind(c) :: onebuf_buffer_state
    integer(c_size_t) :: size = 0
    integer(c_size_t) :: bytes = 0
    type(c_ptr) :: data = c_null_ptr
    integer(c_int32_t) :: mapped = 0
    integer(c_int32_t) :: writable = 0
    integer(c_int32_t) :: memory_kind = 0
    integer(c_int32_t) :: coherent = 0
  end type

  type, bind(c) :: onebuf_pool_statistics
    integer(c_size_t) :: size = 0
    integer(c_int64_t) :: hits = 0
    integer(c_int64_t) :: misses = 0
    integer(c_int64_t) :: freed = 0
    integer(c_int64_t) :: lost = 0
    integer(c_int64_t) :: live_buffers = 0
    integer(c_int64_t) :: live_bytes = 0
    integer(c_int64_t) :: idle_buffers = 0
    integer(c_int64_t) :: idle_bytes = 0
    integer(c_int64_t) :: peak_live_bytes = 0
    integer(c_int64_t) :: peak_held_bytes = 0
  end type

  type, bind(c) :: onebuf_gemm_options
    integer(c_size_t) :: size = 0
    integer(c_int32_t) :: number = 0
    integer(c_int32_t) :: op_a = 0
    integer(c_int32_t) :: op_b = 0
    integer(c_int32_t) :: reserved = 0
    integer(c_size_t) :: m = 0
    integer(c_size_t) :: n = 0
    integer(c_size_t) :: k = 0
    integer(c_size_t) :: lda = 0
    integer(c_size_t) :: ldb = 0
    integer(c_size_t) :: ldc = 0
    type(c_ptr) :: alpha = c_null_ptr
    type(c_ptr) :: beta = c_null_ptr
  end type

  type, bind(c) :: onebuf_fft_options
    integer(c_size_t) :: size = 0
    integer(c_int32_t) :: number = 0
    integer(c_int32_t) :: inverse = 0
    integer(c_size_t) :: len = 0
    integer(c_size_t) :: batch = 0
  end type

  type, bind(c) :: onebuf_wrap_options
    integer(c_size_t) :: size = 0
    integer(c_size_t) :: bytes = 0
    type(c_ptr) :: devices = c_null_ptr
    integer(c_size_t) :: device_count = 0
    type(c_ptr) :: after = c_null_ptr
    integer(c_size_t) :: after_count = 0
    integer(c_int32_t) :: copies = 0
    integer(c_int32_t) :: route = 0
    integer(c_int32_t) :: trust_declared = 0
    type(c_funptr) :: release = c_null_funptr
    type(c_ptr) :: release_user = c_null_ptr
    integer(c_int32_t) :: raw_addresses = 0
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
    type(c_ptr) :: cuda_c = c_null_ptr
    type(c_ptr) :: hip_c = c_null_ptr
    type(c_ptr) :: ptx = c_null_ptr
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

    function onebuf_hub_device_count(hub, count) bind(c)
      import :: c_int32_t, c_size_t, onebuf_handle
      type(onebuf_handle), value :: hub
      integer(c_size_t), intent(out) :: count
      integer(c_int32_t) :: onebuf_hub_device_count
    end function

    function onebuf_hub_device_at(hub, index, device) bind(c)
      import :: c_int32_t, c_size_t, onebuf_handle
      type(onebuf_handle), value :: hub
      integer(c_size_t), value :: index
      type(onebuf_handle), intent(out) :: device
      integer(c_int32_t) :: onebuf_hub_device_at
    end function

    function onebuf_hub_missing(hub, text) bind(c)
      import :: c_int32_t, onebuf_handle
      type(onebuf_handle), value :: hub
      type(onebuf_handle), intent(out) :: text
      integer(c_int32_t) :: onebuf_hub_missing
    end function

    function onebuf_device_name(device, text) bind(c)
      import :: c_int32_t, onebuf_handle
      type(onebuf_handle), value :: device
      type(onebuf_handle), intent(out) :: text
      integer(c_int32_t) :: onebuf_device_name
    end function

    function onebuf_fence_free(fence) bind(c)
      import :: c_int32_t, onebuf_handle
      type(onebuf_handle), value :: fence
      integer(c_int32_t) :: onebuf_fence_free
    end function

    function onebuf_buffer_free(buffer) bind(c)
      import :: c_int32_t, onebuf_handle
      type(onebuf_handle), value :: buffer
      integer(c_int32_t) :: onebuf_buffer_free
    end function

    function onebuf_buffer_fence(buffer, fence) bind(c)
      import :: c_int32_t, onebuf_handle
      type(onebuf_handle), value :: buffer
      type(onebuf_handle), intent(out) :: fence
      integer(c_int32_t) :: onebuf_buffer_fence
    end function

    function onebuf_buffer_uses(buffer, fence) bind(c)
      import :: c_int32_t, onebuf_handle
      type(onebuf_handle), value :: buffer
      type(onebuf_handle), intent(out) :: fence
      integer(c_int32_t) :: onebuf_buffer_uses
    end function

    function onebuf_buffer_get_state(buffer, state) bind(c)
      import :: c_int32_t, onebuf_handle, onebuf_buffer_state
      type(onebuf_handle), value :: buffer
      type(onebuf_buffer_state), intent(inout) :: state
      integer(c_int32_t) :: onebuf_buffer_get_state
    end function

    function onebuf_buffer_flush(buffer, offset, bytes) bind(c)
      import :: c_int32_t, c_size_t, onebuf_handle
      type(onebuf_handle), value :: buffer
      integer(c_size_t), value :: offset
      integer(c_size_t), value :: bytes
      integer(c_int32_t) :: onebuf_buffer_flush
    end function

    function onebuf_buffer_store_many(buffer, writes, count) bind(c)
      import :: c_int32_t, c_size_t, onebuf_handle, onebuf_one_write
      type(onebuf_handle), value :: buffer
      type(onebuf_one_write), intent(in) :: writes(*)
      integer(c_size_t), value :: count
      integer(c_int32_t) :: onebuf_buffer_store_many
    end function

    function onebuf_view_take(buffer, queue, access, view) bind(c)
      import :: c_int32_t, onebuf_handle
      type(onebuf_handle), value :: buffer
      type(onebuf_handle), value :: queue
      integer(c_int32_t), value :: access
      type(onebuf_handle), intent(out) :: view
      integer(c_int32_t) :: onebuf_view_take
    end function

    function onebuf_view_gl_name(view, name) bind(c)
      import :: c_int32_t, onebuf_handle
      type(onebuf_handle), value :: view
      integer(c_int32_t), intent(out) :: name
      integer(c_int32_t) :: onebuf_view_gl_name
    end function

    function onebuf_view_free(view) bind(c)
      import :: c_int32_t, onebuf_handle
      type(onebuf_handle), value :: view
      integer(c_int32_t) :: onebuf_view_free
    end function

    function onebuf_pool_create(hub, limit_bytes, pool) bind(c)
      import :: c_int32_t, c_int64_t, onebuf_handle
      type(onebuf_handle), value :: hub
      integer(c_int64_t), value :: limit_bytes
      type(onebuf_handle), intent(out) :: pool
      integer(c_int32_t) :: onebuf_pool_create
    end function

    function onebuf_pool_get(pool, bytes, options, timeout_ms, buffer) bind(c)
      import :: c_int32_t, c_int64_t, c_size_t, onebuf_handle, onebuf_buffer_options
      type(onebuf_handle), value :: pool
      integer(c_size_t), value :: bytes
      type(onebuf_buffer_options), intent(in) :: options
      integer(c_int64_t), value :: timeout_ms
      type(onebuf_handle), intent(out) :: buffer
      integer(c_int32_t) :: onebuf_pool_get
    end function

    function onebuf_pool_trim(pool, keep_bytes, freed_bytes) bind(c)
      import :: c_int32_t, c_int64_t, onebuf_handle
      type(onebuf_handle), value :: pool
      integer(c_int64_t), value :: keep_bytes
      integer(c_int64_t), intent(out) :: freed_bytes
      integer(c_int32_t) :: onebuf_pool_trim
    end function

    function onebuf_pool_get_statistics(pool, statistics) bind(c)
      import :: c_int32_t, onebuf_handle, onebuf_pool_statistics
      type(onebuf_handle), value :: pool
      type(onebuf_pool_statistics), intent(inout) :: statistics
      integer(c_int32_t) :: onebuf_pool_get_statistics
    end function

    function onebuf_buffer_wrap(hub, cl_mem, options, buffer) bind(c)
      import :: c_int32_t, c_ptr, onebuf_handle, onebuf_wrap_options
      type(onebuf_handle), value :: hub
      type(c_ptr), value :: cl_mem
      type(onebuf_wrap_options), intent(in) :: options
      type(onebuf_handle), intent(out) :: buffer
      integer(c_int32_t) :: onebuf_buffer_wrap
    end function

    function onebuf_buffer_hand_to(buffer, queue, sync_method) bind(c)
      import :: c_int32_t, c_ptr, onebuf_handle
      type(onebuf_handle), value :: buffer
      type(onebuf_handle), value :: queue
      type(c_ptr), value :: sync_method
      integer(c_int32_t) :: onebuf_buffer_hand_to
    end function

    function onebuf_buffer_written_until(buffer, fence) bind(c)
      import :: c_int32_t, onebuf_handle
      type(onebuf_handle), value :: buffer
      type(onebuf_handle), value :: fence
      integer(c_int32_t) :: onebuf_buffer_written_until
    end function

    function onebuf_fence_wrap(hub, cl_event, fence) bind(c)
      import :: c_int32_t, c_ptr, onebuf_handle
      type(onebuf_handle), value :: hub
      type(c_ptr), value :: cl_event
      type(onebuf_handle), intent(out) :: fence
      integer(c_int32_t) :: onebuf_fence_wrap
    end function

    function onebuf_queue_wrap(hub, cl_queue, queue) bind(c)
      import :: c_int32_t, c_ptr, onebuf_handle
      type(onebuf_handle), value :: hub
      type(c_ptr), value :: cl_queue
      type(onebuf_handle), intent(out) :: queue
      integer(c_int32_t) :: onebuf_queue_wrap
    end function

    function onebuf_queue_wait_for(queue, fence, sync_method) bind(c)
      import :: c_int32_t, c_ptr, onebuf_handle
      type(onebuf_handle), value :: queue
      type(onebuf_handle), value :: fence
      type(c_ptr), value :: sync_method
      integer(c_int32_t) :: onebuf_queue_wait_for
    end function

    function onebuf_queue_finish(queue, timeout_ms) bind(c)
      import :: c_int32_t, c_int64_t, onebuf_handle
      type(onebuf_handle), value :: queue
      integer(c_int64_t), value :: timeout_ms
      integer(c_int32_t) :: onebuf_queue_finish
    end function

    function onebuf_gemm(queue, options, a, b, c) bind(c)
      import :: c_int32_t, onebuf_handle, onebuf_gemm_options
      type(onebuf_handle), value :: queue
      type(onebuf_gemm_options), intent(in) :: options
      type(onebuf_handle), value :: a
      type(onebuf_handle), value :: b
      type(onebuf_handle), value :: c
      integer(c_int32_t) :: onebuf_gemm
    end function

    function onebuf_fft(queue, options, from, to) bind(c)
      import :: c_int32_t, onebuf_handle, onebuf_fft_options
      type(onebuf_handle), value :: queue
      type(onebuf_fft_options), intent(in) :: options
      type(onebuf_handle), value :: from
      type(onebuf_handle), value :: to
      integer(c_int32_t) :: onebuf_fft
    end function

    function onebuf_lu_factor(queue, number, n, ld, a, lu) bind(c)
      import :: c_int32_t, c_size_t, onebuf_handle
      type(onebuf_handle), value :: queue
      integer(c_int32_t), value :: number
      integer(c_size_t), value :: n
      integer(c_size_t), value :: ld
      type(onebuf_handle), value :: a
      type(onebuf_handle), intent(out) :: lu
      integer(c_int32_t) :: onebuf_lu_factor
    end function

    function onebuf_lu_solve(queue, lu, op, a, columns, ldb, b) bind(c)
      import :: c_int32_t, c_size_t, onebuf_handle
      type(onebuf_handle), value :: queue
      type(onebuf_handle), value :: lu
      integer(c_int32_t), value :: op
      type(onebuf_handle), value :: a
      integer(c_size_t), value :: columns
      integer(c_size_t), value :: ldb
      type(onebuf_handle), value :: b
      integer(c_int32_t) :: onebuf_lu_solve
    end function

    function onebuf_lu_invert(queue, lu, a, inverse) bind(c)
      import :: c_int32_t, onebuf_handle
      type(onebuf_handle), value :: queue
      type(onebuf_handle), value :: lu
      type(onebuf_handle), value :: a
      type(onebuf_handle), value :: inverse
      integer(c_int32_t) :: onebuf_lu_invert
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
