/* Managed memory: one address for host and devices.
 *
 * If chip and host share memory (ONEBUF_CUDA_STUB_INTEGRATED), both use it at any time. Otherwise each page is on one side. The
 * stub is stricter than a driver, which would migrate pages on access: a host access to pages that are not on the host raises
 * SIGSEGV, and a kernel, fill or copy on host pages ends the process with status 99. Untouched pages belong to the first device
 * that uses them. Each call here is recorded and can be made to fail: see cuda_share.c.
 *
 *   void onebuf_stub_managed(int has)   whether devices have concurrent managed access; they do by default
 *   void onebuf_stub_crowd(int by)      new managed memory starts that many bytes after a page boundary
 *
 * The host sees its pages at the allocation's address, the devices at `base`: the same file, mapped twice. */
#include "cuda_stub.h"
#include <string.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, ON_DEVICE = 1, ON_HOST = 2, CPU = -1 };
struct location { int kind, id; };
struct move { struct range *range; size_t start, end; bool to_host; };
static bool managed = true;
static size_t lead;

EXPORT void onebuf_stub_managed(int has) { managed = has; }
EXPORT void onebuf_stub_crowd(int by) { lead = (size_t)by; }
bool has_managed(void) { return managed; }

/* Locked. The file has room for the bytes before the memory. */
static status allocate_managed(uint64_t *at, size_t bytes, int device)
{
    size_t room = (lead + bytes + PAGE - 1) / PAGE * PAGE;
    int file = new_file(room);
    if (file < 0) return OUT_OF_MEMORY;
    char *seen = mmap(NULL, room, PROT_NONE, MAP_SHARED, file, 0);
    char *base = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (seen == MAP_FAILED || base == MAP_FAILED) die("no room for managed memory");
    memset(base, 0x5A, room);
    struct range *r = add_range(MANAGED, device, seen + lead, bytes);
    r->file = file;
    r->base = base;
    r->mapped = room;
    r->on_host_pages = calloc(1, room / PAGE);
    *at = (uint64_t)(uintptr_t)r->at;
    return OK;
}

/* Locked: frees what `remove_range` does not. */
void forget_managed(struct range *r)
{
    if (!r->on_host_pages) { free(r->at); return; }
    munmap((char *)((uintptr_t)r->at / PAGE * PAGE), r->mapped);
    free(r->on_host_pages);
}

/* The address at which a device sees this memory: not the host's address, and only if the pages are on the device. */
char *seen_by_device(char *at, size_t bytes)
{
    lock();
    struct range *r = find((uint64_t)(uintptr_t)at, bytes);
    if (r && r->kind == MANAGED && r->on_host_pages) {
        char *first = (char *)((uintptr_t)r->at / PAGE * PAGE);
        for (size_t page = (size_t)(at - first) / PAGE; page * PAGE < (size_t)(at - first) + bytes; page++)
            if (r->on_host_pages[page]) die("managed pages that lie on the host were used by a device: they would move without a word");
        at = r->base + (at - first);
    }
    unlock();
    return at;
}

EXPORT status cuMemAllocManaged(uint64_t *at, size_t bytes, unsigned flags)
{
    ENTER;
    const char *call = is_hip ? "hipMallocManaged" : "cuMemAllocManaged";
    status s = OK;
    if (chosen_to_fail(call, &s)) return s;
    if ((!is_integrated() && !managed) || flags != 1 || !bytes) return record(call, INVALID_VALUE, "bytes=%zu", bytes);
    lock();
    if (is_integrated()) {
        void *memory;
        if (posix_memalign(&memory, PAGE, bytes)) die("no room for managed memory");
        memset(memory, 0x5A, bytes);
        add_range(MANAGED, device, memory, bytes);
        *at = (uint64_t)(uintptr_t)memory;
    } else {
        s = allocate_managed(at, bytes, device);
    }
    unlock();
    return record(call, s, "bytes=%zu", bytes);
}
status hipMallocManaged(uint64_t *at, size_t bytes, unsigned flags) HIP(hipMallocManaged, cuMemAllocManaged);

/* On the stream's thread: moves whole pages, as drivers do. */
static void move_now(void *argument)
{
    struct move *m = argument;
    lock();
    char *first = (char *)((uintptr_t)m->range->at / PAGE * PAGE);
    for (size_t page = m->start / PAGE; page * PAGE < m->end; page++) m->range->on_host_pages[page] = m->to_host;
    size_t start = m->start / PAGE * PAGE, end = (m->end + PAGE - 1) / PAGE * PAGE;
    if (mprotect(first + start, end - start, m->to_host ? PROT_READ | PROT_WRITE : PROT_NONE)) die("a move of pages");
    unlock();
}

static status prefetch(const char *call, uint64_t at, size_t bytes, int to, void *stream)
{
    ENTER;
    struct stream *s = stream_of(stream);
    status result = OK;
    if (chosen_to_fail(call, &result)) return result;
    lock();
    struct range *r = bytes ? find(at, bytes) : NULL;
    size_t offset = r ? (size_t)((char *)(uintptr_t)at - r->at) : 0;
    if (!r || r->kind != MANAGED || !r->on_host_pages) result = INVALID_VALUE;
    else if (to != CPU && known(to)) result = INVALID_DEVICE;
    else if (belongs(device, s->device)) result = INVALID_HANDLE;
    else {
        struct move *m = malloc(sizeof *m);
        size_t start = (uintptr_t)r->at % PAGE + offset;
        *m = (struct move){ r, start, start + bytes, to == CPU };
        struct command c = { .kind = MOVE, .call = move_now, .owned = (char *)m };
        use(&c, 0, at, bytes);
        push(s, c);
    }
    unlock();
    return record(call, result, "offset=%zu, bytes=%zu, to=%d", offset, bytes, to);
}
EXPORT status cuMemPrefetchAsync(uint64_t at, size_t bytes, int device, void *stream)
{
    return prefetch(is_hip ? "hipMemPrefetchAsync" : "cuMemPrefetchAsync", at, bytes, device, stream);
}
status hipMemPrefetchAsync(uint64_t at, size_t bytes, int device, void *stream) HIP(hipMemPrefetchAsync, cuMemPrefetchAsync);
EXPORT status cuMemPrefetchAsync_v2(uint64_t at, size_t bytes, struct location to, unsigned flags, void *stream)
{
    bool fine = !flags && (to.kind == ON_DEVICE || (to.kind == ON_HOST && !to.id));
    if (!fine) return record("cuMemPrefetchAsync_v2", INVALID_VALUE, "kind=%d, id=%d, flags=%u", to.kind, to.id, flags);
    return prefetch("cuMemPrefetchAsync_v2", at, bytes, to.kind == ON_HOST ? CPU : to.id, stream);
}
