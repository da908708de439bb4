/* The stub of HSA, ROCr's interface: information about the HIP stub's pointers, and device memory as a descriptor. It
 * is in one library with that stub, because a process has one ROCr. Descriptors come with an offset that is never 0.
 * Calls are recorded, and can be made to fail, as in cuda_share.c. */
#include "cuda_stub.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    HSA_OK = 0, HSA_INVALID_ARGUMENT = 0x1001, HSA_INVALID_ALLOCATION = 0x1003, HSA_OUT_OF_RESOURCES = 0x1008,
    HSA_NOT_INITIALIZED = 0x100B,
    TYPE_UNKNOWN = 0, TYPE_HSA = 1, TYPE_LOCKED = 2, TYPE_GRAPHICS = 3, TYPE_IPC = 4, TYPE_VMEM = 6,
    FINE_GRAINED = 2, COARSE_GRAINED = 4, HOST_AGENT = 100, FIRST_GPU = 1
};
struct info {
    uint32_t size, type;
    uint64_t agent_base, host_base;
    size_t bytes;
    uint64_t user_data, owner;
    uint32_t flags;
    bool registered;
};
_Static_assert(sizeof(struct info) == 56, "as in the headers");
static int started;

#define CALL(name) \
    const char *call = name; \
    status s = HSA_OK; \
    if (chosen_to_fail(call, &s)) return s

EXPORT status hsa_init(void)
{
    CALL("hsa_init");
    if (known(0)) s = HSA_OUT_OF_RESOURCES; /* as without a GPU */
    lock();
    if (!s) started++;
    unlock();
    return record(call, s, "%s", "");
}

EXPORT status hsa_shut_down(void)
{
    CALL("hsa_shut_down");
    lock();
    if (!started) s = HSA_NOT_INITIALIZED;
    else started--;
    unlock();
    return record(call, s, "%s", "");
}

/* Locked: ROCr accepts any address within an allocation. */
static struct info describe(const void *at)
{
    struct range *r = find((uint64_t)(uintptr_t)at, 1);
    struct info info = { .size = sizeof info };
    if (!r) return info;
    static const uint32_t types[] = { TYPE_HSA, TYPE_VMEM, TYPE_GRAPHICS, TYPE_IPC, TYPE_GRAPHICS, TYPE_HSA, TYPE_LOCKED, TYPE_HSA, TYPE_HSA };
    bool device = is_device(r->kind), tag = device;
    if (r->kind == FOREIGN) device = !r->on_host;
    info.type = types[r->kind];
    info.agent_base = tag ? tagged(r->at) : (uint64_t)(uintptr_t)r->at;
    info.host_base = device ? 0 : (uint64_t)(uintptr_t)r->at;
    info.bytes = r->bytes;
    info.owner = device ? (uint64_t)(FIRST_GPU + r->device) : HOST_AGENT;
    info.flags = device ? COARSE_GRAINED : FINE_GRAINED;
    return info;
}

EXPORT status hsa_amd_pointer_info(const void *at, struct info *info, void *(*alloc)(size_t), uint32_t *count,
                                   uint64_t **agents)
{
    CALL("hsa_amd_pointer_info");
    if (!at || !info || info->size < 4 * sizeof(uint32_t)) s = HSA_INVALID_ARGUMENT;
    if (alloc || count || agents) s = HSA_INVALID_ARGUMENT; /* onebuf does not use these */
    lock();
    if (!s && !started) s = HSA_NOT_INITIALIZED;
    struct info found = { 0 };
    if (!s) found = describe(at);
    unlock();
    if (!s) {
        uint32_t size = info->size < found.size ? info->size : found.size;
        found.size = size;
        memcpy(info, &found, size);
    }
    return record(call, s, "at=%p, type=%u, bytes=%zu", at, found.type, found.bytes);
}

/* Only for GPU memory; the caller gets a new descriptor of the whole block. */
EXPORT status hsa_amd_portable_export_dmabuf(const void *at, size_t bytes, int *fd, uint64_t *offset)
{
    CALL("hsa_amd_portable_export_dmabuf");
    if (!at || !bytes || !fd || !offset) return record(call, HSA_INVALID_ARGUMENT, "at=%p, bytes=%zu", at, bytes);
    int given = -1;
    uint64_t address = (uint64_t)(uintptr_t)at;
    lock();
    struct range *r = find(address, bytes);
    if (!started) s = HSA_NOT_INITIALIZED;
    else if (!r || (r->kind != DEVICE_MEMORY && r->kind != FOREIGN) || r->on_host) s = HSA_INVALID_ALLOCATION;
    else if ((given = fcntl(r->file, F_DUPFD_CLOEXEC, 0)) < 0) s = HSA_OUT_OF_RESOURCES;
    if (!s) {
        *fd = given;
        *offset = LEAD + (uint64_t)(real(address) - r->at);
    }
    unlock();
    unsigned long long from = s ? 0 : *offset;
    return record(call, s, "at=%p, bytes=%zu, fd=%d, offset=%llu", at, bytes, given, from);
}

EXPORT status hsa_amd_portable_close_dmabuf(int fd)
{
    CALL("hsa_amd_portable_close_dmabuf");
    if (!is_our_file(fd) || close(fd)) s = HSA_INVALID_ARGUMENT;
    return record(call, s, "fd=%d", fd);
}
