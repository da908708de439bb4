/* The layer under both of AMD's APIs. The OpenCL stub in its `amd` mode allocates here, so that the HIP stub's kernels reach
 * its memory at OpenCL's address, and OpenCL's kernels reach HIP's. HIP's own API calls do not know that memory. A real runtime
 * would copy on the CPU or report nothing; this one ends the process with status 99.
 *
 *   void *onebuf_stub_agent_alloc(bytes, place, apart)  on device 0, or (place 1) on the host, or (place 2) on device 1
 *   void onebuf_stub_agent_free(at)
 *   void *onebuf_stub_agent_reach(at, &room, apart)     the real address of HIP's memory, and how many bytes follow
 *   int onebuf_stub_agent_use(at, change)               an OpenCL kernel is enqueued, or has ended
 *   int onebuf_stub_agent_knows(at)                     whether HIP allocated (2) or pinned (1) it
 *
 * `apart` emulates a machine on which the address is not shared: the other API finds other bytes there. */
#include "cuda_stub.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Locked: other bytes at the same address. */
static char *shadow(struct range *r)
{
    if (!r->shadow && !(r->shadow = calloc(1, r->bytes))) die("no memory for a shadow");
    return r->shadow;
}

EXPORT void *onebuf_stub_agent_alloc(size_t bytes, int place, bool apart)
{
    int file = new_file(LEAD + bytes);
    char *base = file < 0 ? MAP_FAILED : mmap(NULL, LEAD + bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (base == MAP_FAILED) { if (file >= 0) close(file); return NULL; }
    memset(base, 0xA5, LEAD + bytes);
    lock();
    struct range *r = add_range(FOREIGN, place == 2, base + LEAD, bytes);
    r->file = file;
    r->base = base;
    r->mapped = LEAD + bytes;
    r->on_host = place == 1;
    if (apart) shadow(r);
    unlock();
    return r->at;
}

EXPORT void onebuf_stub_agent_free(void *at)
{
    lock();
    if (remove_range(FOREIGN, at)) die("memory of OpenCL's was freed twice");
    unlock();
}

EXPORT void *onebuf_stub_agent_reach(uint64_t at, size_t *room, bool apart)
{
    lock();
    struct range *r = at & TAG ? find(at, 1) : NULL;
    char *found = NULL;
    if (r) {
        size_t offset = (size_t)(real(at) - r->at);
        *room = r->bytes - offset;
        found = (apart ? shadow(r) : r->at) + offset;
    }
    unlock();
    return found;
}

EXPORT int onebuf_stub_agent_use(uint64_t at, int change)
{
    lock();
    struct range *r = find(at, 1);
    if (r) r->uses += change;
    unlock();
    return r != NULL;
}

EXPORT int onebuf_stub_agent_knows(uint64_t at)
{
    lock();
    struct range *r = find(at, 1);
    int knows = !r || r->kind == FOREIGN ? 0 : is_device(r->kind) ? 2 : 1;
    unlock();
    return knows;
}
