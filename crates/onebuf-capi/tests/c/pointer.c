// The application's own CUDA or HIP objects in C: `pointer LIBRARY` or `pointer LIBRARY hip`. The library's functions are found
// by name, so that no header of CUDA's or HIP's is needed; a real driver and the stub work alike.

#include "check.h"
#include <dlfcn.h>
#include <string.h>

enum { N = 6000, BYTES = N * 4, LEAD = 1024 };

static void *library;
static bool hip;

typedef void (*function)(void);
static function find(const char *cuda, const char *its_hip) {
    void *found = dlsym(library, hip ? its_hip : cuda);
    function called;
    TRUE(found);
    memcpy(&called, &found, sizeof called);
    return called;
}
#define CALL(cuda, its_hip, types, ...) TRUE(((int (*)types)find(cuda, its_hip))(__VA_ARGS__) == 0)

// The calls of an application need its context current, as CUDA's runtime does by itself.
static void *context;
static void enter(void) {
    if (hip) CALL("", "hipSetDevice", (int), 0);
    else CALL("cuCtxPushCurrent_v2", "", (void *), context);
}
static void leave(void) {
    void *popped;
    if (!hip) CALL("cuCtxPopCurrent_v2", "", (void **), &popped);
}
static void fill(uint64_t at, unsigned value, void *stream) {
    enter();
    CALL("cuMemsetD32Async", "hipMemsetD32Async", (uint64_t, unsigned, size_t, void *), at, value, (size_t)N, stream);
    leave();
}
static void synchronise(void *stream) {
    enter();
    int (*query)(void *) = (int (*)(void *))find("cuStreamQuery", "hipStreamQuery");
    int busy;
    while ((busy = query(stream)) == 600) continue;
    TRUE(busy == 0);
    leave();
}
// All words, by the application's own copy.
static void expect(uint64_t at, unsigned value, void *stream) {
    static unsigned words[N];
    memset(words, 0xee, sizeof words);
    enter();
    CALL("cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync", (void *, uint64_t, size_t, void *), words, at, (size_t)BYTES, stream);
    leave();
    synchronise(stream);
    for (int i = 0; i < N; i++) if (words[i] != value) {
        fprintf(stderr, "word %d is %u, not %u\n", i, words[i], value);
        exit(1);
    }
}

static void expect_buffer(onebuf_buffer buffer, unsigned value) {
    static unsigned words[N];
    OK(onebuf_buffer_read(buffer, 0, words, sizeof words));
    for (int i = 0; i < N; i++) TRUE(words[i] == value);
}

int main(int argc, char **argv) {
    TRUE(argc > 1);
    hip = argc > 2;
    library = dlopen(argv[1], RTLD_NOW);
    TRUE(library);
    onebuf_hub_options options = ONEBUF_OPTIONS(onebuf_hub_options);
    options.without_opencl = options.without_verdicts = 1;
    if (hip) options.hip_library = options.hiprtc_library = argv[1], options.without_cuda = 1;
    else options.cuda_library = options.nvrtc_library = argv[1], options.without_hip = 1;
    onebuf_hub hub;
    OK(onebuf_hub_discover(&options, &hub));
    onebuf_device device, host;
    OK(onebuf_hub_device(hub, hip ? "hip:0" : "cuda:0", &device));
    OK(onebuf_hub_device(hub, "host", &host));

    if (!hip) CALL("cuDevicePrimaryCtxRetain", "", (void **, int), &context, 0);
    uint64_t start;
    void *stream, *event;
    enter();
    CALL("cuMemAlloc_v2", "hipMalloc", (uint64_t *, size_t), &start, (size_t)(LEAD + BYTES));
    CALL("cuStreamCreate", "hipStreamCreateWithFlags", (void **, unsigned), &stream, 1u);
    CALL("cuEventCreate", "hipEventCreateWithFlags", (void **, unsigned), &event, 2u);
    leave();
    uint64_t at = start + LEAD;
    void *pointer = (void *)(uintptr_t)at;

    onebuf_pointer_info info = ONEBUF_OPTIONS(onebuf_pointer_info);
    OK(onebuf_pointer_query(device, pointer, &info));
    TRUE(info.kind == ONEBUF_POINTER_DEVICE && info.device_number == 0 && !info.host);
    TRUE((uintptr_t)info.start <= start && info.bytes >= LEAD + BYTES);

    // After the event, on the application's stream, and back.
    fill(at, 7, stream);
    enter();
    CALL("cuEventRecord", "hipEventRecord", (void *, void *), event, stream);
    leave();
    onebuf_fence fence;
    onebuf_queue queue;
    onebuf_buffer buffer;
    OK(onebuf_fence_wrap_stream_event(device, event, &fence));
    OK(onebuf_queue_wrap_stream(device, stream, &queue));
    onebuf_wrap_options wrap = ONEBUF_OPTIONS(onebuf_wrap_options);
    wrap.after = &fence;
    wrap.after_count = 1;
    OK(onebuf_buffer_wrap_pointer(device, pointer, BYTES, &wrap, &buffer));
    expect_buffer(buffer, 7);
    unsigned nine = 9;
    OK(onebuf_buffer_fill(buffer, 0, BYTES, &nine, sizeof nine));
    OK(onebuf_buffer_hand_to(buffer, queue, NULL));
    expect(at, 9, stream);
    fill(at, 11, stream);
    onebuf_fence written;
    OK(onebuf_queue_fence(queue, &written));
    OK(onebuf_buffer_written_until(buffer, written));
    expect_buffer(buffer, 11);
    void *native;
    OK(onebuf_queue_native(queue, &native));
    TRUE(native == stream);

    // What is refused, and leaves nothing behind.
    onebuf_buffer none;
    ENDS(ONEBUF_NULL_POINTER, onebuf_buffer_wrap_pointer(device, NULL, BYTES, NULL, &none));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_wrap_pointer(device, &none, 8, NULL, &none)); // ordinary memory
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_wrap_pointer(device, pointer, BYTES + 4, NULL, &none));
    ENDS(ONEBUF_UNSUPPORTED, onebuf_buffer_wrap_pointer(host, pointer, BYTES, NULL, &none));
    ENDS(ONEBUF_UNSUPPORTED, onebuf_queue_wrap_stream(host, stream, &queue));
    ENDS(ONEBUF_NULL_POINTER, onebuf_fence_wrap_stream_event(device, NULL, &fence));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_wrap_allocation(device, 0, 2 << 20, NULL, &none));
    ENDS(ONEBUF_NULL_POINTER, onebuf_buffer_open_ipc(device, NULL, 0, BYTES, &none));
    onebuf_queue legacy;
    OK(onebuf_queue_wrap_stream(device, NULL, &legacy));
    OK(onebuf_queue_free(legacy));

    OK(onebuf_fence_free(written));
    OK(onebuf_buffer_free(buffer));
    OK(onebuf_fence_free(fence));
    OK(onebuf_queue_free(queue));
    OK(onebuf_hub_free(hub));
    enter(); // they are still the application's
    CALL("cuEventDestroy_v2", "hipEventDestroy", (void *), event);
    CALL("cuStreamDestroy_v2", "hipStreamDestroy", (void *), stream);
    CALL("cuMemFree_v2", "hipFree", (uint64_t), start);
    leave();
    if (!hip) CALL("cuDevicePrimaryCtxRelease_v2", "", (int), 0);
    printf("pointers and streams work\n");
    return 0;
}
