// A Vulkan program: an instance, a device, one mapped buffer, and a fill on a queue. Declares the part of Vulkan 1.2 that it
// uses, so that no header has to be installed.

#ifndef VK_PROGRAM_H
#define VK_PROGRAM_H

#include <stddef.h>
#include <stdint.h>

typedef struct { uint32_t type; const void *next; const char *app; uint32_t app_version; const char *engine; uint32_t engine_version, api; } VkApplication;
typedef struct { uint32_t type; const void *next; uint32_t flags; const VkApplication *app; uint32_t layers; const char *const *layer_names; uint32_t extensions; const char *const *extension_names; } VkInstanceInfo;
typedef struct { uint32_t type; const void *next; uint32_t flags, family, count; const float *priorities; } VkQueueInfo;
typedef struct { uint32_t type; void *next; uint32_t timeline; } VkTimeline;
typedef struct { uint32_t type; const void *next; uint32_t flags, queues; const VkQueueInfo *queue_infos; uint32_t layers; const char *const *layer_names; uint32_t extensions; const char *const *extension_names; const void *features; } VkDeviceInfo;
typedef struct { uint32_t flags, count, timestamp_bits, granularity[3]; } VkFamily;
typedef struct { uint32_t flags, heap; } VkMemoryKind;
typedef struct { uint64_t size; uint32_t flags; } VkHeap;
typedef struct { uint32_t types; VkMemoryKind type[32]; uint32_t heaps; VkHeap heap[16]; } VkMemories;
typedef struct { uint32_t type; const void *next; uint32_t flags; uint64_t size; uint32_t usage, sharing, families; const uint32_t *family; } VkBufferInfo;
typedef struct { uint64_t size, align; uint32_t types; } VkNeeds;
typedef struct { uint32_t type; const void *next; uint64_t size; uint32_t kind; } VkAllocation;
typedef struct { uint32_t type; const void *next; uint32_t flags, family; } VkPoolInfo;
typedef struct { uint32_t type; const void *next; uint64_t pool; uint32_t level, count; } VkCommandsInfo;
typedef struct { uint32_t type; const void *next; uint32_t flags; const void *inheritance; } VkBegin;
typedef struct { uint32_t type; const void *next; uint32_t waits; const uint64_t *wait; const uint32_t *stages; uint32_t commands; void *const *command; uint32_t signals; const uint64_t *signal; } VkSubmission;

#ifdef __cplusplus
extern "C" {
#endif
int32_t vkCreateInstance(const VkInstanceInfo *, const void *, void **);
void vkDestroyInstance(void *, const void *);
int32_t vkEnumeratePhysicalDevices(void *, uint32_t *, void **);
void vkGetPhysicalDeviceQueueFamilyProperties(void *, uint32_t *, VkFamily *);
void vkGetPhysicalDeviceMemoryProperties(void *, VkMemories *);
int32_t vkCreateDevice(void *, const VkDeviceInfo *, const void *, void **);
void vkDestroyDevice(void *, const void *);
int32_t vkDeviceWaitIdle(void *);
int32_t vkCreateBuffer(void *, const VkBufferInfo *, const void *, uint64_t *);
void vkDestroyBuffer(void *, uint64_t, const void *);
void vkGetBufferMemoryRequirements(void *, uint64_t, VkNeeds *);
int32_t vkAllocateMemory(void *, const VkAllocation *, const void *, uint64_t *);
void vkFreeMemory(void *, uint64_t, const void *);
int32_t vkBindBufferMemory(void *, uint64_t, uint64_t, uint64_t);
int32_t vkMapMemory(void *, uint64_t, uint64_t, uint64_t, uint32_t, void **);
int32_t vkCreateCommandPool(void *, const VkPoolInfo *, const void *, uint64_t *);
void vkDestroyCommandPool(void *, uint64_t, const void *);
int32_t vkAllocateCommandBuffers(void *, const VkCommandsInfo *, void **);
int32_t vkBeginCommandBuffer(void *, const VkBegin *);
int32_t vkEndCommandBuffer(void *);
void vkCmdFillBuffer(void *, uint64_t, uint64_t, uint64_t, uint32_t);
int32_t vkQueueSubmit(void *, uint32_t, const VkSubmission *, uint64_t);
int32_t vkQueueWaitIdle(void *);
#ifdef __cplusplus
}
#endif

static void *vk_instance, *vk_physical, *vk_device, *vk_data;
static uint32_t vk_family, vk_kind;
static uint64_t vk_buffer, vk_memory, vk_bytes;

// Opens the first device; NULL, or what is missing.
static inline const char *vk_open(void) {
    VkApplication app = {0, NULL, "test", 0, NULL, 0, 1u << 22 | 2u << 12};
    VkInstanceInfo instance = {1, NULL, 0, &app, 0, NULL, 0, NULL};
    if (vkCreateInstance(&instance, NULL, &vk_instance)) return "Vulkan 1.2";
    uint32_t count = 1;
    if (vkEnumeratePhysicalDevices(vk_instance, &count, &vk_physical) < 0 || count == 0) return "device";
    VkFamily families[16];
    uint32_t found = 16;
    vkGetPhysicalDeviceQueueFamilyProperties(vk_physical, &found, families);
    while (vk_family < found && !(families[vk_family].flags & 2)) vk_family++; // compute
    if (vk_family == found) return "queue for compute shaders";
    float priority = 1;
    VkQueueInfo queue = {2, NULL, 0, vk_family, 1, &priority};
    VkTimeline timeline = {1000207000, NULL, 1};
    VkDeviceInfo device = {3, &timeline, 0, 1, &queue, 0, NULL, 0, NULL, NULL};
    return vkCreateDevice(vk_physical, &device, NULL, &vk_device) ? "device with timeline semaphores" : NULL;
}

// Creates a mapped buffer; returns whether that worked.
static inline int vk_make(size_t bytes) {
    VkBufferInfo buffer = {12, NULL, 0, bytes, 1 | 2 | 32, 0, 0, NULL}; // transfer source and destination, storage
    VkNeeds needs;
    VkMemories all;
    if (vkCreateBuffer(vk_device, &buffer, NULL, &vk_buffer)) return 0;
    vkGetBufferMemoryRequirements(vk_device, vk_buffer, &needs);
    vkGetPhysicalDeviceMemoryProperties(vk_physical, &all);
    while (vk_kind < all.types && !((needs.types >> vk_kind & 1) && (all.type[vk_kind].flags & 6) == 6)) vk_kind++; // visible, coherent
    VkAllocation memory = {5, NULL, vk_bytes = needs.size, vk_kind};
    return vk_kind < all.types && !vkAllocateMemory(vk_device, &memory, NULL, &vk_memory)
           && !vkBindBufferMemory(vk_device, vk_buffer, vk_memory, 0) && !vkMapMemory(vk_device, vk_memory, 0, ~0ull, 0, &vk_data);
}

// The program's own work: fills a range of a buffer on a queue, and waits.
static inline int vk_fill(void *queue, uint64_t buffer, uint64_t offset, uint64_t bytes, uint32_t word) {
    VkPoolInfo info = {39, NULL, 0, vk_family};
    uint64_t pool;
    void *commands;
    if (vkCreateCommandPool(vk_device, &info, NULL, &pool)) return 0;
    VkCommandsInfo made = {40, NULL, pool, 0, 1};
    VkBegin begin = {42, NULL, 1, NULL};
    if (vkAllocateCommandBuffers(vk_device, &made, &commands) || vkBeginCommandBuffer(commands, &begin)) return 0;
    vkCmdFillBuffer(commands, buffer, offset, bytes, word);
    VkSubmission submission = {4, NULL, 0, NULL, NULL, 1, &commands, 0, NULL};
    int fine = !vkEndCommandBuffer(commands) && !vkQueueSubmit(queue, 1, &submission, 0) && !vkQueueWaitIdle(queue);
    vkDestroyCommandPool(vk_device, pool, NULL);
    return fine;
}

static inline void vk_close(void) {
    vkDeviceWaitIdle(vk_device);
    vkDestroyBuffer(vk_device, vk_buffer, NULL);
    vkFreeMemory(vk_device, vk_memory, NULL);
    vkDestroyDevice(vk_device, NULL);
    vkDestroyInstance(vk_instance, NULL);
}

#endif
