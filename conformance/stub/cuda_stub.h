/* Declarations shared by the files of the stub of CUDA, HIP and HSA. Nothing here is exported from the library. */
#ifndef ONEBUF_CUDA_STUB_H
#define ONEBUF_CUDA_STUB_H
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int status;
enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NO_BINARY = 209, INVALID_HANDLE = 400, NOT_FOUND = 500,
    NOT_READY = 600, ILLEGAL_ADDRESS = 700, PEER_ALREADY = 704, ALREADY_REGISTERED = 712, NOT_REGISTERED = 713,
    LAUNCH_FAILED = 719, NOT_SUPPORTED = 801,
    RTC_INVALID_INPUT = 3, RTC_INVALID_PROGRAM = 4, RTC_INVALID_OPTION = 5, RTC_COMPILATION = 6,
    DEVICES = 2, MAX_PARAMETERS = 8,
    CREATED = DEVICES, CONTEXTS /* the primary ones, by device, and one that cuCtxCreate makes on device 0 */
};
#define TAG ((uint64_t)1 << 62)     /* device pointers are real addresses plus this */
#define MEMORY ((size_t)1 << 30)    /* bytes of each device */
#define LEAD ((size_t)64 << 10)     /* bytes in the file before an allocation, so that exports have an offset */
#define FILE_NAME "onebuf-stub"
#define EXPORT __attribute__((visibility("default")))
#define HIP(name, of) __attribute__((visibility("default"), alias(#of)))
#define ENTER_TO_FREE int device = current(); if (device < 0) return INVALID_CONTEXT
#define ENTER int device; status entered = enter(&device); if (entered) return entered; (void)device

/* MAPPED: virtual memory; IMPORTED: external memory; OPENED: memory of another process; GRAPHICS: OpenGL's memory; FOREIGN:
 * OpenCL's memory in the same address space (agent_stub.c). The others are host memory. */
enum kind { DEVICE_MEMORY, MAPPED, IMPORTED, OPENED, GRAPHICS, PINNED, REGISTERED, FOREIGN, MANAGED };
struct device { int retained, objects; bool dead, peers[CONTEXTS]; };
struct range {
    enum kind kind;
    int device;
    char *at;
    size_t bytes;
    int uses;
    unsigned access;   /* MAPPED: the devices that may access it, one bit each */
    int file;          /* the file with its bytes, or -1; at an offset of LEAD bytes */
    char *base;        /* its mapping, if it has one */
    size_t mapped;
    char *shadow;      /* what the other API finds at the address, if that is not shared */
    bool on_host;      /* FOREIGN: not in a device's memory */
    bool *on_host_pages; /* MANAGED: which pages are on the host; null if chip and host share memory */
    void *of;          /* its allocation, external memory or handle */
    struct range *next;
};
enum command_kind { COPY, FILL, MARK, WAIT, LAUNCH, WAIT_VALUE, WRITE_VALUE, CALL_HOST, CALL, MOVE, SIGNAL, WAIT_SIGNAL };
struct command {
    enum command_kind kind;
    struct range *uses[MAX_PARAMETERS];
    struct module *module;
    char *to, *from, *owned;
    size_t bytes, width;
    uint32_t value;
    struct mark *mark;
    const struct kernel *kernel;
    uint64_t parameters[MAX_PARAMETERS];
    unsigned groups[3], group[3], shared;
    uint64_t wanted, mask;       /* WAIT_VALUE, WRITE_VALUE; their width is `width` */
    unsigned flags;
    void (*function)(void *);    /* CALL_HOST */
    void *user;                  /* the function's argument, or the semaphore of SIGNAL and WAIT_SIGNAL */
    void (*call)(void *);        /* a function of a library or of cuda_managed.c, with `owned` */
    int device;                  /* set by push */
    void *after, *over;          /* layered_stub.c: what it waits for, and what it completes */
    struct command *next;
};
struct stream { int device; bool closing, captured; void *below; struct command *first, **last, *running; pthread_t thread; };

#pragma GCC visibility push(hidden)
extern struct device devices[CONTEXTS];
extern struct range *ranges;
extern size_t allocated[CONTEXTS];
extern bool initialised, is_hip;

void lock(void);
void unlock(void);
void die(const char *why);
void nap(long us);
int current(void);
status enter(int *device);
status leave(status done, int device);
status known(int device);
status belongs(int device, int to);
static inline char *real(uint64_t at) { return (char *)(uintptr_t)(at & ~TAG); }
static inline uint64_t tagged(const void *at) { return (uint64_t)(uintptr_t)at | TAG; }
static inline bool is_device(enum kind kind) { return kind < PINNED; }

/* All of these are called with the lock. */
struct range *find(uint64_t address, size_t bytes);
struct range *add_range(enum kind kind, int device, char *at, size_t bytes);
status remove_range(enum kind kind, void *at);
bool may_touch(const struct range *r, int device);
bool use(struct command *c, int slot, uint64_t at, size_t bytes);
bool use_known(struct command *c, int slot, uint64_t at, size_t bytes);
void push(struct stream *s, struct command command);
struct stream *stream_of(void *handle); /* without the lock */

bool is_integrated(void);
/* cuda_managed.c; the third is called without the lock */
bool has_managed(void);
void forget_managed(struct range *r);
char *seen_by_device(char *at, size_t bytes);
/* cuda_share.c */
void start_sharing(void);
void in_host_function(void);
int new_file(size_t bytes);
bool is_our_file(int fd);
bool execute_shared(struct command *c);
void forget_external(struct range *r);
void reservation_of(char **at, size_t *bytes);
int handle_types(const struct range *r);
/* cuda_semaphore.c */
void execute_semaphore(const struct command *c);
void semaphore_over(const struct command *c);
int live_semaphores(void);
/* cuda_graphics.c */
int live_resources(void);

/* layered_stub.c, in the library that is layered on OpenCL; null in the other. Called without the lock, except `pushed`. */
struct mark { int refs; bool done; uint64_t ns; void *native; };
struct event { int device; bool timed; struct mark *mark; };
extern struct layered {
    void (*pushed)(struct stream *s, struct command *c);
    void (*wait)(void *after);
    void (*complete)(void *over);
    void (*release)(void *native);
    void (*close)(void *below);
    char *(*unbundle)(const void *image);   /* the names in a bundle's module, or null */
    bool captures;                          /* a stream that waits for an event takes no more work */
} layered;
/* Not null in that library, from its start on. */
int hipGetBackendNativeHandles(uintptr_t stream, uintptr_t *handles, int *count) __attribute__((weak, visibility("default")));

bool chosen_to_fail(const char *call, status *with);
status record(const char *call, status s, const char *format, ...) __attribute__((format(printf, 3, 4)));
#pragma GCC visibility pop
#endif
