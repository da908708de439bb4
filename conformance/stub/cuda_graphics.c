/* OpenGL buffers in CUDA and HIP: registered, then mapped and unmapped alternately.
 *
 * The stub copies inside these calls: mapping reads OpenGL's bytes, unmapping writes them back after the stream's work on
 * them. It is strict: without a current OpenGL context on the calling thread it returns 219, for a second map 208, for a
 * missing map 211. Memory that is not mapped does not exist. Unregistering twice, or while mapped, ends the process with
 * status 99. Each call is recorded and can be made to fail: see cuda_share.c.
 *
 * OpenGL is the libEGL.so.1 that this process has loaded, or is emulated by a test:
 *
 *   void onebuf_stub_gl_buffer(unsigned name, void *memory, size_t bytes)   a buffer with that memory; NULL removes it
 *   void onebuf_stub_gl_current(int is)                                     whether a context is current on this thread
 *   void onebuf_stub_gl_move(int moves)                                     whether each map has another address */
#include "cuda_stub.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALREADY_MAPPED = 208, NOT_MAPPED = 211, NO_GRAPHICS_CONTEXT = 219, COPY_READ_BUFFER = 0x8F36, BUFFER_SIZE = 0x8764 };
struct resource { int device; unsigned name; char *base; size_t bytes, room; struct range *mapped; int turn; struct resource *next; };
struct played { unsigned name; char *memory; size_t bytes; };
static struct resource *resources;
static struct played played[8];
static _Thread_local bool plays_current;
static bool moves;

EXPORT void onebuf_stub_gl_current(int is) { plays_current = is; }
EXPORT void onebuf_stub_gl_move(int each) { moves = each; }
EXPORT void onebuf_stub_gl_buffer(unsigned name, void *memory, size_t bytes)
{
    lock();
    for (int i = 0; i < 8; i++)
        if (played[i].name == name || (memory && !played[i].memory)) {
            played[i] = (struct played){ memory ? name : 0, memory, bytes };
            break;
        }
    unlock();
}

/* ---- OpenGL -------------------------------------------------------------------------------------------------- */
static void *gl(const char *name)
{
    void *egl = dlopen("libEGL.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *(*look)(const char *) = egl ? (void *(*)(const char *))dlsym(egl, "eglGetProcAddress") : NULL;
    void *(*current)(void) = egl ? (void *(*)(void))dlsym(egl, "eglGetCurrentContext") : NULL;
    return look && current && current() ? look(name) : NULL;
}
static struct played *play(unsigned name)
{
    for (int i = 0; i < 8; i++) if (played[i].memory && played[i].name == name) return &played[i];
    return NULL;
}
/* The size of a buffer; 0 if it does not exist. */
static size_t size_of(unsigned name)
{
    if (plays_current) return play(name) ? play(name)->bytes : 0;
    void (*bind)(unsigned, unsigned) = (void (*)(unsigned, unsigned))gl("glBindBuffer");
    void (*ask)(unsigned, unsigned, long long *) = (void (*)(unsigned, unsigned, long long *))gl("glGetBufferParameteri64v");
    unsigned char (*is)(unsigned) = (unsigned char (*)(unsigned))gl("glIsBuffer");
    long long bytes = 0;
    if (!is(name)) return 0;
    bind(COPY_READ_BUFFER, name);
    ask(COPY_READ_BUFFER, BUFFER_SIZE, &bytes);
    return (size_t)bytes;
}
static void take(unsigned name, char *to, size_t bytes)
{
    if (plays_current) { memcpy(to, play(name)->memory, bytes); return; }
    ((void (*)(unsigned, unsigned))gl("glBindBuffer"))(COPY_READ_BUFFER, name);
    ((void (*)(unsigned, long, long, void *))gl("glGetBufferSubData"))(COPY_READ_BUFFER, 0, (long)bytes, to);
}
static void give(unsigned name, const char *from, size_t bytes)
{
    if (plays_current) { memcpy(play(name)->memory, from, bytes); return; }
    ((void (*)(unsigned, unsigned))gl("glBindBuffer"))(COPY_READ_BUFFER, name);
    ((void (*)(unsigned, long, long, const void *))gl("glBufferSubData"))(COPY_READ_BUFFER, 0, (long)bytes, from);
}
static bool is_current(void) { return plays_current || gl("glFinish"); }

/* ---- API calls ----------------------------------------------------------------------------------------------- */
#define BEGIN(cuda, hip) \
    const char *call = is_hip ? hip : cuda; \
    status s = initialised ? OK : NOT_INITIALIZED; \
    if (s || chosen_to_fail(call, &s)) return s; \
    if (!is_current()) return record(call, NO_GRAPHICS_CONTEXT, "no context of OpenGL's")

static struct resource *resource(const void *handle)
{
    for (struct resource *r = resources; r; r = r->next) if (r == handle) return r;
    return NULL;
}

EXPORT status cuGraphicsGLRegisterBuffer(void **handle, unsigned name, unsigned flags)
{
    ENTER;
    BEGIN("cuGraphicsGLRegisterBuffer", "hipGraphicsGLRegisterBuffer");
    size_t bytes = flags ? 0 : size_of(name), room = 2 * (bytes + 8192);
    char *base = bytes ? mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
    if (base == MAP_FAILED) return record(call, INVALID_VALUE, "buffer=%u, flags=%u", name, flags);
    struct resource *made = malloc(sizeof *made);
    lock();
    *made = (struct resource){ device, name, base, bytes, room, NULL, 0, resources };
    resources = made;
    devices[device].objects++;
    unlock();
    *handle = made;
    return record(call, OK, "buffer=%u, flags=%u", name, flags);
}
status hipGraphicsGLRegisterBuffer(void **handle, unsigned name, unsigned flags)
    HIP(hipGraphicsGLRegisterBuffer, cuGraphicsGLRegisterBuffer);

EXPORT status cuGraphicsUnregisterResource(void *handle)
{
    ENTER_TO_FREE;
    BEGIN("cuGraphicsUnregisterResource", "hipGraphicsUnregisterResource");
    lock();
    struct resource *r = resource(handle), **link = &resources;
    if (!r) die("a resource was unregistered twice, or is none");
    if (r->mapped) die("a resource was unregistered while it was mapped");
    while (*link != r) link = &(*link)->next;
    *link = r->next;
    devices[r->device].objects--;
    unlock();
    munmap(r->base, r->room);
    free(r);
    return record(call, leave(OK, device), "resource=%p", handle);
}
status hipGraphicsUnregisterResource(void *handle) HIP(hipGraphicsUnregisterResource, cuGraphicsUnregisterResource);

EXPORT status cuGraphicsMapResources(unsigned count, void **list, void *stream)
{
    ENTER;
    BEGIN("cuGraphicsMapResources", "hipGraphicsMapResources");
    struct resource *r = count == 1 ? resource(list[0]) : NULL;
    if (!r || r->device != device) s = INVALID_HANDLE;
    else if (r->mapped) s = ALREADY_MAPPED;
    if (!s) s = belongs(device, stream_of(stream)->device);
    if (!s) {
        char *at = r->base + (moves && r->turn++ % 2 ? (r->bytes + 4095) / 4096 * 4096 : 0);
        take(r->name, at, r->bytes);
        lock();
        r->mapped = add_range(GRAPHICS, device, at, r->bytes);
        unlock();
    }
    return record(call, s, "resource=%p, stream=%p", count ? list[0] : NULL, stream);
}
status hipGraphicsMapResources(unsigned count, void **list, void *stream) HIP(hipGraphicsMapResources, cuGraphicsMapResources);

/* Locked: waits until no stream has work on it. */
static void outlast(const struct range *r)
{
    while (r->uses) { unlock(); nap(50); lock(); }
}

EXPORT status cuGraphicsUnmapResources(unsigned count, void **list, void *stream)
{
    ENTER;
    BEGIN("cuGraphicsUnmapResources", "hipGraphicsUnmapResources");
    struct resource *r = count == 1 ? resource(list[0]) : NULL;
    if (!r || r->device != device) s = INVALID_HANDLE;
    else if (!r->mapped) s = NOT_MAPPED;
    if (!s) {
        char *at = r->mapped->at;
        lock();
        outlast(r->mapped);
        s = remove_range(GRAPHICS, at);
        r->mapped = NULL;
        unlock();
        give(r->name, at, r->bytes);
        memset(at, 0xA5, r->bytes); /* so that a late read is detected */
    }
    return record(call, s, "resource=%p, stream=%p", count ? list[0] : NULL, stream);
}
status hipGraphicsUnmapResources(unsigned count, void **list, void *stream)
    HIP(hipGraphicsUnmapResources, cuGraphicsUnmapResources);

EXPORT status cuGraphicsResourceGetMappedPointer_v2(uint64_t *at, size_t *bytes, void *handle)
{
    ENTER;
    BEGIN("cuGraphicsResourceGetMappedPointer_v2", "hipGraphicsResourceGetMappedPointer");
    struct resource *r = resource(handle);
    s = !r ? INVALID_HANDLE : r->mapped ? OK : NOT_MAPPED;
    if (!s) {
        *at = tagged(r->mapped->at);
        *bytes = r->bytes;
    }
    return record(call, s, "resource=%p", handle);
}
status hipGraphicsResourceGetMappedPointer(uint64_t *at, size_t *bytes, void *handle)
    HIP(hipGraphicsResourceGetMappedPointer, cuGraphicsResourceGetMappedPointer_v2);

/* Locked. */
int live_resources(void)
{
    int n = 0;
    for (struct resource *r = resources; r; r = r->next) n++;
    return n;
}
