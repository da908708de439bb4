! One buffer, accessed by Fortran arrays and by compute kernels. Start with docs/fortran.md.
module gpu_unified_buffers
  use onebuf_c, only: ONEBUF_OK, ONEBUF_UNAVAILABLE, ONEBUF_UNSUPPORTED, ONEBUF_COPY_FORBIDDEN, &
    ONEBUF_NOT_SHARED, ONEBUF_BUSY, ONEBUF_OUT_OF_MEMORY, ONEBUF_DEVICE_LOST, ONEBUF_INVALID_ARGUMENT, &
    ONEBUF_BUILD, ONEBUF_TIMEOUT, ONEBUF_DRIVER, ONEBUF_INVALID_HANDLE, ONEBUF_PEER_LOST, ONEBUF_PEER_REFUSED, &
    ONEBUF_FOREIGN_CONTEXT, ONEBUF_NULL_POINTER, ONEBUF_OTHER
  use gpu_errors, only: gpu_stop_on_failure
  use gpu_session, only: gpu_open, gpu_add_device, gpu_close, gpu_device_name, gpu_device_count, explain_devices, &
    gpu_bytes_moved, MAX_DEVICES
  use gpu_buffer_core, only: unified_buffer, create_unified_buffer, destroy_unified_buffer, buffer_is_valid, &
    buffer_size_bytes, buffer_access_mode, buffer_memory_hint, buffer_gl_name, &
    BUFFER_READ_ONLY, BUFFER_WRITE_ONLY, BUFFER_READ_WRITE, &
    MEMORY_CPU_PREFERRED, MEMORY_GPU_PREFERRED, MEMORY_COHERENT, MEMORY_STREAMING, &
    MEMORY_KIND_ANY, MEMORY_KIND_HOST_PAGES, MEMORY_KIND_FINE_SVM, MEMORY_KIND_COARSE_SVM, MEMORY_KIND_MAPPED_DEVICE, &
    MEMORY_KIND_ON_CHIP, MEMORY_KIND_DEVICE, MEMORY_KIND_EXPORTABLE
  use gpu_buffer_state
  use gpu_buffer_access, only: get_cpu_pointer, sync_to_gpu, sync_from_gpu, flush_buffer_range, GPU_DEFAULT_TIMEOUT_NS
  use gpu_batches, only: write_batch, open_write_batch, flush_write_batch, batch_size
  use gpu_maps, only: buffer_map, open_buffer_map, start_buffer_map, map_is_ready, wait_for_map, map_address, close_buffer_map, &
    map_is_valid
  use gpu_transfers, only: buffer_transfer, read_buffer_async, transfer_is_done, wait_for_transfer, close_transfer, &
    transfer_is_valid
  use gpu_typed_real32
  use gpu_typed_real64
  use gpu_typed_int32
  use gpu_typed_int64
  use gpu_typed_complex32
  use gpu_typed_complex64
  use gpu_native_kernels
  use gpu_programs
  use gpu_pools
  use gpu_rings
  use gpu_libraries
  use gpu_foreign, only: wrap_cl_buffer, wrap_cl_event, foreign_writes_end_at, hand_to_cl_queue
  use gpu_streams
  use gpu_views
  use gpu_devices
  use gpu_frames, only: pipeline_frame, frame_number, frame_tag, get_frame_buffer, dispatch_frame, fill_procedure, &
    frame_procedure, FRAME_FILLED, FRAME_INCOMPLETE, FRAME_IDLE, FRAME_END, MAX_SLOT_BUFFERS
  use gpu_sources, only: frame_source, open_memory_source, open_file_source, open_npy_source, open_synthetic_source, &
    open_udp_source, open_tcp_source, close_source, source_is_valid, source_address, udp_counts, get_udp_counts, &
    plane_wave, REPEAT_FOREVER
  use gpu_sinks, only: frame_sink, open_memory_sink, open_file_sink, open_npy_sink, open_udp_sink, finish_sink, &
    close_sink, sink_is_valid, udp_sent, get_udp_sent
  use gpu_pipelines, only: gpu_pipeline, pipeline_report, create_pipeline, destroy_pipeline, pipeline_is_valid, &
    pipeline_add_buffer, pipeline_set_source, pipeline_add_stage, pipeline_set_sink, pipeline_when_full, run_pipeline, &
    stop_pipeline, get_pipeline_report, pipeline_json, WHEN_FULL_BLOCK, WHEN_FULL_DROP_OLDEST, WHEN_FULL_DROP_NEWEST, &
    MAX_STAGES
  use gpu_opengl
  use gpu_vulkan
  use gpu_plans
  use gpu_traces
  use gpu_peers
  use gpu_copies
  use gpu_queues
  use gpu_regions
  use gpu_descriptors
  use gpu_events
  use gpu_log
  implicit none
  public
  ! For the other modules.
  private :: dispatch_on
end module
