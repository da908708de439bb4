// The Vulkan calls of a program, for vulkan.f90: a device and a mapped buffer of its own, and a fill.

#include "vk.h"
#include <stdio.h>

// Returns zero for success, else prints what is missing.
int vulkan_open(size_t bytes) {
    const char *missing = vk_open();
    if (missing) printf("skip: no %s\n", missing);
    return missing || !vk_make(bytes);
}

void vulkan_handles(void **handles, int32_t *family, int32_t *kind) {
    handles[0] = vk_instance, handles[1] = vk_physical, handles[2] = vk_device, handles[3] = vk_data;
    *family = (int32_t)vk_family, *kind = (int32_t)vk_kind;
}

void vulkan_buffer(uint64_t *buffer, uint64_t *memory, uint64_t *bytes) {
    *buffer = vk_buffer, *memory = vk_memory, *bytes = vk_bytes;
}

int vulkan_fill(void *queue, uint64_t buffer, uint64_t offset, uint64_t bytes, int32_t word) {
    return !vk_fill(queue, buffer, offset, bytes, (uint32_t)word);
}

void vulkan_close(void) { vk_close(); }
