// Calls every function at least once, on one device: `everything host`, `everything opencl`.

#include "check.h"
#include <string.h>

enum { N = 4096, BYTES = N * 4 };

static onebuf_hub hub;
static onebuf_device device;

static onebuf_buffer_options on_device(void) {
    onebuf_buffer_options options = ONEBUF_OPTIONS(onebuf_buffer_options);
    options.devices = &device;
    options.device_count = 1;
    return options;
}

static onebuf_buffer fresh(void) {
    onebuf_buffer_options options = on_device();
    onebuf_buffer buffer;
    OK(onebuf_buffer_create(hub, BYTES, &options, &buffer));
    return buffer;
}

static uint32_t at(onebuf_buffer buffer, size_t index) {
    uint32_t found = 0xdead;
    OK(onebuf_buffer_read(buffer, index * 4, &found, 4));
    return found;
}

static void words(void) {
    TRUE(strcmp(onebuf_status_name(ONEBUF_BUSY), "ONEBUF_BUSY") == 0);
    TRUE(strcmp(onebuf_status_name(-5), "unknown") == 0);
    TRUE(onebuf_version_number() == ONEBUF_VERSION_MAJOR * 1000000u + ONEBUF_VERSION_MINOR * 1000u + ONEBUF_VERSION_PATCH);
    TRUE(onebuf_version()[0] == '0' + ONEBUF_VERSION_MAJOR);
}

static void devices(const char *selector) {
    onebuf_status (*texts[])(onebuf_device, onebuf_string *) = {
        onebuf_device_id, onebuf_device_name, onebuf_device_api, onebuf_device_platform,
        onebuf_device_driver, onebuf_device_version, onebuf_device_features};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        onebuf_string text;
        OK(texts[i](device, &text));
        TRUE(strlen(onebuf_string_data(text)) == onebuf_string_size(text));
        if (i == 0) TRUE(strncmp(onebuf_string_data(text), selector, strlen(selector)) == 0);
        OK(onebuf_string_free(text));
        ENDS(ONEBUF_INVALID_HANDLE, onebuf_string_free(text));
        TRUE(*onebuf_string_data(text) == 0 && onebuf_string_size(text) == 0);
        ENDS(ONEBUF_NULL_POINTER, texts[i](device, NULL));
    }
    uint64_t bytes;
    size_t align, count;
    bool has = true;
    OK(onebuf_device_memory_bytes(device, &bytes));
    OK(onebuf_device_max_buffer_bytes(device, &bytes));
    TRUE(bytes > BYTES);
    OK(onebuf_device_region_align(device, &align));
    TRUE(align > 0);
    OK(onebuf_device_has(device, "time_travel", &has));
    TRUE(!has);
    onebuf_device_info info = ONEBUF_OPTIONS(onebuf_device_info);
    OK(onebuf_device_query(device, &info));
    TRUE(info.max_buffer_bytes == bytes && info.region_align == align && info.kind <= ONEBUF_DEVICE_ACCELERATOR);
    TRUE(info.compute_units > 0 && (info.has_uuid || !memcmp(info.uuid, (char[16]){0}, 16)));
    info.size = 5;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_device_query(device, &info));
    void *native = &native;
    ENDS(ONEBUF_UNSUPPORTED, onebuf_device_native(device, "time_machine", &native));
    TRUE(native == NULL);
    onebuf_device same;
    OK(onebuf_hub_device(hub, selector, &same));
    TRUE(same.id == device.id);
    OK(onebuf_hub_device_count(hub, &count));
    OK(onebuf_hub_device_at(hub, count - 1, &same));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_hub_device_at(hub, count, &same));
    TRUE(same.id == 0);
    onebuf_string missing;
    OK(onebuf_hub_missing(hub, &missing));
    OK(onebuf_string_free(missing));
}

static void transfers(void) {
    onebuf_buffer buffer = fresh(), other = fresh();
    uint32_t data[N], back[N];
    for (size_t i = 0; i < N; i++) data[i] = (uint32_t)i;
    size_t size;
    OK(onebuf_buffer_size(buffer, &size));
    TRUE(size == BYTES && at(buffer, 7) == 0);
    OK(onebuf_buffer_write(buffer, 0, data, BYTES));
    OK(onebuf_buffer_read(buffer, 0, back, BYTES));
    TRUE(memcmp(data, back, BYTES) == 0);
    uint32_t pattern[3] = {1, 2, 3};
    OK(onebuf_buffer_fill(buffer, 12, 24, pattern, 12));
    TRUE(at(buffer, 2) == 2 && at(buffer, 3) == 1 && at(buffer, 8) == 3 && at(buffer, 9) == 9);
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_fill(buffer, 4, 24, pattern, 12));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_fill(buffer, 0, 4, pattern, 0));
    OK(onebuf_buffer_copy(other, 4, buffer, 12, 12));
    TRUE(at(other, 0) == 0 && at(other, 1) == 1 && at(other, 3) == 3);

    onebuf_transfer transfer;
    const void *read;
    bool done;
    OK(onebuf_buffer_write_async(other, 0, data, BYTES, &transfer));
    data[5] = 0; // the data was copied, so the caller may change it
    OK(onebuf_transfer_wait(transfer, ONEBUF_DEFAULT_TIMEOUT));
    OK(onebuf_transfer_free(transfer));
    OK(onebuf_buffer_read_async(other, 16, 16, &transfer));
    OK(onebuf_transfer_poll(transfer, &done));
    OK(onebuf_transfer_wait(transfer, 60000));
    OK(onebuf_transfer_poll(transfer, &done));
    TRUE(done);
    OK(onebuf_transfer_data(transfer, &read, &size));
    TRUE(size == 16 && ((const uint32_t *)read)[1] == 5);
    OK(onebuf_transfer_free(transfer));
    OK(onebuf_buffer_read_async(other, 0, BYTES, &transfer));
    OK(onebuf_transfer_free(transfer)); // may still be running
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_transfer_wait(transfer, 0));
    OK(onebuf_buffer_free(buffer));
    OK(onebuf_buffer_free(other));
}

static void maps(void) {
    onebuf_buffer buffer = fresh();
    onebuf_mapping mapping;
    void *data;
    OK(onebuf_buffer_map(buffer, ONEBUF_READ_WRITE, &data, &mapping));
    for (size_t i = 0; i < N; i++) ((uint32_t *)data)[i] = 3;
    ENDS(ONEBUF_BUSY, onebuf_buffer_read(buffer, 0, &(uint32_t){0}, 4));
    OK(onebuf_buffer_free(buffer)); // the mapping keeps the buffer alive
    ((uint32_t *)data)[N - 1] = 4;
    OK(onebuf_mapping_unmap(mapping));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_mapping_unmap(mapping));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_buffer_map(buffer, ONEBUF_READ, &data, &mapping));
    TRUE(data == NULL && mapping.id == 0);
}

static void regions(onebuf_queue queue, onebuf_kernel kernel) {
    onebuf_buffer buffer = fresh(), left, right, none;
    size_t half = BYTES / 2;
    OK(onebuf_buffer_region(buffer, 0, half, ONEBUF_READ, &left));
    OK(onebuf_buffer_region(buffer, half, half, ONEBUF_READ_WRITE, &right));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_region(right, 0, 4, ONEBUF_READ, &none));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_region(buffer, 1, 4, ONEBUF_READ, &none));
    OK(onebuf_buffer_free(buffer)); // its regions keep it alive
    uint32_t n = 5;
    onebuf_arg args[] = {onebuf_arg_buffer(right, ONEBUF_READ_WRITE), ONEBUF_VALUE(n)};
    onebuf_grid grid = onebuf_grid_1d(N / 2);
    OK(onebuf_queue_launch(queue, kernel, &grid, args, 2, NULL));
    TRUE(at(right, 0) == 5 && at(right, N / 2 - 1) == 5 && at(left, N / 2 - 1) == 0);
    args[0] = onebuf_arg_buffer(left, ONEBUF_READ_WRITE);
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_queue_launch(queue, kernel, &grid, args, 2, NULL));
    OK(onebuf_buffer_write(right, 4, &n, 4));
    OK(onebuf_buffer_fill(right, 8, 8, &n, 4));
    OK(onebuf_buffer_copy(left, 0, right, 4, 4));
    TRUE(at(left, 0) == 5);
    onebuf_fence fence;
    OK(onebuf_buffer_fence(right, &fence));
    OK(onebuf_fence_free(fence)); // also without any work
    onebuf_mapping mapping;
    void *data;
    OK(onebuf_buffer_map(right, ONEBUF_READ, &data, &mapping));
    TRUE(((uint32_t *)data)[3] == 5);
    OK(onebuf_mapping_unmap(mapping));
    onebuf_transfer transfer;
    OK(onebuf_buffer_read_async(right, 0, 8, &transfer));
    OK(onebuf_transfer_wait(transfer, ONEBUF_DEFAULT_TIMEOUT));
    OK(onebuf_transfer_free(transfer));
    OK(onebuf_buffer_free(left));
    OK(onebuf_buffer_free(right));
}

static void views(onebuf_queue queue, onebuf_kernel kernel) {
    onebuf_buffer buffer = fresh();
    onebuf_view view, second;
    OK(onebuf_view_take(buffer, queue, ONEBUF_READ_WRITE, &view));
    ENDS(ONEBUF_BUSY, onebuf_view_take(buffer, queue, ONEBUF_READ, &second));
    onebuf_sync_method sync_method;
    void *native = NULL;
    OK(onebuf_view_sync_method(view, &sync_method));
    TRUE(sync_method >= ONEBUF_SYNC_SAME_QUEUE && sync_method <= ONEBUF_SYNC_HOST_WAIT);
    onebuf_status object = onebuf_view_cl_mem(view, &native), address = onebuf_view_address(view, &native);
    TRUE((object == ONEBUF_OK) != (address == ONEBUF_OK));
    uint32_t n = 2;
    onebuf_arg args[] = {onebuf_arg_view(view), ONEBUF_VALUE(n)};
    onebuf_grid grid = onebuf_grid_1d(N);
    for (int i = 0; i < 3; i++) OK(onebuf_queue_launch(queue, kernel, &grid, args, 2, NULL));
    OK(onebuf_queue_native(queue, &native));
    OK(onebuf_view_free(view));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_queue_launch(queue, kernel, &grid, args, 2, NULL));
    TRUE(at(buffer, N - 1) == 6);
    OK(onebuf_view_take(buffer, queue, ONEBUF_READ, &view));
    OK(onebuf_view_take(buffer, queue, ONEBUF_READ, &second));
    args[0] = onebuf_arg_view(view);
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_queue_launch(queue, kernel, &grid, args, 2, NULL));
    OK(onebuf_buffer_free(buffer)); // the views keep it alive
    OK(onebuf_view_sync_method(view, &sync_method));
    OK(onebuf_view_free(view));
    OK(onebuf_view_free(second));
}

static void launches(onebuf_queue queue, onebuf_kernel kernel) {
    onebuf_buffer buffer = fresh();
    uint32_t n = 1;
    uint64_t wide = 1;
    onebuf_arg args[] = {onebuf_arg_buffer(buffer, ONEBUF_READ_WRITE), ONEBUF_VALUE(n)};
    onebuf_grid grid = onebuf_grid_1d(N);
    onebuf_fence fence, later;
    OK(onebuf_queue_launch(queue, kernel, &grid, args, 2, &fence));
    OK(onebuf_queue_flush(queue));
    OK(onebuf_fence_wait(fence, ONEBUF_DEFAULT_TIMEOUT));
    bool done;
    OK(onebuf_fence_poll(fence, &done));
    TRUE(done);
    onebuf_sync_method sync_method;
    OK(onebuf_fence_sync_method(fence, &sync_method));
    onebuf_profile times;
    onebuf_status profile = onebuf_fence_profile(fence, &times);
    TRUE(profile == ONEBUF_UNSUPPORTED || times.ended_ns >= times.started_ns);
    OK(onebuf_queue_fence(queue, &later));
    OK(onebuf_queue_wait_for(queue, later, &sync_method));
    OK(onebuf_queue_wait_for(queue, fence, NULL));
    OK(onebuf_fence_free(later));
    OK(onebuf_fence_free(fence));
    OK(onebuf_buffer_fence(buffer, &fence));
    OK(onebuf_fence_free(fence));

    grid.global[0] = N / 2, grid.offset[0] = N / 2;
    OK(onebuf_queue_launch(queue, kernel, &grid, args, 2, NULL));
    TRUE(at(buffer, 0) == 1 && at(buffer, N - 1) == 2);
    grid.global[0] = N;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_queue_launch(queue, kernel, &grid, args, 2, NULL)); // too many items
    grid = onebuf_grid_1d(N);
    grid.local[1] = 4;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_queue_launch(queue, kernel, &grid, args, 2, NULL));
    grid.dims = 4;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_queue_launch(queue, kernel, &grid, args, 2, NULL));
    ENDS(ONEBUF_NULL_POINTER, onebuf_queue_launch(queue, kernel, NULL, args, 2, NULL));
    grid = onebuf_grid_1d(N);
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_queue_launch(queue, kernel, &grid, args, 1, NULL));
    ENDS(ONEBUF_NULL_POINTER, onebuf_queue_launch(queue, kernel, &grid, NULL, 2, NULL));
    args[1] = ONEBUF_VALUE(wide);
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_queue_launch(queue, kernel, &grid, args, 2, &fence));
    TRUE(fence.id == 0);
    args[1] = onebuf_arg_local(64);
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_queue_launch(queue, kernel, &grid, args, 2, NULL));
    args[1].kind = 99;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_queue_launch(queue, kernel, &grid, args, 2, NULL));
    OK(onebuf_queue_finish(queue, 60000));
    OK(onebuf_buffer_free(buffer));
}

static void programs(onebuf_program program) {
    onebuf_string text;
    onebuf_origin origin;
    OK(onebuf_program_origin(program, &origin));
    OK(onebuf_program_log(program, &text));
    OK(onebuf_string_free(text));
    if (onebuf_program_binary(program, &text) == ONEBUF_OK) {
        onebuf_program_options options = ONEBUF_OPTIONS(onebuf_program_options);
        options.binary = onebuf_string_data(text);
        options.binary_bytes = onebuf_string_size(text);
        onebuf_program again;
        OK(onebuf_program_build(device, &options, &again));
        OK(onebuf_program_origin(again, &origin));
        OK(onebuf_program_free(again));
        OK(onebuf_string_free(text));
    }
    onebuf_program_options file = ONEBUF_OPTIONS(onebuf_program_options);
    file.file = "no/such/file.cl";
    ENDS(ONEBUF_UNAVAILABLE, onebuf_program_build(device, &file, &program));
    file.opencl_c = "";
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_program_build(device, &file, &program));
    ENDS(ONEBUF_UNSUPPORTED, onebuf_program_build(device, NULL, &program));
}

static void pools(void) {
    onebuf_pool pool;
    onebuf_buffer buffer;
    onebuf_buffer_options options = on_device();
    OK(onebuf_pool_create(hub, 1 << 20, &pool));
    for (int i = 0; i < 3; i++) {
        OK(onebuf_pool_get(pool, BYTES, &options, 0, &buffer));
        OK(onebuf_buffer_free(buffer));
    }
    ENDS(ONEBUF_OUT_OF_MEMORY, onebuf_pool_get(pool, 2 << 20, &options, ONEBUF_DEFAULT_TIMEOUT, &buffer));
    onebuf_pool_statistics statistics = ONEBUF_OPTIONS(onebuf_pool_statistics);
    OK(onebuf_pool_get_statistics(pool, &statistics));
    TRUE(statistics.hits == 2 && statistics.misses == 1 && statistics.freed == 1);
    statistics.size = 16; // an older caller's structure, which ends after `hits`
    statistics.misses = 77;
    OK(onebuf_pool_get_statistics(pool, &statistics));
    TRUE(statistics.hits == 2 && statistics.misses == 77);
    OK(onebuf_pool_get(pool, BYTES, NULL, 0, &buffer));
    OK(onebuf_buffer_free(buffer));
    uint64_t freed;
    OK(onebuf_pool_trim(pool, 0, &freed));
    TRUE(freed >= BYTES);
    OK(onebuf_pool_free(pool));
}

static void count(void *user) { ++*(int *)user; }

static void wishes(void) {
    static _Alignas(4096) char memory[BYTES];
    int done = 0;
    onebuf_buffer buffer;
    onebuf_buffer_options options = on_device();
    options.host_memory = memory;
    options.host_memory_done = count;
    options.host_memory_user = &done;
    options.trust_declared = 1;
    memory[8] = 9;
    OK(onebuf_buffer_create(hub, BYTES, &options, &buffer));
    TRUE(at(buffer, 2) == 9);
    TRUE(done == 0);
    OK(onebuf_buffer_free(buffer));
    for (int i = 0; i < 1000 && done == 0; i++) onebuf_hub_device_count(hub, &(size_t){0});
    options.contents = memory; // not allowed together with `host_memory`
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_create(hub, BYTES, &options, &buffer));
    TRUE(done >= 1); // called at least for the failed creation

    options = on_device();
    options.contents = memory;
    OK(onebuf_buffer_create(hub, BYTES, &options, &buffer));
    TRUE(at(buffer, 2) == 9);
    onebuf_string text;
    OK(onebuf_buffer_explain(buffer, &text));
    TRUE(onebuf_string_size(text) > 20);
    OK(onebuf_string_free(text));
    OK(onebuf_buffer_free(buffer));
    options = on_device();
    options.access = 3;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_create(hub, BYTES, &options, &buffer));
    options.access = 0;
    options.size = 3;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_create(hub, BYTES, &options, &buffer));
    options = on_device();
    options.devices = NULL;
    ENDS(ONEBUF_NULL_POINTER, onebuf_buffer_create(hub, BYTES, &options, &buffer));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_create(hub, 0, NULL, &buffer));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_create(hub, SIZE_MAX, NULL, &buffer));
    uint64_t asked, implied;
    OK(onebuf_ledger_asked_bytes(hub, &asked));
    OK(onebuf_ledger_implied_bytes(hub, &implied));
    TRUE(asked > 0);
    OK(onebuf_ledger_text(hub, &text));
    TRUE(strstr(onebuf_string_data(text), "asked: ") != NULL);
    OK(onebuf_string_free(text));
}

int main(int argc, char **argv) {
    const char *selector = argc > 1 ? argv[1] : "host";
    words();
    onebuf_hub_options options = ONEBUF_OPTIONS(onebuf_hub_options);
    options.without_opencl = strcmp(selector, "host") == 0;
    options.without_verdicts = 1;
    options.timeout_ms = 120000; // valgrind is slow
    OK(onebuf_hub_discover(&options, &hub));
    if (onebuf_hub_device(hub, selector, &device) != ONEBUF_OK) {
        printf("no %s here: %s\n", selector, onebuf_last_error_message());
        return 0;
    }
    devices(selector);
    int calls = 0;
    onebuf_program program = build_add(device, &calls);
    onebuf_kernel kernel = kernel_add(program);
    onebuf_queue queue;
    onebuf_queue_options spec = ONEBUF_OPTIONS(onebuf_queue_options);
    spec.profiling = 1;
    OK(onebuf_queue_create(device, &spec, &queue));
    spec.order = 2;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_queue_create(device, &spec, &(onebuf_queue){0}));
    transfers();
    maps();
    views(queue, kernel);
    launches(queue, kernel);
    regions(queue, kernel);
    programs(program);
    pools();
    wishes();
    if (options.without_opencl) {
        TRUE(calls > 3);
        uint32_t unlucky = 13;
        onebuf_buffer buffer = fresh();
        onebuf_arg args[] = {onebuf_arg_buffer(buffer, ONEBUF_READ_WRITE), ONEBUF_VALUE(unlucky)};
        onebuf_grid grid = onebuf_grid_1d(N);
        ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_queue_launch(queue, kernel, &grid, args, 2, NULL));
        TRUE(strstr(onebuf_last_error_message(), "returned 13") != NULL);
        OK(onebuf_buffer_free(buffer));
    }
    OK(onebuf_program_free(program));
    OK(onebuf_kernel_free(kernel));
    OK(onebuf_queue_free(queue));
    OK(onebuf_hub_free(hub));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_device_memory_bytes(device, &(uint64_t){0})); // freed with its hub
    printf("everything works on %s\n", selector);
    return 0;
}
