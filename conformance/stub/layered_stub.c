/* HIP layered on OpenCL, as chipStar is: a part of the HIP stub (cuda_stub.c) in a separate library, because such a runtime is
 * recognised by the symbols below. It is built on the OpenCL stub (ONEBUF_OPENCL_LIB): the first device there is the first
 * device here, in a context of this runtime. The second device is built on something unknown.
 *
 * A stream whose native handles were queried is a cl_command_queue: each of its commands waits for the queue's earlier commands
 * and blocks its later ones; a recorded event is a marker there. A reference to such a marker that is still held when the HIP
 * event is destroyed ends the process, because the real runtime releases it twice.
 *
 * Modules are SPIR-V in bundles. They are not compiled: a kernel is found by its name in the module.
 *
 * ONEBUF_LAYERED_STUB=deaf    an event's cl_event is always complete; HIP's own commands run in the order of all streams
 * ONEBUF_LAYERED_STUB=loose   streams do not wait for the commands of their queue
 * ONEBUF_LAYERED_STUB=other   the first device is built on something unknown too
 * ONEBUF_LAYERED_STUB=captured  hipStreamWaitEvent does not wait, and the next work on that stream ends the process, as in
 *                             chipStar 1.2.1; waits by OpenCL's events work */
#include "cuda_stub.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { HANDLES = 5, REFERENCE_COUNT = 0x11D2, COMPLETE = 0 };
typedef int32_t cl_int;
typedef uint32_t cl_uint;
static const char *part = "";
static void *platform, *device_0, *context, *queue_0, *all_streams; /* the last with `deaf` alone */
static char unknown[2];

#define CALL(name, ...) cl_int (*name)(__VA_ARGS__)
static struct {
    CALL(clGetPlatformIDs, cl_uint, void **, cl_uint *);
    CALL(clGetDeviceIDs, void *, uint64_t, cl_uint, void **, cl_uint *);
    void *(*clCreateContext)(const intptr_t *, cl_uint, void *const *, void *, void *, cl_int *);
    void *(*clCreateCommandQueueWithProperties)(void *, void *, const uint64_t *, cl_int *);
    void *(*clCreateUserEvent)(void *, cl_int *);
    CALL(clEnqueueMarkerWithWaitList, void *, cl_uint, void *const *, void **);
    CALL(clEnqueueBarrierWithWaitList, void *, cl_uint, void *const *, void **);
    CALL(clFlush, void *);
    CALL(clWaitForEvents, cl_uint, void *const *);
    CALL(clSetUserEventStatus, void *, cl_int);
    CALL(clGetEventInfo, void *, cl_uint, size_t, void *, size_t *);
    CALL(clReleaseEvent, void *);
    CALL(clReleaseCommandQueue, void *);
} cl;

static void check(cl_int status) { if (status) die("the OpenCL below refused a call"); }

static void *new_queue(void)
{
    cl_int status;
    void *queue = cl.clCreateCommandQueueWithProperties(context, device_0, NULL, &status);
    check(status);
    return queue;
}

static void *marker(void *queue)
{
    void *event;
    check(cl.clEnqueueMarkerWithWaitList(queue, 0, NULL, &event));
    check(cl.clFlush(queue));
    return event;
}

static void *user_event(void)
{
    cl_int status;
    void *event = cl.clCreateUserEvent(context, &status);
    check(status);
    return event;
}

/* A marker behind the queue's commands, and behind those of all streams. */
static void *marker_behind_all(void *queue)
{
    void *before = marker(all_streams), *event;
    check(cl.clEnqueueMarkerWithWaitList(queue, 1, &before, &event));
    check(cl.clFlush(queue));
    cl.clReleaseEvent(before);
    return event;
}

static void pushed(struct stream *s, struct command *c)
{
    if (strcmp(part, "loose")) c->after = all_streams ? marker_behind_all(s->below) : marker(s->below);
    c->over = user_event();
    check(cl.clEnqueueBarrierWithWaitList(s->below, 1, &c->over, NULL));
    if (all_streams) check(cl.clEnqueueBarrierWithWaitList(all_streams, 1, &c->over, NULL));
    if (c->kind != MARK) return;
    c->mark->native = strcmp(part, "deaf") ? marker(s->below) : user_event();
    if (!strcmp(part, "deaf")) check(cl.clSetUserEventStatus(c->mark->native, COMPLETE));
}

/* Failed work counts as complete: chipStar does not report the difference. */
static void wait_for(void *after) { cl.clWaitForEvents(1, &after); cl.clReleaseEvent(after); }
static void complete(void *over) { cl.clSetUserEventStatus(over, COMPLETE); cl.clReleaseEvent(over); }
static void close_below(void *below) { cl.clReleaseCommandQueue(below); }

static void release(void *native)
{
    cl_uint count = 0;
    check(cl.clGetEventInfo(native, REFERENCE_COUNT, sizeof count, &count, NULL));
    if (count != 1) die("somebody has a reference to an event of the runtime's");
    cl.clReleaseEvent(native);
}

/* Returns the entry with the name that the real runtime looks for; zeroes become spaces, so that the whole is a string. */
static char *unbundle(const void *image)
{
    const char *at = image, *id = "hip-spirv64";
    uint64_t numbers[4];
    memcpy(numbers, at + 24, sizeof numbers);
    if (numbers[0] != 1 || numbers[3] != strlen(id) || memcmp(at + 56, id, strlen(id))) return NULL;
    const char *module = at + numbers[1];
    if (numbers[1] % 4 || numbers[2] % 4 || memcmp(module, "\x03\x02\x23\x07", 4)) return NULL;
    char *text = calloc(1, numbers[2] + 1);
    for (size_t i = 0; i < numbers[2]; i++) text[i] = module[i] ? module[i] : ' ';
    return text;
}

static void *symbol(void *library, const char *name)
{
    void *at = dlsym(library, name);
    if (!at) die(name);
    return at;
}

static void start(void)
{
    const char *path = getenv("ONEBUF_OPENCL_LIB"), *chosen = getenv("ONEBUF_LAYERED_STUB");
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) die("nothing to be built on: ONEBUF_OPENCL_LIB");
    part = chosen ? chosen : part;
    static const char *const names[] = {
        "clGetPlatformIDs", "clGetDeviceIDs", "clCreateContext", "clCreateCommandQueueWithProperties", "clCreateUserEvent",
        "clEnqueueMarkerWithWaitList", "clEnqueueBarrierWithWaitList", "clFlush", "clWaitForEvents", "clSetUserEventStatus",
        "clGetEventInfo", "clReleaseEvent", "clReleaseCommandQueue" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *at = symbol(library, names[i]);
        memcpy((char *)&cl + i * sizeof at, &at, sizeof at);
    }
    cl_int status;
    check(cl.clGetPlatformIDs(1, &platform, NULL));
    check(cl.clGetDeviceIDs(platform, 0xFFFFFFFF, 1, &device_0, NULL));
    context = cl.clCreateContext(NULL, 1, &device_0, NULL, NULL, &status);
    check(status);
    queue_0 = new_queue();
    if (!strcmp(part, "deaf")) all_streams = new_queue();
    layered = (struct layered){ pushed, wait_for, complete, release, close_below, unbundle, !strcmp(part, "captured") };
}

/* Returns the number of handles or the handles, never both. */
EXPORT int hipGetBackendNativeHandles(uintptr_t stream, uintptr_t *handles, int *count)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
    ENTER;
    status chosen;
    if (chosen_to_fail("hipGetBackendNativeHandles", &chosen)) return chosen;
    if (!handles == !count) return INVALID_VALUE;
    if (count) { *count = HANDLES; return OK; }
    struct stream *s = (struct stream *)stream;
    if (s && belongs(device, s->device)) return INVALID_HANDLE;
    bool is_known = device == 0 && strcmp(part, "other");
    if (s && is_known && !s->below) s->below = new_queue();
    void *queue = !is_known ? unknown : s ? s->below : queue_0;
    void *all[HANDLES] = { "opencl", platform, is_known ? device_0 : unknown, is_known ? context : unknown, queue };
    memcpy(handles, all, sizeof all);
    return OK;
}

EXPORT void *hipGetNativeEventFromHipEvent(void *event)
{
    struct event *e = event;
    return e && e->mark ? e->mark->native : NULL;
}
