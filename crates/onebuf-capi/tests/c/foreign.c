// `foreign`: class A creates context, queue and buffers by raw OpenCL calls on every device; onebuf uses them before and after
// class A does. Every element is checked, and every reference count: before, after, and after calls that fail.

#define _POSIX_C_SOURCE 200809L
#define CL_TARGET_OPENCL_VERSION 200
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>

#include "check.h"
#include <string.h>
#include <time.h>

enum { N = 4096, BYTES = 4 * N, MOST = 16 };

#define CL(call) TRUE((call) == CL_SUCCESS)

static onebuf_hub hub;
static onebuf_context context;
static onebuf_device device;        // a device of the context
static onebuf_queue ours, theirs;   // onebuf's queue, and class A's
static uint32_t model[N], read_back[N];

// Class A, the owner of the foreign objects.
typedef struct {
    cl_device_id device;
    cl_context context;
    cl_command_queue queue;
    cl_mem mem, other;
} owner;

typedef struct {
    cl_uint context, queue, mem, other;
} counts;

static owner make(cl_device_id device) {
    owner a = {device, NULL, NULL, NULL, NULL};
    cl_int status;
    a.context = clCreateContext(NULL, 1, &device, NULL, NULL, &status);
    CL(status);
    a.queue = clCreateCommandQueue(a.context, device, 0, &status);
    CL(status);
    a.mem = clCreateBuffer(a.context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, BYTES, model, &status);
    CL(status);
    a.other = clCreateBuffer(a.context, CL_MEM_READ_WRITE, BYTES, NULL, &status);
    CL(status);
    return a;
}

static void destroy(owner a) {
    CL(clReleaseMemObject(a.other));
    CL(clReleaseMemObject(a.mem));
    CL(clReleaseCommandQueue(a.queue));
    CL(clReleaseContext(a.context));
}

static void pause_ms(void) { nanosleep(&(struct timespec){0, 1000000}, NULL); }

// Reference counts while nothing runs. PoCL's buffers hold the event that used them last, and thereby a queue: reading makes that
// class A's own queue.
static counts count(const owner *a) {
    counts now;
    uint32_t word;
    CL(clEnqueueReadBuffer(a->queue, a->mem, CL_TRUE, 0, 4, &word, 0, NULL, NULL));
    CL(clEnqueueReadBuffer(a->queue, a->other, CL_TRUE, 0, 4, &word, 0, NULL, NULL));
    CL(clFinish(a->queue));
    CL(clGetContextInfo(a->context, CL_CONTEXT_REFERENCE_COUNT, sizeof(cl_uint), &now.context, NULL));
    CL(clGetCommandQueueInfo(a->queue, CL_QUEUE_REFERENCE_COUNT, sizeof(cl_uint), &now.queue, NULL));
    CL(clGetMemObjectInfo(a->mem, CL_MEM_REFERENCE_COUNT, sizeof(cl_uint), &now.mem, NULL));
    CL(clGetMemObjectInfo(a->other, CL_MEM_REFERENCE_COUNT, sizeof(cl_uint), &now.other, NULL));
    return now;
}

// Drivers release the objects of completed commands on their own threads: waits for that, with a limit.
#define EVENTUALLY(what)                                                                                          \
    do {                                                                                                          \
        bool is = false;                                                                                          \
        for (int tries = 0; tries < 10000 && !is; tries++) is = (what) || (pause_ms(), false);                     \
        if (!is) fail(#what, __LINE__);                                                                           \
    } while (0)

// Reference counts after drivers have released everything: the smallest of many.
static counts rest(const owner *a) {
    counts least = count(a);
    for (int i = 0; i < 30; i++) {
        pause_ms();
        counts now = count(a);
        if (now.context + now.queue + now.mem + now.other < least.context + least.queue + least.mem + least.other) least = now;
    }
    return least;
}

static bool equal(counts a, counts b, bool all) {
    return a.mem == b.mem && a.other == b.other && (!all || (a.context == b.context && a.queue == b.queue));
}

static void restored(const owner *a, counts before, bool all, int line) {
    counts now = count(a);
    for (int i = 0; i < 10000 && !equal(now, before, all); i++) {
        pause_ms();
        now = count(a);
    }
    if (equal(now, before, all)) return;
    fprintf(stderr, "line %d: references of context, queue, mem, other are %u %u %u %u, were %u %u %u %u\n", line,
            now.context, now.queue, now.mem, now.other, before.context, before.queue, before.mem, before.other);
    exit(1);
}
#define RESTORED(a, before) restored(a, before, true, __LINE__)
// While a queue is wrapped, its last event lives, and events of some drivers hold queue and context.
#define MEMORY_RESTORED(a, before) restored(a, before, false, __LINE__)

static void same(const uint32_t *found, int line) {
    for (int i = 0; i < N; i++) {
        if (found[i] == model[i]) continue;
        fprintf(stderr, "line %d: element %d is %u, not %u\n", line, i, (unsigned)found[i], (unsigned)model[i]);
        exit(1);
    }
}
// Checks the contents through onebuf.
#define HOLDS(buffer) (OK(onebuf_buffer_read(buffer, 0, read_back, BYTES)), same(read_back, __LINE__))
// Checks the contents by class A's own calls.
#define OWNER_HOLDS(a, mem) (CL(clEnqueueReadBuffer((a)->queue, mem, CL_TRUE, 0, BYTES, read_back, 0, NULL, NULL)), same(read_back, __LINE__))

static void add_to_model(uint32_t n) {
    for (int i = 0; i < N; i++) model[i] += n;
}

static bool has_kernels;
static onebuf_kernel kernel;

static void build(void) {
    onebuf_program_options source = ONEBUF_OPTIONS(onebuf_program_options);
    source.opencl_c = TEXT_OF_ADD;
    onebuf_program program;
    onebuf_param params[] = {{ONEBUF_ARG_BUFFER, ONEBUF_READ_WRITE, 0, 4}, {ONEBUF_ARG_VALUE, 0, 4, 0}};
    kernel.id = 0;
    has_kernels = onebuf_program_build(device, &source, &program) == ONEBUF_OK &&
                  onebuf_kernel_create(program, "add", params, 2, 0, &kernel) == ONEBUF_OK;
    if (!has_kernels) printf("skip: kernels in a foreign context: %s\n", onebuf_last_error_message());
    onebuf_program_free(program);
}

// Work of onebuf: a kernel, or a mapping if the driver has no compiler.
static void add(onebuf_buffer buffer, uint32_t n) {
    if (has_kernels) {
        onebuf_grid grid = onebuf_grid_1d(N);
        onebuf_arg args[] = {onebuf_arg_buffer(buffer, ONEBUF_READ_WRITE), ONEBUF_VALUE(n)};
        OK(onebuf_queue_launch(ours, kernel, &grid, args, 2, NULL));
    } else {
        void *data;
        onebuf_mapping mapping;
        OK(onebuf_buffer_map(buffer, ONEBUF_READ_WRITE, &data, &mapping));
        for (int i = 0; i < N; i++) ((uint32_t *)data)[i] += n;
        OK(onebuf_mapping_unmap(mapping));
    }
    add_to_model(n);
}

// Work of class A: writes new values to all elements, without waiting.
static uint32_t fresh[N];
static void renew(const owner *a, uint32_t seed, cl_uint waits, const cl_event *wait, cl_event *event) {
    CL(clFinish(a->queue)); // nothing uses `fresh` any more
    for (uint32_t i = 0; i < N; i++) model[i] = fresh[i] = (seed + i) * 2654435761u;
    CL(clEnqueueWriteBuffer(a->queue, a->mem, CL_FALSE, 0, BYTES, fresh, waits, wait, event));
    CL(clFlush(a->queue));
}

static void asked(const owner *a, onebuf_device known) {
    onebuf_foreign_buffer_info info = ONEBUF_OPTIONS(onebuf_foreign_buffer_info);
    OK(onebuf_foreign_buffer_at_rest(hub, a->mem, 1, ONEBUF_DEFAULT_TIMEOUT, &info));
    TRUE(info.reference_count == 1);
    // A reference that is not released is waited for in vain.
    TRUE(clRetainMemObject(a->mem) == CL_SUCCESS);
    ENDS(ONEBUF_TIMEOUT, onebuf_foreign_buffer_at_rest(hub, a->mem, 1, 5, &info));
    OK(onebuf_foreign_buffer_query(hub, a->mem, &info));
    TRUE(info.reference_count == 2);
    TRUE(clReleaseMemObject(a->mem) == CL_SUCCESS);
    OK(onebuf_foreign_buffer_at_rest(hub, a->mem, 1, 0, &info));
    TRUE(info.size == sizeof info && info.bytes == BYTES && info.context == a->context);
    TRUE(info.flags & CL_MEM_COPY_HOST_PTR && info.copied && info.placement == ONEBUF_PLACEMENT_DEVICE);
    TRUE(info.access == ONEBUF_READ_WRITE && info.host_access == ONEBUF_HOST_READ_WRITE && info.map_count == 0);
    TRUE(!info.parent && info.offset == 0 && !info.host_pointer && info.uses_svm <= 0 && info.align_bytes > 0);
    TRUE(info.device.id == known.id && info.device_count == 1);
    // A program built against an older structure gets only the fields that it knows.
    memset(&info, 0xff, sizeof info);
    info.size = 2 * sizeof(size_t);
    OK(onebuf_foreign_buffer_query(hub, a->mem, &info));
    TRUE(info.bytes == BYTES && info.flags == UINT64_MAX);
    info.size = 3;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_foreign_buffer_query(hub, a->mem, &info));

    onebuf_foreign_context_info context = ONEBUF_OPTIONS(onebuf_foreign_context_info);
    counts now = count(a);
    EVENTUALLY((now = count(a), onebuf_foreign_context_query(hub, a->context, &context)) == ONEBUF_OK &&
               context.reference_count == now.context);
    OK(onebuf_foreign_context_at_rest(hub, a->context, now.context, 1000, &context));
    ENDS(ONEBUF_TIMEOUT, onebuf_foreign_context_at_rest(hub, a->context, 0, 5, &context));
    TRUE(context.device_count == 1 && context.known_count == 1 && context.device.id == known.id);

    onebuf_foreign_queue_info queue = ONEBUF_OPTIONS(onebuf_foreign_queue_info);
    EVENTUALLY((now = count(a), onebuf_foreign_queue_query(hub, a->queue, &queue)) == ONEBUF_OK &&
               queue.reference_count == now.queue);
    OK(onebuf_foreign_queue_at_rest(hub, a->queue, now.queue, 1000, &queue));
    ENDS(ONEBUF_TIMEOUT, onebuf_foreign_queue_at_rest(hub, a->queue, 0, 5, &queue));
    TRUE(queue.context == a->context && queue.device.id == known.id && queue.order == ONEBUF_QUEUE_IN_ORDER);
    TRUE(!queue.profiling);

    onebuf_string text;
    OK(onebuf_foreign_buffer_describe(hub, a->mem, &text));
    TRUE(strstr(onebuf_string_data(text), "16384 bytes") && strstr(onebuf_string_data(text), "opencl:"));
    OK(onebuf_string_free(text));
}

static int releases;
static void *released;
static void release(void *native, void *user) {
    TRUE(user == &releases);
    releases++;
    released = native;
}

// A call that fails neither takes nor keeps a reference.
static void refused(const owner *a) {
    counts before = rest(a);
    onebuf_buffer buffer = {7};
    onebuf_queue queue = {7};
    onebuf_fence fence = {7}, none = {1};
    onebuf_context wrapped = {7};
    ENDS(ONEBUF_NULL_POINTER, onebuf_buffer_wrap(hub, NULL, NULL, &buffer));
    TRUE(buffer.id == 0);
    ENDS(ONEBUF_NULL_POINTER, onebuf_buffer_wrap(hub, a->mem, NULL, NULL));
    ENDS(ONEBUF_NULL_POINTER, onebuf_queue_wrap(hub, NULL, &queue));
    ENDS(ONEBUF_NULL_POINTER, onebuf_fence_wrap(hub, NULL, &fence));
    ENDS(ONEBUF_NULL_POINTER, onebuf_context_wrap(hub, NULL, &wrapped));
    ENDS(ONEBUF_NULL_POINTER, onebuf_foreign_buffer_query(hub, a->mem, NULL));
    ENDS(ONEBUF_NULL_POINTER, onebuf_foreign_buffer_query(hub, NULL, NULL));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_buffer_wrap((onebuf_hub){0}, a->mem, NULL, &buffer));
    TRUE(buffer.id == 0 && queue.id == 0 && fence.id == 0 && wrapped.id == 0);

    onebuf_wrap_options options = ONEBUF_OPTIONS(onebuf_wrap_options);
    options.release = release;
    options.release_user = &releases;
    options.bytes = BYTES - 1;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_wrap(hub, a->mem, &options, &buffer));
    options.bytes = BYTES;
    options.after = &none;
    options.after_count = 1;
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_buffer_wrap(hub, a->mem, &options, &buffer));
    options.after = NULL;
    ENDS(ONEBUF_NULL_POINTER, onebuf_buffer_wrap(hub, a->mem, &options, &buffer));
    options.after_count = 0;
    options.copies = 9;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_wrap(hub, a->mem, &options, &buffer));
    options.copies = 0;
    options.route = 99;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_wrap(hub, a->mem, &options, &buffer));
    options.route = 0;
    options.size = 12;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_wrap(hub, a->mem, &options, &buffer));
    options.size = sizeof options;
    onebuf_hub second;
    onebuf_hub_options without = ONEBUF_OPTIONS(onebuf_hub_options);
    without.without_opencl = 1;
    OK(onebuf_hub_discover(&without, &second));
    onebuf_device theirs;
    OK(onebuf_hub_device(second, "host", &theirs));
    options.devices = &theirs;
    options.device_count = 1;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_wrap(hub, a->mem, &options, &buffer));
    ENDS(ONEBUF_UNAVAILABLE, onebuf_buffer_wrap(second, a->mem, NULL, &buffer));
    ENDS(ONEBUF_UNAVAILABLE, onebuf_queue_wrap(second, a->queue, &queue));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_context_second(second, device, &wrapped));
    ENDS(ONEBUF_UNAVAILABLE, onebuf_context_second(second, theirs, &wrapped));
    OK(onebuf_hub_free(second));

    // While its owner has it mapped, the memory cannot be wrapped.
    cl_int status;
    void *mapped = clEnqueueMapBuffer(a->queue, a->mem, CL_TRUE, CL_MAP_READ, 0, BYTES, 0, NULL, NULL, &status);
    CL(status);
    cl_uint maps = 0;
    CL(clGetMemObjectInfo(a->mem, CL_MEM_MAP_COUNT, sizeof maps, &maps, NULL));
    if (maps > 0) ENDS(ONEBUF_BUSY, onebuf_buffer_wrap(hub, a->mem, NULL, &buffer));
    else printf("skip: a cl_mem that its owner has mapped: the driver does not tell\n");
    CL(clEnqueueUnmapMemObject(a->queue, a->mem, mapped, 0, NULL, NULL));
    CL(clFinish(a->queue));
    TRUE(releases == 0 && buffer.id == 0);
    RESTORED(a, before);
}

static void both_orders(const owner *a) {
    // The owner's work comes first; a fence of its queue orders onebuf after it.
    renew(a, 1, 0, NULL, NULL);
    onebuf_fence fence;
    OK(onebuf_queue_fence(theirs, &fence));
    onebuf_wrap_options options = ONEBUF_OPTIONS(onebuf_wrap_options);
    options.bytes = BYTES;
    options.after = &fence;
    options.after_count = 1;
    options.name = "their samples";
    onebuf_buffer buffer, again;
    OK(onebuf_buffer_wrap(hub, a->mem, &options, &buffer));
    OK(onebuf_fence_free(fence));
    // All wraps of one object share one state and one reference.
    OK(onebuf_buffer_wrap(hub, a->mem, NULL, &again));
    EVENTUALLY(count(a).mem == 2);
    bool foreign = false;
    OK(onebuf_buffer_is_foreign(buffer, &foreign));
    TRUE(foreign);
    add(buffer, 1);
    HOLDS(buffer);

    // onebuf's work comes first, then a copy by the owner.
    add(buffer, 2);
    onebuf_sync_method sync_method = 99;
    OK(onebuf_buffer_hand_to(buffer, theirs, &sync_method));
    TRUE(sync_method >= ONEBUF_SYNC_SAME_QUEUE && sync_method <= ONEBUF_SYNC_HOST_WAIT);
    CL(clEnqueueCopyBuffer(a->queue, a->mem, a->other, 0, 0, BYTES, 0, NULL, NULL));
    OK(onebuf_queue_fence(theirs, &fence));
    OK(onebuf_buffer_read_until(buffer, fence));
    OK(onebuf_fence_free(fence));
    uint32_t kept[N];
    memcpy(kept, model, sizeof kept);
    add(buffer, 4); // ordered after the owner's read
    HOLDS(buffer);
    memcpy(model, kept, sizeof kept);
    OWNER_HOLDS(a, a->other);
    add_to_model(4);

    // The owner's work again, reported by an event.
    OK(onebuf_buffer_hand_to(buffer, theirs, NULL));
    cl_event event;
    renew(a, 5, 0, NULL, &event);
    OK(onebuf_fence_wrap(hub, event, &fence));
    CL(clReleaseEvent(event));
    OK(onebuf_buffer_written_until(buffer, fence));
    OK(onebuf_fence_free(fence));
    add(buffer, 8);
    HOLDS(buffer);

    // Events of onebuf, for a command of the owner.
    add(buffer, 16);
    OK(onebuf_buffer_hand_to(buffer, ours, NULL)); // unmaps and flushes
    OK(onebuf_queue_fence(ours, &fence));
    size_t events = 99, most = 0;
    OK(onebuf_fence_cl_events(fence, NULL, 0, &most));
    TRUE(most <= 1);
    void *raw[MOST] = {0};
    ENDS(ONEBUF_NULL_POINTER, onebuf_fence_cl_events(fence, NULL, 1, &events));
    ENDS(ONEBUF_NULL_POINTER, onebuf_fence_cl_events(fence, raw, MOST, NULL));
    OK(onebuf_fence_cl_events(fence, raw, MOST, &events));
    TRUE(events <= most);
    OK(onebuf_fence_free(fence));
    CL(clEnqueueCopyBuffer(a->queue, a->mem, a->other, 0, 0, BYTES, (cl_uint)events, events ? (cl_event *)raw : NULL, NULL));
    for (size_t i = 0; i < events; i++) CL(clReleaseEvent(raw[i]));
    OWNER_HOLDS(a, a->other);

    // Guards of one wrap exclude guards of the other.
    void *data;
    onebuf_mapping mapping;
    OK(onebuf_buffer_map(again, ONEBUF_READ, &data, &mapping));
    same(data, __LINE__);
    uint32_t zero = 0;
    ENDS(ONEBUF_BUSY, onebuf_buffer_write(buffer, 0, &zero, 4));
    TRUE(strstr(onebuf_last_error_message(), "their samples is in use"));
    OK(onebuf_queue_fence(theirs, &fence));
    ENDS(ONEBUF_BUSY, onebuf_buffer_written_until(buffer, fence));
    OK(onebuf_fence_free(fence));
    OK(onebuf_mapping_unmap(mapping));
    OK(onebuf_buffer_free(buffer));
    add(again, 32);

    // After the last handle is freed, the owner's memory holds the newest contents.
    OK(onebuf_buffer_free(again));
    OWNER_HOLDS(a, a->mem);
}

static void user_events(const owner *a) {
    onebuf_user_event event;
    onebuf_status status = onebuf_user_event_create(context, &event);
    if (status == ONEBUF_UNSUPPORTED) {
        printf("skip: events of the host: %s\n", onebuf_last_error_message());
        return;
    }
    OK(status);
    onebuf_fence fence, behind;
    void *native = NULL;
    bool done = true;
    OK(onebuf_user_event_fence(event, &fence));
    OK(onebuf_user_event_native(event, &native));
    cl_event written;
    renew(a, 9, 1, (cl_event *)&native, &written);
    OK(onebuf_fence_wrap(hub, written, &behind));
    CL(clReleaseEvent(written));
    OK(onebuf_fence_poll(fence, &done));
    TRUE(!done);
    OK(onebuf_fence_poll(behind, &done));
    TRUE(!done);
    ENDS(ONEBUF_TIMEOUT, onebuf_fence_wait(behind, 1));
    onebuf_wrap_options options = ONEBUF_OPTIONS(onebuf_wrap_options);
    options.after = &behind;
    options.after_count = 1;
    onebuf_buffer buffer;
    OK(onebuf_buffer_wrap(hub, a->mem, &options, &buffer));
    OK(onebuf_user_event_complete(event));
    OK(onebuf_user_event_complete(event)); // completing it twice has no effect
    OK(onebuf_fence_wait(fence, ONEBUF_DEFAULT_TIMEOUT));
    add(buffer, 3);
    HOLDS(buffer);
    OK(onebuf_buffer_free(buffer));
    OK(onebuf_user_event_free(event));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_user_event_complete(event));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_user_event_native(event, &native));
    OK(onebuf_fence_free(fence));
    OK(onebuf_fence_free(behind));
    // An event that is freed before it is completed fails, and does not hang.
    OK(onebuf_user_event_create(context, &event));
    OK(onebuf_user_event_fence(event, &fence));
    OK(onebuf_user_event_free(event));
    TRUE(onebuf_fence_wait(fence, ONEBUF_DEFAULT_TIMEOUT) != ONEBUF_OK);
    OK(onebuf_fence_free(fence));
}

static void parts(const owner *a) {
    cl_int status;
    size_t align;
    OK(onebuf_device_region_align(device, &align));
    cl_buffer_region region = {BYTES / 2, BYTES / 2};
    if (region.origin % align != 0) fail("a larger buffer is needed", __LINE__);
    cl_mem part = clCreateSubBuffer(a->mem, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &region, &status);
    CL(status);
    onebuf_foreign_buffer_info info = ONEBUF_OPTIONS(onebuf_foreign_buffer_info);
    OK(onebuf_foreign_buffer_query(hub, part, &info));
    TRUE(info.parent == a->mem && info.offset == BYTES / 2 && info.bytes == BYTES / 2);
    onebuf_buffer half, whole;
    OK(onebuf_buffer_wrap(hub, part, NULL, &half));
    OK(onebuf_buffer_wrap(hub, a->mem, NULL, &whole));
    size_t bytes = 0;
    OK(onebuf_buffer_size(half, &bytes));
    TRUE(bytes == BYTES / 2);
    uint32_t value = 77;
    OK(onebuf_buffer_fill(half, 0, BYTES / 2, &value, 4));
    for (int i = N / 2; i < N; i++) model[i] = 77;
    HOLDS(whole);
    // A region of onebuf in the wrapped memory.
    onebuf_buffer ours_of_it;
    OK(onebuf_buffer_region(whole, 0, BYTES / 2, ONEBUF_READ_WRITE, &ours_of_it));
    bool foreign;
    OK(onebuf_buffer_is_foreign(ours_of_it, &foreign));
    TRUE(foreign);
    value = 78;
    OK(onebuf_buffer_fill(ours_of_it, 0, BYTES / 2, &value, 4));
    for (int i = 0; i < N / 2; i++) model[i] = 78;
    void *none;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_into_cl_mem(ours_of_it, device, &none));
    ENDS(ONEBUF_BUSY, onebuf_buffer_into_cl_mem(whole, device, &none)); // a region of it exists
    OK(onebuf_buffer_free(ours_of_it));
    add(whole, 1);
    HOLDS(whole);
    OK(onebuf_buffer_free(whole));
    OK(onebuf_buffer_free(half));
    CL(clReleaseMemObject(part));
    OWNER_HOLDS(a, a->mem);
}

static void owned(const owner *a) {
    onebuf_wrap_options options = ONEBUF_OPTIONS(onebuf_wrap_options);
    options.release = release;
    options.release_user = &releases;
    onebuf_buffer buffer, other;
    OK(onebuf_buffer_wrap(hub, a->mem, &options, &buffer));
    OK(onebuf_buffer_wrap(hub, a->mem, NULL, &other));
    OK(onebuf_buffer_free(buffer));
    TRUE(releases == 0); // another wrap is still in use
    add(other, 2);
    OK(onebuf_buffer_free(other));
    TRUE(releases == 1 && released == a->mem);
    releases = 0;
    OWNER_HOLDS(a, a->mem);
}

// Copies from the owner's memory to a buffer on every device of the hub, and back.
static void bridges(const owner *a) {
    size_t devices;
    onebuf_buffer theirs;
    OK(onebuf_buffer_wrap(hub, a->mem, NULL, &theirs));
    OK(onebuf_hub_device_count(hub, &devices));
    for (size_t at = 0; at < devices; at++) {
        onebuf_device far_device;
        OK(onebuf_hub_device_at(hub, at, &far_device));
        onebuf_buffer_options builder = ONEBUF_OPTIONS(onebuf_buffer_options);
        builder.devices = &far_device;
        builder.device_count = 1;
        onebuf_buffer far;
        OK(onebuf_buffer_create(hub, BYTES, &builder, &far));
        onebuf_crossing went = ONEBUF_OPTIONS(onebuf_crossing);
        OK(onebuf_bridge_copy(theirs, 0, far, 0, BYTES, &went));
        TRUE(went.bytes == BYTES && went.way != ONEBUF_ROUTE_ANY);
        HOLDS(far);
        for (int i = 0; i < 100; i++) model[i] = (uint32_t)(at + 1000 + i);
        OK(onebuf_bridge_from_host(model, far, 0, 400, &went));
        TRUE(went.bytes == 400);
        onebuf_fence fence;
        OK(onebuf_bridge_copy_async(far, 0, theirs, 0, BYTES, NULL, &fence));
        OK(onebuf_fence_wait(fence, ONEBUF_DEFAULT_TIMEOUT));
        OK(onebuf_fence_free(fence));
        OK(onebuf_bridge_to_host(theirs, 0, read_back, BYTES, &went));
        TRUE(went.bytes == BYTES);
        same(read_back, __LINE__);
        OK(onebuf_bridge_copy(theirs, 0, theirs, 4, BYTES - 4, NULL)); // within one buffer, overlapping
        memmove(model + 1, model, BYTES - 4);
        HOLDS(theirs);
        ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_bridge_copy(theirs, 4, far, 0, BYTES, NULL));
        ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_bridge_copy(theirs, 0, far, 0, 0, NULL));
        ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_bridge_copy(theirs, SIZE_MAX, far, 0, 4, NULL));
        ENDS(ONEBUF_NULL_POINTER, onebuf_bridge_copy_async(theirs, 0, far, 0, 4, NULL, NULL));
        ENDS(ONEBUF_NULL_POINTER, onebuf_bridge_from_host(NULL, far, 0, 4, NULL));
        ENDS(ONEBUF_INVALID_HANDLE, onebuf_bridge_to_host((onebuf_buffer){0}, 0, read_back, 4, NULL));
        went.size = 1; // an invalid size is reported before anything is copied
        ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_bridge_copy(theirs, 0, far, 0, 4, &went));
        OK(onebuf_buffer_free(far));
    }
    OK(onebuf_buffer_free(theirs));
    OWNER_HOLDS(a, a->mem);
}

// One call copies between memory of two contexts, in the order of both owners' queues.
static void one_call(const owner *a) {
    cl_device_id others[1 + MOST] = {a->device};
    cl_platform_id platforms[MOST];
    cl_uint found = 0, count = 1;
    if (clGetPlatformIDs(MOST, platforms, &found) != CL_SUCCESS) found = 0;
    for (cl_uint at = 0; at < found && at < MOST; at++)
        if (clGetDeviceIDs(platforms[at], CL_DEVICE_TYPE_ALL, 1, &others[count], NULL) == CL_SUCCESS) count++;
    for (cl_uint at = 0; at < count; at++) {
        owner b = make(others[at]); // another context, perhaps on another platform
        onebuf_cl_range from = {a->mem, a->queue, 0}, to = {b.other, b.queue, 0};
        onebuf_crossing went = ONEBUF_OPTIONS(onebuf_crossing);
        renew(a, 40 + at, 0, NULL, NULL); // not waited for
        OK(onebuf_bridge_copy_cl(hub, &from, &to, BYTES, &went));
        TRUE(went.bytes == BYTES);
        OWNER_HOLDS(&b, b.other);
        from.offset = 4, to.mem = b.mem, to.offset = 0;
        OK(onebuf_bridge_copy_cl(hub, &from, &to, BYTES - 4, NULL));
        CL(clEnqueueReadBuffer(b.queue, b.mem, CL_TRUE, 0, BYTES - 4, read_back, 0, NULL, NULL));
        TRUE(memcmp(read_back, model + 1, BYTES - 4) == 0);

        onebuf_cl_range wrong = from;
        ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_bridge_copy_cl(hub, &from, &to, BYTES, NULL)); // beyond the end
        ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_bridge_copy_cl(hub, &from, &to, 0, NULL));
        wrong.queue = NULL;
        ENDS(ONEBUF_NULL_POINTER, onebuf_bridge_copy_cl(hub, &wrong, &to, 4, NULL));
        ENDS(ONEBUF_NULL_POINTER, onebuf_bridge_copy_cl(hub, NULL, &to, 4, NULL));
        wrong.queue = b.queue; // of the other context
        TRUE(onebuf_bridge_copy_cl(hub, &wrong, &to, 4, NULL) != ONEBUF_OK);
        destroy(b);
    }
    OWNER_HOLDS(a, a->mem);
}

// Ownership of a buffer of onebuf passes to class A.
static void given_away(const owner *a) {
    onebuf_buffer_options builder = ONEBUF_OPTIONS(onebuf_buffer_options);
    builder.devices = &device;
    builder.device_count = 1;
    builder.memory_kind = ONEBUF_MEMORY_KIND_MAPPED_DEVICE;
    builder.contents = model;
    onebuf_buffer buffer;
    OK(onebuf_buffer_create(hub, BYTES, &builder, &buffer));
    onebuf_queue queue;
    OK(onebuf_queue_for(buffer, &queue));
    onebuf_view view;
    OK(onebuf_view_take(buffer, queue, ONEBUF_READ, &view));
    void *mem = &mem;
    ENDS(ONEBUF_BUSY, onebuf_buffer_into_cl_mem(buffer, device, &mem));
    TRUE(!mem);
    OK(onebuf_view_free(view));
    ENDS(ONEBUF_NULL_POINTER, onebuf_buffer_into_cl_mem(buffer, device, NULL));
    HOLDS(buffer); // the buffer still exists
    OK(onebuf_buffer_into_cl_mem(buffer, device, &mem));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_buffer_free(buffer));
    OK(onebuf_queue_free(queue));
    cl_uint references = 0;
    CL(clGetMemObjectInfo(mem, CL_MEM_REFERENCE_COUNT, sizeof references, &references, NULL));
    TRUE(references == 1);
    OWNER_HOLDS(a, mem);
    CL(clReleaseMemObject(mem));
}

static void shared_addresses(const owner *a) {
    cl_device_svm_capabilities can = 0;
    cl_int status = clGetDeviceInfo(a->device, CL_DEVICE_SVM_CAPABILITIES, sizeof can, &can, NULL);
    onebuf_buffer buffer = {7};
    ENDS(ONEBUF_NULL_POINTER, onebuf_buffer_wrap_svm(context, NULL, BYTES, NULL, &buffer));
    TRUE(buffer.id == 0);
    if (status != CL_SUCCESS || !(can & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER)) {
        printf("skip: foreign shared virtual memory: the device has none\n");
        return;
    }
    void *svm = clSVMAlloc(a->context, CL_MEM_READ_WRITE, BYTES, 0);
    TRUE(svm);
    onebuf_wrap_options options = ONEBUF_OPTIONS(onebuf_wrap_options);
    options.bytes = 4;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_wrap_svm(context, svm, BYTES, &options, &buffer));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_wrap_svm(context, svm, 0, NULL, &buffer));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_wrap_svm(context, svm, SIZE_MAX, NULL, &buffer));
    options.bytes = BYTES;
    options.release = release;
    options.release_user = &releases;
    OK(onebuf_buffer_wrap_svm(context, svm, BYTES, &options, &buffer));
    OK(onebuf_buffer_write(buffer, 0, model, BYTES));
    add(buffer, 6);
    void *data;
    onebuf_mapping mapping;
    OK(onebuf_buffer_map(buffer, ONEBUF_READ, &data, &mapping));
    TRUE(data == svm); // mapped in place
    same(data, __LINE__);
    OK(onebuf_mapping_unmap(mapping));
    TRUE(releases == 0);
    OK(onebuf_buffer_free(buffer));
    TRUE(releases == 1 && released == svm);
    releases = 0;
    clSVMFree(a->context, svm);
}

static void try_device(cl_device_id raw) {
    for (uint32_t i = 0; i < N; i++) model[i] = i;
    owner a = make(raw);
    counts before = rest(&a);
    OK(onebuf_hub_discover(NULL, &hub));
    onebuf_foreign_context_info known = ONEBUF_OPTIONS(onebuf_foreign_context_info);
    OK(onebuf_foreign_context_query(hub, a.context, &known));
    asked(&a, known.device);

    OK(onebuf_context_wrap(hub, a.context, &context));
    EVENTUALLY(count(&a).context == before.context + 1);
    onebuf_device on;
    size_t devices;
    void *native;
    OK(onebuf_context_device_count(context, &devices));
    TRUE(devices == 1);
    OK(onebuf_context_device_at(context, 0, &device));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_context_device_at(context, 1, &on));
    OK(onebuf_context_native(context, &native));
    TRUE(native == a.context);
    onebuf_string id;
    OK(onebuf_device_id(device, &id));
    TRUE(strchr(onebuf_string_data(id), '@'));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_hub_device(hub, onebuf_string_data(id), &on)); // it belongs to the context
    OK(onebuf_string_free(id));

    onebuf_queue elsewhere;
    OK(onebuf_queue_create(device, NULL, &ours));
    OK(onebuf_queue_wrap(hub, a.queue, &theirs));
    EVENTUALLY(count(&a).queue == before.queue + 1);
    OK(onebuf_queue_native(theirs, &native));
    TRUE(native == a.queue);
    OK(onebuf_context_device_of(context, theirs, &on));
    TRUE(on.id == device.id);
    OK(onebuf_queue_create(known.device, NULL, &elsewhere));
    ENDS(ONEBUF_FOREIGN_CONTEXT, onebuf_context_device_of(context, elsewhere, &on));
    OK(onebuf_queue_free(elsewhere));

    OWNER_HOLDS(&a, a.mem);
    refused(&a);
    void (*const all[])(const owner *) = {both_orders, user_events, parts, owned, bridges, one_call, given_away, shared_addresses};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        counts at_first = rest(&a);
        build();
        all[i](&a);
        OK(onebuf_kernel_free(kernel)); // kernels of some drivers hold their arguments
        MEMORY_RESTORED(&a, at_first);
    }

    // The native handles of both devices: the same chip, in two contexts.
    void *platform, *chip, *own;
    OK(onebuf_device_native(device, "cl_context", &native));
    OK(onebuf_device_native(known.device, "cl_context", &own));
    TRUE(native == a.context && own && own != a.context);
    OK(onebuf_device_native(known.device, "cl_device_id", &chip));
    OK(onebuf_device_native(known.device, "cl_platform_id", &platform));
    cl_platform_id of_chip;
    CL(clGetDeviceInfo(chip, CL_DEVICE_PLATFORM, sizeof of_chip, &of_chip, NULL));
    TRUE(chip == raw && platform == of_chip);
    cl_int made;
    cl_mem mem = clCreateBuffer(own, CL_MEM_READ_WRITE, 64, NULL, &made); // in onebuf's own context
    CL(made);
    CL(clReleaseMemObject(mem));
    ENDS(ONEBUF_UNSUPPORTED, onebuf_device_native(device, "CUcontext", &native));
    TRUE(!native && strstr(onebuf_last_error_message(), "cl_platform_id, cl_device_id, cl_context"));

    // A program of class A: no device here can run it, and a null one is refused first.
    onebuf_device host;
    onebuf_program moved;
    OK(onebuf_hub_device(hub, "host", &host));
    ENDS(ONEBUF_NULL_POINTER, onebuf_foreign_program_graft(hub, NULL, host, &moved));
    const char *text = TEXT_OF_ADD;
    cl_program unbuilt = clCreateProgramWithSource(a.context, 1, &text, NULL, &made);
    if (made == CL_SUCCESS) {
        ENDS(ONEBUF_UNSUPPORTED, onebuf_foreign_program_graft(hub, unbuilt, host, &moved));
        TRUE(moved.id == 0);
        CL(clReleaseProgram(unbuilt));
    }

    // A second context, created by onebuf, with the same device.
    onebuf_context second;
    OK(onebuf_context_second(hub, known.device, &second));
    OK(onebuf_context_native(second, &native));
    TRUE(native && native != a.context);
    OK(onebuf_context_free(second));

    OK(onebuf_queue_free(theirs));
    OK(onebuf_queue_free(ours));
    OK(onebuf_context_free(context));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_device_id(device, &id)); // freed with the context
    RESTORED(&a, before);
    OK(onebuf_hub_free(hub));
    RESTORED(&a, before);
    destroy(a);
}

int main(void) {
    cl_platform_id platforms[MOST];
    cl_uint found = 0, tried = 0;
    if (clGetPlatformIDs(MOST, platforms, &found) != CL_SUCCESS) found = 0;
    for (cl_uint at = 0; at < found && at < MOST; at++) {
        cl_device_id device;
        if (clGetDeviceIDs(platforms[at], CL_DEVICE_TYPE_ALL, 1, &device, NULL) != CL_SUCCESS) continue;
        char name[128] = "";
        clGetPlatformInfo(platforms[at], CL_PLATFORM_NAME, sizeof name, name, NULL);
        printf("%s\n", name);
        fflush(stdout);
        try_device(device);
        tried++;
    }
    if (tried == 0) printf("no OpenCL here\n");
    printf("foreign objects work on %u devices\n", (unsigned)tried);
    return 0;
}
