// What a program calls of CUDA or HIP, found by name in the driver's library: a real driver and the stub work alike. Returns zero for
// success.

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static void *library, *context;
static int hip;

typedef void (*function)(void);
static function find(const char *cuda, const char *its_hip) {
    void *found = dlsym(library, hip ? its_hip : cuda);
    function called;
    memcpy(&called, &found, sizeof called);
    return called;
}
#define CALL(cuda, its_hip, types, ...) ((int (*)types)find(cuda, its_hip))(__VA_ARGS__)

// CUDA's calls need the device's context current.
static int enter(void) {
    if (hip) return CALL("", "hipSetDevice", (int), 0);
    return CALL("cuCtxPushCurrent_v2", "", (void *), context);
}
static int leave(int status) {
    void *popped;
    int left = hip ? 0 : CALL("cuCtxPopCurrent_v2", "", (void **), &popped);
    return status ? status : left;
}

// Opens the driver; the library onebuf has initialised it.
int driver_open(const char *path, int is_hip) {
    hip = is_hip;
    library = dlopen(path, RTLD_NOW);
    if (!library) return -1;
    return hip ? 0 : CALL("cuDevicePrimaryCtxRetain", "", (void **, int), &context, 0);
}

int driver_allocate(void **pointer, size_t bytes) {
    int status = enter();
    return status ? status : leave(CALL("cuMemAlloc_v2", "hipMalloc", (void **, size_t), pointer, bytes));
}

// An allocation without an address, of pinned device memory.
int driver_create(uint64_t *handle, size_t bytes) {
    struct {
        int type, handles, location, device;
        void *none;
        unsigned char flags[8];
    } wanted = {1, 0, 1, 0, NULL, {0}};
    int status = enter();
    return status ? status
                  : leave(CALL("cuMemCreate", "hipMemCreate", (uint64_t *, size_t, void *, unsigned long long), handle, bytes, &wanted,
                               0ull));
}

// The 64 bytes by which another process opens the memory.
int driver_share(unsigned char *handle, void *pointer) {
    int status = enter();
    return status ? status : leave(CALL("cuIpcGetMemHandle", "hipIpcGetMemHandle", (void *, void *), handle, pointer));
}

int driver_stream(void **stream) {
    int status = enter();
    return status ? status : leave(CALL("cuStreamCreate", "hipStreamCreateWithFlags", (void **, unsigned), stream, 1u));
}

int driver_event(void **event) {
    int status = enter();
    return status ? status : leave(CALL("cuEventCreate", "hipEventCreateWithFlags", (void **, unsigned), event, 2u));
}

int driver_record(void *event, void *stream) {
    int status = enter();
    return status ? status : leave(CALL("cuEventRecord", "hipEventRecord", (void *, void *), event, stream));
}

int driver_fill(void *pointer, int32_t value, size_t words, void *stream) {
    int status = enter();
    return status ? status
                  : leave(CALL("cuMemsetD32Async", "hipMemsetD32Async", (void *, unsigned, size_t, void *), pointer, (unsigned)value,
                               words, stream));
}

// Copies to the CPU and waits.
int driver_read(int32_t *to, void *pointer, size_t words, void *stream) {
    int status = enter();
    if (status) return status;
    status = CALL("cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync", (void *, void *, size_t, void *), to, pointer, words * 4, stream);
    int (*query)(void *) = (int (*)(void *))find("cuStreamQuery", "hipStreamQuery");
    while (status == 0 && (status = query(stream)) == 600) status = 0;
    return leave(status);
}
