! One buffer, accessed by Fortran arrays and by compute kernels. Start with docs/fortran.md.
module gpu_unified_buffers
  use onebuf_c, only: ONEBUF_OK, ONEBUF_UNAVAILABLE, ONEBUF_UNSUPPORTED, ONEBUF_COPY_FORBIDDEN, &
    ONEBUF_NOT_SHARED, ONEBUF_BUSY, ONEBUF_OUT_OF_MEMORY, ONEBUF_DEVICE_LOST, ONEBUF_INVALID_ARGUMENT, &
    ONEBUF_BUILD, ONEBUF_TIMEOUT, ONEBUF_DRIVER, ONEBUF_INVALID_HANDLE
  use gpu_session, only: gpu_open, gpu_close, gpu_device_name, gpu_bytes_moved
  use gpu_buffer_core, only: unified_buffer, create_unified_buffer, destroy_unified_buffer, buffer_is_valid, &
    buffer_size_bytes, explain_buffer, get_cpu_pointer, sync_to_gpu, sync_from_gpu, flush_buffer_range, &
    BUFFER_READ_ONLY, BUFFER_WRITE_ONLY, BUFFER_READ_WRITE, &
    MEMORY_CPU_PREFERRED, MEMORY_GPU_PREFERRED, MEMORY_COHERENT, MEMORY_STREAMING
  use gpu_typed_real32
  use gpu_typed_real64
  use gpu_typed_int32
  use gpu_typed_int64
  use gpu_typed_complex32
  use gpu_typed_complex64
  use gpu_compute
  implicit none
  public
end module
