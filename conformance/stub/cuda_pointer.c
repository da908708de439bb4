/* What the stub says about addresses: cuPointerGetAttributes and hipDrvPointerGetAttributes. As in the drivers, every address
 * is answered, and what an unknown address does not have is zero. Virtual memory belongs to no context. */
#include "cuda_stub.h"
#include <string.h>

enum {
    CONTEXT = 1, DEVICE_ADDRESS = 3, HOST_ADDRESS = 4, IS_MANAGED = 8, DEVICE = 9, RANGE_START = 11, RANGE_BYTES = 12,
    HANDLE_TYPES = 14, MAPPING_BYTES = 18, MAPPING_START = 19
};

/* Locked. */
static bool answer(void *to, int attribute, uint64_t at, const struct range *r)
{
    bool managed = r && r->kind == MANAGED, pinned = r && (r->kind == PINNED || r->kind == REGISTERED);
    uint64_t host = managed || pinned ? at : 0, none = 0;
    uint64_t start = !r ? 0 : is_device(r->kind) ? tagged(r->at) : (uint64_t)(uintptr_t)r->at;
    void *context = r && r->kind != MAPPED && !is_hip ? &devices[r->device] : NULL;
    size_t bytes = r ? r->bytes : 0, piece_bytes = bytes;
    uint64_t piece = start;
    /* As CUDA's driver does: the range of virtual memory is the whole reservation, whatever is mapped there. */
    if (r && r->kind == MAPPED && !is_hip) {
        char *reserved = r->at;
        reservation_of(&reserved, &bytes);
        start = tagged(reserved);
    }
    int device = !r ? -2 : r->device == CREATED ? 0 : r->device;
    unsigned flag = managed;
    unsigned long long types = r ? (unsigned long long)handle_types(r) : 0;
    switch (attribute) {
    case CONTEXT: memcpy(to, &context, sizeof context); return true;
    case DEVICE_ADDRESS: memcpy(to, r ? &at : &none, sizeof at); return true;
    case HOST_ADDRESS: memcpy(to, &host, sizeof host); return true;
    case IS_MANAGED: memcpy(to, &flag, sizeof flag); return true;
    case DEVICE: memcpy(to, &device, sizeof device); return true;
    case RANGE_START: memcpy(to, &start, sizeof start); return true;
    case RANGE_BYTES: memcpy(to, &bytes, sizeof bytes); return true;
    case HANDLE_TYPES: memcpy(to, &types, sizeof types); return true;
    case MAPPING_BYTES: memcpy(to, &piece_bytes, sizeof piece_bytes); return !is_hip;
    case MAPPING_START: memcpy(to, &piece, sizeof piece); return !is_hip;
    default: return false;
    }
}

EXPORT status cuPointerGetAttributes(unsigned count, const int *attributes, void **values, uint64_t at)
{
    ENTER;
    status s = OK;
    const char *call = is_hip ? "hipDrvPointerGetAttributes" : "cuPointerGetAttributes";
    if (chosen_to_fail(call, &s)) return s;
    lock();
    const struct range *r = find(at, 1);
    if (r && r->kind == FOREIGN) r = NULL;
    for (unsigned i = 0; i < count && !s; i++) if (!answer(values[i], attributes[i], at, r)) s = INVALID_VALUE;
    unlock();
    return s;
}
status hipDrvPointerGetAttributes(unsigned count, const int *attributes, void **values, uint64_t at)
    HIP(hipDrvPointerGetAttributes, cuPointerGetAttributes);
