/* A stub of CUDA's driver API, HIP, NVRTC, HIPRTC, HSA and their math libraries (math_stub.h) in one library: the test double
 * for onebuf's cuda_like backend. Load it through ONEBUF_CUDA_LIB or ONEBUF_HIP_LIB, ONEBUF_NVRTC_LIB or ONEBUF_HIPRTC_LIB,
 * ONEBUF_HSA_LIB.
 *
 *   cc -std=c11 -Wall -Wextra -Werror -O1 -g -fPIC -shared -pthread -o libcuda_stub.so \
 *      $(cat cuda_stub.sources)
 *
 * Memory that others can access (virtual memory, external memory, other processes, peers), and what streams wait for besides
 * events, is in cuda_share.c; what the driver says about addresses in cuda_pointer.c; managed memory in cuda_managed.c; semaphores of other APIs in cuda_semaphore.c; OpenGL buffers in
 * cuda_graphics.c; HSA in hsa_stub.c; the OpenCL stub's allocations beside HIP's memory in agent_stub.c; AMD code objects in
 * code_object_stub.h. The calls there are recorded, and can be made to fail.
 *
 * The stub has two devices. Their memory is separate: a device pointer is not a host address, so dereferencing it crashes. Each
 * stream runs in order on its own thread, so a missing fence is a real race. The stub is strict where drivers are lenient: a
 * call without the right current context (CUDA) or device (HIP) is refused. Freeing memory or a module that work uses, and
 * releasing a primary context before the objects created in it, end the process with status 99. A kernel is found by its name,
 * which must occur in the module's image; an image is any text.
 *
 *   kernel            | parameters                       | what it does
 *   ------------------+----------------------------------+------------------------------------------------------
 *   add               | u32 *p, u32 by                   | p[i] += by
 *   touch             | u32 *p, u32 by                   | p[0] += by
 *   onebuf_step       | u32 *p, u32 first, n, mul, add   | p[first + i] = p[first + i] * mul + add + i, for i < n
 *   advance           | as onebuf_step, under a name that may be grafted
 *   onebuf_step_bytes | as onebuf_step, on bytes         |
 *   onebuf_step_pages | as onebuf_step, on words 4096 bytes apart
 *   write_words       | u32 *p, u32 seed, n              | p[i] = word(seed, i), for i < n: as in `onebuf share`
 *   check_pages       | u32 *p, *wrong, u32 seed, n      | wrong[page] = whether a word of the page differs
 *   shape             | u32 *p                           | stores groups, group sizes, dynamic shared bytes: 7 words
 *   nap               | u32 ms                           | sleeps
 *   hold              | u32 *p                           | waits until the host has stored a value in p[0]
 *   boom              |                                  | an illegal access: every later call returns 700
 *
 * ONEBUF_CUDA_STUB_DELAY_US=n   every command takes n microseconds more
 * ONEBUF_CUDA_STUB_INTEGRATED=1 the devices share the host's memory
 * ONEBUF_CUDA_STUB_DEVICES=n    0, 1 or 2 devices instead of 2
 * ONEBUF_CUDA_STUB_GROUPS=n     at most n groups of a launch in the first dimension, as a HIP runtime over OpenCL has 65536
 * ONEBUF_CUDA_STUB_UUID=hex     the UUID of the first device's chip */
#include "cuda_stub.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
void lock(void) { pthread_mutex_lock(&mutex); }
void unlock(void) { pthread_mutex_unlock(&mutex); }
bool initialised;
static long delay_us;
static int device_count = DEVICES;
static bool integrated;
bool is_integrated(void) { return integrated; }

void die(const char *why)
{
    fprintf(stderr, "cuda stub: %s\n", why);
    _Exit(99);
}

void nap(long us)
{
    struct timespec t = { us / 1000000, us % 1000000 * 1000 };
    nanosleep(&t, NULL);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- Current context and device ----------------------------------------------------------------------------- */
struct device devices[CONTEXTS];
static _Thread_local int stack[64], depth; /* CUDA: pushed contexts, by device */
static _Thread_local int hip_device;
bool is_hip; /* the API that was initialised last: a process tests one at a time under its own lock */

/* The current device, or -1. */
int current(void)
{
    in_host_function();
    if (is_hip) return hip_device;
    return depth > 0 ? stack[depth - 1] : -1;
}

status enter(int *device)
{
    if (!initialised) return NOT_INITIALIZED;
    *device = current();
    if (*device < 0) return INVALID_CONTEXT;
    return devices[*device].dead ? ILLEGAL_ADDRESS : OK;
}
/* For calls that free: they also work in a failed context, and then return its error. */
status leave(status done, int device) { return done ? done : devices[device].dead ? ILLEGAL_ADDRESS : OK; }

static status start(bool hip)
{
    const char *delay = getenv("ONEBUF_CUDA_STUB_DELAY_US"), *count = getenv("ONEBUF_CUDA_STUB_DEVICES");
    delay_us = delay ? atol(delay) : 0;
    device_count = count ? atoi(count) : DEVICES;
    integrated = getenv("ONEBUF_CUDA_STUB_INTEGRATED") != NULL;
    initialised = true;
    is_hip = hip;
    start_sharing();
    return device_count > 0 ? OK : NO_DEVICE;
}
EXPORT status cuInit(unsigned flags) { return flags ? INVALID_VALUE : start(false); }
EXPORT status hipInit(unsigned flags) { return flags ? INVALID_VALUE : start(true); }

static const char *name_of(status s)
{
    switch (s) {
    case OK: return "STUB_SUCCESS";
    case INVALID_VALUE: return "STUB_INVALID_VALUE";
    case OUT_OF_MEMORY: return "STUB_OUT_OF_MEMORY";
    case NO_DEVICE: return "STUB_NO_DEVICE";
    case INVALID_IMAGE: return "STUB_INVALID_IMAGE";
    case INVALID_CONTEXT: return "STUB_INVALID_CONTEXT";
    case NO_BINARY: return "STUB_NO_BINARY_FOR_GPU";
    case INVALID_HANDLE: return "STUB_INVALID_HANDLE";
    case ILLEGAL_ADDRESS: return "STUB_ILLEGAL_ADDRESS";
    case ALREADY_REGISTERED: return "STUB_HOST_MEMORY_ALREADY_REGISTERED";
    default: return NULL;
    }
}
EXPORT status cuGetErrorName(status s, const char **name)
{
    *name = name_of(s);
    return *name ? OK : INVALID_VALUE;
}
EXPORT const char *hipGetErrorName(status s) { const char *name = name_of(s); return name ? name : "STUB_UNKNOWN"; }

/* ---- Devices ------------------------------------------------------------------------------------------------- */
status known(int device) { return device >= 0 && device < device_count ? OK : INVALID_DEVICE; }

EXPORT status cuDriverGetVersion(int *version) { *version = 12080; return OK; }
EXPORT status hipDriverGetVersion(int *version) { *version = 60221153; return OK; }
EXPORT status cuDeviceGetCount(int *count) { *count = device_count; return initialised ? OK : NOT_INITIALIZED; }
status hipGetDeviceCount(int *count) HIP(hipGetDeviceCount, cuDeviceGetCount);
EXPORT status cuDeviceGet(int *device, int ordinal) { *device = ordinal; return known(ordinal); }
status hipDeviceGet(int *device, int ordinal) HIP(hipDeviceGet, cuDeviceGet);
EXPORT status cuDeviceGetName(char *name, int len, int device)
{
    snprintf(name, (size_t)len, "stub GPU %d", device);
    return known(device);
}
status hipDeviceGetName(char *name, int len, int device) HIP(hipDeviceGetName, cuDeviceGetName);
EXPORT status cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = MEMORY; return known(device); }
status hipDeviceTotalMem(size_t *bytes, int device) HIP(hipDeviceTotalMem, cuDeviceTotalMem_v2);
EXPORT status cuDeviceGetUuid(unsigned char *uuid, int device)
{
    if (hipGetBackendNativeHandles) return NOT_SUPPORTED; /* chipStar has none */
    const char *hex = device ? NULL : getenv("ONEBUF_CUDA_STUB_UUID");
    for (int i = 0; i < 16; i++) uuid[i] = (unsigned char)(i * 16 + device + 1);
    for (int i = 0; hex && i < 16 && sscanf(hex, "%2hhx", &uuid[i]) == 1; i++) hex += hex[2] == '-' ? 3 : 2;
    return known(device);
}
status hipDeviceGetUuid(unsigned char *uuid, int device) HIP(hipDeviceGetUuid, cuDeviceGetUuid);
EXPORT status cuDeviceGetPCIBusId(char *text, int len, int device)
{
    snprintf(text, (size_t)len, "0000:%02x:00.0", 0xc1 + device);
    return known(device);
}
status hipDeviceGetPCIBusId(char *text, int len, int device) HIP(hipDeviceGetPCIBusId, cuDeviceGetPCIBusId);

struct attribute { int cuda, hip, value; };
static const struct attribute attributes[] = {
    { 1, 56, 1024 }, { 2, 26, 1024 }, { 3, 27, 1024 }, { 4, 28, 64 }, { 5, 29, 0x7fffffff }, { 6, 30, 65535 },
    { 7, 31, 65535 }, { 8, 74, 48 << 10 }, { 97, 75, 96 << 10 }, { 10, 87, 32 }, { 16, 63, 4 }, { 18, 16, 0 },
    { 19, 3, 1 }, { 75, 23, 9 }, { 76, 61, 0 }, { 102, 89, 1 }, { 103, 89, 1 }, { 122, 10013, 1 },
    { 89, 9, 0 }, { 115, -1, 0 } };

static status attribute(int *value, int number, bool hip, int device)
{
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (number == (hip ? attributes[i].hip : attributes[i].cuda)) {
            *value = attributes[i].value;
            if (attributes[i].cuda == 5 && getenv("ONEBUF_CUDA_STUB_GROUPS")) *value = atoi(getenv("ONEBUF_CUDA_STUB_GROUPS"));
            if (attributes[i].cuda == 18) *value = integrated;
            if (attributes[i].cuda == 89) *value = integrated || has_managed();
            return known(device);
        }
    return INVALID_VALUE;
}
EXPORT status cuDeviceGetAttribute(int *v, int number, int device) { return attribute(v, number, false, device); }
EXPORT status hipDeviceGetAttribute(int *v, int number, int device) { return attribute(v, number, true, device); }

EXPORT status cuDevicePrimaryCtxRetain(void **context, int device)
{
    if (known(device)) return INVALID_DEVICE;
    lock();
    devices[device].retained++;
    unlock();
    *context = &devices[device];
    return OK;
}

EXPORT status cuDevicePrimaryCtxRelease_v2(int device)
{
    lock();
    if (devices[device].retained <= 0) die("a primary context was released too often");
    if (--devices[device].retained == 0) {
        if (devices[device].objects) die("a primary context was released before what was made in it");
        devices[device].dead = false;
        memset(devices[device].peers, 0, sizeof devices[device].peers);
    }
    unlock();
    return OK;
}

/* A context beside the primary one, on the first device. It is current then. */
EXPORT status cuCtxCreate_v2(void **context, unsigned flags, int device)
{
    if (flags || device || known(device) || devices[CREATED].retained || depth == 64) return INVALID_VALUE;
    devices[CREATED].retained = 1;
    stack[depth++] = CREATED;
    *context = &devices[CREATED];
    return OK;
}

EXPORT status cuCtxDestroy_v2(void *context)
{
    if (context != &devices[CREATED] || !devices[CREATED].retained) return INVALID_CONTEXT;
    lock();
    if (devices[CREATED].objects) die("a context was destroyed before what was made in it");
    devices[CREATED] = (struct device){ 0 };
    unlock();
    return OK;
}

EXPORT status cuCtxPushCurrent_v2(void *context)
{
    struct device *of = context;
    if (of < devices || of >= devices + CONTEXTS || depth == 64 || !of->retained) return INVALID_CONTEXT;
    stack[depth++] = (int)(of - devices);
    return OK;
}

EXPORT status cuCtxGetCurrent(void **context)
{
    *context = depth ? &devices[stack[depth - 1]] : NULL;
    return OK;
}

EXPORT status cuCtxPopCurrent_v2(void **context)
{
    if (depth == 0) return INVALID_CONTEXT;
    *context = &devices[stack[--depth]];
    return OK;
}

/* Replaces the top of the stack; null removes it. */
EXPORT status cuCtxSetCurrent(void *context)
{
    if (depth) depth--;
    return context ? cuCtxPushCurrent_v2(context) : OK;
}
EXPORT status hipGetDevice(int *device) { *device = hip_device; return OK; }
EXPORT status hipSetDevice(int device) { if (known(device)) return INVALID_DEVICE; hip_device = device; return OK; }

/* For tests: the number of contexts that this thread has not popped; in HIP, the current device. */
EXPORT int onebuf_stub_current(void) { return is_hip ? hip_device : depth; }

/* ---- Memory -------------------------------------------------------------------------------------------------- */
struct range *ranges;
size_t allocated[CONTEXTS];

/* The range that contains these bytes; a range of host memory if the address has no tag. */
struct range *find(uint64_t address, size_t bytes)
{
    bool tagged = address & TAG;
    char *at = (char *)(uintptr_t)(address & ~TAG);
    for (struct range *r = ranges; r; r = r->next)
        if (is_device(r->kind) == tagged && at >= r->at && bytes <= r->bytes
            && (size_t)(at - r->at) <= r->bytes - bytes)
            return r;
    return NULL;
}

/* Whether a kernel of that device may access it: memory of another device needs access, as virtual memory does. */
bool may_touch(const struct range *r, int device)
{
    if (r->kind == MAPPED) return r->access >> device & 1;
    if (r->kind == FOREIGN) return r->on_host || r->device == device;
    return !is_device(r->kind) || r->device == device || devices[device].peers[r->device];
}

struct range *add_range(enum kind kind, int device, char *at, size_t bytes)
{
    struct range *r = calloc(1, sizeof *r);
    *r = (struct range){ .kind = kind, .device = device, .at = at, .bytes = bytes, .file = -1, .next = ranges };
    ranges = r;
    devices[device].objects++;
    return r;
}

status remove_range(enum kind kind, void *at)
{
    for (struct range **link = &ranges; *link; link = &(*link)->next) {
        struct range *r = *link;
        if (r->kind != kind || r->at != at) continue;
        if (r->uses) die("memory was freed, or pages unpinned, under work that uses them");
        *link = r->next;
        devices[r->device].objects--;
        if (kind == DEVICE_MEMORY) allocated[r->device] -= r->bytes;
        if (kind == PINNED) free(r->at);
        if (kind == MANAGED) forget_managed(r);
        if (kind == IMPORTED) forget_external(r);
        if (r->base) munmap(r->base, r->mapped);
        if (r->file >= 0) close(r->file);
        free(r->shadow);
        free(r);
        return OK;
    }
    return kind == REGISTERED ? NOT_REGISTERED : INVALID_VALUE;
}

/* In a file, so that it can be exported; not at the file's start, as in AMD's driver. */
static status allocate(uint64_t *at, size_t bytes, int device)
{
    int file = new_file(LEAD + bytes);
    if (file < 0) return OUT_OF_MEMORY;
    char *base = mmap(NULL, LEAD + bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (base == MAP_FAILED) { close(file); return OUT_OF_MEMORY; }
    memset(base, 0xA5, LEAD + bytes);
    allocated[device] += bytes;
    struct range *r = add_range(DEVICE_MEMORY, device, base + LEAD, bytes);
    r->file = file;
    r->base = base;
    r->mapped = LEAD + bytes;
    *at = tagged(r->at);
    return OK;
}

EXPORT status cuMemAlloc_v2(uint64_t *at, size_t bytes)
{
    ENTER;
    lock();
    status s = bytes && allocated[device] + bytes <= MEMORY ? allocate(at, bytes, device) : OUT_OF_MEMORY;
    unlock();
    return s;
}
status hipMalloc(uint64_t *at, size_t bytes) HIP(hipMalloc, cuMemAlloc_v2);

EXPORT status cuMemFree_v2(uint64_t at)
{
    ENTER_TO_FREE;
    lock();
    status s = remove_range(DEVICE_MEMORY, real(at));
    if (s) s = remove_range(IMPORTED, real(at));
    if (s && !(at & TAG)) s = remove_range(MANAGED, real(at));
    unlock();
    return leave(s, device);
}
status hipFree(uint64_t at) HIP(hipFree, cuMemFree_v2);

EXPORT status cuMemHostAlloc(void **at, size_t bytes, unsigned flags)
{
    ENTER;
    if (flags != 3 || posix_memalign(at, 4096, bytes)) return INVALID_VALUE;
    memset(*at, 0x5A, bytes);
    lock();
    add_range(PINNED, device, *at, bytes);
    unlock();
    return OK;
}
status hipHostMalloc(void **at, size_t bytes, unsigned flags) HIP(hipHostMalloc, cuMemHostAlloc);

EXPORT status cuMemFreeHost(void *at)
{
    ENTER_TO_FREE;
    lock();
    status s = remove_range(PINNED, at);
    unlock();
    return leave(s, device);
}
status hipHostFree(void *at) HIP(hipHostFree, cuMemFreeHost);

EXPORT status cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
    ENTER;
    if (flags != 3 || !at || !bytes) return INVALID_VALUE;
    status s = OK;
    lock();
    for (struct range *r = ranges; r; r = r->next) /* any overlap is refused, as in the drivers */
        if (!is_device(r->kind) && (char *)at < r->at + r->bytes && r->at < (char *)at + bytes)
            s = ALREADY_REGISTERED;
    if (!s) add_range(REGISTERED, device, at, bytes);
    unlock();
    return s;
}
status hipHostRegister(void *at, size_t bytes, unsigned flags) HIP(hipHostRegister, cuMemHostRegister_v2);

EXPORT status cuMemHostUnregister(void *at)
{
    ENTER_TO_FREE;
    lock();
    status s = remove_range(REGISTERED, at);
    unlock();
    return leave(s, device);
}
status hipHostUnregister(void *at) HIP(hipHostUnregister, cuMemHostUnregister);

EXPORT status cuMemHostGetDevicePointer_v2(uint64_t *seen, void *at, unsigned flags)
{
    ENTER;
    lock();
    struct range *r = find((uint64_t)(uintptr_t)at, 1);
    if (r && r->kind == FOREIGN) r = NULL;
    unlock();
    *seen = (uint64_t)(uintptr_t)at;
    return r && !flags ? OK : INVALID_VALUE;
}
status hipHostGetDevicePointer(uint64_t *seen, void *at, unsigned flags)
    HIP(hipHostGetDevicePointer, cuMemHostGetDevicePointer_v2);

/* ---- Streams and events -------------------------------------------------------------------------------------- */
struct layered layered;
struct module { int device, uses; char *image; struct object *object; };

static void drop_mark(struct mark *mark)
{
    if (!mark || --mark->refs) return;
    if (mark->native) layered.release(mark->native);
    free(mark);
}
static bool execute(struct command *c);

static void *run(void *argument)
{
    struct stream *s = argument;
    lock();
    for (;;) {
        while (!s->first && !s->closing) pthread_cond_wait(&changed, &mutex);
        struct command *c = s->first;
        if (!c) break;
        s->running = c;
        bool dead = devices[s->device].dead;
        if (c->kind == WAIT) while (!c->mark->done) pthread_cond_wait(&changed, &mutex);
        unlock();
        if (c->after) layered.wait(c->after);
        if (delay_us) nap(delay_us);
        bool fine = dead || c->kind == MARK || c->kind == WAIT || execute(c);
        if (c->over) layered.complete(c->over);
        lock();
        if (!fine) devices[s->device].dead = true;
        if (c->kind == MARK) { c->mark->done = true; c->mark->ns = now_ns(); }
        for (int i = 0; i < MAX_PARAMETERS; i++) if (c->uses[i]) c->uses[i]->uses--;
        if (c->module) c->module->uses--;
        if (c->kind == SIGNAL || c->kind == WAIT_SIGNAL) semaphore_over(c);
        drop_mark(c->mark);
        s->first = c->next;
        if (!s->first) s->last = &s->first;
        s->running = NULL;
        free(c->owned);
        free(c);
        pthread_cond_broadcast(&changed);
    }
    unlock();
    if (s->below) layered.close(s->below);
    free(s);
    return NULL;
}

/* Locked: memory of another device needs access. A driver may ignore a violation and lose the bytes. */
static void ask_leave(const struct range *r, int device)
{
    bool others = r->kind == MAPPED ? r->access & ~(1u << device) : is_device(r->kind) && r->device != device;
    if (others && !may_touch(r, device)) die("memory of another device was used without access to it");
}

/* Locked: records that a command uses memory; false if it does not exist. */
bool use(struct command *c, int slot, uint64_t at, size_t bytes)
{
    struct range *r = find(at, bytes);
    if (r) ask_leave(r, current());
    if (!r || (r->kind == MAPPED && !may_touch(r, current()))) return false;
    c->uses[slot] = r;
    r->uses++;
    return true;
}

/* Locked: as `use`, for API calls, which know only memory that the API allocated or pinned. */
bool use_known(struct command *c, int slot, uint64_t at, size_t bytes)
{
    struct range *r = find(at, bytes);
    if (r && r->kind == FOREIGN) die("a call of the API was given memory that it does not know");
    return use(c, slot, at, bytes);
}

/* Locked: as `use`, for the host's end of a copy, where memory that is not pinned is ordinary memory. */
static bool use_pinned(struct command *c, int slot, const void *at, size_t bytes)
{
    struct range *r = find((uint64_t)(uintptr_t)at, bytes);
    return (!r || r->kind != FOREIGN) && use(c, slot, (uint64_t)(uintptr_t)at, bytes);
}

/* Locked. */
void push(struct stream *s, struct command command)
{
    if (s->captured) fputs("cuda stub: work on a stream that counts as captured\n", stderr), abort();
    struct command *c = malloc(sizeof *c);
    *c = command;
    c->device = s->device;
    c->next = NULL;
    if (s->below) layered.pushed(s, c);
    *s->last = c;
    s->last = &c->next;
    pthread_cond_broadcast(&changed);
}

/* Without the lock. */
static struct stream *new_stream(int device)
{
    struct stream *s = calloc(1, sizeof *s);
    s->device = device;
    s->last = &s->first;
    if (pthread_create(&s->thread, NULL, run, s)) die("no thread for a stream");
    pthread_detach(s->thread);
    return s;
}

/* Without the lock: the stream that a handle names. The handles 0 and 1 name the current device's default stream, 2 that of
 * the calling thread. The driver owns them: they live as long as the process. */
struct stream *stream_of(void *handle)
{
    static struct stream *shared[CONTEXTS];
    static _Thread_local struct stream *own[CONTEXTS];
    static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
    int device = current();
    if ((uintptr_t)handle > 2 || device < 0) return handle;
    struct stream **place = (uintptr_t)handle == 2 ? &own[device] : &shared[device];
    pthread_mutex_lock(&making);
    if (!*place) *place = new_stream(device);
    pthread_mutex_unlock(&making);
    return *place;
}

EXPORT status cuStreamGetCtx(void *stream, void **context)
{
    ENTER;
    *context = &devices[stream_of(stream)->device];
    return OK;
}

EXPORT status cuStreamCreate(void **stream, unsigned flags)
{
    ENTER;
    if (flags != 1) return INVALID_VALUE;
    *stream = new_stream(device);
    lock();
    devices[device].objects++;
    unlock();
    return OK;
}
status hipStreamCreateWithFlags(void **stream, unsigned flags) HIP(hipStreamCreateWithFlags, cuStreamCreate);

/* Whether a stream or event may be used with this device. */
status belongs(int device, int to) { return device == to ? OK : INVALID_HANDLE; }

EXPORT status cuStreamDestroy_v2(void *stream)
{
    int device = current();
    struct stream *s = stream;
    if (device < 0 || (uintptr_t)stream <= 2 || belongs(device, s->device)) return INVALID_CONTEXT;
    lock();
    devices[device].objects--;
    s->closing = true;
    pthread_cond_broadcast(&changed);
    unlock();
    return OK;
}
status hipStreamDestroy(void *stream) HIP(hipStreamDestroy, cuStreamDestroy_v2);

EXPORT status cuStreamQuery(void *stream)
{
    ENTER;
    struct stream *s = stream_of(stream);
    lock();
    bool busy = s->first;
    unlock();
    return leave(belongs(device, s->device) ? INVALID_HANDLE : busy ? NOT_READY : OK, device);
}
status hipStreamQuery(void *stream) HIP(hipStreamQuery, cuStreamQuery);

EXPORT status cuEventCreate(void **event, unsigned flags)
{
    ENTER;
    if (flags & ~2u) return INVALID_VALUE;
    struct event *e = calloc(1, sizeof *e);
    e->device = device;
    e->timed = !(flags & 2);
    lock();
    devices[device].objects++;
    unlock();
    *event = e;
    return OK;
}
status hipEventCreateWithFlags(void **event, unsigned flags) HIP(hipEventCreateWithFlags, cuEventCreate);

EXPORT status cuEventDestroy_v2(void *event)
{
    int device = current();
    struct event *e = event;
    if (device < 0 || belongs(device, e->device)) return INVALID_CONTEXT;
    lock();
    devices[device].objects--;
    drop_mark(e->mark);
    free(e);
    unlock();
    return OK;
}
status hipEventDestroy(void *event) HIP(hipEventDestroy, cuEventDestroy_v2);

EXPORT status cuEventRecord(void *event, void *stream)
{
    ENTER;
    struct event *e = event;
    struct stream *s = stream_of(stream);
    if (belongs(device, e->device) || belongs(device, s->device)) return INVALID_HANDLE;
    struct mark *mark = calloc(1, sizeof *mark);
    mark->refs = 2;
    lock();
    drop_mark(e->mark);
    e->mark = mark;
    push(s, (struct command){ .kind = MARK, .mark = mark });
    unlock();
    return OK;
}
status hipEventRecord(void *event, void *stream) HIP(hipEventRecord, cuEventRecord);

EXPORT status cuEventQuery(void *event)
{
    ENTER;
    struct event *e = event;
    lock();
    bool done = !e->mark || e->mark->done;
    unlock();
    return leave(done ? OK : NOT_READY, device); /* earlier work may have failed since */
}
status hipEventQuery(void *event) HIP(hipEventQuery, cuEventQuery);

EXPORT status cuEventElapsedTime(float *ms, void *start, void *end)
{
    ENTER;
    struct event *a = start, *b = end;
    if (!a->timed || !b->timed || !a->mark || !b->mark) return INVALID_HANDLE;
    lock();
    bool done = a->mark->done && b->mark->done;
    *ms = done ? (float)((double)(int64_t)(b->mark->ns - a->mark->ns) / 1e6) : 0;
    unlock();
    return done ? OK : NOT_READY;
}
status hipEventElapsedTime(float *ms, void *start, void *end) HIP(hipEventElapsedTime, cuEventElapsedTime);

EXPORT status cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    ENTER;
    struct stream *s = stream_of(stream);
    struct event *e = event;
    if (flags || belongs(device, s->device)) return INVALID_VALUE;
    lock();
    if (layered.captures) {
        s->captured = true;
    } else if (e->mark) {
        e->mark->refs++;
        push(s, (struct command){ .kind = WAIT, .mark = e->mark });
    }
    unlock();
    return OK;
}
status hipStreamWaitEvent(void *stream, void *event, unsigned flags) HIP(hipStreamWaitEvent, cuStreamWaitEvent);

/* ---- Copies -------------------------------------------------------------------------------------------------- */
static status copy(struct stream *s, struct command c)
{
    push(s, c);
    return OK;
}

/* As in the drivers: ordinary memory is read immediately, and written before the call returns. */
EXPORT status cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream)
{
    ENTER;
    struct stream *s = stream_of(stream);
    struct command c = { .kind = COPY, .to = real(to), .from = (char *)(uintptr_t)from, .bytes = bytes };
    status result = INVALID_VALUE;
    if (belongs(device, s->device)) return INVALID_HANDLE;
    lock();
    if (use_known(&c, 0, to, bytes)) {
        if (!use_pinned(&c, 1, from, bytes)) {
            c.owned = malloc(bytes);
            memcpy(c.owned, from, bytes);
            c.from = c.owned;
        }
        result = copy(s, c);
    }
    unlock();
    return result;
}
status hipMemcpyHtoDAsync(uint64_t to, const void *from, size_t bytes, void *stream)
    HIP(hipMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2);

EXPORT status cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream)
{
    ENTER;
    struct stream *s = stream_of(stream);
    struct command c = { .kind = COPY, .to = to, .from = real(from), .bytes = bytes };
    status result = INVALID_VALUE;
    if (belongs(device, s->device)) return INVALID_HANDLE;
    lock();
    if (use_known(&c, 0, from, bytes)) {
        bool pinned = use_pinned(&c, 1, to, bytes);
        result = copy(s, c);
        while (!pinned && s->first) pthread_cond_wait(&changed, &mutex);
    }
    unlock();
    return result;
}
status hipMemcpyDtoHAsync(void *to, uint64_t from, size_t bytes, void *stream)
    HIP(hipMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2);

EXPORT status cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    ENTER;
    struct stream *s = stream_of(stream);
    struct command c = { .kind = COPY, .to = real(to), .from = real(from), .bytes = bytes };
    lock();
    bool there = find(to, bytes) && find(from, bytes) && !belongs(device, s->device);
    if (there) there = use_known(&c, 0, to, bytes);
    if (there && !use_known(&c, 1, from, bytes)) {
        c.uses[0]->uses--;
        there = false;
    }
    if (there) copy(s, c);
    unlock();
    return there ? OK : INVALID_VALUE;
}
status hipMemcpyDtoDAsync(uint64_t to, uint64_t from, size_t bytes, void *stream)
    HIP(hipMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2);

static status fill(uint64_t to, uint32_t value, size_t width, size_t count, void *stream)
{
    ENTER;
    struct stream *s = stream_of(stream);
    struct command c = { .kind = FILL, .to = real(to), .value = value, .width = width, .bytes = count * width };
    lock();
    bool there = to % width == 0 && !belongs(device, s->device) && use_known(&c, 0, to, c.bytes);
    if (there) push(s, c);
    unlock();
    return there ? OK : INVALID_VALUE;
}
EXPORT status cuMemsetD8Async(uint64_t to, unsigned char v, size_t n, void *s) { return fill(to, v, 1, n, s); }
EXPORT status cuMemsetD16Async(uint64_t to, unsigned short v, size_t n, void *s) { return fill(to, v, 2, n, s); }
EXPORT status cuMemsetD32Async(uint64_t to, unsigned v, size_t n, void *s) { return fill(to, v, 4, n, s); }
status hipMemsetD8Async(uint64_t to, unsigned char v, size_t n, void *s) HIP(hipMemsetD8Async, cuMemsetD8Async);
status hipMemsetD16Async(uint64_t to, unsigned short v, size_t n, void *s) HIP(hipMemsetD16Async, cuMemsetD16Async);
status hipMemsetD32Async(uint64_t to, unsigned v, size_t n, void *s) HIP(hipMemsetD32Async, cuMemsetD32Async);

/* ---- Modules and kernels ------------------------------------------------------------------------------------- */
struct kernel { const char *name; size_t sizes[MAX_PARAMETERS + 1]; };
static const struct kernel kernels[] = {
    { "add", { 8, 4 } }, { "touch", { 8, 4 } }, { "onebuf_step", { 8, 4, 4, 4, 4 } }, { "advance", { 8, 4, 4, 4, 4 } }, { "onebuf_step_bytes", { 8, 4, 4, 4, 4 } },
    { "onebuf_step_pages", { 8, 4, 4, 4, 4 } }, { "write_words", { 8, 4, 4 } }, { "check_pages", { 8, 8, 4, 4 } }, { "shape", { 8 } }, { "told", { 8, 8, 8, 4, 4, 4, 4 } }, { "nap", { 4 } }, { "hold", { 8 } }, { "boom", { 0 } },
    { "beams", { 8, 8, 8, 4, 4, 4, 4, 4 } } };
struct function { const struct kernel *kernel; struct module *module; const struct object_kernel *of_object; };
#include "code_object_stub.h"
static struct function functions[4096]; /* reused in a circle: functions are never freed */
static unsigned next_function;

EXPORT status cuModuleLoadDataEx(void **module, const void *image, unsigned n, int *options, void **values)
{
    ENTER;
    if (strstr(image, "garbage")) {
        for (unsigned i = 0; i < n; i++)
            if (options[i] == 5) snprintf(values[i], 100, "ptxas stub: Parsing error near 'garbage'");
        return INVALID_IMAGE;
    }
    if (strstr(image, "another GPU")) return NO_BINARY;
    struct object *object = NULL;
    if (is_hip && !memcmp(image, "\x7f" "ELF", 4) && !(object = read_object(image))) return INVALID_IMAGE;
    bool bundled = !strncmp(image, "__CLANG_OFFLOAD_BUNDLE__", 24);
    char *names = !bundled ? strdup(image) : layered.unbundle ? layered.unbundle(image) : NULL;
    if (!names) return NO_BINARY;
    struct module *m = calloc(1, sizeof *m);
    m->device = device;
    m->image = names;
    m->object = object;
    lock();
    devices[device].objects++;
    unlock();
    *module = m;
    return OK;
}
status hipModuleLoadDataEx(void **module, const void *image, unsigned n, int *options, void **values)
    HIP(hipModuleLoadDataEx, cuModuleLoadDataEx);

EXPORT status cuModuleUnload(void *module)
{
    struct module *m = module;
    if (current() != m->device) return INVALID_CONTEXT;
    lock();
    if (m->uses) die("a module was unloaded under a launch of it");
    devices[m->device].objects--;
    unlock();
    free(m->image);
    free(m->object);
    free(m);
    return OK;
}
status hipModuleUnload(void *module) HIP(hipModuleUnload, cuModuleUnload);

EXPORT status cuModuleGetFunction(void **function, void *module, const char *name)
{
    ENTER;
    struct module *m = module;
    const struct object_kernel *of_object = m->object ? find_in_object(m->object, name) : NULL;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (of_object || (!strcmp(kernels[i].name, name) && strstr(m->image, name))) {
            lock();
            struct function *f = &functions[next_function++ % 4096];
            *f = (struct function){ &kernels[i], m, of_object };
            unlock();
            *function = f;
            return OK;
        }
    return hipGetBackendNativeHandles ? LAUNCH_FAILED : NOT_FOUND; /* chipStar's answer */
}
status hipModuleGetFunction(void **function, void *module, const char *name)
    HIP(hipModuleGetFunction, cuModuleGetFunction);

EXPORT status cuFuncGetAttribute(int *value, int attribute, void *function)
{
    const struct object_kernel *of_object = ((struct function *)function)->of_object;
    *value = attribute == 0 ? 1024 : of_object ? (int)of_object->own_local : 0;
    return attribute == 0 || attribute == 1 ? OK : INVALID_VALUE;
}
status hipFuncGetAttribute(int *value, int attribute, void *function) HIP(hipFuncGetAttribute, cuFuncGetAttribute);

static _Thread_local int shared_leave; /* the limit that the last cuFuncSetAttribute set */
EXPORT status cuFuncSetAttribute(void *function, int attribute, int value)
{
    (void)function;
    shared_leave = value;
    return attribute == 8 && value <= 96 << 10 ? OK : INVALID_VALUE;
}

EXPORT status cuFuncGetParamInfo(void *function, size_t index, size_t *offset, size_t *bytes)
{
    const struct kernel *k = ((struct function *)function)->kernel;
    if (index >= MAX_PARAMETERS || !k->sizes[index]) return INVALID_VALUE;
    *offset = index * 8;
    *bytes = k->sizes[index];
    return OK;
}

EXPORT status cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                             unsigned bz, unsigned shared, void *stream, void **parameters, void **extra)
{
    ENTER;
    struct function *f = function;
    struct stream *s = stream_of(stream);
    if (extra || belongs(device, s->device) || f->module->device != device) return INVALID_HANDLE;
    if (!gx || !gy || !gz || !bx || !by || !bz || (uint64_t)bx * by * bz > 1024) return INVALID_VALUE;
    if (shared > 48 << 10 && !is_hip && (int)shared > shared_leave) return INVALID_VALUE;
    struct command c = { .kind = LAUNCH, .kernel = f->kernel, .module = f->module, .groups = { gx, gy, gz },
                         .group = { bx, by, bz }, .shared = shared };
    if (f->of_object) return launch_object(f->of_object, s, c, parameters);
    for (int i = 0; i < MAX_PARAMETERS && f->kernel->sizes[i]; i++)
        memcpy(&c.parameters[i], parameters[i], f->kernel->sizes[i]);
    lock();
    for (int i = 0; i < MAX_PARAMETERS && f->kernel->sizes[i]; i++)
        if (f->kernel->sizes[i] == 8) use(&c, i, c.parameters[i], 1);
    f->module->uses++;
    push(s, c);
    unlock();
    return OK;
}
status hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                             unsigned bz, unsigned shared, void *stream, void **parameters, void **extra)
    HIP(hipModuleLaunchKernel, cuLaunchKernel);

/* Returns the address if the kernel may access that many bytes. */
static char *touch(const struct command *c, int i, uint64_t from, uint64_t bytes)
{
    lock();
    struct range *r = find(c->parameters[i] + from, bytes);
    bool there = r && may_touch(r, c->device);
    char *at = real(c->parameters[i]);
    if (there && r->kind == FOREIGN && r->shadow) at = r->shadow + (at - r->at);
    unlock();
    return there ? seen_by_device(at + from, bytes) - from : NULL;
}

static bool step(const struct command *c, uint64_t stride, bool bytes, uint64_t items)
{
    uint32_t first = (uint32_t)c->parameters[1], n = (uint32_t)c->parameters[2];
    uint32_t mul = (uint32_t)c->parameters[3], plus = (uint32_t)c->parameters[4];
    uint64_t unit = bytes ? 1 : 4, count = n < items ? n : items;
    if (!count) return true;
    uint64_t start = first * stride * unit;
    char *p = touch(c, 0, start, (count - 1) * stride * unit + unit);
    if (!p) return false;
    for (uint64_t i = 0; i < count; i++) {
        char *at = p + (first + i) * stride * unit;
        if (bytes) *(uint8_t *)at = (uint8_t)(*(uint8_t *)at * mul + plus + (uint32_t)i);
        else *(uint32_t *)at = *(uint32_t *)at * mul + plus + (uint32_t)i;
    }
    return true;
}

static uint32_t word(uint32_t seed, uint32_t i)
{
    uint32_t x = (i ^ seed) * 0x2c1b3c6du;
    return x << 13 | x >> 19;
}

static bool write_words(const struct command *c, uint64_t items)
{
    uint32_t seed = (uint32_t)c->parameters[1], n = (uint32_t)c->parameters[2];
    uint64_t count = n < items ? n : items;
    uint32_t *p = (uint32_t *)(void *)touch(c, 0, 0, count * 4);
    for (uint64_t i = 0; p && i < count; i++) p[i] = word(seed, (uint32_t)i);
    return p;
}

static bool check_pages(const struct command *c, uint64_t items)
{
    uint32_t seed = (uint32_t)c->parameters[2], n = (uint32_t)c->parameters[3];
    uint64_t pages = ((uint64_t)n + 1023) / 1024, count = pages < items ? pages : items;
    const uint32_t *p = (const uint32_t *)(const void *)touch(c, 0, 0, (uint64_t)n * 4);
    uint32_t *wrong = (uint32_t *)(void *)touch(c, 1, 0, count * 4);
    if (!p || !wrong) return false;
    for (uint64_t page = 0; page < count; page++) {
        uint32_t bad = 0;
        for (uint64_t i = page * 1024; i < n && i < page * 1024 + 1024; i++) bad |= p[i] ^ word(seed, (uint32_t)i);
        wrong[page] = bad != 0;
    }
    return true;
}

/* The demonstration's matrix product: some channels' part of it, added to the earlier ones'. */
static bool beams(const struct command *c)
{
    uint64_t length = (uint32_t)c->parameters[3], channels = (uint32_t)c->parameters[4], beams = (uint32_t)c->parameters[5];
    uint64_t from = (uint32_t)c->parameters[6], to = (uint32_t)c->parameters[7];
    uint64_t wide = (uint64_t)c->groups[0] * c->group[0], high = (uint64_t)c->groups[1] * c->group[1];
    const float *x = (const float *)(const void *)touch(c, 0, 0, length * channels * 8);
    const float *w = (const float *)(const void *)touch(c, 1, 0, channels * beams * 8);
    float *out = (float *)(void *)touch(c, 2, 0, length * beams * 8);
    if (!x || !w || !out) return false;
    for (uint64_t beam = 0; beam < beams && beam < high; beam++)
        for (uint64_t bin = 0; bin < length && bin < wide; bin++) {
            float *place = out + 2 * (beam * length + bin);
            double re = from ? place[0] : 0, im = from ? place[1] : 0;
            for (uint64_t k = from; k < to; k++) {
                const float *a = x + 2 * (k * length + bin), *b = w + 2 * (beam * channels + k);
                re += (double)a[0] * b[0] - (double)a[1] * b[1];
                im += (double)a[0] * b[1] + (double)a[1] * b[0];
            }
            place[0] = (float)re;
            place[1] = (float)im;
        }
    return true;
}

static bool launch(const struct command *c)
{
    const char *name = c->kernel->name;
    uint64_t items = (uint64_t)c->groups[0] * c->group[0] * c->groups[1] * c->group[1] * c->groups[2] * c->group[2];
    if (!strcmp(name, "add")) {
        uint32_t *p = (uint32_t *)(void *)touch(c, 0, 0, items * 4);
        for (uint64_t i = 0; p && i < items; i++) p[i] += (uint32_t)c->parameters[1];
        return p;
    }
    if (!strcmp(name, "touch")) {
        uint32_t *p = (uint32_t *)(void *)touch(c, 0, 0, 4);
        if (p) *p += (uint32_t)c->parameters[1];
        return p;
    }
    if (!strcmp(name, "shape")) {
        uint32_t *p = (uint32_t *)(void *)touch(c, 0, 0, 28);
        for (int i = 0; p && i < 3; i++) { p[i] = c->groups[i]; p[3 + i] = c->group[i]; }
        if (p) p[6] = c->shared;
        return p;
    }
    if (!strcmp(name, "told")) { /* stores every parameter but the first, and the shared bytes */
        uint32_t *p = (uint32_t *)(void *)touch(c, 0, 0, 28);
        for (int i = 0; p && i < 6; i++) p[i] = (uint32_t)c->parameters[1 + i];
        if (p) p[6] = c->shared;
        return p;
    }
    if (!strcmp(name, "nap")) { nap((long)(uint32_t)c->parameters[0] * 1000); return true; }
    if (!strcmp(name, "hold")) {
        _Atomic uint32_t *p = (_Atomic uint32_t *)(void *)touch(c, 0, 0, 4);
        while (p && !atomic_load(p)) nap(200);
        return p;
    }
    if (!strcmp(name, "onebuf_step") || !strcmp(name, "advance")) return step(c, 1, false, items);
    if (!strcmp(name, "onebuf_step_bytes")) return step(c, 1, true, items);
    if (!strcmp(name, "onebuf_step_pages")) return step(c, 1024, false, items);
    if (!strcmp(name, "write_words")) return write_words(c, items);
    if (!strcmp(name, "check_pages")) return check_pages(c, items);
    if (!strcmp(name, "beams")) return beams(c);
    return false; /* boom */
}

static bool execute(struct command *c)
{
    switch (c->kind) {
    case COPY: memmove(seen_by_device(c->to, c->bytes), seen_by_device(c->from, c->bytes), c->bytes); return true;
    case MOVE: c->call(c->owned); return true;
    case CALL: nap(1000); c->call(c->owned); return true;
    case FILL:
        c->to = seen_by_device(c->to, c->bytes);
        for (size_t i = 0; i < c->bytes; i += c->width) memcpy(c->to + i, &c->value, c->width);
        return true;
    case LAUNCH: return launch(c);
    default: return execute_shared(c);
    }
}

/* ---- The compilers ------------------------------------------------------------------------------------------- */
struct program { char *text, log[256]; bool compiled; };

EXPORT const char *nvrtcGetErrorString(status s)
{
    return s == RTC_COMPILATION ? "STUB_ERROR_COMPILATION" : s == RTC_INVALID_OPTION ? "STUB_ERROR_INVALID_OPTION"
         : "STUB_ERROR";
}
const char *hiprtcGetErrorString(status s) HIP(hiprtcGetErrorString, nvrtcGetErrorString);
EXPORT status nvrtcVersion(int *major, int *minor) { *major = 12; *minor = 8; return OK; }
status hiprtcVersion(int *major, int *minor) HIP(hiprtcVersion, nvrtcVersion);

EXPORT status nvrtcCreateProgram(void **program, const char *text, const char *name, int headers,
                                 const char **texts, const char **names)
{
    if (!text || !name || headers || texts || names) return RTC_INVALID_INPUT;
    struct program *p = calloc(1, sizeof *p);
    p->text = strdup(text);
    *program = p;
    return OK;
}
status hiprtcCreateProgram(void **program, const char *text, const char *name, int headers, const char **texts,
                           const char **names) HIP(hiprtcCreateProgram, nvrtcCreateProgram);

EXPORT status nvrtcDestroyProgram(void **program)
{
    struct program *p = *program;
    free(p->text);
    free(p);
    *program = NULL;
    return OK;
}
status hiprtcDestroyProgram(void **program) HIP(hiprtcDestroyProgram, nvrtcDestroyProgram);

EXPORT status nvrtcCompileProgram(void *program, int n, const char **options)
{
    struct program *p = program;
    for (int i = 0; i < n; i++)
        if (strstr(options[i], "bad")) {
            snprintf(p->log, sizeof p->log, "unknown option %s", options[i]);
            return RTC_INVALID_OPTION;
        }
    const char *error = strstr(p->text, "#error");
    if (error) {
        snprintf(p->log, sizeof p->log, "onebuf(1): error: %.40s\n", error);
        return RTC_COMPILATION;
    }
    p->compiled = true;
    return OK;
}
status hiprtcCompileProgram(void *program, int n, const char **options)
    HIP(hiprtcCompileProgram, nvrtcCompileProgram);

EXPORT status nvrtcGetProgramLogSize(void *program, size_t *bytes)
{
    *bytes = strlen(((struct program *)program)->log) + 1;
    return OK;
}
status hiprtcGetProgramLogSize(void *program, size_t *bytes) HIP(hiprtcGetProgramLogSize, nvrtcGetProgramLogSize);
EXPORT status nvrtcGetProgramLog(void *program, char *log)
{
    strcpy(log, ((struct program *)program)->log);
    return OK;
}
status hiprtcGetProgramLog(void *program, char *log) HIP(hiprtcGetProgramLog, nvrtcGetProgramLog);

EXPORT status nvrtcGetPTXSize(void *program, size_t *bytes)
{
    struct program *p = program;
    *bytes = strlen(p->text) + 1;
    return p->compiled ? OK : RTC_INVALID_PROGRAM;
}
status hiprtcGetCodeSize(void *program, size_t *bytes) HIP(hiprtcGetCodeSize, nvrtcGetPTXSize);
EXPORT status nvrtcGetPTX(void *program, char *code)
{
    strcpy(code, ((struct program *)program)->text);
    return OK;
}
status hiprtcGetCode(void *program, char *code) HIP(hiprtcGetCode, nvrtcGetPTX);
EXPORT status nvrtcGetCUBINSize(void *program, size_t *bytes) { return nvrtcGetPTXSize(program, bytes); }
EXPORT status nvrtcGetCUBIN(void *program, char *code) { return nvrtcGetPTX(program, code); }

#include "math_stub.h"
