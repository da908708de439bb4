/* A stub OpenCL library that emulates well- and misbehaving drivers: the test double for onebuf's doctor and its leak tests.
 * Load it through ONEBUF_OPENCL_LIB; it needs no OpenCL headers, no GPU and no compiler.
 *
 *   cc -std=c11 -Wall -Wextra -Werror -O1 -g -fPIC -shared -pthread -o libstub.so opencl_stub.c
 *
 * ONEBUF_STUB is a comma-separated list, read when the library is loaded. An unknown word ends the process with status 98, so
 * that a typo in a test does not look like a verdict:
 *
 *   mode         | what the driver does                                                        | where in this file
 *   -------------+-----------------------------------------------------------------------------+-------------------
 *   good         | host pointers alias, maps are free, coarse and fine-grain buffer SVM         | the default
 *   shadow       | device memory is separate; map copies to the host, unmap copies back; no SVM | lay_out
 *   moving       | as `shadow`, except USE_HOST_PTR, and each map has another address; no SVM   | lay_out, map_block
 *   last_page    | USE_HOST_PTR aliases all pages but the last, which is never synchronised     | lay_out
 *   separate     | USE_HOST_PTR copies when created and never again; so do imports              | lay_out, import
 *   stale_read   | {USE,ALLOC}_HOST_PTR: map copies to the host, unmap copies nothing back      | lay_out
 *   crash        | the first clEnqueueMapBuffer writes to address 0                             | before_map
 *   hang_map     | the first clEnqueueMapBuffer never returns                                   | before_map
 *   crash_kernel | the first kernel writes to address 0 (on the queue's thread)                 | before_execution
 *   hang         | the first kernel never completes, nor does anything after it in its queue    | before_execution
 *   lost         | three kernels work, then every command ends with CL_OUT_OF_RESOURCES         | before_execution
 *   oom          | buffers and SVM above 1 MiB cannot be allocated                              | may_allocate
 *   liar         | declares external memory, semaphores, UUID, PCI and all SVM; has none of it  | declared_*, liars_*
 *   ti           | an accelerator of Texas Instruments', which accepts CL_MEM_USE_MSMC_TI       | known_flags
 *   imports      | a GPU with a UUID that imports opaque file descriptors by mapping them       | import
 *   dma_buf      | as `imports`, with dma-bufs; both words together, both kinds                 | import
 *   arm          | a GPU that imports dma-bufs and host pages by Arm's extension, and copies     | import_memory_arm
 *                | host pages otherwise; with `imports` it has both extensions                 |
 *   cached       | imported memory has a cache: acquiring reads it, releasing writes it back    | hand_over
 *   refuses      | with the above: every import ends with CL_OUT_OF_RESOURCES                   | import
 *   semaphores   | with `imports`: signals and waits for semaphores of other APIs               | semaphore_command
 *   amd          | AMD's driver: allocates beside the HIP stub, accepts any address in kernels, | beside, overtaken
 *                | and runs the second of two kernels on HIP memory first, without a barrier    |
 *   apart        | with `amd`: the two APIs find different bytes at one address                 | beside, reach
 *   wrong_address| with `amd`: a kernel sees an address that belongs to no allocation           | tell_address
 *   graphics     | shares OpenGL's buffers: acquiring reads them, releasing writes them back;   | clCreateFromGLBuffer,
 *                | `refuses` accepts no OpenGL context, `separate` copies only at first         | hand_over
 *   elsewhere    | with `graphics`: OpenGL's context is on no device of the platform            | get_gl_context_info
 *   crowded      | reports that its contexts have two devices                                   | clGetContextInfo
 *   no_devices   | a platform without devices                                                   | clGetDeviceIDs
 *   no_platforms | clGetPlatformIDs returns -1001                                               | clGetPlatformIDs
 *
 * ONEBUF_STUB_PLATFORMS=2  two platforms: the first is good, the second has the chosen behaviour
 * ONEBUF_STUB_VERSION=x    CL_DRIVER_VERSION instead of "1.0"
 * ONEBUF_STUB_UUID=hex     32 digits instead of those of the first device of the CUDA stub
 * ONEBUF_STUB_ARM=n.n      the version of Arm's extension instead of 1.1; before 1.1 only kernels may use what it imports
 * ONEBUF_STUB_BUS=hex      the PCI bus of `amd`, instead of that of the HIP stub's first device
 * ONEBUF_STUB_BINARY=path  programs' binaries are this file's bytes; if these are SPIR-V, so is the programs' IL
 * ONEBUF_STUB_NAMES=1      programs list the names of their kernels
 * ONEBUF_STUB_DELAY_US=n   every command takes n microseconds more
 * ONEBUF_STUB_SLEEP_S=n    clGetPlatformIDs takes n seconds
 * ONEBUF_STUB_LAZY=1       commands start only when flushed (by clFlush or anything that implies it)
 * ONEBUF_STUB_LEAKS=1      if objects are alive when the library is unloaded: report it, and exit with status 97
 *
 * Each queue executes in order on its own thread, so a missing fence is a real race. One lock guards all bookkeeping; it is
 * never held while data is copied or callbacks run. Using imported memory that is not acquired, or releasing it while in use,
 * ends the process with status 99, because drivers do not report it and the data is wrong. So does deleting an OpenGL buffer
 * before its OpenCL object. Calls on OpenGL's objects are refused if its context is not current. Objects have two counts:
 * `refs` are the client's, `holds` are the stub's own (commands hold what they use); an object is destroyed when both are zero.
 * */
#define _DEFAULT_SOURCE
#include "graphics_stub.h"
#include "semaphore_stub.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_ulong;
typedef struct event *cl_event;

enum {
    CL_SUCCESS = 0, CL_DEVICE_NOT_FOUND = -1, CL_MEM_OBJECT_ALLOCATION_FAILURE = -4, CL_OUT_OF_RESOURCES = -5,
    CL_OUT_OF_HOST_MEMORY = -6, CL_PROFILING_INFO_NOT_AVAILABLE = -7, CL_MEM_COPY_OVERLAP = -8,
    CL_BUILD_PROGRAM_FAILURE = -11, CL_MISALIGNED_SUB_BUFFER_OFFSET = -13,
    CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST = -14, CL_KERNEL_ARG_INFO_NOT_AVAILABLE = -19, CL_INVALID_VALUE = -30,
    CL_INVALID_DEVICE_TYPE = -31, CL_INVALID_PLATFORM = -32, CL_INVALID_DEVICE = -33, CL_INVALID_CONTEXT = -34,
    CL_INVALID_QUEUE_PROPERTIES = -35, CL_INVALID_COMMAND_QUEUE = -36, CL_INVALID_HOST_PTR = -37,
    CL_INVALID_MEM_OBJECT = -38, CL_INVALID_BINARY = -42, CL_INVALID_PROGRAM = -44,
    CL_INVALID_PROGRAM_EXECUTABLE = -45, CL_INVALID_KERNEL_NAME = -46, CL_INVALID_KERNEL = -48,
    CL_INVALID_ARG_INDEX = -49, CL_INVALID_ARG_VALUE = -50, CL_INVALID_ARG_SIZE = -51, CL_INVALID_KERNEL_ARGS = -52,
    CL_INVALID_WORK_DIMENSION = -53, CL_INVALID_WORK_GROUP_SIZE = -54, CL_INVALID_EVENT_WAIT_LIST = -57,
    CL_INVALID_EVENT = -58, CL_INVALID_OPERATION = -59, CL_INVALID_GL_OBJECT = -60, CL_INVALID_BUFFER_SIZE = -61,
    CL_INVALID_GLOBAL_WORK_SIZE = -63, CL_INVALID_PROPERTY = -64, CL_INVALID_GL_SHAREGROUP = -1000, CL_PLATFORM_NOT_FOUND_KHR = -1001,
    /* execution status */ CL_COMPLETE = 0, CL_RUNNING = 1, CL_SUBMITTED = 2, CL_QUEUED = 3,
    /* memory flags */ CL_MEM_READ_WRITE = 1, CL_MEM_WRITE_ONLY = 2, CL_MEM_READ_ONLY = 4, CL_MEM_USE_HOST_PTR = 8,
    CL_MEM_ALLOC_HOST_PTR = 16, CL_MEM_COPY_HOST_PTR = 32, CL_MEM_HOST_WRITE_ONLY = 128, CL_MEM_HOST_READ_ONLY = 256,
    CL_MEM_HOST_NO_ACCESS = 512, CL_MEM_SVM_FINE_GRAIN_BUFFER = 1024, CL_MEM_USE_MSMC_TI = 1 << 20,
    MEM_ACCESS = 7, MEM_HOST_PTR = 8 | 16 | 32, MEM_HOST_ACCESS = 128 | 256 | 512,
    /* map flags */ CL_MAP_READ = 1, CL_MAP_WRITE = 2, CL_MAP_WRITE_INVALIDATE_REGION = 4,
    /* commands */ CL_COMMAND_NDRANGE_KERNEL = 0x11F0, CL_COMMAND_READ_BUFFER = 0x11F3, CL_COMMAND_WRITE_BUFFER = 0x11F4,
    CL_COMMAND_COPY_BUFFER = 0x11F5, CL_COMMAND_MAP_BUFFER = 0x11FB, CL_COMMAND_UNMAP_MEM_OBJECT = 0x11FD,
    CL_COMMAND_MARKER = 0x11FE, CL_COMMAND_USER = 0x1204, CL_COMMAND_BARRIER = 0x1205, CL_COMMAND_FILL_BUFFER = 0x1207,
    CL_COMMAND_SVM_FREE = 0x1209, CL_COMMAND_SVM_MEMCPY = 0x120A, CL_COMMAND_SVM_MEMFILL = 0x120B,
    CL_COMMAND_SVM_MAP = 0x120C, CL_COMMAND_SVM_UNMAP = 0x120D, CL_COMMAND_ACQUIRE_EXTERNAL = 0x2047,
    CL_COMMAND_RELEASE_EXTERNAL = 0x2048, CL_COMMAND_WAIT = 0x2042, CL_COMMAND_SIGNAL = 0x2043,
    CL_COMMAND_ACQUIRE_GL = 0x11FF, CL_COMMAND_RELEASE_GL = 0x1200,
    /* context properties */ CONTEXT_PLATFORM = 0x1084, GL_CONTEXT = 0x2008, EGL_DISPLAY = 0x2009,
    CL_INVALID_SEMAPHORE = -1142, /* their properties */ SEMAPHORE_TYPE = 0x203D, SEMAPHORE_BINARY = 1, SEMAPHORE_FD = 0x2055,
    /* external memory */ OPAQUE_FD = 0x2060, DMA_BUF = 0x2067,
    IMPORT_TYPE = 0x40B2, IMPORT_HOST = 0x40B3, IMPORT_DMA_BUF = 0x40B4, IMPORT_CONSISTENT = 0x41E3,
    /* SVM capabilities */ SVM_COARSE = 1, SVM_FINE_BUFFER = 2, SVM_ALL = 15,
    PAGE = 4096, ALIGN_BITS = 1024, MAX_GROUP = 1024
};
#define MAX_ALLOC ((size_t)4 << 30)

/* ---- Behaviour -------------------------------------------------------------------------------------------- */
struct quirks {
    bool good, shadow, moving, last_page, separate, stale_read, crash, crash_kernel, hang, hang_map, liar, no_devices,
        no_platforms, oom, lost, ti, imports, dma_buf, cached, refuses, amd, apart, wrong_address, crowded, semaphores,
        graphics, elsewhere, arm;
};
enum magic { PLATFORM = 0x0b501, DEVICE, CONTEXT, QUEUE, MEM, PROGRAM, KERNEL, EVENT, SEMAPHORE };
struct object { _Atomic int magic, refs, holds; void (*destroy)(void *); };
struct device { struct object o; const char *name; struct platform *platform; };
struct platform {
    struct object o;
    const char *name;
    struct quirks quirks;
    struct device device;
    char extensions[512];
    int maps, launches;
    bool dead; /* `lost` has taken effect */
};

static struct platform platforms[2];
static cl_uint platform_count = 1;
static char driver_version[64] = "1.0";
static unsigned char uuid[16];
static long delay_us;
static bool lazy, report_leaks;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; /* any status, queue or count changed */
static int live;                                          /* objects and SVM allocations not yet freed */
static void lock(void) { pthread_mutex_lock(&mutex); }
static void unlock(void) { pthread_mutex_unlock(&mutex); }

static void choose(struct quirks *q, const char *list)
{
#define MODE(m) { #m, offsetof(struct quirks, m) }
    static const struct { const char *word; size_t at; } modes[] = {
        MODE(good), MODE(shadow), MODE(moving), MODE(last_page), MODE(separate), MODE(stale_read), MODE(crash),
        MODE(crash_kernel), MODE(hang), MODE(hang_map), MODE(liar), MODE(no_devices), MODE(no_platforms), MODE(oom),
        MODE(lost), MODE(ti), MODE(imports), MODE(dma_buf), MODE(cached), MODE(refuses), MODE(amd), MODE(apart),
        MODE(wrong_address), MODE(crowded), MODE(semaphores), MODE(graphics), MODE(elsewhere),
        MODE(arm) };
    for (size_t n; *list; list += n + (list[n] == ',')) {
        n = strcspn(list, ",");
        size_t i = 0, count = sizeof modes / sizeof *modes;
        while (i < count && !(strlen(modes[i].word) == n && !strncmp(modes[i].word, list, n))) i++;
        if (i < count) *(bool *)((char *)q + modes[i].at) = true;
        else if (n) fprintf(stderr, "onebuf stub: unknown mode in ONEBUF_STUB: %.*s\n", (int)n, list), _exit(98);
    }
}

static bool has_khr(const struct quirks *q) { return q->imports || q->dma_buf; }
static bool is_gpu(const struct quirks *q) { return has_khr(q) || q->arm; }
static bool is_chip(const struct quirks *q) { return is_gpu(q) || q->amd || q->graphics; }
/* CL_DEVICE_TYPE_ACCELERATOR, _GPU or _CPU */
static cl_ulong device_type(const struct quirks *q) { return q->ti ? 8 : is_chip(q) ? 4 : 2; }
static bool has_uuid(const struct quirks *q) { return is_gpu(q) || (q->graphics && !q->amd); }
/* The extensions that the driver reports; `liar` reports more than it has. */
static void declare_extensions(struct platform *p)
{
    const struct quirks *q = &p->quirks;
    bool fd = q->imports || q->liar, dma_buf = q->dma_buf || q->liar;
    const char *semaphores = " cl_khr_semaphore cl_khr_external_semaphore cl_khr_external_semaphore_opaque_fd";
    snprintf(p->extensions, sizeof p->extensions, "cl_khr_byte_addressable_store cl_khr_global_int32_base_atomics%s%s%s%s%s%s%s%s%s",
             fd || dma_buf ? " cl_khr_external_memory" : "", has_uuid(q) || q->liar ? " cl_khr_device_uuid" : "",
             q->graphics ? " cl_khr_gl_sharing" : "", fd ? " cl_khr_external_memory_opaque_fd" : "",
             dma_buf ? " cl_khr_external_memory_dma_buf" : "", q->liar || q->semaphores ? semaphores : "",
             q->liar ? " cl_khr_pci_bus_info" : "",
             q->amd ? " cl_amd_device_attribute_query" : "",
             q->arm ? " cl_arm_import_memory cl_arm_import_memory_host cl_arm_import_memory_dma_buf" : "");
}
static void choose_uuid(const char *hex)
{
    for (int i = 0; i < 16; i++) uuid[i] = (unsigned char)(16 * i + 1);
    unsigned byte;
    for (int i = 0; hex && i < 16 && sscanf(hex + 2 * i, "%2x", &byte) == 1; i++) uuid[i] = (unsigned char)byte;
}

__attribute__((constructor)) static void load(void)
{
    const char *mode = getenv("ONEBUF_STUB"), *count = getenv("ONEBUF_STUB_PLATFORMS");
    const char *version = getenv("ONEBUF_STUB_VERSION"), *delay = getenv("ONEBUF_STUB_DELAY_US");
    if (version) snprintf(driver_version, sizeof driver_version, "%s", version);
    if (delay) delay_us = atol(delay);
    if (count && atoi(count) == 2) platform_count = 2;
    lazy = getenv("ONEBUF_STUB_LAZY") != NULL;
    report_leaks = getenv("ONEBUF_STUB_LEAKS") != NULL;
    for (int i = 0; i < 2; i++) {
        struct platform *p = &platforms[i];
        p->o = (struct object){ .magic = PLATFORM, .refs = 1 };
        p->device.o = (struct object){ .magic = DEVICE, .refs = 1 };
        p->name = i ? "onebuf stub 2" : "onebuf stub";
        p->device.name = i ? "stub device 2" : "stub device";
        p->device.platform = p;
    }
    choose(&platforms[platform_count - 1].quirks, mode ? mode : "");
    if (platforms[platform_count - 1].quirks.amd) {
        platforms[platform_count - 1].name = "AMD Accelerated Parallel Processing";
        if (!version) strcpy(driver_version, "3602.0 (HSA1.1,LC)");
    }
    choose_uuid(getenv("ONEBUF_STUB_UUID"));
    for (int i = 0; i < 2; i++) declare_extensions(&platforms[i]);
}

static cl_ulong declared_svm(const struct quirks *q)
{
    return q->liar ? SVM_ALL : q->shadow || q->moving ? 0 : is_gpu(q) ? SVM_COARSE : SVM_COARSE | SVM_FINE_BUFFER;
}
static bool may_import(const struct quirks *q, cl_ulong kind)
{
    return (kind == OPAQUE_FD && q->imports) || (kind == DMA_BUF && q->dma_buf);
}
static void violation(const char *why)
{
    fprintf(stderr, "onebuf stub: %s\n", why);
    _exit(99);
}
static void liars_function(void)
{
    fputs("onebuf stub: an extension function of a lying driver was called\n", stderr);
    abort();
}
static cl_ulong known_flags(const struct quirks *q)
{
    return MEM_ACCESS | MEM_HOST_PTR | MEM_HOST_ACCESS | (q->ti ? CL_MEM_USE_MSMC_TI : 0);
}
static bool may_allocate(const struct quirks *q, size_t size) { return !(q->oom && size > (1u << 20)); }

/* ---- Memory beside HIP's (agent_stub.c), in the mode `amd` --------------------------------------------------- */
static void *beside(const char *name)
{
    const char *path = getenv("ONEBUF_HIP_LIB");
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    void *found = library ? dlsym(library, name) : NULL;
    if (library) dlclose(library);
    return found;
}
static void *agent_alloc(const struct quirks *q, size_t size, bool on_host)
{
    void *(*alloc)(size_t, int, bool) = q->amd ? (void *(*)(size_t, int, bool))beside("onebuf_stub_agent_alloc") : NULL;
    return alloc ? alloc(size, on_host, q->apart) : NULL;
}
static void agent_free(void *at)
{
    void (*give)(void *) = (void (*)(void *))beside("onebuf_stub_agent_free");
    if (give) give(at);
}
/* 0: not HIP's; 1: host memory that HIP pinned; 2: HIP's device memory */
static int agent_knows(const struct quirks *q, const void *at)
{
    int (*knows)(uint64_t) = q->amd ? (int (*)(uint64_t))beside("onebuf_stub_agent_knows") : NULL;
    return knows ? knows((uint64_t)(uintptr_t)at) : 0;
}
static void agent_use(const void *at, int change)
{
    int (*note)(uint64_t, int) = (int (*)(uint64_t, int))beside("onebuf_stub_agent_use");
    if (note) note((uint64_t)(uintptr_t)at, change);
}
static unsigned char *reach(const struct quirks *q, const void *at, size_t *room)
{
    void *(*find)(uint64_t, size_t *, bool) = (void *(*)(uint64_t, size_t *, bool))beside("onebuf_stub_agent_reach");
    return find ? find((uint64_t)(uintptr_t)at, room, q->apart) : NULL;
}

static void crash_now(void) { volatile int *volatile nowhere = NULL; *nowhere = 1; }
static void hang_forever(void) { for (;;) pause(); }

/* ---- Objects ---------------------------------------------------------------------------------------------- */
typedef void (*event_callback)(cl_event, cl_int, void *);
struct callback { struct callback *next; event_callback call; cl_int type; void *user; };
struct svm { struct svm *next; unsigned char *base; size_t size; bool beside; };
struct context { struct object o; struct platform *platform; struct svm *svm; struct graphics *graphics; intptr_t properties[7]; };
struct worker { struct worker *next; struct queue *queue; pthread_t thread; bool released, hung, done; };
struct queue {
    struct object o;
    struct context *context;
    struct worker *worker;
    struct command *head, **tail;
    cl_ulong properties, enqueued, flushed, finished; /* counts of commands, in order */
};
struct event {
    struct object o;
    struct context *context;
    struct queue *queue; /* NULL: a user event */
    cl_uint type;
    cl_int status;
    cl_ulong times[4]; /* by status */
    struct callback *callbacks;
};
struct mapping { struct mapping *next; unsigned char *at, *block; size_t offset, size; cl_ulong flags; };
/* Imported memory, or the OpenGL buffer with that name: `held` is its state after all enqueued commands, `now` its current
 * state. */
struct external { unsigned name; int fd, users; struct stat is; unsigned char *pages; bool apart, cached, held, now, dirty, by_arm; };
struct mem;
typedef void (*mem_callback)(struct mem *, void *);
struct destructor { struct destructor *next; mem_callback call; void *user; };
/* The device's bytes [0, split) are the host's own pages; those from `split` on are in `apart`. */
struct mem {
    struct object o;
    struct context *context;
    struct mem *root; /* itself, or a sub-buffer's parent */
    size_t origin, size, split;
    cl_ulong flags;
    void *host_ptr;
    unsigned char *host, *apart, *old_block;
    bool map_copies, unmap_copies, moves, beside;
    struct external *external; /* of imported memory */
    unsigned moved;
    struct mapping *mappings;
    struct destructor *destructors;
};
struct semaphore { struct object o; struct context *context; struct semaphore_words *words; };
struct program { struct object o; struct context *context; char *source, *options, *log; cl_int status; };
struct native { const char *name, *type; size_t element, stride; };
struct arg { bool set, unknown; struct mem *mem; unsigned char *svm; size_t room; cl_uint value; };
struct kernel { struct object o; struct program *program; const struct native *native; struct arg args[5]; };

static bool is(const void *p, enum magic magic)
{
    const struct object *o = p;
    if (!o || o->magic != (int)magic) return false;
    return o->refs > 0 || (magic == EVENT && o->holds > 0); /* a callback may query an event that was released */
}
static void *object_new(size_t size, enum magic magic, void (*destroy)(void *))
{
    struct object *o = calloc(1, size);
    if (!o) return NULL;
    o->magic = magic;
    o->refs = 1;
    o->destroy = destroy;
    lock(), live++, unlock();
    return o;
}
static void count_down(struct object *o, _Atomic int *count)
{
    lock();
    --*count;
    bool dead = o->refs + o->holds == 0;
    pthread_cond_broadcast(&changed);
    unlock();
    if (!dead) return;
    o->destroy(o);
    o->magic = 0;
    free(o);
    lock(), live--, pthread_cond_broadcast(&changed), unlock();
}
static void *hold(void *p) { if (p) ((struct object *)p)->holds++; return p; }
static void drop(void *p) { if (p) count_down(p, &((struct object *)p)->holds); }
static cl_int retain(void *p, enum magic magic, cl_int error)
{
    if (!is(p, magic)) return error;
    ((struct object *)p)->refs++;
    return CL_SUCCESS;
}
static cl_int release(void *p, enum magic magic, cl_int error)
{
    if (!is(p, magic) || ((struct object *)p)->refs <= 0) return error;
    lock();
    if (magic == QUEUE && ((struct object *)p)->refs == 1) ((struct queue *)p)->worker->released = true;
    unlock();
    count_down(p, &((struct object *)p)->refs);
    return CL_SUCCESS;
}
#define LIFETIME(Name, type, MAGIC, ERROR) \
    cl_int clRetain##Name(struct type *o) { return retain(o, MAGIC, ERROR); } \
    cl_int clRelease##Name(struct type *o) { return release(o, MAGIC, ERROR); }
LIFETIME(Context, context, CONTEXT, CL_INVALID_CONTEXT)
LIFETIME(CommandQueue, queue, QUEUE, CL_INVALID_COMMAND_QUEUE)
LIFETIME(MemObject, mem, MEM, CL_INVALID_MEM_OBJECT)
LIFETIME(Program, program, PROGRAM, CL_INVALID_PROGRAM)
LIFETIME(Kernel, kernel, KERNEL, CL_INVALID_KERNEL)
LIFETIME(Event, event, EVENT, CL_INVALID_EVENT)
cl_int clRetainDevice(struct device *d) { return is(d, DEVICE) ? CL_SUCCESS : CL_INVALID_DEVICE; }
cl_int clReleaseDevice(struct device *d) { return is(d, DEVICE) ? CL_SUCCESS : CL_INVALID_DEVICE; }

#define FAIL(code) do { if (err) *err = (code); return NULL; } while (0)
#define DONE(object) do { if (err) *err = CL_SUCCESS; return (object); } while (0)

#define WAITS cl_uint n, struct event *const *waits, struct event **event /* how every clEnqueue… ends */
#define INFO size_t room, void *out, size_t *need                        /* how every clGet…Info ends */
static cl_int give(const void *from, size_t size, size_t room, void *out, size_t *need)
{
    if (out && room < size) return CL_INVALID_VALUE;
    if (out && size) memcpy(out, from, size);
    if (need) *need = size;
    return CL_SUCCESS;
}
#define GIVE(T, ...) give((T[]){ __VA_ARGS__ }, sizeof((T[]){ __VA_ARGS__ }), room, out, need)
#define TEXT(s) give(s, strlen(s) + 1, room, out, need)

/* ---- Platforms, devices, contexts ------------------------------------------------------------------------- */
cl_int clGetPlatformIDs(cl_uint entries, struct platform **list, cl_uint *count)
{
    const char *pause = getenv("ONEBUF_STUB_SLEEP_S");
    if (pause) sleep((unsigned)atoi(pause));
    if ((!list && !count) || (list && !entries)) return CL_INVALID_VALUE;
    if (platforms[platform_count - 1].quirks.no_platforms) {
        if (count) *count = 0;
        return CL_PLATFORM_NOT_FOUND_KHR;
    }
    for (cl_uint i = 0; list && i < entries && i < platform_count; i++) list[i] = &platforms[i];
    if (count) *count = platform_count;
    return CL_SUCCESS;
}

/* {PLATFORM,DEVICE}_EXTERNAL_MEMORY_IMPORT_HANDLE_TYPES */
static cl_int give_imports(const struct quirks *q, INFO)
{
    if (q->liar || (q->imports && q->dma_buf)) return GIVE(cl_uint, OPAQUE_FD, DMA_BUF);
    return has_khr(q) ? GIVE(cl_uint, q->imports ? OPAQUE_FD : DMA_BUF) : CL_INVALID_VALUE;
}
/* CL_VERSION of Arm's extension: 10 bits, 10 bits, 12 bits. */
static cl_uint arm_version(void)
{
    const char *text = getenv("ONEBUF_STUB_ARM");
    unsigned major = 1, minor = 1;
    if (text && sscanf(text, "%u.%u", &major, &minor) != 2) violation("ONEBUF_STUB_ARM is no version");
    return major << 22 | minor << 12;
}
/* DEVICE_EXTENSIONS_WITH_VERSION */
static cl_int give_versions(const struct quirks *q, INFO)
{
    struct { cl_uint version; char name[64]; } rows[] = {
        { 1 << 22, "cl_khr_byte_addressable_store" }, { arm_version(), "cl_arm_import_memory" } };
    return give(rows, q->arm ? sizeof rows : sizeof *rows, room, out, need);
}
cl_int clGetPlatformInfo(struct platform *p, cl_uint what, INFO)
{
    if (!is(p, PLATFORM)) return CL_INVALID_PLATFORM;
    switch (what) {
    case 0x0900: return TEXT("FULL_PROFILE");
    case 0x0901: return TEXT("OpenCL 3.0 onebuf-stub");
    case 0x0902: return TEXT(p->name);
    case 0x0903: return TEXT(p->quirks.ti ? "Texas Instruments, Inc." : "onebuf");
    case 0x0904: return TEXT(p->extensions);
    case 0x2036: return p->quirks.liar ? GIVE(cl_uint, 1) : CL_INVALID_VALUE;              /* semaphore types */
    case 0x2044: return give_imports(&p->quirks, room, out, need);
    default: return CL_INVALID_VALUE;
    }
}

cl_int clGetDeviceIDs(struct platform *p, cl_ulong type, cl_uint entries, struct device **list, cl_uint *count)
{
    if (!is(p, PLATFORM)) return CL_INVALID_PLATFORM;
    if (!type) return CL_INVALID_DEVICE_TYPE;
    if ((!list && !count) || (list && !entries)) return CL_INVALID_VALUE;
    cl_ulong kinds = 1 | device_type(&p->quirks); /* CL_DEVICE_TYPE_DEFAULT, too */
    bool found = !p->quirks.no_devices && (type & kinds);
    if (found && list) list[0] = &p->device;
    if (count) *count = found;
    return found ? CL_SUCCESS : CL_DEVICE_NOT_FOUND;
}

cl_int clGetDeviceInfo(struct device *d, cl_uint what, INFO)
{
    if (!is(d, DEVICE)) return CL_INVALID_DEVICE;
    const struct quirks *q = &d->platform->quirks;
    switch (what) {
    case 0x1000: return GIVE(cl_ulong, device_type(q));    /* TYPE */
    case 0x1001: return GIVE(cl_uint, 0x0b5);              /* VENDOR_ID */
    case 0x1002: return GIVE(cl_uint, 1);                  /* MAX_COMPUTE_UNITS */
    case 0x1003: return GIVE(cl_uint, 3);                  /* MAX_WORK_ITEM_DIMENSIONS */
    case 0x1004: return GIVE(size_t, MAX_GROUP);           /* MAX_WORK_GROUP_SIZE */
    case 0x1005: return GIVE(size_t, MAX_GROUP, 1, 1);     /* MAX_WORK_ITEM_SIZES */
    case 0x100C: return GIVE(cl_uint, 1000);               /* MAX_CLOCK_FREQUENCY */
    case 0x100D: return GIVE(cl_uint, 64);                 /* ADDRESS_BITS */
    case 0x1010: return GIVE(cl_ulong, MAX_ALLOC);         /* MAX_MEM_ALLOC_SIZE */
    case 0x1016: return GIVE(cl_uint, 0);                  /* IMAGE_SUPPORT */
    case 0x1019: return GIVE(cl_uint, ALIGN_BITS);         /* MEM_BASE_ADDR_ALIGN */
    case 0x101A: return GIVE(cl_uint, ALIGN_BITS / 8);     /* MIN_DATA_TYPE_ALIGN_SIZE */
    case 0x101D: return GIVE(cl_uint, 64);                 /* GLOBAL_MEM_CACHELINE_SIZE */
    case 0x101F: return GIVE(cl_ulong, 4 * MAX_ALLOC);     /* GLOBAL_MEM_SIZE */
    case 0x1022: return GIVE(cl_uint, 2);                  /* LOCAL_MEM_TYPE: global */
    case 0x1023: return GIVE(cl_ulong, 65536);             /* LOCAL_MEM_SIZE */
    case 0x1025: return GIVE(size_t, 1000);                /* PROFILING_TIMER_RESOLUTION */
    case 0x1026: return GIVE(cl_uint, 1);                  /* ENDIAN_LITTLE */
    case 0x1027: return GIVE(cl_uint, 1);                  /* AVAILABLE */
    case 0x1028: return GIVE(cl_uint, 1);                  /* COMPILER_AVAILABLE */
    case 0x102A: return GIVE(cl_ulong, 2);                 /* QUEUE_PROPERTIES: profiling, in order */
    case 0x102B: return TEXT(d->name);
    case 0x102C: return TEXT("onebuf");                    /* VENDOR */
    case 0x102D: return TEXT(driver_version);
    case 0x102E: return TEXT("FULL_PROFILE");
    case 0x102F: return TEXT("OpenCL 3.0 onebuf-stub");
    case 0x1030: return TEXT(d->platform->extensions);
    case 0x1031: return GIVE(struct platform *, d->platform);
    case 0x1035: return GIVE(cl_uint, !q->shadow && !is_chip(q)); /* HOST_UNIFIED_MEMORY */
    case 0x103D: return TEXT("OpenCL C 1.2 onebuf-stub");
    case 0x1042: return GIVE(struct device *, NULL);       /* PARENT_DEVICE */
    case 0x1047: return GIVE(cl_uint, 1);                  /* REFERENCE_COUNT */
    case 0x1053: return GIVE(cl_ulong, declared_svm(q));
    case 0x1060: return give_versions(q, room, out, need);
    case 0x106A: return has_uuid(q) ? give(uuid, sizeof uuid, room, out, need) : CL_INVALID_VALUE; /* UUID_KHR */
    case 0x4037: { /* TOPOLOGY_AMD: that of the HIP stub's first device by default */
        const char *bus = getenv("ONEBUF_STUB_BUS");
        unsigned char topology[24] = { 1, [21] = bus ? (unsigned char)strtol(bus, NULL, 16) : 0xc1 };
        return q->amd ? give(topology, sizeof topology, room, out, need) : CL_INVALID_VALUE;
    }
    case 0x204D: if (q->semaphores) return GIVE(cl_uint, SEMAPHORE_FD); break; /* SEMAPHORE_IMPORT_HANDLE_TYPES */
    case 0x204F: return give_imports(q, room, out, need);  /* EXTERNAL_MEMORY_IMPORT_HANDLE_TYPES */
    }
    if (q->liar) switch (what) { /* but CL_DEVICE_UUID_KHR and CL_DEVICE_PCI_BUS_INFO_KHR fail */
    case 0x204C: return GIVE(cl_uint, 1);                  /* SEMAPHORE_TYPES: binary */
    case 0x204D: case 0x204E: return GIVE(cl_uint, 0x2055, 0x2058); /* SEMAPHORE_{IM,EX}PORT_HANDLE_TYPES */
    }
    return CL_INVALID_VALUE;
}

static cl_int acquire_external(struct queue *q, cl_uint count, struct mem *const *list, WAITS);
static cl_int release_external(struct queue *q, cl_uint count, struct mem *const *list, WAITS);
static void *semaphore_function(const char *name);
static struct mem *import_memory_arm(struct context *c, cl_ulong flags, const intptr_t *list, void *memory, size_t size, cl_int *err);
static cl_int get_gl_context_info(const intptr_t *properties, cl_uint what, INFO);
void *clGetExtensionFunctionAddressForPlatform(struct platform *p, const char *name)
{
    if (!is(p, PLATFORM) || !name) return NULL;
    if (p->quirks.liar) return (void *)liars_function;
    if (p->quirks.semaphores && semaphore_function(name)) return semaphore_function(name);
    if (p->quirks.graphics && !strcmp(name, "clGetGLContextInfoKHR")) return (void *)get_gl_context_info;
    if (p->quirks.arm && !strcmp(name, "clImportMemoryARM")) return (void *)import_memory_arm;
    if (!has_khr(&p->quirks)) return NULL;
    if (!strcmp(name, "clEnqueueAcquireExternalMemObjectsKHR")) return (void *)acquire_external;
    return strcmp(name, "clEnqueueReleaseExternalMemObjectsKHR") ? NULL : (void *)release_external;
}
void *clGetExtensionFunctionAddress(const char *name) /* names no platform: the first one */
{
    return clGetExtensionFunctionAddressForPlatform(&platforms[0], name);
}

static void context_destroy(void *p) { graphics_close(((struct context *)p)->graphics); }
/* Exactly: the platform, OpenGL's context, which is current here, and EGL's display, in this order. */
static cl_int check_graphics(const intptr_t *p)
{
    struct platform *platform = (struct platform *)p[1];
    if (p[0] != CONTEXT_PLATFORM || p[2] != GL_CONTEXT || p[4] != EGL_DISPLAY || p[6]) return CL_INVALID_PROPERTY;
    if (!is(platform, PLATFORM)) return CL_INVALID_PLATFORM;
    if (!platform->quirks.graphics) return CL_INVALID_PROPERTY;
    return p[5] && graphics_current(p[3]) ? CL_SUCCESS : CL_INVALID_GL_SHAREGROUP;
}
static cl_int get_gl_context_info(const intptr_t *properties, cl_uint what, INFO)
{
    cl_int bad = properties ? check_graphics(properties) : CL_INVALID_GL_SHAREGROUP;
    if (bad) return bad;
    struct platform *p = (struct platform *)properties[1];
    if (what != 0x2006) return CL_INVALID_VALUE; /* the device that it is on now */
    return p->quirks.elsewhere ? give("", 0, room, out, need) : GIVE(struct device *, &p->device);
}
struct context *clCreateContext(const intptr_t *properties, cl_uint n, struct device *const *devices,
                                void (*notify)(const char *, const void *, size_t, void *), void *user, cl_int *err)
{
    (void)notify, (void)user;
    if (!n || !devices) FAIL(CL_INVALID_VALUE);
    for (cl_uint i = 0; i < n; i++)
        if (!is(devices[i], DEVICE) || devices[i] != devices[0]) FAIL(CL_INVALID_DEVICE);
    bool with_gl = properties && *properties && properties[2];
    cl_int bad = with_gl ? check_graphics(properties) : CL_SUCCESS;
    if (bad) FAIL(bad);
    if (properties && *properties) {
        if (properties[0] != CONTEXT_PLATFORM) FAIL(CL_INVALID_PROPERTY);
        if (properties[1] != (intptr_t)devices[0]->platform) FAIL(CL_INVALID_PLATFORM);
    }
    if (with_gl && devices[0]->platform->quirks.refuses) FAIL(CL_INVALID_GL_SHAREGROUP);
    struct context *c = object_new(sizeof *c, CONTEXT, context_destroy);
    if (!c) FAIL(CL_OUT_OF_HOST_MEMORY);
    c->platform = devices[0]->platform;
    size_t length = with_gl ? 6 : properties && *properties ? 2 : 0;
    for (size_t i = 0; i < length; i++) c->properties[i] = properties[i];
    if (with_gl && !(c->graphics = graphics_open(properties[3], properties[5]))) {
        clReleaseContext(c);
        FAIL(CL_OUT_OF_RESOURCES);
    }
    DONE(c);
}
cl_int clGetContextInfo(struct context *c, cl_uint what, INFO)
{
    if (!is(c, CONTEXT)) return CL_INVALID_CONTEXT;
    switch (what) {
    case 0x1080: return GIVE(cl_uint, (cl_uint)c->o.refs);
    case 0x1081: {
        struct device *both[] = { &c->platform->device, &c->platform->device };
        return give(both, c->platform->quirks.crowded ? sizeof both : sizeof *both, room, out, need);
    }
    case 0x1082: {
        size_t length = c->properties[2] ? 7 : c->properties[0] ? 3 : 0;
        return give(c->properties, length * sizeof *c->properties, room, out, need);
    }
    case 0x1083: return GIVE(cl_uint, c->platform->quirks.crowded ? 2 : 1);
    default: return CL_INVALID_VALUE;
    }
}

/* ---- Events ----------------------------------------------------------------------------------------------- */
static cl_ulong now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (cl_ulong)t.tv_sec * 1000000000u + (cl_ulong)t.tv_nsec;
}
static void event_destroy(void *p)
{
    struct event *e = p;
    for (struct callback *c; (c = e->callbacks); free(c)) e->callbacks = c->next;
    drop(e->queue), drop(e->context);
}
static struct event *event_new(struct context *c, struct queue *q, cl_uint type, cl_int status)
{
    struct event *e = object_new(sizeof *e, EVENT, event_destroy);
    if (!e) return NULL;
    e->context = hold(c), e->queue = hold(q), e->type = type, e->status = status;
    e->times[status] = now_ns();
    return e;
}
/* Advances an event, wakes all waiters, then runs the callbacks that are due. The caller holds the event. */
static void set_status(struct event *e, cl_int status)
{
    struct callback *due = NULL, **end = &due;
    lock();
    e->status = status;
    e->times[status < 0 ? 0 : status] = now_ns();
    if (status <= 0 && e->queue) e->queue->finished++;
    for (struct callback **at = &e->callbacks, *c; (c = *at);)
        if (status <= c->type) *at = c->next, c->next = NULL, *end = c, end = &c->next;
        else at = &c->next;
    pthread_cond_broadcast(&changed);
    unlock();
    for (struct callback *c; (c = due); free(c)) {
        due = c->next;
        c->call(e, status < 0 ? status : c->type, c->user);
    }
}
static cl_int wait_for(struct event *e)
{
    lock();
    while (e->status > 0) pthread_cond_wait(&changed, &mutex);
    cl_int status = e->status;
    unlock();
    return status;
}
static void flush(struct queue *q) { lock(), q->flushed = q->enqueued, pthread_cond_broadcast(&changed), unlock(); }

static cl_int check_waits(struct context *c, cl_uint n, struct event *const *list)
{
    if (!n != !list) return CL_INVALID_EVENT_WAIT_LIST;
    for (cl_uint i = 0; i < n; i++) {
        if (!is(list[i], EVENT)) return CL_INVALID_EVENT_WAIT_LIST;
        if (list[i]->context != c) return CL_INVALID_CONTEXT;
    }
    return CL_SUCCESS;
}
cl_int clWaitForEvents(cl_uint n, struct event *const *list)
{
    cl_int status = CL_SUCCESS;
    if (!n || !list) return CL_INVALID_VALUE;
    for (cl_uint i = 0; i < n; i++) {
        if (!is(list[i], EVENT)) return CL_INVALID_EVENT;
        if (list[i]->context != list[0]->context) return CL_INVALID_CONTEXT;
    }
    for (cl_uint i = 0; i < n; i++) if (list[i]->queue) flush(list[i]->queue);
    for (cl_uint i = 0; i < n; i++)
        if (wait_for(list[i]) < 0) status = CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
    return status;
}
cl_int clGetEventInfo(struct event *e, cl_uint what, INFO)
{
    if (!is(e, EVENT)) return CL_INVALID_EVENT;
    lock();
    cl_int status = e->status;
    unlock();
    switch (what) {
    case 0x11D0: return GIVE(struct queue *, e->queue);
    case 0x11D1: return GIVE(cl_uint, e->type);
    case 0x11D2: return GIVE(cl_uint, (cl_uint)e->o.refs);
    case 0x11D3: return GIVE(cl_int, status);
    case 0x11D4: return GIVE(struct context *, e->context);
    default: return CL_INVALID_VALUE;
    }
}
cl_int clGetEventProfilingInfo(struct event *e, cl_uint what, INFO)
{
    if (!is(e, EVENT)) return CL_INVALID_EVENT;
    if (what < 0x1280 || what > 0x1284) return CL_INVALID_VALUE;
    lock();
    bool known = e->queue && (e->queue->properties & 2) && e->status == CL_COMPLETE;
    cl_ulong time = e->times[what == 0x1284 ? 0 : 0x1283 - what]; /* queued, submit, start, end; complete is end */
    unlock();
    return known ? GIVE(cl_ulong, time) : CL_PROFILING_INFO_NOT_AVAILABLE;
}
cl_int clSetEventCallback(struct event *e, cl_int type, event_callback call, void *user)
{
    if (!is(e, EVENT)) return CL_INVALID_EVENT;
    if (!call || type < CL_COMPLETE || type > CL_SUBMITTED) return CL_INVALID_VALUE;
    struct callback *c = malloc(sizeof *c);
    if (!c) return CL_OUT_OF_HOST_MEMORY;
    *c = (struct callback){ NULL, call, type, user };
    lock();
    cl_int status = e->status;
    struct callback **at = &e->callbacks;
    while (*at) at = &(*at)->next;
    if (status > type) *at = c;
    unlock();
    if (status <= type) free(c), call(e, status < 0 ? status : type, user);
    return CL_SUCCESS;
}
struct event *clCreateUserEvent(struct context *c, cl_int *err)
{
    if (!is(c, CONTEXT)) FAIL(CL_INVALID_CONTEXT);
    struct event *e = event_new(c, NULL, CL_COMMAND_USER, CL_SUBMITTED);
    if (!e) FAIL(CL_OUT_OF_HOST_MEMORY);
    DONE(e);
}
cl_int clSetUserEventStatus(struct event *e, cl_int status)
{
    if (!is(e, EVENT) || e->type != CL_COMMAND_USER) return CL_INVALID_EVENT;
    if (status > 0) return CL_INVALID_VALUE;
    lock();
    bool first = e->status == CL_SUBMITTED;
    if (first) e->status = CL_RUNNING; /* this call may set it */
    unlock();
    if (!first) return CL_INVALID_OPERATION;
    hold(e);
    set_status(e, status);
    drop(e);
    return CL_SUCCESS;
}

/* ---- Commands and queues ---------------------------------------------------------------------------------- */
typedef void (*svm_free_callback)(struct queue *, cl_uint, void **, void *);
struct command {
    struct command *next;
    struct event *event, **waits;
    cl_uint wait_count, count;
    struct mem *mem, *to;                      /* held */
    size_t offset, to_offset, size, pattern_size;
    void *ptr;
    const void *from;
    struct mapping *mapping;                   /* owned by an unmap */
    const struct native *native;
    struct arg args[5];
    unsigned char pattern[128];
    struct semaphore *semaphore;               /* held */
    struct mem **objects;                      /* owned and held by an acquire or release; there are `count` */
    void **svm;                                /* owned by an SVM free, as is what follows */
    svm_free_callback svm_callback;
};
static cl_int execute(struct command *c);

static struct command *command_new(struct queue *q, cl_uint type, cl_uint n, struct event *const *waits, cl_int *err)
{
    if (!is(q, QUEUE)) FAIL(CL_INVALID_COMMAND_QUEUE);
    cl_int bad = check_waits(q->context, n, waits);
    if (bad) FAIL(bad);
    struct command *c = calloc(1, sizeof *c);
    struct event **copy = calloc(n + 1, sizeof *copy), *e = event_new(q->context, q, type, CL_QUEUED);
    if (!c || !copy || !e) {
        if (e) clReleaseEvent(e);
        free(c), free(copy);
        FAIL(CL_OUT_OF_HOST_MEMORY);
    }
    for (cl_uint i = 0; i < n; i++) copy[i] = hold(waits[i]);
    c->event = e, c->waits = copy, c->wait_count = n;
    DONE(c);
}
/* Releases what a command holds, except its event. */
static void command_free(struct command *c)
{
    for (cl_uint i = 0; i < c->wait_count; i++) drop(c->waits[i]);
    drop(c->mem), drop(c->to), drop(c->semaphore);
    if (c->args[0].unknown) agent_use(c->args[0].svm, -1);
    if (c->mapping) free(c->mapping->block), free(c->mapping);
    for (cl_uint i = 0; c->objects && i < c->count; i++) drop(c->objects[i]);
    free(c->waits), free(c->objects), free(c->svm), free(c);
}
/* Before a command that uses imported memory, and (-1) after it. */
static void use_external(const struct command *c, int change)
{
    struct mem *const both[] = { c->mem, c->to };
    lock();
    for (int i = 0; i < 2; i++) {
        struct external *x = both[i] ? both[i]->root->external : NULL;
        if (!x) continue;
        if (!x->now) violation("imported memory was used without being acquired");
        x->users += change;
        bool reads = !i && (c->event->type == CL_COMMAND_READ_BUFFER || c->to);
        if (!reads) x->dirty = true;
    }
    unlock();
}
/* Queues a command; `out` may be NULL; a blocking call returns the command's own status. */
static cl_int submit(struct queue *q, struct command *c, bool blocking, struct event **out)
{
    struct event *e = hold(c->event);
    cl_int status = CL_SUCCESS;
    lock();
    struct mem *const both[] = { c->mem, c->to };
    for (int i = 0; i < 2; i++)
        if (both[i] && both[i]->root->external && !both[i]->root->external->held)
            violation("a command on imported memory was enqueued without its being acquired");
    if (out) *out = e;
    else e->o.refs = 0; /* only ours */
    hold(e);            /* the command's */
    *q->tail = c, q->tail = &c->next, q->enqueued++;
    if (!lazy || blocking) q->flushed = q->enqueued;
    pthread_cond_broadcast(&changed);
    unlock();
    if (blocking) status = wait_for(e);
    if (status < 0 && out) *out = NULL, clReleaseEvent(e);
    drop(e);
    return status < 0 ? status : CL_SUCCESS;
}

/* Quirks of execution; a status other than CL_SUCCESS ends the command without its effect. */
static cl_int before_execution(struct command *c)
{
    struct queue *q = c->event->queue;
    struct platform *p = q->context->platform;
    lock();
    bool kernel = c->event->type == CL_COMMAND_NDRANGE_KERNEL, first = kernel && p->launches == 0;
    bool dead = p->dead = p->quirks.lost && p->launches >= 3;
    p->launches += kernel && !dead;
    if (first && p->quirks.hang) q->worker->hung = true;
    unlock();
    if (first && p->quirks.crash_kernel) crash_now();
    if (first && p->quirks.hang) hang_forever();
    return dead ? CL_OUT_OF_RESOURCES : CL_SUCCESS;
}
static void run_command(struct command *c)
{
    struct event *e = c->event;
    cl_int status = CL_SUCCESS;
    set_status(e, CL_SUBMITTED);
    for (cl_uint i = 0; i < c->wait_count; i++)
        if (wait_for(c->waits[i]) < 0) status = CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
    set_status(e, CL_RUNNING);
    struct timespec pause_for = { delay_us / 1000000, delay_us % 1000000 * 1000 };
    while (delay_us > 0 && nanosleep(&pause_for, &pause_for) && errno == EINTR) {}
    if (!status) status = before_execution(c);
    if (!status) {
        use_external(c, 1);
        status = execute(c);
        use_external(c, -1);
    }
    command_free(c); /* before completion, so that a waiter for the event finds the buffers free */
    set_status(e, status);
    drop(e);
}

/* Whether it is a kernel on memory that the driver does not know. */
static bool is_loose(const struct command *c)
{
    return c && c->event->type == CL_COMMAND_NDRANGE_KERNEL && c->args[0].unknown && !c->wait_count;
}
/* Locked: lets the next command run first, if both are such kernels and nothing is between them. */
static void overtaken(struct queue *q, struct command *c)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_nsec += 2000000;
    if (limit.tv_nsec >= 1000000000) limit.tv_sec++, limit.tv_nsec -= 1000000000;
    while (is_loose(c) && !q->head && q->o.refs > 0)
        if (pthread_cond_timedwait(&changed, &mutex, &limit)) break;
    struct command *next = q->head;
    if (!is_loose(c) || !is_loose(next) || q->finished + 1 >= q->flushed) return;
    if (!(q->head = next->next)) q->tail = &q->head;
    unlock();
    run_command(next);
    lock();
}
static struct worker *workers;
static void *work(void *p)
{
    struct worker *w = p;
    struct queue *q = w->queue;
    lock();
    for (;;) {
        while (q->o.refs > 0 && !(q->head && q->finished < q->flushed)) pthread_cond_wait(&changed, &mutex);
        struct command *c = q->head;
        if (!c) break; /* released, and no work left */
        if (!(q->head = c->next)) q->tail = &q->head;
        overtaken(q, c);
        unlock();
        run_command(c);
        lock();
    }
    unlock();
    drop(q);
    lock(), w->done = true, pthread_cond_broadcast(&changed), unlock();
    return NULL;
}
/* Joins the threads of released queues; with `patience`, waits (2 s at most) for those that still run. */
static void reap(bool patience)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 2;
    lock();
    for (struct worker *w = workers; patience && w;)
        if (!w->released || w->hung || w->done) w = w->next;
        else if (pthread_cond_timedwait(&changed, &mutex, &limit)) break;
        else w = workers;
    for (struct worker **at = &workers, *w; (w = *at);) {
        if (!w->done) { at = &w->next; continue; }
        *at = w->next;
        unlock();
        pthread_join(w->thread, NULL);
        free(w);
        lock();
        at = &workers;
    }
    unlock();
}
/* For tests: the number of live objects and SVM allocations, after released queues have finished. */
int onebuf_stub_live(void)
{
    reap(true);
    lock();
    int n = live;
    unlock();
    return n;
}
__attribute__((destructor)) static void unload(void)
{
    int n = onebuf_stub_live();
    if (n && report_leaks) fprintf(stderr, "onebuf stub: %d objects were not released\n", n), _exit(97);
}

static void queue_destroy(void *p) { drop(((struct queue *)p)->context); }
static struct queue *queue_new(struct context *c, struct device *d, cl_ulong properties, cl_int *err)
{
    if (!is(c, CONTEXT)) FAIL(CL_INVALID_CONTEXT);
    if (!is(d, DEVICE) || d != &c->platform->device) FAIL(CL_INVALID_DEVICE);
    if (properties & ~(cl_ulong)3) FAIL(CL_INVALID_VALUE);
    if (properties & 1) FAIL(CL_INVALID_QUEUE_PROPERTIES); /* out of order */
    reap(false);
    struct queue *q = object_new(sizeof *q, QUEUE, queue_destroy);
    struct worker *w = calloc(1, sizeof *w);
    if (q) q->context = hold(c), q->properties = properties, q->tail = &q->head, q->worker = w;
    if (q && w) {
        w->queue = hold(q);
        lock();
        bool started = !pthread_create(&w->thread, NULL, work, w);
        if (started) w->next = workers, workers = w;
        unlock();
        if (started) DONE(q);
        drop(q);
    }
    if (q) count_down(&q->o, &q->o.refs);
    free(w);
    FAIL(CL_OUT_OF_HOST_MEMORY);
}
struct queue *clCreateCommandQueue(struct context *c, struct device *d, cl_ulong properties, cl_int *err)
{
    return queue_new(c, d, properties, err);
}
struct queue *clCreateCommandQueueWithProperties(struct context *c, struct device *d, const cl_ulong *list, cl_int *err)
{
    cl_ulong properties = 0;
    for (; list && *list; list += 2) {
        if (list[0] != 0x1093) FAIL(list[0] == 0x1094 ? CL_INVALID_QUEUE_PROPERTIES : CL_INVALID_VALUE);
        properties = list[1];
    }
    return queue_new(c, d, properties, err);
}
cl_int clGetCommandQueueInfo(struct queue *q, cl_uint what, INFO)
{
    if (!is(q, QUEUE)) return CL_INVALID_COMMAND_QUEUE;
    switch (what) {
    case 0x1090: return GIVE(struct context *, q->context);
    case 0x1091: return GIVE(struct device *, &q->context->platform->device);
    case 0x1092: return GIVE(cl_uint, (cl_uint)q->o.refs);
    case 0x1093: return GIVE(cl_ulong, q->properties);
    default: return CL_INVALID_VALUE;
    }
}
cl_int clFlush(struct queue *q)
{
    if (!is(q, QUEUE)) return CL_INVALID_COMMAND_QUEUE;
    flush(q);
    return CL_SUCCESS;
}
cl_int clFinish(struct queue *q)
{
    if (!is(q, QUEUE)) return CL_INVALID_COMMAND_QUEUE;
    hold(q);
    flush(q);
    lock();
    for (cl_ulong until = q->flushed; q->finished < until;) pthread_cond_wait(&changed, &mutex);
    bool dead = q->context->platform->dead;
    unlock();
    drop(q);
    return dead ? CL_OUT_OF_RESOURCES : CL_SUCCESS;
}
static cl_int nothing(struct queue *q, cl_uint type, WAITS)
{
    cl_int err;
    struct command *c = command_new(q, type, n, waits, &err);
    return c ? submit(q, c, false, event) : err;
}
cl_int clEnqueueMarker(struct queue *q, struct event **event)
{
    return event ? nothing(q, CL_COMMAND_MARKER, 0, NULL, event) : CL_INVALID_VALUE;
}
cl_int clEnqueueMarkerWithWaitList(struct queue *q, WAITS)
{
    return nothing(q, CL_COMMAND_MARKER, n, waits, event);
}
cl_int clEnqueueBarrierWithWaitList(struct queue *q, WAITS)
{
    return nothing(q, CL_COMMAND_BARRIER, n, waits, event);
}
cl_int clEnqueueWaitForEvents(struct queue *q, cl_uint n, struct event *const *list)
{
    return n && list ? nothing(q, CL_COMMAND_BARRIER, n, list, NULL) : CL_INVALID_VALUE;
}

/* ---- Buffers ---------------------------------------------------------------------------------------------- */
static void *pages(size_t size)
{
    size_t whole = (size + PAGE - 1) / PAGE * PAGE;
    void *p = aligned_alloc(PAGE, whole);
    return p ? memset(p, 0xA5, whole) : NULL; /* so that reads of new memory are detected */
}
/* The device's address of byte `offset`; reduces *size to the contiguous bytes there. */
static unsigned char *device_bytes(const struct mem *m, size_t offset, size_t *size)
{
    const struct mem *r = m->root;
    offset += m->origin;
    if (offset >= r->split) return r->apart + (offset - r->split);
    if (*size > r->split - offset) *size = r->split - offset;
    return r->host + offset;
}
static void device_read(const struct mem *m, size_t offset, void *out, size_t size)
{
    for (size_t n = size; size; offset += n, out = (char *)out + n, n = size -= n) {
        const unsigned char *at = device_bytes(m, offset, &n);
        memmove(out, at, n);
    }
}
static void device_write(const struct mem *m, size_t offset, const void *from, size_t size)
{
    for (size_t n = size; size; offset += n, from = (const char *)from + n, n = size -= n) {
        unsigned char *at = device_bytes(m, offset, &n);
        memmove(at, from, n);
    }
}
/* Decides where a buffer's bytes are: the core of the memory quirks. */
static bool lay_out(struct mem *m, const struct quirks *q)
{
    bool use = m->flags & CL_MEM_USE_HOST_PTR, alloc = m->flags & CL_MEM_ALLOC_HOST_PTR;
    m->split = m->size;
    if (q->shadow || (q->moving && !use) || (q->arm && use)) m->split = 0, m->map_copies = m->unmap_copies = true;
    if (q->stale_read && (use || alloc)) m->split = 0, m->map_copies = true, m->unmap_copies = false;
    if (q->separate && use) m->split = 0, m->map_copies = m->unmap_copies = false;
    if (q->last_page && use && m->split) m->split = (m->size - 1) / PAGE * PAGE;
    m->moves = q->moving && !use;
    m->host = use ? m->host_ptr : m->moves ? NULL : agent_alloc(q, m->size, alloc);
    m->beside = !use && m->host;
    if (!m->host && !m->moves) m->host = pages(m->size);
    m->apart = m->split < m->size ? pages(m->size - m->split) : NULL;
    return (m->host || m->moves) && (m->apart || m->split == m->size);
}
/* The descriptor stays open until the import ends: the driver owns it, or (Arm's) the caller keeps it until the callback. */
static void check_descriptor(const struct external *x)
{
    struct stat now;
    if (!x->name && (fstat(x->fd, &now) || now.st_dev != x->is.st_dev || now.st_ino != x->is.st_ino))
        violation("the caller closed the descriptor of imported memory");
}
static void external_destroy(struct mem *m)
{
    struct external *x = m->external;
    if (x->name) {
        free(m->host), free(x);
        return;
    }
    munmap(x->pages, m->size);
    if (!x->by_arm) close(x->fd);
    if (x->apart) free(m->host);
    free(x);
}
static void mem_destroy(void *p)
{
    struct mem *m = p;
    /* After the callback the owner may do anything with the memory. */
    if (m->external && m->external->name && graphics_size(m->context->graphics, m->external->name) < m->size)
        violation("a buffer of OpenGL's was deleted before its object");
    if (m->external) check_descriptor(m->external);
    for (struct destructor *d; (d = m->destructors); free(d)) m->destructors = d->next, d->call(m, d->user);
    for (struct mapping *g; (g = m->mappings); free(g)) m->mappings = g->next, free(g->block);
    if (m->external) external_destroy(m);
    else if (m->beside) agent_free(m->host);
    else if (m->root == m && !(m->flags & CL_MEM_USE_HOST_PTR)) free(m->host);
    free(m->apart), free(m->old_block);
    if (m->root != m) drop(m->root);
    drop(m->context);
}
static bool one_bit_at_most(cl_ulong bits) { return !(bits & (bits - 1)); }

struct mem *clCreateBuffer(struct context *c, cl_ulong flags, size_t size, void *host_ptr, cl_int *err)
{
    if (!is(c, CONTEXT)) FAIL(CL_INVALID_CONTEXT);
    bool use = flags & CL_MEM_USE_HOST_PTR, wants_ptr = flags & (CL_MEM_USE_HOST_PTR | CL_MEM_COPY_HOST_PTR);
    if ((flags & ~known_flags(&c->platform->quirks)) || !one_bit_at_most(flags & MEM_ACCESS) ||
        !one_bit_at_most(flags & MEM_HOST_ACCESS) || (use && (flags & (CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR))))
        FAIL(CL_INVALID_VALUE);
    if (!size || size > MAX_ALLOC) FAIL(CL_INVALID_BUFFER_SIZE);
    if (wants_ptr != (host_ptr != NULL)) FAIL(CL_INVALID_HOST_PTR);
    if (!may_allocate(&c->platform->quirks, size)) FAIL(CL_MEM_OBJECT_ALLOCATION_FAILURE);
    if (use && agent_knows(&c->platform->quirks, host_ptr)) FAIL(CL_MEM_OBJECT_ALLOCATION_FAILURE); /* the wrong allocator */
    struct mem *m = object_new(sizeof *m, MEM, mem_destroy);
    if (!m) FAIL(CL_OUT_OF_HOST_MEMORY);
    m->context = hold(c), m->root = m, m->size = size, m->host_ptr = use ? host_ptr : NULL;
    m->flags = flags & MEM_ACCESS ? flags : flags | CL_MEM_READ_WRITE;
    if (!lay_out(m, &c->platform->quirks)) {
        clReleaseMemObject(m);
        FAIL(CL_MEM_OBJECT_ALLOCATION_FAILURE);
    }
    if (use && m->apart) memcpy(m->apart, (char *)host_ptr + m->split, size - m->split);
    if (flags & CL_MEM_COPY_HOST_PTR) device_write(m, 0, host_ptr, size);
    DONE(m);
}
/* If the descriptor is not memory, or is too small, the caller still owns it. */
static struct mem *import(struct context *c, int fd, cl_ulong flags, size_t size, cl_int *err)
{
    const struct quirks *q = &c->platform->quirks;
    struct external x = { .fd = fd, .apart = q->cached || q->separate, .cached = q->cached };
    /* A dma-buf of the kernel has no type. */
    if (fstat(fd, &x.is) || ((x.is.st_mode & S_IFMT) && !S_ISREG(x.is.st_mode))) FAIL(CL_INVALID_VALUE);
    if ((size_t)x.is.st_size < size) FAIL(CL_INVALID_BUFFER_SIZE);
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) FAIL(CL_INVALID_VALUE);
    x.pages = at;
    struct external *copy = malloc(sizeof *copy);
    struct mem *m = object_new(sizeof *m, MEM, mem_destroy);
    unsigned char *host = x.apart ? pages(size) : x.pages;
    if (!copy || !m || !host) abort();
    if (x.apart) memcpy(host, x.pages, size);
    *copy = x;
    m->context = hold(c), m->root = m, m->size = m->split = size, m->flags = flags, m->host = host, m->external = copy;
    DONE(m);
}
/* clImportMemoryARM. It needs no acquire: the driver keeps the memory consistent. The descriptor stays the caller's, who may not
 * close it before the object is gone. */
static struct mem *import_memory_arm(struct context *c, cl_ulong flags, const intptr_t *list, void *memory, size_t size, cl_int *err)
{
    if (!is(c, CONTEXT)) FAIL(CL_INVALID_CONTEXT);
    if ((flags & ~(cl_ulong)MEM_ACCESS) || !one_bit_at_most(flags) || !memory) FAIL(CL_INVALID_VALUE);
    if (!size || size > MAX_ALLOC) FAIL(CL_INVALID_BUFFER_SIZE);
    intptr_t type = IMPORT_HOST, consistent = 0;
    for (; list && *list; list += 2) {
        if (*list == IMPORT_TYPE) type = list[1];
        else if (*list == IMPORT_CONSISTENT) consistent = list[1];
        else FAIL(CL_INVALID_PROPERTY);
    }
    if (c->platform->quirks.refuses) FAIL(CL_INVALID_OPERATION);
    flags = flags ? flags : CL_MEM_READ_WRITE;
    if (type == IMPORT_HOST) {
        struct mem *m = object_new(sizeof *m, MEM, mem_destroy);
        if (!m) FAIL(CL_OUT_OF_HOST_MEMORY);
        m->context = hold(c), m->root = m, m->size = m->split = size, m->host = m->host_ptr = memory;
        m->flags = flags | CL_MEM_USE_HOST_PTR;
        DONE(m);
    }
    if (type != IMPORT_DMA_BUF) FAIL(CL_INVALID_PROPERTY);
    if (!consistent) violation("an import by Arm's extension does not ask for consistency with the host");
    struct mem *m = import(c, *(int *)memory, flags, size, err);
    if (m) m->external->by_arm = m->external->held = m->external->now = true;
    return m;
}
/* On the queue's thread, with or without a cache. */
static void hand_over(struct mem *m, bool acquire)
{
    struct external *x = m->external;
    lock();
    bool fits = x->now != acquire, used = x->users, dirty = x->dirty;
    x->now = acquire, x->dirty = false;
    unlock();
    if (!fits) violation("acquires and releases of imported memory ran out of turn");
    if (used) violation("imported memory was released under work that uses it");
    if (x->name && !x->apart && (acquire || dirty)) graphics_copy(m->context->graphics, x->name, m->host, m->size, !acquire);
    if (x->name) return;
    if (x->cached && acquire) memcpy(m->host, x->pages, m->size);
    if (x->cached && !acquire && dirty) memcpy(x->pages, m->host, m->size);
}
/* Acquires or releases imported memory. A sub-buffer is refused, because it was not imported itself. */
static cl_int external_command(struct queue *q, cl_uint type, cl_uint count, struct mem *const *list, WAITS)
{
    bool of_gl = type == CL_COMMAND_ACQUIRE_GL || type == CL_COMMAND_RELEASE_GL;
    bool acquire = type == CL_COMMAND_ACQUIRE_EXTERNAL || type == CL_COMMAND_ACQUIRE_GL;
    if (!is(q, QUEUE)) return CL_INVALID_COMMAND_QUEUE;
    if (!count || !list) return CL_INVALID_VALUE;
    for (cl_uint i = 0; i < count; i++) {
        if (!is(list[i], MEM) || !list[i]->external || list[i]->external->by_arm) return CL_INVALID_MEM_OBJECT;
        if (of_gl != (list[i]->external->name != 0)) return CL_INVALID_GL_OBJECT;
        if (list[i]->context != q->context) return CL_INVALID_CONTEXT;
        if (list[i]->external->held == acquire) return CL_INVALID_OPERATION; /* twice, or without the counterpart */
    }
    cl_int err = CL_OUT_OF_HOST_MEMORY;
    struct mem **copy = calloc(count, sizeof *copy);
    struct command *c = copy ? command_new(q, type, n, waits, &err) : NULL;
    if (!c) { free(copy); return err; }
    for (cl_uint i = 0; i < count; i++) copy[i] = hold(list[i]), list[i]->external->held = acquire;
    c->objects = copy, c->count = count;
    return submit(q, c, false, event);
}
static cl_int acquire_external(struct queue *q, cl_uint count, struct mem *const *list, WAITS)
{
    return external_command(q, CL_COMMAND_ACQUIRE_EXTERNAL, count, list, n, waits, event);
}
static cl_int release_external(struct queue *q, cl_uint count, struct mem *const *list, WAITS)
{
    return external_command(q, CL_COMMAND_RELEASE_EXTERNAL, count, list, n, waits, event);
}
/* ---- OpenGL's buffers: acquiring reads the bytes, releasing writes them back ------------------------------------ */
static bool is_beside_gl(const struct context *c)
{
    return c->graphics && graphics_current((intptr_t)c->graphics->theirs);
}
struct mem *clCreateFromGLBuffer(struct context *c, cl_ulong flags, unsigned name, cl_int *err)
{
    if (!is(c, CONTEXT) || !is_beside_gl(c)) FAIL(CL_INVALID_CONTEXT);
    if ((flags & ~(cl_ulong)MEM_ACCESS) || !one_bit_at_most(flags)) FAIL(CL_INVALID_VALUE);
    size_t size = name ? graphics_size(c->graphics, name) : 0;
    if (!size) FAIL(CL_INVALID_GL_OBJECT);
    struct external *x = calloc(1, sizeof *x);
    struct mem *m = object_new(sizeof *m, MEM, mem_destroy);
    unsigned char *host = pages(size);
    if (!x || !m || !host) abort();
    x->name = name, x->apart = c->platform->quirks.separate;
    if (x->apart) graphics_copy(c->graphics, name, host, size, false);
    m->context = hold(c), m->root = m, m->size = m->split = size, m->flags = flags ? flags : CL_MEM_READ_WRITE, m->host = host;
    m->external = x;
    DONE(m);
}
cl_int clEnqueueAcquireGLObjects(struct queue *q, cl_uint count, struct mem *const *list, WAITS)
{
    if (is(q, QUEUE) && !is_beside_gl(q->context)) return CL_INVALID_CONTEXT;
    return external_command(q, CL_COMMAND_ACQUIRE_GL, count, list, n, waits, event);
}
cl_int clEnqueueReleaseGLObjects(struct queue *q, cl_uint count, struct mem *const *list, WAITS)
{
    if (is(q, QUEUE) && !is_beside_gl(q->context)) return CL_INVALID_CONTEXT;
    return external_command(q, CL_COMMAND_RELEASE_GL, count, list, n, waits, event);
}
/* ---- Binary semaphores of other APIs, by descriptor ---------------------------------------------------------- */
static void semaphore_destroy(void *p)
{
    struct semaphore *s = p;
    semaphore_close(s->words);
    drop(s->context);
}
static struct semaphore *create_semaphore(struct context *c, const cl_ulong *list, cl_int *err)
{
    if (!is(c, CONTEXT)) FAIL(CL_INVALID_CONTEXT);
    if (!list || list[0] != SEMAPHORE_TYPE || list[1] != SEMAPHORE_BINARY || list[2] != SEMAPHORE_FD || list[4]) FAIL(CL_INVALID_PROPERTY);
    struct semaphore_words *words = semaphore_open((int)list[3]);
    if (!words) FAIL(CL_INVALID_VALUE);
    struct semaphore *s = object_new(sizeof *s, SEMAPHORE, semaphore_destroy);
    if (!s) abort();
    s->context = hold(c), s->words = words;
    close((int)list[3]); /* the driver owns it now */
    DONE(s);
}
static cl_int release_semaphore(struct semaphore *s) { return release(s, SEMAPHORE, CL_INVALID_SEMAPHORE); }
static cl_int semaphore_command(struct queue *q, cl_uint type, cl_uint count, struct semaphore *const *list,
                                const cl_ulong *payloads, WAITS)
{
    if (!is(q, QUEUE)) return CL_INVALID_COMMAND_QUEUE;
    if (count != 1 || !list || payloads) return CL_INVALID_VALUE;
    if (!is(list[0], SEMAPHORE)) return CL_INVALID_SEMAPHORE;
    if (list[0]->context != q->context) return CL_INVALID_CONTEXT;
    cl_int err = CL_SUCCESS;
    struct command *c = command_new(q, type, n, waits, &err);
    if (!c) return err;
    c->semaphore = hold(list[0]);
    semaphore_enqueue(list[0]->words, type == CL_COMMAND_SIGNAL);
    return submit(q, c, false, event);
}
static cl_int wait_semaphores(struct queue *q, cl_uint count, struct semaphore *const *list, const cl_ulong *payloads, WAITS)
{
    return semaphore_command(q, CL_COMMAND_WAIT, count, list, payloads, n, waits, event);
}
static cl_int signal_semaphores(struct queue *q, cl_uint count, struct semaphore *const *list, const cl_ulong *payloads, WAITS)
{
    return semaphore_command(q, CL_COMMAND_SIGNAL, count, list, payloads, n, waits, event);
}
static void *semaphore_function(const char *name)
{
    if (!strcmp(name, "clCreateSemaphoreWithPropertiesKHR")) return (void *)create_semaphore;
    if (!strcmp(name, "clReleaseSemaphoreKHR")) return (void *)release_semaphore;
    if (!strcmp(name, "clEnqueueWaitSemaphoresKHR")) return (void *)wait_semaphores;
    return strcmp(name, "clEnqueueSignalSemaphoresKHR") ? NULL : (void *)signal_semaphores;
}

struct mem *clCreateBufferWithProperties(struct context *c, const cl_ulong *properties, cl_ulong flags, size_t size,
                                         void *host_ptr, cl_int *err)
{
    if (!properties || !*properties) return clCreateBuffer(c, flags, size, host_ptr, err);
    if (!is(c, CONTEXT)) FAIL(CL_INVALID_CONTEXT);
    const struct quirks *q = &c->platform->quirks;
    if (!may_import(q, properties[0]) || properties[2]) FAIL(CL_INVALID_PROPERTY); /* whatever is reported */
    if (host_ptr) FAIL(CL_INVALID_HOST_PTR);
    if ((flags & ~(cl_ulong)MEM_ACCESS) || !one_bit_at_most(flags)) FAIL(CL_INVALID_VALUE);
    if (!size || size > MAX_ALLOC) FAIL(CL_INVALID_BUFFER_SIZE);
    if (q->refuses) FAIL(CL_OUT_OF_RESOURCES);
    return import(c, (int)properties[1], flags ? flags : CL_MEM_READ_WRITE, size, err);
}
struct mem *clCreateSubBuffer(struct mem *m, cl_ulong flags, cl_uint type, const size_t *region, cl_int *err)
{
    if (!is(m, MEM) || m->root != m) FAIL(CL_INVALID_MEM_OBJECT);
    if (type != 0x1220 || !region || (flags & ~(cl_ulong)(MEM_ACCESS | MEM_HOST_ACCESS)) ||
        !one_bit_at_most(flags & MEM_ACCESS) || !one_bit_at_most(flags & MEM_HOST_ACCESS))
        FAIL(CL_INVALID_VALUE);
    cl_ulong access = flags & MEM_ACCESS, host = flags & MEM_HOST_ACCESS, has = m->flags & MEM_ACCESS;
    if (access && has != CL_MEM_READ_WRITE && access != has) FAIL(CL_INVALID_VALUE); /* may narrow the access, not widen it */
    if (!region[1]) FAIL(CL_INVALID_BUFFER_SIZE);
    if (region[0] > m->size || region[1] > m->size - region[0]) FAIL(CL_INVALID_VALUE);
    if (region[0] % (ALIGN_BITS / 8)) FAIL(CL_MISALIGNED_SUB_BUFFER_OFFSET);
    struct mem *s = object_new(sizeof *s, MEM, mem_destroy);
    if (!s) FAIL(CL_OUT_OF_HOST_MEMORY);
    s->context = hold(m->context), s->root = hold(m), s->origin = region[0], s->size = region[1];
    s->flags = (access ? access : has) | (host ? host : m->flags & MEM_HOST_ACCESS) | (m->flags & MEM_HOST_PTR);
    s->host_ptr = m->host_ptr ? (char *)m->host_ptr + region[0] : NULL;
    DONE(s);
}
cl_int clGetMemObjectInfo(struct mem *m, cl_uint what, INFO)
{
    if (!is(m, MEM)) return CL_INVALID_MEM_OBJECT;
    cl_uint maps = 0;
    lock();
    for (struct mapping *g = m->mappings; g; g = g->next) maps++;
    unlock();
    switch (what) {
    case 0x1100: return GIVE(cl_uint, 0x10F0); /* TYPE: buffer */
    case 0x1101: return GIVE(cl_ulong, m->flags);
    case 0x1102: return GIVE(size_t, m->size);
    case 0x1103: return GIVE(void *, m->host_ptr);
    case 0x1104: return GIVE(cl_uint, maps);
    case 0x1105: return GIVE(cl_uint, (cl_uint)m->o.refs);
    case 0x1106: return GIVE(struct context *, m->context);
    case 0x1107: return GIVE(struct mem *, m->root != m ? m->root : NULL);
    case 0x1108: return GIVE(size_t, m->origin);
    case 0x1109: return GIVE(cl_uint, 0); /* USES_SVM_POINTER */
    case 0x110A: return give(NULL, 0, room, out, need); /* PROPERTIES */
    default: return CL_INVALID_VALUE;
    }
}
cl_int clSetMemObjectDestructorCallback(struct mem *m, mem_callback call, void *user)
{
    if (!is(m, MEM)) return CL_INVALID_MEM_OBJECT;
    if (!call) return CL_INVALID_VALUE;
    struct destructor *d = malloc(sizeof *d);
    if (!d) return CL_OUT_OF_HOST_MEMORY;
    lock();
    *d = (struct destructor){ m->destructors, call, user }; /* the last one registered is called first */
    m->destructors = d;
    unlock();
    return CL_SUCCESS;
}

/* `barred`: the host-access flags that forbid the caller's operation. */
static cl_int check_range(struct queue *q, struct mem *m, size_t offset, size_t size, cl_ulong barred)
{
    if (!is(q, QUEUE)) return CL_INVALID_COMMAND_QUEUE;
    if (!is(m, MEM)) return CL_INVALID_MEM_OBJECT;
    if (m->context != q->context) return CL_INVALID_CONTEXT;
    if (!size || offset > m->size || size > m->size - offset) return CL_INVALID_VALUE;
    return m->flags & barred ? CL_INVALID_OPERATION : CL_SUCCESS;
}
cl_int clEnqueueReadBuffer(struct queue *q, struct mem *m, cl_uint blocking, size_t offset, size_t size, void *out,
                           WAITS)
{
    cl_int err = check_range(q, m, offset, size, CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_NO_ACCESS);
    if (err || !out) return err ? err : CL_INVALID_VALUE;
    struct command *c = command_new(q, CL_COMMAND_READ_BUFFER, n, waits, &err);
    if (!c) return err;
    c->mem = hold(m), c->offset = offset, c->size = size, c->ptr = out;
    return submit(q, c, blocking, event);
}
cl_int clEnqueueWriteBuffer(struct queue *q, struct mem *m, cl_uint blocking, size_t offset, size_t size,
                            const void *from, WAITS)
{
    cl_int err = check_range(q, m, offset, size, CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS);
    if (err || !from) return err ? err : CL_INVALID_VALUE;
    struct command *c = command_new(q, CL_COMMAND_WRITE_BUFFER, n, waits, &err);
    if (!c) return err;
    c->mem = hold(m), c->offset = offset, c->size = size, c->from = from;
    return submit(q, c, blocking, event);
}
cl_int clEnqueueCopyBuffer(struct queue *q, struct mem *m, struct mem *to, size_t offset, size_t to_offset, size_t size,
                           WAITS)
{
    cl_int err = check_range(q, m, offset, size, 0);
    if (err || (err = check_range(q, to, to_offset, size, 0))) return err;
    size_t a = m->origin + offset, b = to->origin + to_offset;
    if (m->root == to->root && a < b + size && b < a + size) return CL_MEM_COPY_OVERLAP;
    struct command *c = command_new(q, CL_COMMAND_COPY_BUFFER, n, waits, &err);
    if (!c) return err;
    c->mem = hold(m), c->to = hold(to), c->offset = offset, c->to_offset = to_offset, c->size = size;
    return submit(q, c, false, event);
}
static bool good_pattern(const void *pattern, size_t pattern_size, size_t offset, size_t size)
{
    return pattern && pattern_size && pattern_size <= 128 && one_bit_at_most(pattern_size) && !(offset % pattern_size) &&
           !(size % pattern_size);
}
cl_int clEnqueueFillBuffer(struct queue *q, struct mem *m, const void *pattern, size_t pattern_size, size_t offset,
                           size_t size, WAITS)
{
    cl_int err = check_range(q, m, offset, size, 0);
    if (err || !good_pattern(pattern, pattern_size, offset, size)) return err ? err : CL_INVALID_VALUE;
    struct command *c = command_new(q, CL_COMMAND_FILL_BUFFER, n, waits, &err);
    if (!c) return err;
    c->mem = hold(m), c->offset = offset, c->size = size, c->pattern_size = pattern_size;
    memcpy(c->pattern, pattern, pattern_size);
    return submit(q, c, false, event);
}

/* Quirks of mapping, before anything else happens. */
static void before_map(struct platform *p)
{
    lock();
    bool first = p->maps++ == 0;
    unlock();
    if (first && p->quirks.crash) crash_now();
    if (first && p->quirks.hang_map) hang_forever();
}
/* `moving`: new memory for each map. The previous block is kept until the next map, and the start varies, so that the allocator
 * cannot return the same address twice in a row. */
static bool map_block(struct mem *root, struct mapping *g)
{
    lock();
    size_t shift = ALIGN_BITS / 8 * (size_t)(root->moved++ % 32);
    unlock();
    if (!(g->block = pages(g->size + PAGE))) return false;
    g->at = g->block + shift;
    return true;
}
void *clEnqueueMapBuffer(struct queue *q, struct mem *m, cl_uint blocking, cl_ulong flags, size_t offset, size_t size,
                         WAITS, cl_int *err)
{
    bool writes = flags & (CL_MAP_WRITE | CL_MAP_WRITE_INVALIDATE_REGION);
    cl_int bad = check_range(q, m, offset, size, CL_MEM_HOST_NO_ACCESS | (writes ? CL_MEM_HOST_READ_ONLY : 0) |
                             (flags & CL_MAP_READ ? CL_MEM_HOST_WRITE_ONLY : 0));
    if (bad) FAIL(bad);
    if (!flags || flags > CL_MAP_WRITE_INVALIDATE_REGION) FAIL(CL_INVALID_VALUE);
    if (m->root->external && !m->root->external->by_arm) FAIL(CL_INVALID_OPERATION); /* imported memory must not be mapped */
    before_map(q->context->platform);
    struct mem *r = m->root;
    struct mapping *g = calloc(1, sizeof *g);
    if (!g) FAIL(CL_OUT_OF_HOST_MEMORY);
    g->offset = offset, g->size = size, g->flags = flags;
    if (!r->moves) g->at = r->host + m->origin + offset;
    else if (!map_block(r, g)) { free(g); FAIL(CL_MEM_OBJECT_ALLOCATION_FAILURE); }
    struct command *c = command_new(q, CL_COMMAND_MAP_BUFFER, n, waits, &bad);
    if (!c) { free(g->block), free(g); FAIL(bad); }
    unsigned char *at = g->at;
    if (r->map_copies && flags != CL_MAP_WRITE_INVALIDATE_REGION) c->ptr = at;
    c->mem = hold(m), c->offset = offset, c->size = size;
    lock();
    g->next = m->mappings, m->mappings = g;
    if (g->block) free(r->old_block), r->old_block = NULL;
    unlock();
    bad = submit(q, c, blocking, event);
    if (bad) {
        struct mapping **link = &m->mappings;
        lock();
        while (*link && *link != g) link = &(*link)->next;
        bool ours = *link == g;
        if (ours) *link = g->next;
        unlock();
        if (ours) free(g->block), free(g);
        FAIL(bad);
    }
    DONE(at);
}
cl_int clEnqueueUnmapMemObject(struct queue *q, struct mem *m, void *at, WAITS)
{
    cl_int err = check_range(q, m, 0, 1, 0);
    if (err) return err;
    struct command *c = command_new(q, CL_COMMAND_UNMAP_MEM_OBJECT, n, waits, &err);
    if (!c) return err;
    lock();
    struct mapping **link = &m->mappings, *g;
    while ((g = *link) && g->at != at) link = &g->next;
    if (g) *link = g->next;
    unlock();
    if (!g) {
        clReleaseEvent(c->event);
        command_free(c);
        return CL_INVALID_VALUE;
    }
    c->mem = hold(m), c->mapping = g;
    return submit(q, c, false, event);
}
static void unmap(struct mem *m, struct mapping *g)
{
    if (m->root->unmap_copies && g->flags != CL_MAP_READ) device_write(m, g->offset, g->at, g->size);
    lock();
    if (g->block) free(m->root->old_block), m->root->old_block = g->block, g->block = NULL;
    unlock();
}

/* ---- Shared virtual memory -------------------------------------------------------------------------------- */
static bool has_svm(struct context *c) { return !c->platform->quirks.liar && declared_svm(&c->platform->quirks); }
/* The number of bytes of an SVM allocation that follow `at`; 0 if it is in none. */
static size_t svm_room(struct context *c, const void *at)
{
    size_t room = 0;
    lock();
    for (struct svm *s = c->svm; s; s = s->next) {
        size_t offset = (size_t)((uintptr_t)at - (uintptr_t)s->base);
        if (offset < s->size) room = s->size - offset;
    }
    unlock();
    return room;
}
void *clSVMAlloc(struct context *c, cl_ulong flags, size_t size, cl_uint align)
{
    if (!is(c, CONTEXT) || !has_svm(c) || !size || size > MAX_ALLOC || !may_allocate(&c->platform->quirks, size) ||
        !one_bit_at_most(align) || align > ALIGN_BITS / 8 || !one_bit_at_most(flags & MEM_ACCESS) ||
        (flags & ~(cl_ulong)(MEM_ACCESS | CL_MEM_SVM_FINE_GRAIN_BUFFER)))
        return NULL;
    struct svm *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->base = agent_alloc(&c->platform->quirks, size, flags & CL_MEM_SVM_FINE_GRAIN_BUFFER);
    s->beside = s->base;
    if (!s->base && !(s->base = pages(size))) { free(s); return NULL; }
    hold(c);
    s->size = size;
    lock(), s->next = c->svm, c->svm = s, live++, unlock();
    return s->base;
}
static void svm_free(struct context *c, void *at) /* also for commands that outlive the client's context */
{
    lock();
    struct svm **link = &c->svm, *s;
    while ((s = *link) && s->base != at) link = &s->next;
    if (s) *link = s->next, live--;
    unlock();
    if (s && s->beside) agent_free(s->base);
    else if (s) free(s->base);
    if (s) free(s), drop(c);
}
void clSVMFree(struct context *c, void *at) { if (is(c, CONTEXT) && at) svm_free(c, at); }
static cl_int check_svm(struct queue *q, const void *at, size_t size)
{
    if (!is(q, QUEUE)) return CL_INVALID_COMMAND_QUEUE;
    if (!has_svm(q->context)) return CL_INVALID_OPERATION;
    if (agent_knows(&q->context->platform->quirks, at)) violation("an SVM call was given memory of HIP's");
    return size && svm_room(q->context, at) >= size ? CL_SUCCESS : CL_INVALID_VALUE;
}
cl_int clEnqueueSVMMap(struct queue *q, cl_uint blocking, cl_ulong flags, void *at, size_t size, WAITS)
{
    cl_int err = check_svm(q, at, size);
    if (err || !flags) return err ? err : CL_INVALID_VALUE;
    struct command *c = command_new(q, CL_COMMAND_SVM_MAP, n, waits, &err);
    return c ? submit(q, c, blocking, event) : err;
}
cl_int clEnqueueSVMUnmap(struct queue *q, void *at, WAITS)
{
    cl_int err = check_svm(q, at, 1);
    return err ? err : nothing(q, CL_COMMAND_SVM_UNMAP, n, waits, event);
}
cl_int clEnqueueSVMMemcpy(struct queue *q, cl_uint blocking, void *to, const void *from, size_t size, WAITS)
{
    if (!is(q, QUEUE)) return CL_INVALID_COMMAND_QUEUE;
    if (!has_svm(q->context)) return CL_INVALID_OPERATION;
    if (!to || !from || !size) return CL_INVALID_VALUE;
    const struct quirks *quirks = &q->context->platform->quirks;
    if (agent_knows(quirks, to) == 2 || agent_knows(quirks, from) == 2) violation("an SVM copy was given memory of HIP's");
    uintptr_t a = (uintptr_t)to, b = (uintptr_t)from;
    if (a < b + size && b < a + size) return CL_MEM_COPY_OVERLAP;
    size_t to_room = svm_room(q->context, to), from_room = svm_room(q->context, from); /* 0: plain host memory */
    if ((to_room && to_room < size) || (from_room && from_room < size)) return CL_INVALID_VALUE;
    cl_int err;
    struct command *c = command_new(q, CL_COMMAND_SVM_MEMCPY, n, waits, &err);
    if (!c) return err;
    c->ptr = to, c->from = from, c->size = size;
    return submit(q, c, blocking, event);
}
cl_int clEnqueueSVMMemFill(struct queue *q, void *at, const void *pattern, size_t pattern_size, size_t size, WAITS)
{
    cl_int err = check_svm(q, at, size);
    if (err || !good_pattern(pattern, pattern_size, (size_t)at, size)) return err ? err : CL_INVALID_VALUE;
    struct command *c = command_new(q, CL_COMMAND_SVM_MEMFILL, n, waits, &err);
    if (!c) return err;
    c->ptr = at, c->size = size, c->pattern_size = pattern_size;
    memcpy(c->pattern, pattern, pattern_size);
    return submit(q, c, false, event);
}
cl_int clEnqueueSVMFree(struct queue *q, cl_uint count, void *list[], svm_free_callback call, void *user, WAITS)
{
    if (!is(q, QUEUE)) return CL_INVALID_COMMAND_QUEUE;
    if (!has_svm(q->context)) return CL_INVALID_OPERATION;
    if (!count != !list) return CL_INVALID_VALUE;
    void **copy = calloc(count + 1, sizeof *copy);
    cl_int err = CL_OUT_OF_HOST_MEMORY;
    struct command *c = copy ? command_new(q, CL_COMMAND_SVM_FREE, n, waits, &err) : NULL;
    if (!c) { free(copy); return err; }
    if (count) memcpy(copy, list, count * sizeof *copy);
    c->svm = copy, c->count = count, c->svm_callback = call, c->ptr = user;
    return submit(q, c, false, event);
}

/* ---- Programs and kernels --------------------------------------------------------------------------------- */
static const struct native natives[] = {
    { "onebuf_step", "uint*", 4, 1 }, { "advance", "uint*", 4, 1 }, { "onebuf_step_bytes", "uchar*", 1, 1 }, { "onebuf_step_pages", "uint*", 4, 1024 },
    { "levels", "uchar*", 1, 1 }, /* without adding i */
    { "onebuf_address", "ulong*", 0, 0 }, /* stores the address of its second argument into its first */
};
static cl_uint parameters(const struct native *k) { return k->element ? 5 : 2; }
static const char binary_mark[] = "onebuf-stub-binary\n"; /* a binary is this, followed by the source */

static void program_destroy(void *p)
{
    struct program *g = p;
    free(g->source), free(g->options), free(g->log);
    drop(g->context);
}
static struct program *program_new(struct context *c, cl_uint n, const char *const *texts, const size_t *sizes,
                                   cl_int *err)
{
    size_t total = 0, size;
    if (!is(c, CONTEXT)) FAIL(CL_INVALID_CONTEXT);
    if (!n || !texts) FAIL(CL_INVALID_VALUE);
    struct program *g = object_new(sizeof *g, PROGRAM, program_destroy);
    if (!g) FAIL(CL_OUT_OF_HOST_MEMORY);
    g->context = hold(c), g->status = -1, g->source = calloc(1, 1), g->log = calloc(1, 1);
    for (cl_uint i = 0; i < n && g->source; i++, total += size) {
        if (!texts[i]) { clReleaseProgram(g); FAIL(CL_INVALID_VALUE); }
        size = sizes && sizes[i] ? sizes[i] : strlen(texts[i]);
        char *more = realloc(g->source, total + size + 1);
        if (!more) { free(g->source), g->source = NULL; break; }
        g->source = more;
        memcpy(g->source + total, texts[i], size);
        g->source[total + size] = 0;
    }
    if (!g->source || !g->log) { clReleaseProgram(g); FAIL(CL_OUT_OF_HOST_MEMORY); }
    DONE(g);
}
struct program *clCreateProgramWithSource(struct context *c, cl_uint n, const char **texts, const size_t *sizes,
                                          cl_int *err)
{
    return program_new(c, n, (const char *const *)texts, sizes, err);
}
struct program *clCreateProgramWithBinary(struct context *c, cl_uint n, struct device *const *devices,
                                          const size_t *sizes, const unsigned char **binaries, cl_int *status,
                                          cl_int *err)
{
    size_t mark = sizeof binary_mark - 1;
    if (n != 1 || !devices || !sizes || !binaries || !binaries[0]) FAIL(CL_INVALID_VALUE);
    bool good = sizes[0] > mark && !memcmp(binaries[0], binary_mark, mark);
    if (status) *status = good ? CL_SUCCESS : CL_INVALID_BINARY;
    if (!good) FAIL(CL_INVALID_BINARY);
    const char *source = (const char *)binaries[0] + mark;
    return program_new(c, 1, &source, (size_t[]){ sizes[0] - mark }, err);
}
cl_int clBuildProgram(struct program *g, cl_uint n, struct device *const *devices, const char *options,
                      void (*notify)(struct program *, void *), void *user)
{
    if (!is(g, PROGRAM)) return CL_INVALID_PROGRAM;
    if (!n != !devices) return CL_INVALID_VALUE;
    const char *bad = strstr(g->source, "#error"), *other = strstr(g->source, "syntax_error");
    if (!bad || (other && other < bad)) bad = other;
    /* As NVIDIA's compiler, for kernels without parameters. */
    if (!bad && options && strstr(options, "-cl-kernel-arg-info")) bad = strstr(g->source, "ptxas_no_arg_info");
    char log[128] = "";
    int line = 1, column = 1;
    for (const char *at = g->source; bad && at < bad; at++) line += *at == '\n', column = *at == '\n' ? 1 : column + 1;
    size_t rest = bad ? strcspn(bad, "\n") : 0;
    if (bad) snprintf(log, sizeof log, "<source>:%d:%d: error: %.*s\n", line, column, rest < 60 ? (int)rest : 60, bad);
    free(g->log), free(g->options);
    g->log = strdup(log), g->options = strdup(options ? options : "");
    g->status = bad ? -2 : 0;
    if (notify) notify(g, user);
    return bad ? CL_BUILD_PROGRAM_FAILURE : CL_SUCCESS;
}
cl_int clGetProgramBuildInfo(struct program *g, struct device *d, cl_uint what, INFO)
{
    if (!is(g, PROGRAM)) return CL_INVALID_PROGRAM;
    if (!is(d, DEVICE) || d->platform != g->context->platform) return CL_INVALID_DEVICE;
    switch (what) {
    case 0x1181: return GIVE(cl_int, g->status);
    case 0x1182: return TEXT(g->options ? g->options : "");
    case 0x1183: return TEXT(g->log ? g->log : "");
    case 0x1184: return GIVE(cl_uint, g->status ? 0 : 4); /* BINARY_TYPE: executable */
    default: return CL_INVALID_VALUE;
    }
}
/* The bytes of ONEBUF_STUB_BINARY, for the lifetime of the process. */
static const char *binary_file(size_t *bytes)
{
    static char file[1 << 20];
    const char *path = getenv("ONEBUF_STUB_BINARY");
    FILE *from = path ? fopen(path, "rb") : NULL;
    if (!from) return NULL;
    *bytes = fread(file, 1, sizeof file, from);
    fclose(from);
    return file;
}
static bool has_word(const char *text, const char *word)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    for (const char *at = text; (at = strstr(at, word)); at++)
        if ((at == text || !strchr(letters, at[-1])) && !strspn(at + strlen(word), letters)) return true;
    return false;
}
cl_int clGetProgramInfo(struct program *g, cl_uint what, INFO)
{
    if (!is(g, PROGRAM)) return CL_INVALID_PROGRAM;
    size_t mark = sizeof binary_mark - 1, size = strlen(g->source), file_bytes = 0;
    const char *file = what == 0x1165 || what == 0x1166 || what == 0x1169 ? binary_file(&file_bytes) : NULL;
    switch (what) {
    case 0x1169: return give(file, file && !memcmp(file, "\x03\x02#\x07", 4) ? file_bytes : 0, room, out, need);
    case 0x1160: return GIVE(cl_uint, (cl_uint)g->o.refs);
    case 0x1161: return GIVE(struct context *, g->context);
    case 0x1162: return GIVE(cl_uint, 1);
    case 0x1163: return GIVE(struct device *, &g->context->platform->device);
    case 0x1164: return TEXT(g->source);
    case 0x1165: return GIVE(size_t, g->status ? 0 : file ? file_bytes : mark + size); /* BINARY_SIZES */
    case 0x1166:                                                  /* BINARIES: an array of pointers to fill */
        if (need) *need = sizeof(char *);
        if (out && room < sizeof(char *)) return CL_INVALID_VALUE;
        if (out && *(char **)out && !g->status && file)
            memcpy(*(char **)out, file, file_bytes);
        else if (out && *(char **)out && !g->status)
            memcpy(*(char **)out, binary_mark, mark), memcpy(*(char **)out + mark, g->source, size);
        return CL_SUCCESS;
    case 0x1168: {                                                /* KERNEL_NAMES */
        if (!getenv("ONEBUF_STUB_NAMES")) return CL_INVALID_VALUE;
        char names[256] = "";
        for (size_t i = 0; i < sizeof natives / sizeof *natives; i++)
            if (has_word(g->source, natives[i].name)) strcat(strcat(names, *names ? ";" : ""), natives[i].name);
        return TEXT(names);
    }
    default: return CL_INVALID_VALUE;
    }
}
static void kernel_destroy(void *p) { drop(((struct kernel *)p)->program); }
struct kernel *clCreateKernel(struct program *g, const char *name, cl_int *err)
{
    if (!is(g, PROGRAM)) FAIL(CL_INVALID_PROGRAM);
    if (!name) FAIL(CL_INVALID_VALUE);
    if (g->status) FAIL(CL_INVALID_PROGRAM_EXECUTABLE);
    const struct native *native = NULL;
    for (size_t i = 0; i < sizeof natives / sizeof *natives; i++)
        if (!strcmp(natives[i].name, name)) native = &natives[i];
    if (!native || !has_word(g->source, name)) FAIL(CL_INVALID_KERNEL_NAME);
    struct kernel *k = object_new(sizeof *k, KERNEL, kernel_destroy);
    if (!k) FAIL(CL_OUT_OF_HOST_MEMORY);
    k->program = hold(g), k->native = native;
    DONE(k);
}
cl_int clSetKernelArg(struct kernel *k, cl_uint index, size_t size, const void *value)
{
    if (!is(k, KERNEL)) return CL_INVALID_KERNEL;
    if (index >= parameters(k->native)) return CL_INVALID_ARG_INDEX;
    if (!value) return CL_INVALID_ARG_VALUE;
    bool plain = index && k->native->element;
    if (size != (plain ? sizeof(cl_uint) : sizeof(struct mem *))) return CL_INVALID_ARG_SIZE;
    struct arg a = { .set = true };
    if (plain) memcpy(&a.value, value, sizeof a.value);
    else memcpy(&a.mem, value, sizeof a.mem); /* not held, as in OpenCL: a launch holds it */
    if (!plain && (!is(a.mem, MEM) || a.mem->context != k->program->context)) return CL_INVALID_MEM_OBJECT;
    k->args[index] = a;
    return CL_SUCCESS;
}
cl_int clSetKernelArgSVMPointer(struct kernel *k, cl_uint index, const void *at)
{
    if (!is(k, KERNEL)) return CL_INVALID_KERNEL;
    if (!has_svm(k->program->context)) return CL_INVALID_OPERATION;
    if (index) return CL_INVALID_ARG_INDEX;
    size_t room = svm_room(k->program->context, at);
    bool unknown = !room && k->program->context->platform->quirks.amd; /* which is not checked */
    if (!room && !unknown) return CL_INVALID_ARG_VALUE;
    k->args[0] = (struct arg){ .set = true, .unknown = unknown, .svm = (unsigned char *)(uintptr_t)at, .room = room };
    return CL_SUCCESS;
}
cl_int clSetKernelExecInfo(struct kernel *k, cl_uint what, size_t size, const void *value)
{
    if (!is(k, KERNEL)) return CL_INVALID_KERNEL;
    if (!has_svm(k->program->context)) return CL_INVALID_OPERATION;
    return what == 0x11B6 && size && value ? CL_SUCCESS : CL_INVALID_VALUE; /* SVM_PTRS; nothing to prepare */
}
cl_int clGetKernelInfo(struct kernel *k, cl_uint what, INFO)
{
    if (!is(k, KERNEL)) return CL_INVALID_KERNEL;
    switch (what) {
    case 0x1190: return TEXT(k->native->name);
    case 0x1191: return GIVE(cl_uint, parameters(k->native));
    case 0x1192: return GIVE(cl_uint, (cl_uint)k->o.refs);
    case 0x1193: return GIVE(struct context *, k->program->context);
    case 0x1194: return GIVE(struct program *, k->program);
    default: return CL_INVALID_VALUE;
    }
}
cl_int clGetKernelArgInfo(struct kernel *k, cl_uint index, cl_uint what, INFO)
{
    static const char *const names[] = { "p", "first", "n", "mul", "add" };
    if (!is(k, KERNEL)) return CL_INVALID_KERNEL;
    if (index > 4) return CL_INVALID_ARG_INDEX;
    const char *options = k->program->options;
    if (!options || !strstr(options, "-cl-kernel-arg-info")) return CL_KERNEL_ARG_INFO_NOT_AVAILABLE;
    switch (what) {
    case 0x1196: return GIVE(cl_uint, index ? 0x119E : 0x119B); /* ADDRESS_QUALIFIER: private, global */
    case 0x1197: return GIVE(cl_uint, 0x11A3);                  /* ACCESS_QUALIFIER: none */
    case 0x1198: return TEXT(index ? "uint" : k->native->type);
    case 0x1199: return GIVE(cl_ulong, 0);                      /* TYPE_QUALIFIER */
    case 0x119A: return TEXT(names[index]);
    default: return CL_INVALID_VALUE;
    }
}
cl_int clGetKernelWorkGroupInfo(struct kernel *k, struct device *d, cl_uint what, INFO)
{
    if (!is(k, KERNEL)) return CL_INVALID_KERNEL;
    if (d && d != &k->program->context->platform->device) return CL_INVALID_DEVICE;
    switch (what) {
    case 0x11B0: return GIVE(size_t, MAX_GROUP);
    case 0x11B1: return GIVE(size_t, 0, 0, 0); /* COMPILE_WORK_GROUP_SIZE */
    case 0x11B2: return GIVE(cl_ulong, 0);     /* LOCAL_MEM_SIZE */
    case 0x11B3: return GIVE(size_t, 1);       /* PREFERRED_WORK_GROUP_SIZE_MULTIPLE */
    case 0x11B4: return GIVE(cl_ulong, 0);     /* PRIVATE_MEM_SIZE */
    default: return CL_INVALID_VALUE;
    }
}
/* The kernels are one-dimensional: further dimensions must be 1. */
cl_int clEnqueueNDRangeKernel(struct queue *q, struct kernel *k, cl_uint dims, const size_t *offset, const size_t *global,
                              const size_t *local, WAITS)
{
    if (!is(q, QUEUE)) return CL_INVALID_COMMAND_QUEUE;
    if (!is(k, KERNEL)) return CL_INVALID_KERNEL;
    if (k->program->context != q->context) return CL_INVALID_CONTEXT;
    if (dims < 1 || dims > 3) return CL_INVALID_WORK_DIMENSION;
    for (cl_uint i = 0; i < dims; i++) {
        if (!global || !global[i] || (i && global[i] != 1)) return CL_INVALID_GLOBAL_WORK_SIZE;
        if (local && (!local[i] || local[i] > MAX_GROUP || global[i] % local[i])) return CL_INVALID_WORK_GROUP_SIZE;
    }
    for (cl_uint i = 0; i < parameters(k->native); i++) if (!k->args[i].set) return CL_INVALID_KERNEL_ARGS;
    if (!k->args[0].svm && !is(k->args[0].mem, MEM)) return CL_INVALID_KERNEL_ARGS;
    cl_int err;
    struct command *c = command_new(q, CL_COMMAND_NDRANGE_KERNEL, n, waits, &err);
    if (!c) return err;
    memcpy(c->args, k->args, sizeof c->args);
    c->to = hold(c->args[1].mem);
    if (c->args[0].unknown) agent_use(c->args[0].svm, 1);
    c->mem = hold(c->args[0].mem), c->native = k->native, c->offset = offset ? offset[0] : 0, c->size = global[0];
    return submit(q, c, false, event);
}
static cl_int tell_address(const struct command *c)
{
    static unsigned char nobodys[64];
    size_t one = 1;
    const void *at = device_bytes(c->args[1].mem, 0, &one);
    uint64_t told = (uint64_t)(uintptr_t)(c->event->context->platform->quirks.wrong_address ? nobodys : at);
    device_write(c->args[0].mem, 0, &told, sizeof told);
    return CL_SUCCESS;
}
/* p[at] = p[at] * mul + add + i at (first + i) * stride, for the global ids i < n; out of bounds is a lost device. */
static cl_int step(const struct command *c)
{
    struct arg a[5];
    memcpy(a, c->args, sizeof a);
    if (a[0].unknown && !(a[0].svm = reach(&c->event->context->platform->quirks, a[0].svm, &a[0].room)))
        return CL_OUT_OF_RESOURCES;
    size_t first = a[1].value, element = c->native->element, step = element * c->native->stride;
    size_t i = c->offset, end = c->offset + c->size;
    size_t room = a[0].mem ? a[0].mem->size : a[0].room;
    cl_uint mul = a[3].value, add = a[4].value, slope = strcmp(c->native->name, "levels") != 0, v;
    if (end > a[2].value) end = a[2].value;
    if (i < end && (first + end - 1) * step + element > room) return CL_OUT_OF_RESOURCES;
    for (; step > element && i < end; i++) {
        size_t size = element;
        unsigned char *p = a[0].mem ? device_bytes(a[0].mem, (first + i) * step, &size) : a[0].svm + (first + i) * step;
        memcpy(&v, p, 4), v = v * mul + add + (cl_uint)i, memcpy(p, &v, 4);
    }
    while (i < end) {
        size_t size = (end - i) * element, at = (first + i) * element;
        unsigned char *p = a[0].mem ? device_bytes(a[0].mem, at, &size) : a[0].svm + at;
        if (element == 1)
            for (unsigned char *stop = p + size; p < stop; p++, i++) *p = (unsigned char)(*p * mul + add + slope * (cl_uint)i);
        else
            for (unsigned char *stop = p + size; p < stop; p += 4, i++)
                memcpy(&v, p, 4), v = v * mul + add + (cl_uint)i, memcpy(p, &v, 4);
    }
    return CL_SUCCESS;
}

/* ---- Execution of commands (on the queue's thread, without the lock) -------------------------------------- */
static void fill(const struct command *c)
{
    unsigned char block[PAGE]; /* a whole number of patterns */
    for (size_t i = 0; i < sizeof block; i += c->pattern_size) memcpy(block + i, c->pattern, c->pattern_size);
    for (size_t done = 0, n; done < c->size; done += n) {
        n = c->size - done < sizeof block ? c->size - done : sizeof block;
        if (c->mem) device_write(c->mem, c->offset + done, block, n);
        else memcpy((char *)c->ptr + done, block, n);
    }
}
static void copy(const struct command *c)
{
    for (size_t done = 0, n; done < c->size; done += n) {
        n = c->size - done;
        const unsigned char *from = device_bytes(c->mem, c->offset + done, &n);
        device_write(c->to, c->to_offset + done, from, n);
    }
}
static cl_int execute(struct command *c)
{
    switch (c->event->type) {
    case CL_COMMAND_NDRANGE_KERNEL: return c->native->element ? step(c) : tell_address(c);
    case CL_COMMAND_READ_BUFFER: device_read(c->mem, c->offset, c->ptr, c->size); break;
    case CL_COMMAND_WRITE_BUFFER: device_write(c->mem, c->offset, c->from, c->size); break;
    case CL_COMMAND_MAP_BUFFER: if (c->ptr) device_read(c->mem, c->offset, c->ptr, c->size); break;
    case CL_COMMAND_UNMAP_MEM_OBJECT: unmap(c->mem, c->mapping); break;
    case CL_COMMAND_ACQUIRE_EXTERNAL: case CL_COMMAND_ACQUIRE_GL:
        for (cl_uint i = 0; i < c->count; i++) hand_over(c->objects[i], true);
        break;
    case CL_COMMAND_RELEASE_EXTERNAL: case CL_COMMAND_RELEASE_GL:
        for (cl_uint i = 0; i < c->count; i++) hand_over(c->objects[i], false);
        break;
    case CL_COMMAND_SIGNAL: case CL_COMMAND_WAIT:
        while (!semaphore_run(c->semaphore->words, c->event->type == CL_COMMAND_SIGNAL)) usleep(20);
        break;
    case CL_COMMAND_COPY_BUFFER: copy(c); break;
    case CL_COMMAND_FILL_BUFFER: case CL_COMMAND_SVM_MEMFILL: fill(c); break;
    case CL_COMMAND_SVM_MEMCPY: memcpy(c->ptr, c->from, c->size); break;
    case CL_COMMAND_SVM_FREE:
        if (c->svm_callback) c->svm_callback(c->event->queue, c->count, c->svm, c->ptr);
        else for (cl_uint i = 0; i < c->count; i++) svm_free(c->event->context, c->svm[i]);
        break;
    }
    return CL_SUCCESS;
}
