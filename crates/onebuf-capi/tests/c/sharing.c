// Launches take what their parameters declare; one buffer for two parameters; waiting until a buffer is free.

#define _DEFAULT_SOURCE
#include "check.h"
#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { N = 256, BYTES = N * 4 };

#define TEXT \
    "kernel void axpy(global float *x, global float *y, float a) {" \
    "    size_t i = get_global_id(0); y[i] = a * x[i] + y[i]; }" \
    "kernel void sum(global const float *x, global const float *y, global float *z) {" \
    "    size_t i = get_global_id(0); z[i] = x[i] + y[i]; }"

static int32_t native_axpy(void *user, const onebuf_native_call *call) {
    (void)user;
    const float *x = call->args[0].data;
    float *y = call->args[1].data, a = *(const float *)call->args[2].data;
    for (size_t i = 0; i < call->global[0]; i++) y[i] = a * x[i] + y[i];
    return 0;
}

static int32_t native_sum(void *user, const onebuf_native_call *call) {
    (void)user;
    const float *x = call->args[0].data, *y = call->args[1].data;
    float *z = call->args[2].data;
    for (size_t i = 0; i < call->global[0]; i++) z[i] = x[i] + y[i];
    return 0;
}

static onebuf_hub hub;
static onebuf_device device, host;
static onebuf_queue queue, other;
static onebuf_program program;
static const char *id;
static bool is_host;

static onebuf_buffer filled(const char *name, float value) {
    onebuf_buffer_options options = ONEBUF_OPTIONS(onebuf_buffer_options);
    options.devices = &device;
    options.device_count = 1;
    options.name = name;
    onebuf_buffer buffer;
    OK(onebuf_buffer_create(hub, BYTES, &options, &buffer));
    OK(onebuf_buffer_fill(buffer, 0, BYTES, &value, sizeof value));
    return buffer;
}

static onebuf_kernel axpy(onebuf_access x, uint32_t flags) {
    onebuf_param params[] = {{ONEBUF_ARG_BUFFER, x, 0, 4}, {ONEBUF_ARG_BUFFER, ONEBUF_READ_WRITE, 0, 4}, {ONEBUF_ARG_FLOAT, 0, 4, 0}};
    onebuf_kernel kernel;
    OK(onebuf_kernel_create(program, "axpy", params, 3, flags, &kernel));
    return kernel;
}

static onebuf_status launch(onebuf_kernel kernel, onebuf_arg x, onebuf_arg y) {
    static const float a = 2;
    onebuf_arg args[] = {x, y, ONEBUF_VALUE(a)};
    onebuf_grid grid = onebuf_grid_1d(N);
    return onebuf_queue_launch(queue, kernel, &grid, args, 3, NULL);
}

static onebuf_arg arg(onebuf_buffer buffer) { return onebuf_arg_buffer(buffer, ONEBUF_READ_WRITE); }

static void holds(onebuf_buffer buffer, float value) {
    float seen[N];
    OK(onebuf_buffer_read(buffer, 0, seen, sizeof seen));
    for (int i = 0; i < N; i++) TRUE(seen[i] == value);
}

static void says(const char *part) {
    if (strstr(onebuf_last_error_message(), part)) return;
    fprintf(stderr, "no `%s` in: %s\n", part, onebuf_last_error_message());
    exit(1);
}

// A parameter for reading takes a view for reading, whatever the argument says.
static void readers_share(void) {
    onebuf_buffer x = filled("samples", 3), y = filled(NULL, 1);
    onebuf_kernel reads = axpy(ONEBUF_READ, 0), writes = axpy(ONEBUF_READ_WRITE, 0);
    onebuf_view view;
    OK(onebuf_view_take(x, other, ONEBUF_READ, &view));
    OK(launch(reads, arg(x), arg(y)));
    // The control: declared for writing, the same launch conflicts. The message names the buffer and its holder.
    ENDS(ONEBUF_BUSY, launch(writes, arg(x), arg(y)));
    says("samples is in use");
    says(is_host ? "the host holds a read view or map" : "holds a read view");
    says(is_host ? "the host" : id);
    ENDS(ONEBUF_INVALID_ARGUMENT, launch(writes, onebuf_arg_buffer(x, ONEBUF_READ), arg(y))); // asked to be read only
    OK(onebuf_view_free(view));
    holds(y, 7);
    // The writer of another buffer is named by its number.
    OK(onebuf_view_take(y, other, ONEBUF_READ_WRITE, &view));
    ENDS(ONEBUF_BUSY, launch(reads, arg(x), arg(y)));
    says("buffer ");
    says("holds a write view");
    OK(onebuf_view_free(view));
    OK(onebuf_kernel_free(reads));
    OK(onebuf_kernel_free(writes));
    OK(onebuf_buffer_free(x));
    OK(onebuf_buffer_free(y));
}

static uint64_t implied(void) {
    uint64_t bytes;
    OK(onebuf_ledger_implied_bytes(hub, &bytes));
    return bytes;
}

// A staged copy that kernels only read stays valid.
static void staged_copies_stay(void) {
    if (is_host) return;
    onebuf_device both[] = {device, host};
    onebuf_buffer_options options = ONEBUF_OPTIONS(onebuf_buffer_options);
    options.devices = both, options.device_count = 2;
    options.allocate_on = host, options.route = ONEBUF_ROUTE_STAGED;
    onebuf_buffer x, y = filled(NULL, 0);
    OK(onebuf_buffer_create(hub, BYTES, &options, &x));
    uint64_t copied[2];
    for (int writes = 0; writes < 2; writes++) {
        onebuf_kernel kernel = axpy(writes ? ONEBUF_READ_WRITE : ONEBUF_READ, 0);
        uint64_t before = implied();
        for (int round = 0; round < 3; round++) {
            void *data;
            onebuf_mapping mapping;
            OK(launch(kernel, arg(x), arg(y)));
            OK(onebuf_buffer_map(x, ONEBUF_READ, &data, &mapping));
            OK(onebuf_mapping_unmap(mapping));
        }
        copied[writes] = implied() - before;
        OK(onebuf_kernel_free(kernel));
    }
    TRUE(copied[0] == BYTES);     // once to the device
    TRUE(copied[1] >= 3 * BYTES); // the control: back to the host in every round
    OK(onebuf_buffer_free(x));
    OK(onebuf_buffer_free(y));
}

static void one_buffer_for_two_parameters(void) {
    onebuf_buffer x = filled("x", 3), y = filled("y", 1), half;
    onebuf_kernel plain = axpy(ONEBUF_READ, 0), elementwise = axpy(ONEBUF_READ, ONEBUF_KERNEL_ELEMENTWISE);
    ENDS(ONEBUF_INVALID_ARGUMENT, launch(plain, arg(y), arg(y)));
    says("arguments 0 and 1 of kernel `axpy` are the same memory");
    holds(y, 1);
    if (is_host) {
        ENDS(ONEBUF_INVALID_ARGUMENT, launch(elementwise, arg(y), arg(y))); // native kernels get separate slices
        says("overlap");
    } else {
        OK(launch(elementwise, arg(y), arg(y)));
        holds(y, 3); // 2 * 1 + 1
        OK(launch(elementwise, onebuf_arg_buffer(y, ONEBUF_READ), arg(y)));
        holds(y, 9);
        onebuf_view view;
        OK(onebuf_view_take(y, queue, ONEBUF_READ_WRITE, &view));
        ENDS(ONEBUF_INVALID_ARGUMENT, launch(plain, onebuf_arg_view(view), onebuf_arg_view(view)));
        says("are the same memory");
        OK(launch(elementwise, onebuf_arg_view(view), onebuf_arg_view(view)));
        ENDS(ONEBUF_INVALID_ARGUMENT, launch(elementwise, onebuf_arg_view(view), arg(y))); // a view and its buffer
        OK(launch(elementwise, arg(x), onebuf_arg_view(view)));                            // the view is back
        OK(onebuf_view_free(view));
        holds(y, 33); // 2 * 9 + 9 = 27, then + 2 * 3
    }
    // Overlapping parts are never the same elements.
    OK(onebuf_buffer_region(y, 0, BYTES / 2, ONEBUF_READ, &half));
    ENDS(ONEBUF_INVALID_ARGUMENT, launch(elementwise, arg(half), arg(y)));
    OK(onebuf_buffer_free(half));

    // Both for reading: no declaration is needed.
    onebuf_param params[] = {{ONEBUF_ARG_BUFFER, ONEBUF_READ, 0, 4}, {ONEBUF_ARG_BUFFER, ONEBUF_READ, 0, 4}, {ONEBUF_ARG_BUFFER, ONEBUF_WRITE, 0, 4}};
    onebuf_kernel sum;
    OK(onebuf_kernel_create(program, "sum", params, 3, 0, &sum));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_kernel_create(program, "sum", params, 3, 4, &(onebuf_kernel){0}));
    onebuf_arg args[] = {arg(x), arg(x), arg(y)};
    onebuf_grid grid = onebuf_grid_1d(N);
    OK(onebuf_queue_launch(queue, sum, &grid, args, 3, NULL));
    holds(y, 6);
    onebuf_view view;
    OK(onebuf_view_take(x, queue, ONEBUF_READ, &view));
    args[0] = args[1] = onebuf_arg_view(view);
    OK(onebuf_queue_launch(queue, sum, &grid, args, 3, NULL));
    OK(onebuf_view_free(view));
    args[0] = arg(x), args[1] = args[2];
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_queue_launch(queue, sum, &grid, args, 3, NULL));
    says("arguments 1 and 2 of kernel `sum`");
    holds(y, 6);
    OK(onebuf_kernel_free(sum));
    OK(onebuf_kernel_free(plain));
    OK(onebuf_kernel_free(elementwise));
    OK(onebuf_buffer_free(x));
    OK(onebuf_buffer_free(y));
}

static void *end_later(void *mapping) {
    usleep(60000);
    OK(onebuf_mapping_unmap(*(onebuf_mapping *)mapping));
    return NULL;
}

// Maps the buffer, and lets another thread end that in a while.
static pthread_t held(onebuf_buffer buffer, onebuf_mapping *mapping) {
    void *data;
    pthread_t thread;
    OK(onebuf_buffer_map(buffer, ONEBUF_READ_WRITE, &data, mapping));
    TRUE(pthread_create(&thread, NULL, end_later, mapping) == 0);
    return thread;
}

static void waiting(void) {
    onebuf_buffer x = filled("inbox", 3), y = filled(NULL, 1);
    onebuf_kernel kernel = axpy(ONEBUF_READ, 0);
    onebuf_mapping first, mapping;
    onebuf_view view;
    void *data;
    onebuf_map_options options = ONEBUF_OPTIONS(onebuf_map_options);
    static const float a = 2;
    onebuf_arg args[] = {arg(x), arg(y), ONEBUF_VALUE(a)};
    onebuf_grid grid = onebuf_grid_1d(N);

    pthread_t thread = held(x, &first);
    OK(onebuf_view_take_within(x, queue, ONEBUF_READ, 10000, &view));
    pthread_join(thread, NULL);
    OK(onebuf_view_free(view));

    thread = held(x, &first);
    ENDS(ONEBUF_BUSY, onebuf_buffer_map_with(x, &options, &data, &mapping)); // without a time: at once
    options.wait_ms = 10000;
    OK(onebuf_buffer_map_with(x, &options, &data, &mapping));
    TRUE(*(float *)data == 3);
    pthread_join(thread, NULL);
    OK(onebuf_mapping_unmap(mapping));
    OK(onebuf_buffer_map_with(x, NULL, &data, &mapping));
    OK(onebuf_mapping_unmap(mapping));

    thread = held(x, &first);
    onebuf_fence fence;
    OK(onebuf_queue_launch_within(queue, kernel, &grid, args, 3, ONEBUF_DEFAULT_TIMEOUT, &fence));
    pthread_join(thread, NULL);
    OK(onebuf_fence_wait(fence, 60000));
    OK(onebuf_fence_free(fence));
    holds(y, 7);

    // A guard that stays: every form ends by its time, and says who holds what.
    OK(onebuf_buffer_map(x, ONEBUF_READ_WRITE, &data, &first));
    ENDS(ONEBUF_TIMEOUT, onebuf_view_take_within(x, queue, ONEBUF_READ, 20, &view));
    says("inbox is in use");
    says("after 20 ms");
    TRUE(view.id == 0);
    options.wait_ms = 20;
    ENDS(ONEBUF_TIMEOUT, onebuf_buffer_map_with(x, &options, &data, &mapping));
    ENDS(ONEBUF_TIMEOUT, onebuf_queue_launch_within(queue, kernel, &grid, args, 3, 0, NULL));
    ENDS(ONEBUF_TIMEOUT, onebuf_queue_launch_within(queue, kernel, &grid, args, 3, 20, NULL));
    OK(onebuf_mapping_unmap(first));
    holds(y, 7); // nothing was launched
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_queue_launch_within(queue, kernel, &grid, args, 2, 10000, NULL)); // no reason to wait
    OK(onebuf_kernel_free(kernel));
    OK(onebuf_buffer_free(x));
    OK(onebuf_buffer_free(y));
}

static onebuf_buffer left, right;
static onebuf_kernel both_ways;

static void *crosswise(void *forward) {
    static const float zero = 0;
    onebuf_arg args[] = {arg(forward ? left : right), arg(forward ? right : left), ONEBUF_VALUE(zero)};
    onebuf_grid grid = onebuf_grid_1d(N);
    for (int i = 0; i < 200; i++) OK(onebuf_queue_launch_within(forward ? queue : other, both_ways, &grid, args, 3, 30000, NULL));
    return NULL;
}

// Two threads that need the same two buffers in opposite order do not wait for each other.
static void crossing(void) {
    left = filled("left", 3), right = filled("right", 1);
    both_ways = axpy(ONEBUF_READ_WRITE, 0);
    pthread_t thread;
    TRUE(pthread_create(&thread, NULL, crosswise, NULL) == 0);
    crosswise(&thread);
    pthread_join(thread, NULL);
    holds(left, 3);
    holds(right, 1);
    OK(onebuf_kernel_free(both_ways));
    OK(onebuf_buffer_free(left));
    OK(onebuf_buffer_free(right));
}

int main(int argc, char **argv) {
    id = argc > 1 ? argv[1] : "host";
    is_host = strcmp(id, "host") == 0;
    OK(onebuf_hub_discover(NULL, &hub));
    OK(onebuf_hub_device(hub, id, &device));
    OK(onebuf_hub_device(hub, "host", &host));
    OK(onebuf_queue_create(device, NULL, &queue));
    OK(onebuf_queue_create(device, NULL, &other));
    onebuf_native natives[] = {{"axpy", native_axpy, NULL}, {"sum", native_sum, NULL}};
    onebuf_program_options source = ONEBUF_OPTIONS(onebuf_program_options);
    source.opencl_c = TEXT;
    source.natives = natives;
    source.native_count = 2;
    OK(onebuf_program_build(device, &source, &program));
    readers_share();
    staged_copies_stay();
    one_buffer_for_two_parameters();
    waiting();
    crossing();
    OK(onebuf_program_free(program));
    OK(onebuf_queue_free(queue));
    OK(onebuf_queue_free(other));
    OK(onebuf_hub_free(hub));
    printf("sharing works on %s\n", id);
    return 0;
}
