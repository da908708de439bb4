/* Memory of the stub that others can access: virtual memory (cuMemCreate and related calls), external memory, other
 * processes, other devices; and what streams wait for besides events: values in memory, host functions.
 *
 * All device memory is in files (memfd), so exported memory is really shared: a mapping of the descriptor has the same
 * bytes. The stub is strict. It refuses sizes and addresses that are no multiples of the granularity, unknown flags,
 * and descriptors that are closed or not from a stub. Memory without access does not exist. Freeing twice, or while
 * mapped or in use by buffers, ends the process with status 99; so does an API call inside a host function, and a
 * kernel, fill or copy on memory of another device without peer access.
 *
 * Ownership of descriptors: cuImportExternalMemory takes the descriptor and closes it immediately;
 * hipImportExternalMemory does not, and neither do both imports of allocations.
 *
 * Each call here and in hsa_stub.c is recorded, one line each: cuMemCreate(bytes=2097152, device=0, handles=1) = 0
 *
 *   size_t onebuf_stub_record(char *to, size_t len)   the lines so far, cut to len - 1 bytes; returns their length
 *   void onebuf_stub_forget(void)                     clears the record
 *   void onebuf_stub_fail(name, status, times)        the next calls of that name fail, without any effect
 *   int onebuf_stub_live(void)                        the number of live allocations, reservations, mappings, imports
 *
 * ONEBUF_CUDA_STUB_RECORD=file   also appends the lines to this file
 * ONEBUF_CUDA_STUB_FAIL=a:1,b:2  from the start, every call of a returns 1 and every call of b returns 2
 * ONEBUF_CUDA_STUB_PEERS=0       devices cannot access each other's memory */
#include "cuda_stub.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define GRANULARITY ((size_t)2 << 20)
enum {
    FD_HANDLE = 1, ON_DEVICE = 1, PINNED_KIND = 1, READ_ONLY_ACCESS = 1, READ_WRITE_ACCESS = 3, OPAQUE_FD = 1,
    DEDICATED = 1, PEER_UNSUPPORTED = 217
};

/* ---- Records and failures ------------------------------------------------------------------------------------ */
static pthread_mutex_t record_mutex = PTHREAD_MUTEX_INITIALIZER; /* always the last one to be taken */
static char *lines;
static size_t lines_len, lines_room;
static struct failure { char call[64]; status with; int times; } failures[16];
static bool can_reach_peers = true;

static void note(const char *line, size_t len)
{
    if (lines_len + len + 1 > lines_room) lines = realloc(lines, lines_room = (lines_len + len + 1) * 2);
    memcpy(lines + lines_len, line, len + 1);
    lines_len += len;
    const char *path = getenv("ONEBUF_CUDA_STUB_RECORD");
    FILE *file = path ? fopen(path, "ae") : NULL;
    if (!file) return;
    fputs(line, file);
    fclose(file);
}

status record(const char *call, status s, const char *format, ...)
{
    char arguments[512], line[640];
    va_list list;
    va_start(list, format);
    vsnprintf(arguments, sizeof arguments, format, list);
    va_end(list);
    int len = snprintf(line, sizeof line, "%s(%s) = %d\n", call, arguments, s);
    pthread_mutex_lock(&record_mutex);
    note(line, (size_t)len);
    pthread_mutex_unlock(&record_mutex);
    return s;
}

EXPORT size_t onebuf_stub_record(char *to, size_t len)
{
    pthread_mutex_lock(&record_mutex);
    if (len) snprintf(to, len, "%s", lines ? lines : "");
    size_t all = lines_len;
    pthread_mutex_unlock(&record_mutex);
    return all;
}

EXPORT void onebuf_stub_forget(void)
{
    pthread_mutex_lock(&record_mutex);
    lines_len = 0;
    if (lines) *lines = 0;
    pthread_mutex_unlock(&record_mutex);
}

EXPORT void onebuf_stub_fail(const char *call, status with, int times)
{
    pthread_mutex_lock(&record_mutex);
    int slot = 0;
    for (int i = 0; i < 16; i++) if (!failures[i].times || !strcmp(failures[i].call, call)) slot = i;
    snprintf(failures[slot].call, sizeof failures[slot].call, "%s", call);
    failures[slot].with = with;
    failures[slot].times = times;
    pthread_mutex_unlock(&record_mutex);
}

bool chosen_to_fail(const char *call, status *with)
{
    bool chosen = false;
    pthread_mutex_lock(&record_mutex);
    for (int i = 0; i < 16 && !chosen; i++) {
        struct failure *f = &failures[i];
        chosen = f->times > 0 && !strcmp(f->call, call);
        if (chosen) { f->times--; *with = f->with; }
    }
    pthread_mutex_unlock(&record_mutex);
    if (chosen) record(call, *with, "chosen to fail");
    return chosen;
}
#define CALL(cuda, hip) \
    const char *call = is_hip ? hip : cuda; \
    status s = OK; \
    if (!initialised) return NOT_INITIALIZED; \
    if (chosen_to_fail(call, &s)) return s

void start_sharing(void)
{
    const char *peers = getenv("ONEBUF_CUDA_STUB_PEERS"), *fail = getenv("ONEBUF_CUDA_STUB_FAIL");
    can_reach_peers = !peers || atoi(peers);
    char *copy = strdup(fail ? fail : ""), *rest = copy, *word;
    while ((word = strtok_r(rest, ",", &rest))) {
        char *colon = strchr(word, ':');
        if (!colon) die("ONEBUF_CUDA_STUB_FAIL wants name:status");
        *colon = 0;
        onebuf_stub_fail(word, atoi(colon + 1), INT_MAX);
    }
    free(copy);
}

/* ---- Files --------------------------------------------------------------------------------------------------- */
int new_file(size_t bytes)
{
    int fd = memfd_create(FILE_NAME, MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)bytes)) { close(fd); fd = -1; }
    return fd;
}

/* Whether the descriptor is open and was created by a stub, in this process or another. */
bool is_our_file(int fd)
{
    char link[64], name[64] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, name, sizeof name - 1);
    return fd >= 0 && len > 0 && strstr(name, "memfd:" FILE_NAME);
}

static size_t file_bytes(int fd)
{
    struct stat about;
    return fstat(fd, &about) ? 0 : (size_t)about.st_size;
}

/* Maps these bytes of a file as a range; NULL if that fails. */
static struct range *map_file(enum kind kind, int device, int fd, size_t offset, size_t bytes)
{
    size_t skip = offset % 4096;
    char *base = mmap(NULL, bytes + skip, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(offset - skip));
    if (base == MAP_FAILED) return NULL;
    struct range *r = add_range(kind, device, base + skip, bytes);
    r->base = base;
    r->mapped = bytes + skip;
    return r;
}

/* ---- Virtual memory ------------------------------------------------------------------------------------------ */
struct location { int kind, id; };
struct prop { int kind, handles; struct location location; void *metadata; unsigned char flags[8]; };
struct access { struct location location; int flags; };
struct allocation { int device, handles, file, maps, references; size_t bytes; bool released, imported; struct allocation *next; };
struct reservation { char *at; size_t bytes; struct reservation *next; };
static struct allocation *allocations;
static struct reservation *reservations;

static bool is_unit(uint64_t bytes) { return bytes && bytes % GRANULARITY == 0; }

static status check_prop(const struct prop *p)
{
    if (!p || p->kind != PINNED_KIND || (p->handles & ~FD_HANDLE) || p->location.kind != ON_DEVICE) return INVALID_VALUE;
    for (size_t i = 0; i < sizeof p->flags; i++) if (p->flags[i] && i != 1) return INVALID_VALUE; /* 1: RDMA */
    return known(p->location.id);
}

/* Locked: the allocation with that handle, unless it is released. */
static struct allocation *allocation(const void *handle)
{
    for (struct allocation *a = allocations; a; a = a->next) if (a == handle) return a->released ? NULL : a;
    return NULL;
}

/* Locked: an allocation lives as long as its handle or a mapping. */
static void drop_allocation(struct allocation *of)
{
    if (!of->released || of->maps) return;
    for (struct allocation **link = &allocations; *link; link = &(*link)->next) {
        if (*link != of) continue;
        *link = of->next;
        if (!of->imported) allocated[of->device] -= of->bytes;
        close(of->file);
        free(of);
        return;
    }
}

static void *add_allocation(int device, int handles, int file, size_t bytes, bool imported)
{
    struct allocation *a = malloc(sizeof *a);
    *a = (struct allocation){ .device = device, .handles = handles, .file = file, .references = 1, .bytes = bytes,
                              .imported = imported, .next = allocations };
    allocations = a;
    return a;
}

EXPORT status cuMemGetAllocationGranularity(size_t *bytes, const struct prop *prop, int option)
{
    CALL("cuMemGetAllocationGranularity", "hipMemGetAllocationGranularity");
    s = option == 0 || option == 1 ? check_prop(prop) : INVALID_VALUE;
    if (!s) *bytes = GRANULARITY;
    return record(call, s, "device=%d, option=%d", prop ? prop->location.id : -1, option);
}
status hipMemGetAllocationGranularity(size_t *bytes, const struct prop *prop, int option)
    HIP(hipMemGetAllocationGranularity, cuMemGetAllocationGranularity);

EXPORT status cuMemCreate(void **handle, size_t bytes, const struct prop *prop, unsigned long long flags)
{
    CALL("cuMemCreate", "hipMemCreate");
    s = !is_unit(bytes) || flags ? INVALID_VALUE : check_prop(prop);
    lock();
    if (!s && allocated[prop->location.id] + bytes > MEMORY) s = OUT_OF_MEMORY;
    int file = s ? -1 : new_file(bytes);
    if (!s && file < 0) s = OUT_OF_MEMORY;
    if (!s) {
        *handle = add_allocation(prop->location.id, prop->handles, file, bytes, false);
        allocated[prop->location.id] += bytes;
    }
    unlock();
    return record(call, s, "bytes=%zu, device=%d, handles=%d, flags=%llu", bytes, prop ? prop->location.id : -1,
                  prop ? prop->handles : -1, flags);
}
status hipMemCreate(void **handle, size_t bytes, const struct prop *prop, unsigned long long flags)
    HIP(hipMemCreate, cuMemCreate);

EXPORT status cuMemRelease(void *handle)
{
    CALL("cuMemRelease", "hipMemRelease");
    lock();
    struct allocation *a = allocation(handle);
    if (!a) die("an allocation was released twice, or is none");
    a->released = --a->references == 0;
    drop_allocation(a);
    unlock();
    return record(call, s, "handle=%p", handle);
}
status hipMemRelease(void *handle) HIP(hipMemRelease, cuMemRelease);

/* Another reference to the allocation that is mapped at the address; its handle may have been released. */
EXPORT status cuMemRetainAllocationHandle(void **handle, void *at)
{
    CALL("cuMemRetainAllocationHandle", "hipMemRetainAllocationHandle");
    lock();
    struct range *r = find((uint64_t)(uintptr_t)at, 1);
    struct allocation *a = r && r->kind == MAPPED ? r->of : NULL;
    if (!a) s = INVALID_VALUE;
    else {
        a->references++;
        a->released = false;
        *handle = a;
    }
    unlock();
    return record(call, s, "at=%p", at);
}
status hipMemRetainAllocationHandle(void **handle, void *at)
    HIP(hipMemRetainAllocationHandle, cuMemRetainAllocationHandle);

/* Locked: the kinds of handle that a mapped allocation was created for. */
/* Locked. The start and the size of the reservation that contains an address. */
void reservation_of(char **at, size_t *bytes)
{
    for (struct reservation *v = reservations; v; v = v->next)
        if (*at >= v->at && *at < v->at + v->bytes) {
            *at = v->at, *bytes = v->bytes;
            return;
        }
}

int handle_types(const struct range *r) { return r->kind == MAPPED ? ((struct allocation *)r->of)->handles : 0; }

EXPORT status cuMemExportToShareableHandle(void *shareable, void *handle, int kind, unsigned long long flags)
{
    CALL("cuMemExportToShareableHandle", "hipMemExportToShareableHandle");
    int fd = -1;
    lock();
    struct allocation *a = allocation(handle);
    if (!a) s = INVALID_HANDLE;
    else if (kind != FD_HANDLE || !(a->handles & FD_HANDLE) || flags || !shareable) s = INVALID_VALUE;
    else if ((fd = fcntl(a->file, F_DUPFD_CLOEXEC, 0)) < 0) s = OUT_OF_MEMORY;
    unlock();
    if (!s) memcpy(shareable, &fd, sizeof fd);
    return record(call, s, "handle=%p, kind=%d, flags=%llu, fd=%d", handle, kind, flags, fd);
}
status hipMemExportToShareableHandle(void *shareable, void *handle, int kind, unsigned long long flags)
    HIP(hipMemExportToShareableHandle, cuMemExportToShareableHandle);

/* The descriptor is passed in place of the pointer, and stays the caller's. */
EXPORT status cuMemImportFromShareableHandle(void **handle, void *shareable, int kind)
{
    CALL("cuMemImportFromShareableHandle", "hipMemImportFromShareableHandle");
    int fd = (int)(intptr_t)shareable, device = current();
    if (device < 0) device = 0;
    if (kind != FD_HANDLE || !is_our_file(fd) || !is_unit(file_bytes(fd))) s = INVALID_VALUE;
    int file = s ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (!s && file < 0) s = OUT_OF_MEMORY;
    lock();
    if (!s) *handle = add_allocation(device, FD_HANDLE, file, file_bytes(file), true);
    unlock();
    return record(call, s, "fd=%d, kind=%d", fd, kind);
}
status hipMemImportFromShareableHandle(void **handle, void *shareable, int kind)
    HIP(hipMemImportFromShareableHandle, cuMemImportFromShareableHandle);

EXPORT status cuMemAddressReserve(uint64_t *at, size_t bytes, size_t align, uint64_t hint, unsigned long long flags)
{
    CALL("cuMemAddressReserve", "hipMemAddressReserve");
    if (!is_unit(bytes) || (align & (align - 1)) || align > GRANULARITY || flags) s = INVALID_VALUE;
    size_t more = bytes + GRANULARITY;
    char *base = s ? MAP_FAILED : mmap(NULL, more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!s && base == MAP_FAILED) s = OUT_OF_MEMORY;
    if (!s) {
        size_t before = GRANULARITY - (uintptr_t)base % GRANULARITY;
        munmap(base, before);
        if (GRANULARITY - before) munmap(base + before + bytes, GRANULARITY - before);
        struct reservation *r = malloc(sizeof *r);
        lock();
        *r = (struct reservation){ base + before, bytes, reservations };
        reservations = r;
        unlock();
        *at = tagged(r->at);
    }
    return record(call, s, "bytes=%zu, align=%zu, hint=%#llx, flags=%llu", bytes, align, (unsigned long long)hint, flags);
}
status hipMemAddressReserve(uint64_t *at, size_t bytes, size_t align, uint64_t hint, unsigned long long flags)
    HIP(hipMemAddressReserve, cuMemAddressReserve);

/* Locked: whether one reservation contains all of this. */
static bool is_reserved(const char *at, size_t bytes)
{
    for (struct reservation *r = reservations; r; r = r->next)
        if (at >= r->at && bytes <= r->bytes && (size_t)(at - r->at) <= r->bytes - bytes) return true;
    return false;
}

/* Locked: a mapping that overlaps these bytes. */
static struct range *mapping_in(const char *at, size_t bytes)
{
    for (struct range *r = ranges; r; r = r->next)
        if (r->kind == MAPPED && at < r->at + r->bytes && r->at < at + bytes) return r;
    return NULL;
}

EXPORT status cuMemAddressFree(uint64_t at, size_t bytes)
{
    CALL("cuMemAddressFree", "hipMemAddressFree");
    s = INVALID_VALUE;
    lock();
    for (struct reservation **link = &reservations; *link; link = &(*link)->next) {
        struct reservation *r = *link;
        if (tagged(r->at) != at || r->bytes != bytes) continue;
        if (mapping_in(r->at, bytes)) die("addresses were given back under their mapping");
        *link = r->next;
        munmap(r->at, bytes);
        free(r);
        s = OK;
        break;
    }
    unlock();
    if (s) die("addresses were given back twice, or not as they were reserved");
    return record(call, s, "at=%#llx, bytes=%zu", (unsigned long long)at, bytes);
}
status hipMemAddressFree(uint64_t at, size_t bytes) HIP(hipMemAddressFree, cuMemAddressFree);

EXPORT status cuMemMap(uint64_t at, size_t bytes, size_t offset, void *handle, unsigned long long flags)
{
    CALL("cuMemMap", "hipMemMap");
    char *to = real(at);
    lock();
    struct allocation *a = allocation(handle);
    if (!a) s = INVALID_HANDLE;
    else if (!(at & TAG) || at % GRANULARITY || !is_unit(bytes) || offset || bytes > a->bytes || flags) s = INVALID_VALUE;
    else if (!is_reserved(to, bytes) || mapping_in(to, bytes)) s = INVALID_VALUE;
    /* Inaccessible until access is set, for the stub too. */
    else if (mmap(to, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, a->file, 0) == MAP_FAILED) s = OUT_OF_MEMORY;
    else {
        add_range(MAPPED, a->device, to, bytes)->of = a;
        devices[a->device].objects--; /* a mapping belongs to no context */
        a->maps++;
    }
    unlock();
    return record(call, s, "at=%#llx, bytes=%zu, offset=%zu, handle=%p, flags=%llu", (unsigned long long)at, bytes,
                  offset, handle, flags);
}
status hipMemMap(uint64_t at, size_t bytes, size_t offset, void *handle, unsigned long long flags)
    HIP(hipMemMap, cuMemMap);

EXPORT status cuMemUnmap(uint64_t at, size_t bytes)
{
    CALL("cuMemUnmap", "hipMemUnmap");
    char *from = real(at);
    lock();
    struct range *r = at & TAG ? mapping_in(from, bytes) : NULL;
    if (!r || r->at != from || r->bytes != bytes) die("memory was unmapped twice, or not as it was mapped");
    struct allocation *a = r->of;
    devices[r->device].objects++;
    remove_range(MAPPED, from); /* ends the process if work uses it */
    mmap(from, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    a->maps--;
    drop_allocation(a);
    unlock();
    return record(call, s, "at=%#llx, bytes=%zu", (unsigned long long)at, bytes);
}
status hipMemUnmap(uint64_t at, size_t bytes) HIP(hipMemUnmap, cuMemUnmap);

static status set_access(struct range *r, const struct access *to)
{
    if (to->location.kind != ON_DEVICE || known(to->location.id)) return INVALID_VALUE;
    unsigned bit = 1u << to->location.id;
    if (to->flags == READ_WRITE_ACCESS || to->flags == READ_ONLY_ACCESS) r->access |= bit;
    else if (to->flags == 0) r->access &= ~bit;
    else return INVALID_VALUE;
    return mprotect(r->at, r->bytes, r->access ? PROT_READ | PROT_WRITE : PROT_NONE) ? OUT_OF_MEMORY : OK;
}

EXPORT status cuMemSetAccess(uint64_t at, size_t bytes, const struct access *to, size_t count)
{
    CALL("cuMemSetAccess", "hipMemSetAccess");
    lock();
    struct range *r = at & TAG ? mapping_in(real(at), bytes) : NULL;
    if (!r || r->at != real(at) || r->bytes != bytes || !count || !to) s = INVALID_VALUE;
    for (size_t i = 0; i < count && !s; i++) s = set_access(r, &to[i]);
    unlock();
    return record(call, s, "at=%#llx, bytes=%zu, device=%d, access=%d, count=%zu", (unsigned long long)at, bytes,
                  count && to ? to->location.id : -1, count && to ? to->flags : -1, count);
}
status hipMemSetAccess(uint64_t at, size_t bytes, const struct access *to, size_t count)
    HIP(hipMemSetAccess, cuMemSetAccess);

/* ---- External memory ----------------------------------------------------------------------------------------- */
struct handle_desc {
    int kind;
    union { int fd; void *words[2]; } handle;
    unsigned long long bytes;
    unsigned flags, reserved[16];
};
struct buffer_desc { unsigned long long offset, bytes; unsigned flags, reserved[16]; };
_Static_assert(sizeof(struct handle_desc) == 104 && sizeof(struct buffer_desc) == 88, "as in the headers");
struct external { int device, file, buffers; size_t bytes; struct external *next; };
static struct external *externals;

static bool is_zero(const unsigned *words) { for (int i = 0; i < 16; i++) if (words[i]) return false; return true; }

static struct external *external(const void *handle)
{
    for (struct external *e = externals; e; e = e->next) if (e == handle) return e;
    return NULL;
}

EXPORT status cuImportExternalMemory(void **memory, const struct handle_desc *desc)
{
    ENTER;
    CALL("cuImportExternalMemory", "hipImportExternalMemory");
    int fd = desc->handle.fd;
    if (desc->kind != OPAQUE_FD || (desc->flags & ~(unsigned)DEDICATED) || !is_zero(desc->reserved)) s = INVALID_VALUE;
    else if (!is_our_file(fd) || !desc->bytes || desc->bytes > file_bytes(fd)) s = INVALID_VALUE;
    int file = s ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (!s && file < 0) s = OUT_OF_MEMORY;
    if (!s) {
        struct external *e = malloc(sizeof *e);
        lock();
        *e = (struct external){ device, file, 0, desc->bytes, externals };
        externals = e;
        devices[device].objects++;
        unlock();
        *memory = e;
        if (!is_hip) close(fd); /* the driver owns it now: closing it again would close another file */
    }
    return record(call, s, "kind=%d, fd=%d, bytes=%llu, flags=%u", desc->kind, fd, desc->bytes, desc->flags);
}
status hipImportExternalMemory(void **memory, const struct handle_desc *desc)
    HIP(hipImportExternalMemory, cuImportExternalMemory);

EXPORT status cuExternalMemoryGetMappedBuffer(uint64_t *at, void *memory, const struct buffer_desc *desc)
{
    ENTER;
    CALL("cuExternalMemoryGetMappedBuffer", "hipExternalMemoryGetMappedBuffer");
    lock();
    struct external *e = external(memory);
    if (!e || e->device != device) s = INVALID_HANDLE;
    else if (!desc->bytes || desc->flags || !is_zero(desc->reserved)) s = INVALID_VALUE;
    else if (desc->bytes > e->bytes || desc->offset > e->bytes - desc->bytes) s = INVALID_VALUE;
    struct range *r = s ? NULL : map_file(IMPORTED, device, e->file, desc->offset, desc->bytes);
    if (!s && !r) s = OUT_OF_MEMORY;
    if (r) {
        r->of = e;
        e->buffers++;
        *at = tagged(r->at);
    }
    unlock();
    return record(call, s, "memory=%p, offset=%llu, bytes=%llu, flags=%u", memory, desc->offset, desc->bytes,
                  desc->flags);
}
status hipExternalMemoryGetMappedBuffer(uint64_t *at, void *memory, const struct buffer_desc *desc)
    HIP(hipExternalMemoryGetMappedBuffer, cuExternalMemoryGetMappedBuffer);

/* Locked: such a buffer is freed by cuMemFree. */
void forget_external(struct range *r)
{
    ((struct external *)r->of)->buffers--;
}

EXPORT status cuDestroyExternalMemory(void *memory)
{
    ENTER_TO_FREE;
    CALL("cuDestroyExternalMemory", "hipDestroyExternalMemory");
    lock();
    struct external *e = external(memory), **link = &externals;
    if (!e) die("external memory was destroyed twice, or is none");
    if (e->buffers) die("external memory was destroyed before its buffers were freed");
    while (*link != e) link = &(*link)->next;
    *link = e->next;
    devices[e->device].objects--;
    unlock();
    close(e->file);
    free(e);
    return record(call, leave(s, device), "memory=%p", memory);
}
status hipDestroyExternalMemory(void *memory) HIP(hipDestroyExternalMemory, cuDestroyExternalMemory);

/* ---- Other processes ----------------------------------------------------------------------------------------- */
struct ipc { int pid, fd; uint64_t offset, bytes, inode; };
struct ipc_handle { char bytes[64]; };

static uint64_t inode(int fd)
{
    struct stat about;
    return fstat(fd, &about) ? 0 : (uint64_t)about.st_ino;
}

EXPORT status cuMemGetAddressRange_v2(uint64_t *base, size_t *bytes, uint64_t at)
{
    ENTER;
    CALL("cuMemGetAddressRange_v2", "hipMemGetAddressRange");
    lock();
    struct range *r = at & TAG ? find(at, 1) : NULL;
    if (!r) s = INVALID_VALUE;
    else {
        *base = tagged(r->at);
        *bytes = r->bytes;
    }
    unlock();
    return record(call, s, "at=%#llx", (unsigned long long)at);
}
status hipMemGetAddressRange(uint64_t *base, size_t *bytes, uint64_t at)
    HIP(hipMemGetAddressRange, cuMemGetAddressRange_v2);

EXPORT status cuIpcGetMemHandle(struct ipc_handle *handle, uint64_t at)
{
    ENTER;
    CALL("cuIpcGetMemHandle", "hipIpcGetMemHandle");
    lock();
    struct range *r = at & TAG ? find(at, 1) : NULL;
    if (!r || r->kind != DEVICE_MEMORY || r->device != device) s = INVALID_VALUE;
    else {
        struct ipc ipc = { getpid(), r->file, LEAD, r->bytes, inode(r->file) };
        memset(handle, 0, sizeof *handle);
        memcpy(handle, &ipc, sizeof ipc);
    }
    unlock();
    return record(call, s, "at=%#llx", (unsigned long long)at);
}
status hipIpcGetMemHandle(struct ipc_handle *handle, uint64_t at) HIP(hipIpcGetMemHandle, cuIpcGetMemHandle);

/* Opens the exporter's file by its number there; it must still be the same file. */
static int file_of(const struct ipc *ipc)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", ipc->pid, ipc->fd);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file >= 0 && inode(file) != ipc->inode) { close(file); file = -1; }
    return file;
}

EXPORT status cuIpcOpenMemHandle_v2(uint64_t *at, struct ipc_handle handle, unsigned flags)
{
    ENTER;
    CALL("cuIpcOpenMemHandle_v2", "hipIpcOpenMemHandle");
    struct ipc ipc;
    memcpy(&ipc, &handle, sizeof ipc);
    if (flags != 1) s = INVALID_VALUE;
    else if (ipc.pid == getpid()) s = INVALID_CONTEXT; /* as in the drivers: not in the process that exported it */
    int file = s ? -1 : file_of(&ipc);
    if (!s && (file < 0 || ipc.offset > file_bytes(file) || ipc.bytes > file_bytes(file) - ipc.offset)) s = INVALID_HANDLE;
    lock();
    struct range *r = s ? NULL : map_file(OPENED, device, file, ipc.offset, ipc.bytes);
    if (!s && !r) s = OUT_OF_MEMORY;
    if (r) *at = tagged(r->at);
    unlock();
    if (file >= 0) close(file);
    return record(call, s, "pid=%d, bytes=%llu, flags=%u", ipc.pid, (unsigned long long)ipc.bytes, flags);
}
status hipIpcOpenMemHandle(uint64_t *at, struct ipc_handle handle, unsigned flags)
    HIP(hipIpcOpenMemHandle, cuIpcOpenMemHandle_v2);

EXPORT status cuIpcCloseMemHandle(uint64_t at)
{
    ENTER_TO_FREE;
    CALL("cuIpcCloseMemHandle", "hipIpcCloseMemHandle");
    lock();
    s = remove_range(OPENED, real(at));
    unlock();
    return record(call, leave(s, device), "at=%#llx", (unsigned long long)at);
}
status hipIpcCloseMemHandle(uint64_t at) HIP(hipIpcCloseMemHandle, cuIpcCloseMemHandle);

/* ---- Other devices ------------------------------------------------------------------------------------------- */
EXPORT status cuDeviceCanAccessPeer(int *can, int device, int peer)
{
    CALL("cuDeviceCanAccessPeer", "hipDeviceCanAccessPeer");
    s = known(device) ? INVALID_DEVICE : known(peer);
    if (!s) *can = can_reach_peers && device != peer;
    return record(call, s, "device=%d, peer=%d", device, peer);
}
status hipDeviceCanAccessPeer(int *can, int device, int peer) HIP(hipDeviceCanAccessPeer, cuDeviceCanAccessPeer);

static status enable_peer(int device, int peer, unsigned flags)
{
    if (known(peer) || peer == device) return INVALID_DEVICE;
    if (flags || !can_reach_peers) return flags ? INVALID_VALUE : PEER_UNSUPPORTED;
    lock();
    bool already = devices[device].peers[peer];
    devices[device].peers[peer] = true;
    unlock();
    return already ? PEER_ALREADY : OK;
}

static int device_of(const void *context)
{
    const struct device *of = context;
    return of >= devices && of < devices + DEVICES ? (int)(of - devices) : -1;
}

EXPORT status cuCtxEnablePeerAccess(void *context, unsigned flags)
{
    ENTER;
    CALL("cuCtxEnablePeerAccess", "");
    int peer = device_of(context);
    s = peer < 0 ? INVALID_CONTEXT : enable_peer(device, peer, flags);
    return record(call, s, "device=%d, peer=%d, flags=%u", device, peer, flags);
}

EXPORT status hipDeviceEnablePeerAccess(int peer, unsigned flags)
{
    ENTER;
    CALL("", "hipDeviceEnablePeerAccess");
    s = enable_peer(device, peer, flags);
    return record(call, s, "device=%d, peer=%d, flags=%u", device, peer, flags);
}

static status copy_peer(uint64_t to, int to_device, uint64_t from, int from_device, size_t bytes, struct stream *stream)
{
    struct command c = { .kind = COPY, .to = real(to), .from = real(from), .bytes = bytes };
    struct range *a = find(to, bytes), *b = find(from, bytes);
    if (!bytes || !a || !b || a->device != to_device || b->device != from_device) return INVALID_VALUE;
    if (belongs(current(), stream->device)) return INVALID_HANDLE;
    a->uses++;
    b->uses++;
    c.uses[0] = a;
    c.uses[1] = b;
    push(stream, c);
    return OK;
}

EXPORT status cuMemcpyPeerAsync(uint64_t to, void *to_context, uint64_t from, void *from_context, size_t bytes,
                                void *stream)
{
    ENTER;
    CALL("cuMemcpyPeerAsync", "");
    struct stream *in = stream_of(stream);
    lock();
    s = copy_peer(to, device_of(to_context), from, device_of(from_context), bytes, in);
    unlock();
    return record(call, s, "to=%#llx, device=%d, from=%#llx, device=%d, bytes=%zu", (unsigned long long)to,
                  device_of(to_context), (unsigned long long)from, device_of(from_context), bytes);
}

EXPORT status hipMemcpyPeerAsync(uint64_t to, int to_device, uint64_t from, int from_device, size_t bytes, void *stream)
{
    ENTER;
    CALL("", "hipMemcpyPeerAsync");
    struct stream *in = stream_of(stream);
    lock();
    s = copy_peer(to, to_device, from, from_device, bytes, in);
    unlock();
    return record(call, s, "to=%#llx, device=%d, from=%#llx, device=%d, bytes=%zu", (unsigned long long)to, to_device,
                  (unsigned long long)from, from_device, bytes);
}

/* ---- Wait values and host functions -------------------------------------------------------------------------- */
enum { GEQ, EQ, AND, NOR };

static status value_command(const char *call, struct command c, uint64_t at, void *stream)
{
    ENTER;
    struct stream *to = stream_of(stream);
    status s = at % c.width || c.flags > (c.kind == WAIT_VALUE ? NOR : 0) ? INVALID_VALUE : belongs(device, to->device);
    c.to = real(at);
    lock();
    if (!s && !use_known(&c, 0, at, c.width)) s = INVALID_VALUE; /* memory that the API does not know, or must not access */
    if (!s) push(to, c);
    unlock();
    return record(call, s, "at=%#llx, value=%llu, flags=%u, mask=%#llx", (unsigned long long)at,
                  (unsigned long long)c.wanted, c.flags, (unsigned long long)c.mask);
}
#define VALUE(of, size, value, with, and) \
    (struct command){ .kind = of, .width = size, .wanted = value, .flags = with, .mask = and }

EXPORT status cuStreamWaitValue32_v2(void *stream, uint64_t at, uint32_t value, unsigned flags)
{
    CALL("cuStreamWaitValue32_v2", "");
    return value_command(call, VALUE(WAIT_VALUE, 4, value, flags, UINT32_MAX), at, stream);
}
status cuStreamWaitValue32(void *stream, uint64_t at, uint32_t value, unsigned flags)
    HIP(cuStreamWaitValue32, cuStreamWaitValue32_v2);

EXPORT status cuStreamWaitValue64_v2(void *stream, uint64_t at, uint64_t value, unsigned flags)
{
    CALL("cuStreamWaitValue64_v2", "");
    return value_command(call, VALUE(WAIT_VALUE, 8, value, flags, UINT64_MAX), at, stream);
}
status cuStreamWaitValue64(void *stream, uint64_t at, uint64_t value, unsigned flags)
    HIP(cuStreamWaitValue64, cuStreamWaitValue64_v2);

EXPORT status hipStreamWaitValue32(void *stream, uint64_t at, uint32_t value, unsigned flags, uint32_t mask)
{
    CALL("", "hipStreamWaitValue32");
    return value_command(call, VALUE(WAIT_VALUE, 4, value, flags, mask), at, stream);
}

EXPORT status hipStreamWaitValue64(void *stream, uint64_t at, uint64_t value, unsigned flags, uint64_t mask)
{
    CALL("", "hipStreamWaitValue64");
    return value_command(call, VALUE(WAIT_VALUE, 8, value, flags, mask), at, stream);
}

EXPORT status cuStreamWriteValue32_v2(void *stream, uint64_t at, uint32_t value, unsigned flags)
{
    CALL("cuStreamWriteValue32_v2", "hipStreamWriteValue32");
    return value_command(call, VALUE(WRITE_VALUE, 4, value, flags, UINT32_MAX), at, stream);
}
status cuStreamWriteValue32(void *stream, uint64_t at, uint32_t value, unsigned flags)
    HIP(cuStreamWriteValue32, cuStreamWriteValue32_v2);
status hipStreamWriteValue32(void *stream, uint64_t at, uint32_t value, unsigned flags)
    HIP(hipStreamWriteValue32, cuStreamWriteValue32_v2);

EXPORT status cuLaunchHostFunc(void *stream, void (*function)(void *), void *user)
{
    ENTER;
    CALL("cuLaunchHostFunc", "hipLaunchHostFunc");
    struct stream *to = stream_of(stream);
    s = function ? belongs(device, to->device) : INVALID_VALUE;
    lock();
    if (!s) push(to, (struct command){ .kind = CALL_HOST, .function = function, .user = user });
    unlock();
    return record(call, s, "function, user=%p", user);
}
status hipLaunchHostFunc(void *stream, void (*function)(void *), void *user) HIP(hipLaunchHostFunc, cuLaunchHostFunc);

/* CUDA compares by distance, so that counters may wrap around; HIP does not. */
static bool holds(const struct command *c)
{
    bool wide = c->width == 8;
    uint64_t now = wide ? atomic_load((_Atomic uint64_t *)(void *)c->to) : atomic_load((_Atomic uint32_t *)(void *)c->to);
    uint64_t wanted = c->wanted;
    now &= c->mask;
    switch (c->flags) {
    case GEQ:
        if (is_hip) return now >= wanted;
        return wide ? (int64_t)(now - wanted) >= 0 : (int32_t)(uint32_t)(now - wanted) >= 0;
    case EQ: return now == wanted;
    case AND: return now & wanted;
    default: return ~(now | wanted) & c->mask;
    }
}

static _Thread_local bool calling_host;
void in_host_function(void)
{
    if (calling_host) die("the API was called in a function that it called itself");
}

/* On the stream's thread, without the lock. */
bool execute_shared(struct command *c)
{
    switch (c->kind) {
    case WAIT_VALUE: while (!holds(c)) nap(50); return true;
    case SIGNAL: case WAIT_SIGNAL: execute_semaphore(c); return true;
    case WRITE_VALUE: atomic_store((_Atomic uint32_t *)(void *)c->to, (uint32_t)c->wanted); return true;
    default:
        calling_host = true;
        c->function(c->user);
        calling_host = false;
        return true;
    }
}

/* ---- Live objects -------------------------------------------------------------------------------------------- */
EXPORT int onebuf_stub_live(void)
{
    lock();
    int n = live_semaphores() + live_resources();
    for (struct allocation *a = allocations; a; a = a->next) n++;
    for (struct reservation *r = reservations; r; r = r->next) n++;
    for (struct external *e = externals; e; e = e->next) n++;
    for (struct range *r = ranges; r; r = r->next) n += r->kind == MAPPED || r->kind == IMPORTED || r->kind == OPENED;
    unlock();
    return n;
}
