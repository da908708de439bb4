! One buffer, accessed by Fortran arrays and by compute kernels. Start with docs/fortran.md.
module gpu_unified_buffers
  use onebuf_c, only: ONEBUF_OK, ONEBUF_UNAVAILABLE, ONEBUF_UNSUPPORTED, ONEBUF_COPY_FORBIDDEN, &
    ONEBUF_NOT_SHARED, ONEBUF_BUSY, ONEBUF_OUT_OF_MEMORY, ONEBUF_DEVICE_LOST, ONEBUF_INVALID_ARGUMENT, &
    ONEBUF_BUILD, ONEBUF_TIMEOUT, ONEBUF_DRIVER, ONEBUF_INVALID_HANDLE
  use gpu_errors, only: gpu_stop_on_failure
  use gpu_session, only: gpu_open, gpu_add_device, gpu_close, gpu_device_name, gpu_device_count, explain_devices, &
    gpu_bytes_moved, MAX_DEVICES
  use gpu_buffer_core, only: unified_buffer, create_unified_buffer, destroy_unified_buffer, buffer_is_valid, &
    buffer_size_bytes, buffer_access_mode, buffer_memory_hint, buffer_gl_name, buffer_persistent_pointer, &
    buffer_is_mapped, buffer_is_coherent, buffer_read_fence, buffer_write_fence, &
    explain_buffer, get_cpu_pointer, sync_to_gpu, sync_from_gpu, flush_buffer_range, &
    BUFFER_READ_ONLY, BUFFER_WRITE_ONLY, BUFFER_READ_WRITE, &
    MEMORY_CPU_PREFERRED, MEMORY_GPU_PREFERRED, MEMORY_COHERENT, MEMORY_STREAMING, GPU_DEFAULT_TIMEOUT_NS
  use gpu_batches, only: write_batch, open_write_batch, flush_write_batch, batch_size
  use gpu_typed_real32
  use gpu_typed_real64
  use gpu_typed_int32
  use gpu_typed_int64
  use gpu_typed_complex32
  use gpu_typed_complex64
  use gpu_programs
  use gpu_pools
  use gpu_rings
  use gpu_libraries
  use gpu_foreign
  implicit none
  public
end module
