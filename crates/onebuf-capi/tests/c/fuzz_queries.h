// Part of fuzz.c: random calls of queries, verdicts, the cache, viewers, and what else has no object of its own.

static int32_t check_launch(void *user, const onebuf_native_call *call) {
    TRUE(user == NULL && call->global[2] >= 1);
    return rarely() ? 7 : 0;
}

static void about_devices(void) {
    onebuf_device device = PICK(onebuf_device, DEVICE), other = PICK(onebuf_device, DEVICE), several[4];
    onebuf_hub hub = PICK(onebuf_hub, HUB);
    onebuf_string string = {0};
    onebuf_queue queue = {0};
    size_t count;
    bool possible;
    blank();
    switch (below(7)) {
    case 0: TRY(onebuf_hub_select(hub, text(), rarely() ? NULL : several, below(5), rarely() ? NULL : &count)); break;
    case 1: TRY(onebuf_hub_device_of(hub, PICK(onebuf_queue, QUEUE), rarely() ? NULL : &several[0])); break;
    case 2:
        if (TRY(below(2) ? onebuf_hub_topology_json(hub, &string) : onebuf_hub_missing_json(hub, rarely() ? NULL : &string)))
            keep(STRING, string.id);
        break;
    case 3: if (TRY(onebuf_device_default_queue(device, rarely() ? NULL : &queue))) keep(QUEUE, queue.id); break;
    case 4:
        size_options(sizeof(onebuf_verdict));
        if (TRY(onebuf_route_query(device, other, below(12), given(), below(2) ? NULL : &string))) keep(STRING, string.id);
        break;
    case 5:
        size_options(sizeof(onebuf_verdict));
        if (TRY(onebuf_graft_query(device, other, given(), below(2) ? NULL : &string, below(2) ? NULL : &possible))) keep(STRING, string.id);
        break;
    default:
        size_options(sizeof(onebuf_hub_info));
        TRY(onebuf_hub_query(hub, given()));
        size_options(sizeof(onebuf_traffic));
        TRY(onebuf_ledger_query(hub, device, other, given()));
    }
}

static void about_work(void) {
    onebuf_queue queue = PICK(onebuf_queue, QUEUE);
    onebuf_queue_pool pool = PICK(onebuf_queue_pool, QUEUES);
    onebuf_program program = PICK(onebuf_program, PROGRAM);
    onebuf_kernel kernel = PICK(onebuf_kernel, KERNEL), made = {0};
    onebuf_param params[] = {{ONEBUF_ARG_BUFFER, choice(), 0, 4 * below(2)}, {ONEBUF_ARG_VALUE, 0, 4, 0}, {ONEBUF_ARG_LOCAL, 0, 0, below(9)}};
    onebuf_string string = {0};
    onebuf_view view = {0};
    uint64_t number;
    size_t count;
    bool grafted;
    blank();
    switch (below(9)) {
    case 0:
        size_options(sizeof(onebuf_queue_info));
        TRY(onebuf_queue_query(queue, given()));
        break;
    case 1: TRY(onebuf_queue_pool_size(pool, rarely() ? NULL : &count)); break;
    case 2: if (TRY(onebuf_queue_pool_at(pool, below(4), rarely() ? NULL : &queue))) keep(QUEUE, queue.id); break;
    case 3: if (TRY(onebuf_view_overwrite(PICK(onebuf_buffer, BUFFER), queue, rarely() ? NULL : &view))) keep(VIEW, view.id); break;
    case 4:
        TRY(onebuf_program_build_time_ns(program, rarely() ? NULL : &number));
        TRY(onebuf_program_warm_up(program, below(2) ? NULL : &count));
        break;
    case 5: {
        onebuf_kernel_options *how = (onebuf_kernel_options *)&options;
        how->params = rarely() ? NULL : params, how->param_count = 2 + below(2);
        how->flags = below(4) ? 0 : choice(), how->check = below(2) ? check_launch : NULL;
        size_options(sizeof *how);
        if (TRY(onebuf_kernel_create_with(program, rarely() ? text() : "add", given(), rarely() ? NULL : &made))) keep(KERNEL, made.id);
        break;
    }
    case 6: if (TRY(onebuf_kernel_name(kernel, rarely() ? NULL : &string))) keep(STRING, string.id); break;
    case 7: TRY(onebuf_kernel_graft(kernel, PICK(onebuf_device, DEVICE), below(2) ? NULL : &grafted)); break;
    default: TRY(onebuf_library_open(queue, choice()));
    }
}

static void about_memory(void) {
    onebuf_buffer buffer = PICK(onebuf_buffer, BUFFER), made = {0};
    onebuf_pool pool = {0};
    onebuf_string string = {0};
    size_t bytes = room();
    switch (below(5)) {
    case 0: if (TRY(onebuf_buffer_explain_json(buffer, rarely() ? NULL : &string))) keep(STRING, string.id); break;
    case 1: TRY(onebuf_buffer_detach(buffer)); break;
    case 3: TRY(onebuf_buffer_discard(buffer)); break;
    case 2: {
        blank();
        onebuf_pool_options *how = (onebuf_pool_options *)&options;
        how->limit_bytes = below(2) ? 0 : 1 << below(24), how->exact_sizes = below(2), how->log = below(2);
        size_options(sizeof *how);
        if (TRY(onebuf_pool_create_with(PICK(onebuf_hub, HUB), given(), rarely() ? NULL : &pool))) keep(POOL, pool.id);
        break;
    }
    default:
        if (TRY(onebuf_pool_get_cleared(PICK(onebuf_pool, POOL), bytes, buffer_options(bytes), below(3), rarely() ? NULL : &made)))
            keep(BUFFER, made.id);
    }
}

static void about_time(void) {
    onebuf_hub hub = PICK(onebuf_hub, HUB);
    onebuf_pipeline pipeline = PICK(onebuf_pipeline, PIPELINE);
    onebuf_string string = {0};
    uint64_t number;
    blank();
    switch (below(6)) {
    case 0: TRY(onebuf_trace_now_ns(hub, rarely() ? NULL : &number)); break;
    case 1: TRY(onebuf_trace_catch_up(hub)); break;
    case 2: if (TRY(onebuf_trace_account(hub, below(2) ? 0 : any(), any(), &string))) keep(STRING, string.id); break;
    case 3:
        if (TRY(onebuf_pipeline_explain(pipeline, rarely() ? NULL : &string))) keep(STRING, string.id);
        if (TRY(onebuf_pipeline_failure(pipeline, rarely() ? NULL : &string, below(2) ? NULL : &number))) keep(STRING, string.id);
        break;
    case 4:
        size_options(sizeof(onebuf_pulse));
        TRY(onebuf_pipeline_get_pulse(pipeline, given()));
        break;
    default:
        size_options(sizeof(onebuf_stage_report));
        TRY(onebuf_pipeline_get_stage(pipeline, below(3), given()));
    }
}

static void about_nothing(void) {
    onebuf_string string = {0};
    onebuf_viewer viewer = PICK(onebuf_viewer, VIEWER), made = {0};
    size_t shape[3], count;
    blank();
    switch (below(8)) {
    case 0:
        size_options(sizeof(onebuf_error_info));
        TRY(onebuf_last_error(given()));
        break;
    case 1:
        if (TRY(onebuf_cache_folder(rarely() ? NULL : &string))) keep(STRING, string.id);
        size_options(sizeof(onebuf_cache_info));
        TRY(below(2) ? onebuf_cache_query("/nowhere/at/all", given()) : onebuf_cache_clear("/nowhere/at/all", given()));
        break;
    case 2: TRY(onebuf_graft_ptx(text(), rarely() ? NULL : &string)); break;
    case 3: TRY(onebuf_graft_code_object(data(), below(512), &string)); break;
    case 4: TRY(onebuf_graft_spirv(data(), below(512), &string)); break;
    case 5:
        if (TRY(onebuf_viewer_names(rarely() ? NULL : &string))) keep(STRING, string.id);
        if (TRY(onebuf_viewer_attach(rarely() ? NULL : "onebuf-fuzz", below(3), &made))) keep(VIEWER, made.id);
        if (TRY(onebuf_viewer_next(viewer, below(2), rarely() ? NULL : &string))) keep(STRING, string.id);
        TRY(onebuf_viewer_free(viewer));
        break;
    case 6:
        if (below(2)) {
            onebuf_filled filled;
            TRY(below(2) ? onebuf_source_fill(PICK(onebuf_source, SOURCE), data(), below(512), rarely() ? NULL : &filled)
                         : onebuf_sink_take(PICK(onebuf_sink, SINK), data(), below(512), any()));
            TRY(onebuf_socket_path(text(), rarely() ? NULL : &string));
            TRY(onebuf_sockets_remove());
            break;
        }
        TRY(onebuf_source_shape(PICK(onebuf_source, SOURCE), rarely() ? NULL : shape, below(4), rarely() ? NULL : &count)); break;
    default:
        options.synthetic.channels = below(4), options.synthetic.samples = below(9);
        size_options(sizeof options.synthetic);
        TRY(onebuf_synthetic_frame(given(), any(), data(), 8 * (size_t)below(32) + below(2)));
    }
}

static void queries(void) {
    void (*all[])(void) = {about_devices, about_work, about_memory, about_time, about_nothing};
    all[below(5)]();
}
