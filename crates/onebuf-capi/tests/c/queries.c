// `queries FOLDER`: what C asks about hubs, devices, queues, programs, pools, pipelines and failures, and what it is told while a hub
// works. Uses devices for tests, which have memory of their own, so that the answers are known on every machine.

#include "check.h"
#include <stdatomic.h>
#include <string.h>

enum { N = 1024, BYTES = N * 4 };

static onebuf_hub hub;
static onebuf_device fake, other, host;
static onebuf_queue queue;
static const char *folder;

static bool has(onebuf_string text, const char *part) {
    bool found = strstr(onebuf_string_data(text), part) != NULL;
    if (!found) fprintf(stderr, "no `%s` in: %.500s\n", part, onebuf_string_data(text));
    OK(onebuf_string_free(text));
    return found;
}

static bool says(const char *part) {
    bool found = strstr(onebuf_last_error_message(), part) != NULL;
    if (!found) fprintf(stderr, "no `%s` in: %s\n", part, onebuf_last_error_message());
    return found;
}

// What the observer has seen.
static atomic_uint launches, copies, implied, hand_overs, made, of_buffer;
static atomic_bool observer_done;

static void on_event(void *user, const onebuf_event *event) {
    TRUE(user == &launches && event->end_ns >= event->start_ns && event->name);
    if (event->kind == ONEBUF_EVENT_LAUNCH) {
        TRUE(strcmp(event->name, "add") == 0 && event->queue != ONEBUF_NO_NUMBER && event->frame == ONEBUF_NO_NUMBER);
        launches++;
    }
    if (event->kind == ONEBUF_EVENT_COPY) event->implied ? implied++ : copies++;
}

static void on_buffer(void *user, const onebuf_new_buffer *buffer) {
    TRUE(user == &launches && buffer->bytes > 0 && buffer->route_count >= 1 && buffer->routes[0].device < 3);
    if (strcmp(buffer->name, "watched") == 0) TRUE(buffer->route_count == 2 && buffer->home >= 0);
    made++;
}

static void on_hand_over(void *user, uint64_t buffer, int32_t from, int32_t to, uint32_t sync) {
    TRUE(user == &launches && from >= 0 && from < 3 && to >= 0 && to < 3 && sync != ONEBUF_SYNC_ANY);
    (void)buffer;
    hand_overs++;
}

static void on_copy(void *user, uint64_t buffer, uint64_t bytes) {
    TRUE(user == &launches && bytes == BYTES);
    (void)buffer;
    of_buffer++;
}

static void on_failed_route(void *user, uint64_t buffer, size_t route) {
    (void)user, (void)buffer, (void)route;
    fail("no route fails here", __LINE__);
}

static void on_done(void *user) {
    TRUE(user == &launches);
    observer_done = true;
}

static onebuf_buffer shared(const char *name, size_t count, const onebuf_device *devices) {
    onebuf_buffer_options options = ONEBUF_OPTIONS(onebuf_buffer_options);
    options.devices = devices, options.device_count = count, options.name = name;
    onebuf_buffer buffer;
    OK(onebuf_buffer_create(hub, BYTES, &options, &buffer));
    return buffer;
}

static void add(onebuf_queue on, onebuf_kernel kernel, onebuf_buffer buffer, uint32_t n) {
    onebuf_arg args[] = {onebuf_arg_buffer(buffer, ONEBUF_READ_WRITE), onebuf_arg_number(ONEBUF_ARG_INTEGER, &n, sizeof n)};
    onebuf_grid grid = onebuf_grid_1d(N);
    OK(onebuf_queue_launch(on, kernel, &grid, args, 2, NULL));
}

static void discover(void) {
    onebuf_observer observer = ONEBUF_OPTIONS(onebuf_observer);
    observer.user = &launches, observer.event = on_event, observer.buffer_made = on_buffer, observer.handed_over = on_hand_over;
    observer.copied_implicitly = on_copy, observer.route_failed = on_failed_route, observer.done = on_done;
    onebuf_hub_options options = ONEBUF_OPTIONS(onebuf_hub_options);
    options.fake_devices = 17, options.only = "fake", options.observer = &observer;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_hub_discover(&options, &hub));
    TRUE(observer_done); // although there is no hub
    observer_done = false;
    options.fake_devices = 2;
    options.timeout_ms = 12345, options.copies = ONEBUF_COPIES_WARN;
    options.cache_folder = folder, options.program_cache_bytes = 1 << 20;
    options.trace_events = 4096, options.trace_devices = 1;
    options.cublas_library = options.cufft_library = options.cusolver_library = "none";
    options.rocblas_library = options.rocfft_library = options.rocsolver_library = "none";
    OK(onebuf_hub_discover(&options, &hub));
    OK(onebuf_hub_device(hub, "fake:0", &fake));
    OK(onebuf_hub_device(hub, "fake:1", &other));
    OK(onebuf_hub_device(hub, "host", &host));
    OK(onebuf_queue_create(fake, NULL, &queue));
}

static void hubs(void) {
    onebuf_hub_info info = ONEBUF_OPTIONS(onebuf_hub_info);
    OK(onebuf_hub_query(hub, &info));
    TRUE(info.device_count == 3 && info.timeout_ms == 12345 && info.copies == ONEBUF_COPIES_WARN && info.verdict_count == 0);
    onebuf_device found[2];
    size_t count;
    OK(onebuf_hub_select(hub, "fake", found, 2, &count));
    TRUE(count == 2 && found[0].id == fake.id && found[1].id == other.id);
    OK(onebuf_hub_select(hub, "fake", found, 1, &count));
    TRUE(count == 2);
    OK(onebuf_hub_select(hub, "no such thing", NULL, 0, &count));
    TRUE(count == 0);
    OK(onebuf_hub_device_of(hub, queue, &found[0]));
    TRUE(found[0].id == fake.id);
    onebuf_string text;
    OK(onebuf_hub_missing_json(hub, &text));
    TRUE(onebuf_string_data(text)[0] == '[');
    OK(onebuf_string_free(text));
    OK(onebuf_hub_topology_json(hub, &text));
    TRUE(has(text, "\"devices\":[\"host\",\"fake:0\",\"fake:1\"]"));
    OK(onebuf_hub_topology_json(hub, &text));
    TRUE(has(text, "\"state\":\"declared\""));
    onebuf_queue_info queue_info = ONEBUF_OPTIONS(onebuf_queue_info);
    onebuf_queue_options profiled = ONEBUF_OPTIONS(onebuf_queue_options);
    profiled.profiling = 1;
    onebuf_queue timed, one, two;
    OK(onebuf_queue_create(fake, &profiled, &timed));
    OK(onebuf_queue_query(timed, &queue_info));
    TRUE(queue_info.profiling && queue_info.order == ONEBUF_QUEUE_IN_ORDER);
    OK(onebuf_device_default_queue(fake, &one));
    OK(onebuf_device_default_queue(fake, &two));
    TRUE(one.id != two.id); // two handles of one queue
    onebuf_queue_pool pool;
    OK(onebuf_queue_pool_create(fake, 2, NULL, &pool));
    OK(onebuf_queue_pool_size(pool, &count));
    TRUE(count == 2);
    onebuf_queue at;
    OK(onebuf_queue_pool_at(pool, 1, &at));
    OK(onebuf_queue_finish(at, 1000));
    onebuf_queue none;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_queue_pool_at(pool, 2, &none));
    OK(onebuf_queue_free(at)), OK(onebuf_queue_pool_free(pool));
    OK(onebuf_queue_free(timed)), OK(onebuf_queue_free(one)), OK(onebuf_queue_free(two));
}

static void verdicts(void) {
    onebuf_verdict verdict = ONEBUF_OPTIONS(onebuf_verdict);
    onebuf_string why;
    OK(onebuf_route_query(fake, other, ONEBUF_ROUTE_STAGED, &verdict, &why));
    TRUE(verdict.state == ONEBUF_VERDICT_DECLARED && verdict.zero_copy != 1);
    OK(onebuf_string_free(why));
    OK(onebuf_route_query(fake, other, ONEBUF_ROUTE_STAGED, &verdict, NULL));
    ENDS(ONEBUF_UNSUPPORTED, onebuf_route_query(fake, other, ONEBUF_ROUTE_IPC, &verdict, NULL));
    TRUE(says("staged"));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_route_query(fake, other, ONEBUF_ROUTE_ANY, &verdict, NULL));
    bool possible = true;
    OK(onebuf_graft_query(fake, other, &verdict, &why, &possible));
    TRUE(!possible && verdict.state == ONEBUF_VERDICT_DECLARED && has(why, "doctor"));
}

// Views and launches that overwrite bring no contents along: no implied copy is made.
static void overwriting(onebuf_kernel kernel) {
    const onebuf_device both[] = {fake, other};
    onebuf_buffer buffer = shared("watched", 2, both);
    onebuf_queue second;
    OK(onebuf_queue_create(other, NULL, &second));
    onebuf_program program = build_add(other, NULL);
    onebuf_kernel there = kernel_add(program);
    add(queue, kernel, buffer, 5);
    OK(onebuf_queue_finish(queue, 1000));
    uint64_t before, after;
    OK(onebuf_ledger_implied_bytes(hub, &before));
    add(second, there, buffer, 2); // the other device gets a copy of the contents
    OK(onebuf_queue_finish(second, 1000));
    OK(onebuf_ledger_implied_bytes(hub, &after));
    TRUE(after == before + BYTES && hand_overs > 0 && of_buffer == 1 && implied > 0);
    onebuf_traffic traffic = ONEBUF_OPTIONS(onebuf_traffic);
    OK(onebuf_ledger_query(hub, fake, other, &traffic));
    TRUE(traffic.implied_bytes == BYTES && traffic.implied_operations == 1 && traffic.asked_bytes == 0 && traffic.asked_operations == 0);
    onebuf_view view;
    OK(onebuf_view_overwrite(buffer, queue, &view));
    onebuf_grid grid = onebuf_grid_1d(N);
    uint32_t n = 1;
    onebuf_arg args[] = {onebuf_arg_view(view), ONEBUF_VALUE(n)};
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_queue_launch(queue, kernel, &grid, args, 2, NULL)); // the kernel reads
    OK(onebuf_view_free(view));
    onebuf_param params[] = {{ONEBUF_ARG_BUFFER, ONEBUF_WRITE, 0, 4}, {ONEBUF_ARG_INTEGER, 0, 4, 0}};
    onebuf_kernel writes;
    OK(onebuf_kernel_create(program, "add", params, 2, 0, &writes)); // it is only declared so
    args[0] = onebuf_arg_overwrite(buffer);
    OK(onebuf_ledger_implied_bytes(hub, &before));
    OK(onebuf_queue_launch(second, writes, &grid, args, 2, NULL));
    OK(onebuf_queue_finish(second, 1000));
    OK(onebuf_ledger_implied_bytes(hub, &after));
    TRUE(after == before);
    OK(onebuf_view_take(buffer, queue, ONEBUF_READ, &view));
    ENDS(ONEBUF_BUSY, onebuf_buffer_discard(buffer)); // a view is held
    OK(onebuf_view_free(view));
    add(second, there, buffer, 2); // only the second device has the newest contents
    OK(onebuf_buffer_discard(buffer));
    OK(onebuf_ledger_implied_bytes(hub, &before));
    add(queue, kernel, buffer, 1);
    OK(onebuf_queue_finish(queue, 1000));
    OK(onebuf_ledger_implied_bytes(hub, &after));
    TRUE(after == before);
    add(second, there, buffer, 2); // the control: without it they are copied
    OK(onebuf_queue_finish(second, 1000));
    OK(onebuf_ledger_implied_bytes(hub, &after));
    TRUE(after == before + BYTES);
    OK(onebuf_kernel_free(writes)), OK(onebuf_kernel_free(there)), OK(onebuf_program_free(program));
    OK(onebuf_buffer_free(buffer)), OK(onebuf_queue_free(second));
}

// Refuses a launch that would add zero.
static int32_t adds_something(void *user, const onebuf_native_call *call) {
    ++*(int *)user;
    TRUE(call->arg_count == 2 && call->args[0].data == NULL && call->args[0].bytes == BYTES && call->args[1].bytes == 4);
    TRUE(call->global[0] == N && call->global[1] == 1);
    if (*(const uint32_t *)call->args[1].data != 0) return 0;
    OK(onebuf_set_error_message("adding nothing is useless"));
    return 1;
}

static int32_t sum_in_groups(void *user, const onebuf_native_call *call) {
    (void)user, (void)call;
    return 0;
}

static void kernels(onebuf_program program, onebuf_kernel kernel) {
    onebuf_string text;
    OK(onebuf_kernel_name(kernel, &text));
    TRUE(has(text, "add"));
    uint64_t took;
    OK(onebuf_program_build_time_ns(program, &took));
    TRUE(took > 0);
    size_t count = 99;
    OK(onebuf_program_warm_up(program, &count));
    TRUE(count <= 1);
    bool grafted = true;
    OK(onebuf_kernel_graft(kernel, other, &grafted));
    TRUE(!grafted);
    ENDS(ONEBUF_UNSUPPORTED, onebuf_kernel_graft(kernel, other, NULL));

    int calls = 0;
    onebuf_param params[] = {{ONEBUF_ARG_BUFFER, ONEBUF_READ_WRITE, 0, 4}, {ONEBUF_ARG_INTEGER, 0, 4, 0}};
    onebuf_kernel_options options = ONEBUF_OPTIONS(onebuf_kernel_options);
    options.params = params, options.param_count = 2, options.check = adds_something, options.check_user = &calls;
    onebuf_kernel checked;
    OK(onebuf_kernel_create_with(program, "add", &options, &checked));
    onebuf_buffer buffer = shared("checked", 1, &fake);
    onebuf_grid grid = onebuf_grid_1d(N);
    uint32_t n = 3;
    onebuf_arg args[] = {onebuf_arg_buffer(buffer, ONEBUF_READ_WRITE), ONEBUF_VALUE(n)};
    OK(onebuf_queue_launch(queue, checked, &grid, args, 2, NULL));
    n = 0;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_queue_launch(queue, checked, &grid, args, 2, NULL));
    TRUE(calls == 2 && says("adding nothing is useless"));
    uint32_t seen;
    OK(onebuf_buffer_read(buffer, 4 * (N - 1), &seen, 4));
    TRUE(seen == 3);

    // Local memory for each work-item of a group.
    onebuf_native native = {"sum", sum_in_groups, NULL};
    onebuf_program_options source = ONEBUF_OPTIONS(onebuf_program_options);
    source.natives = &native, source.native_count = 1;
    onebuf_program sums;
    OK(onebuf_program_build(host, &source, &sums));
    onebuf_param local = {ONEBUF_ARG_LOCAL, 0, 0, 4};
    onebuf_kernel sum;
    OK(onebuf_kernel_create(sums, "sum", &local, 1, 0, &sum));
    onebuf_queue on_host;
    OK(onebuf_queue_create(host, NULL, &on_host));
    onebuf_arg few = onebuf_arg_local(4 * 15);
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_queue_launch(on_host, sum, &grid, &few, 1, NULL));
    TRUE(says("give the group's size"));
    grid.local[0] = 16;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_queue_launch(on_host, sum, &grid, &few, 1, NULL));
    TRUE(says("16 work-items of a group need 4 each"));
    OK(onebuf_kernel_free(sum)), OK(onebuf_program_free(sums)), OK(onebuf_queue_free(on_host));
    OK(onebuf_kernel_free(checked)), OK(onebuf_buffer_free(buffer));
}

static void pools(void) {
    onebuf_pool_options options = ONEBUF_OPTIONS(onebuf_pool_options);
    options.limit_bytes = 2 * BYTES, options.exact_sizes = 1, options.log = 1;
    onebuf_pool pool;
    OK(onebuf_pool_create_with(hub, &options, &pool));
    onebuf_buffer buffer, more;
    OK(onebuf_pool_get(pool, BYTES, NULL, 0, &buffer));
    uint32_t seven = 7, seen = 1;
    OK(onebuf_buffer_fill(buffer, 0, BYTES, &seven, 4));
    OK(onebuf_buffer_free(buffer));
    OK(onebuf_pool_get_cleared(pool, BYTES, NULL, 0, &buffer)); // the same memory
    OK(onebuf_buffer_read(buffer, BYTES - 4, &seen, 4));
    TRUE(seen == 0);
    onebuf_pool_statistics counts = ONEBUF_OPTIONS(onebuf_pool_statistics);
    OK(onebuf_pool_get_statistics(pool, &counts));
    TRUE(counts.made == 1 && counts.hits == 1 && counts.limit_bytes == 2 * BYTES && counts.live_bytes == BYTES);
    ENDS(ONEBUF_OUT_OF_MEMORY, onebuf_pool_get(pool, 2 * BYTES, NULL, 0, &more));
    onebuf_error_info error = ONEBUF_OPTIONS(onebuf_error_info);
    OK(onebuf_last_error(&error));
    TRUE(error.status == ONEBUF_OUT_OF_MEMORY && error.asked_bytes == 2 * BYTES && error.limit_bytes == 2 * BYTES);
    TRUE(strcmp(error.subject, "the pool") == 0);
    OK(onebuf_buffer_detach(buffer));
    OK(onebuf_buffer_free(buffer)); // does not return to the pool
    OK(onebuf_pool_get_statistics(pool, &counts));
    TRUE(counts.idle_buffers == 0 && counts.lost == 1);
    uint32_t contents[N];
    onebuf_buffer_options brings = ONEBUF_OPTIONS(onebuf_buffer_options);
    brings.contents = contents;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_pool_get_cleared(pool, BYTES, &brings, 0, &buffer));
    OK(onebuf_pool_free(pool));
}

static void failures(void) {
    onebuf_error_info error = ONEBUF_OPTIONS(onebuf_error_info);
    onebuf_buffer alone = shared("alone", 1, &other);
    onebuf_view view;
    ENDS(ONEBUF_NOT_SHARED, onebuf_view_take(alone, queue, ONEBUF_READ, &view));
    OK(onebuf_last_error(&error));
    TRUE(error.status == ONEBUF_NOT_SHARED && strcmp(error.subject, "fake:0") == 0 && strstr(error.reason, "fake:1"));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_hub_query((onebuf_hub){1}, NULL));
    OK(onebuf_last_error(&error));
    TRUE(error.status == ONEBUF_INVALID_HANDLE && *error.subject == 0 && *error.reason != 0 && *error.driver_call == 0);
    OK(onebuf_set_error_message("of the program"));
    OK(onebuf_last_error(&error));
    TRUE(error.status == ONEBUF_OK && strcmp(error.reason, "of the program") == 0);
    onebuf_string json;
    OK(onebuf_buffer_explain_json(alone, &json));
    TRUE(has(json, "\"memory_kind\""));
    OK(onebuf_buffer_free(alone));
}

static onebuf_status fill(void *user, const onebuf_frame *frame, onebuf_filled *filled) {
    (void)user;
    if (frame->number == 3) *filled = ONEBUF_FILLED_END;
    return ONEBUF_OK;
}

static onebuf_status stage(void *user, const onebuf_frame *frame) {
    int *fails_at = user;
    return (int)frame->number == *fails_at ? ONEBUF_UNSUPPORTED : ONEBUF_OK;
}

static onebuf_status take(void *user, const onebuf_frame *frame) {
    (void)user, (void)frame;
    return ONEBUF_OK;
}

static void pipelines(void) {
    int fails_at = -1;
    onebuf_buffer_options shape = ONEBUF_OPTIONS(onebuf_buffer_options);
    shape.devices = &fake, shape.device_count = 1;
    onebuf_slot_buffer slot = {BYTES, &shape};
    onebuf_stage only = {"only", fake, stage, &fails_at, NULL, 0};
    onebuf_pipeline_options options = ONEBUF_OPTIONS(onebuf_pipeline_options);
    options.depth = 2, options.buffers = &slot, options.buffer_count = 1, options.source = fill;
    options.stages = &only, options.stage_count = 1, options.sink = take, options.batch = 1;
    onebuf_pipeline pipeline;
    OK(onebuf_pipeline_create(hub, &options, &pipeline));
    onebuf_pulse pulse = ONEBUF_OPTIONS(onebuf_pulse);
    OK(onebuf_pipeline_get_pulse(pipeline, &pulse));
    TRUE(pulse.state == ONEBUF_RUN_READY && pulse.batch == 1 && pulse.stage_count == 1 && !pulse.stalled);
    onebuf_string text;
    OK(onebuf_pipeline_explain(pipeline, &text));
    TRUE(has(text, "only on fake:0"));
    OK(onebuf_pipeline_run(pipeline, NULL));
    OK(onebuf_pipeline_get_pulse(pipeline, &pulse));
    TRUE(pulse.state == ONEBUF_RUN_FINISHED);
    onebuf_stage_report report = ONEBUF_OPTIONS(onebuf_stage_report);
    OK(onebuf_pipeline_get_stage(pipeline, 0, &report));
    TRUE(report.frames == 3 && report.grafted == -1 && report.latency_p99_ns >= report.latency_p50_ns);
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_pipeline_get_stage(pipeline, 1, &report));
    uint64_t frame = 9;
    OK(onebuf_pipeline_failure(pipeline, &text, &frame));
    TRUE(text.id == 0 && frame == 0);
    fails_at = 1;
    ENDS(ONEBUF_UNSUPPORTED, onebuf_pipeline_run(pipeline, NULL));
    OK(onebuf_pipeline_failure(pipeline, &text, &frame));
    TRUE(has(text, "only") && frame == 1);
    OK(onebuf_pipeline_get_pulse(pipeline, &pulse));
    TRUE(pulse.state == ONEBUF_RUN_FAILED);
    OK(onebuf_pipeline_free(pipeline));
}

static void traces(onebuf_kernel kernel) {
    uint64_t from, to;
    OK(onebuf_trace_now_ns(hub, &from));
    onebuf_buffer buffer = shared("traced", 1, &fake);
    add(queue, kernel, buffer, 1);
    OK(onebuf_queue_finish(queue, 1000));
    OK(onebuf_trace_catch_up(hub));
    OK(onebuf_trace_now_ns(hub, &to));
    TRUE(to > from);
    onebuf_string account;
    OK(onebuf_trace_account(hub, from, to, &account));
    char total[64];
    snprintf(total, sizeof total, "\"total_ns\":%llu", (unsigned long long)(to - from));
    TRUE(has(account, total));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_trace_account(hub, to, from, &account));
    OK(onebuf_buffer_free(buffer));
}

static void the_cache(void) {
    onebuf_cache_info info = ONEBUF_OPTIONS(onebuf_cache_info);
    char path[4096];
    snprintf(path, sizeof path, "%s/none", folder);
    OK(onebuf_cache_query(path, &info));
    TRUE(info.verdicts == 0 && info.programs == 0 && info.bytes == 0 && !info.verdicts_unusable);
    OK(onebuf_cache_clear(path, &info));
    OK(onebuf_cache_clear(path, NULL));
    onebuf_string text;
    OK(onebuf_cache_folder(&text));
    TRUE(has(text, "onebuf"));
}

// Another hub of this process watches the first.
static void viewers(void) {
    onebuf_published shown;
    OK(onebuf_publish(hub, "queries", &shown));
    onebuf_string text;
    onebuf_string path;
    OK(onebuf_socket_path("queries", &path));
    TRUE(has(path, "/onebuf"));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_socket_path(".hidden", &path));
    OK(onebuf_viewer_names(&text));
    TRUE(has(text, "queries\n"));
    onebuf_viewer viewer;
    OK(onebuf_viewer_attach("queries", 1000, &viewer));
    OK(onebuf_viewer_next(viewer, 10000, &text));
    TRUE(has(text, "\"id\":\"fake:0\""));
    OK(onebuf_viewer_free(viewer));
    OK(onebuf_published_free(shown));
    ENDS(ONEBUF_UNAVAILABLE, onebuf_viewer_attach("queries", 10, &viewer));
    OK(onebuf_publish(hub, "queries", &shown));
    OK(onebuf_sockets_remove()); // as a program does that exits without freeing
    ENDS(ONEBUF_UNAVAILABLE, onebuf_viewer_attach("queries", 10, &viewer));
    OK(onebuf_sockets_remove_on_signals());
    OK(onebuf_published_free(shown));
}

static void signals(void) {
    onebuf_wave ahead = {1.0, 0.25, 0.0};
    onebuf_synthetic_options options = ONEBUF_OPTIONS(onebuf_synthetic_options);
    options.channels = 2, options.samples = 4, options.waves = &ahead, options.wave_count = 1, options.noise = -1;
    float frame[16];
    OK(onebuf_synthetic_frame(&options, 7, frame, sizeof frame));
    TRUE(frame[3] > 0.9999f && frame[0] == frame[8]); // from ahead both sensors get the same
    const double late[] = {0, 1};
    options.late = late, options.late_count = 2;
    float delayed[16];
    OK(onebuf_synthetic_frame(&options, 7, delayed, sizeof delayed));
    for (int i = 0; i < 6; i++) TRUE(delayed[10 + i] - frame[i] < 1e-5f && frame[i] - delayed[10 + i] < 1e-5f);
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_synthetic_frame(&options, 7, frame, sizeof frame - 8));
}

// An array of two rows of three floats, as NumPy writes it.
static void shapes(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/rows.npy", folder);
    FILE *file = fopen(path, "wb");
    TRUE(file);
    char head[119];
    memset(head, ' ', sizeof head);
    const char *about = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
    memcpy(head, about, strlen(about));
    head[117] = '\n';
    float rows[6] = {1, 2, 3, 4, 5, 6};
    TRUE(fwrite("\x93NUMPY\x01\x00\x76\x00", 1, 10, file) == 10 && fwrite(head, 1, 118, file) == 118);
    TRUE(fwrite(rows, 4, 6, file) == 6 && fclose(file) == 0);
    onebuf_source source;
    OK(onebuf_source_npy(path, "<f4", 1, &source));
    size_t shape[2], axes;
    OK(onebuf_source_shape(source, shape, 2, &axes));
    TRUE(axes == 2 && shape[0] == 2 && shape[1] == 3);
    OK(onebuf_source_free(source));
    OK(onebuf_source_memory(rows, sizeof rows, 1, &source));
    ENDS(ONEBUF_UNSUPPORTED, onebuf_source_shape(source, shape, 2, &axes));
    // Frames without a pipeline.
    float frame[3], taken[6] = {0};
    onebuf_filled filled;
    onebuf_sink sink;
    OK(onebuf_sink_memory(taken, sizeof taken, &sink));
    for (uint64_t number = 0; number < 2; number++) {
        OK(onebuf_source_fill(source, frame, sizeof frame, &filled));
        TRUE(filled == ONEBUF_FILLED_FRAME);
        OK(onebuf_sink_take(sink, frame, sizeof frame, number));
    }
    OK(onebuf_source_fill(source, frame, sizeof frame, &filled));
    TRUE(filled == ONEBUF_FILLED_END && memcmp(taken, rows, sizeof rows) == 0);
    ENDS(ONEBUF_NULL_POINTER, onebuf_source_fill(source, NULL, 4, &filled));
    OK(onebuf_sink_free(sink));
    OK(onebuf_source_free(source));
}

static void grafts(void) {
    onebuf_string text;
    ENDS(ONEBUF_UNSUPPORTED, onebuf_graft_ptx("this is no PTX", &text));
    ENDS(ONEBUF_UNSUPPORTED, onebuf_graft_code_object("none", 4, &text));
    ENDS(ONEBUF_UNSUPPORTED, onebuf_graft_spirv("none", 4, &text));
    const char *ptx = ".version 7.0\n.target sm_70\n.address_size 64\n.entry e(.param .u64 .ptr .global e_param_0)\n{\nret;\n}\n";
    onebuf_status status = onebuf_graft_ptx(ptx, &text);
    if (status == ONEBUF_OK) TRUE(has(text, "e"));
    else TRUE(status == ONEBUF_UNSUPPORTED && *onebuf_last_error_message());
}

static void libraries(void) {
    onebuf_queue on_host;
    OK(onebuf_queue_create(host, NULL, &on_host));
    for (onebuf_library library = 0; library < 3; library++) OK(onebuf_library_open(on_host, library));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_library_open(on_host, 3));
    ENDS(ONEBUF_UNSUPPORTED, onebuf_library_open(queue, ONEBUF_LIBRARY_BLAS));
    OK(onebuf_queue_free(on_host));
}

int main(int argc, char **argv) {
    TRUE(argc == 2);
    folder = argv[1];
    discover();
    onebuf_program program = build_add(fake, NULL);
    onebuf_kernel kernel = kernel_add(program);
    hubs();
    verdicts();
    overwriting(kernel);
    kernels(program, kernel);
    pools();
    failures();
    pipelines();
    traces(kernel);
    the_cache();
    viewers();
    signals();
    shapes();
    grafts();
    libraries();
    TRUE(launches > 3 && copies > 0 && made > 4);
    OK(onebuf_kernel_free(kernel)), OK(onebuf_program_free(program)), OK(onebuf_queue_free(queue));
    OK(onebuf_hub_free(hub));
    TRUE(observer_done); // nothing of the hub is left
    printf("queries are answered\n");
    return 0;
}
