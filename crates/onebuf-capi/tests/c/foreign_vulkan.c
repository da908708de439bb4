// A Vulkan program with a device and a buffer of its own: onebuf computes in place, and the program fills what onebuf hands it.

#include "check.h"
#include "vk.h"
#include <string.h>

enum { N = 1024, BYTES = N * 4 };

static onebuf_hub hub;
static onebuf_vk vk;
static onebuf_device vk_side, device;

#define SHADER \
    "#version 450\n" \
    "layout(local_size_x = 64) in;\n" \
    "layout(std430, binding = 0) buffer Data { uint x[]; };\n" \
    "layout(std140, binding = 1) uniform Values { uint n; };\n" \
    "void main() { x[gl_GlobalInvocationID.x] = 2u * x[gl_GlobalInvocationID.x] + n; }\n"

static onebuf_kernel shader(void) {
    onebuf_shader text = {"step", SHADER};
    onebuf_program_options source = ONEBUF_OPTIONS(onebuf_program_options);
    source.shaders = &text, source.shader_count = 1;
    onebuf_program program;
    OK(onebuf_program_build(vk_side, &source, &program));
    onebuf_param params[] = {{ONEBUF_ARG_BUFFER, ONEBUF_READ_WRITE, 0, 4}, {ONEBUF_ARG_INTEGER, 0, 4, 0}};
    onebuf_kernel kernel;
    OK(onebuf_kernel_create(program, "step", params, 2, 0, &kernel));
    OK(onebuf_program_free(program));
    return kernel;
}

static void launch(onebuf_queue queue, onebuf_kernel kernel, onebuf_buffer buffer, uint32_t n) {
    onebuf_arg args[] = {onebuf_arg_buffer(buffer, ONEBUF_READ_WRITE), ONEBUF_VALUE(n)};
    onebuf_grid grid = onebuf_grid_1d(N);
    grid.local[0] = 64;
    OK(onebuf_queue_launch(queue, kernel, &grid, args, 2, NULL));
}

static onebuf_vk_handles handles(void) {
    static const uint32_t first = 0;
    onebuf_vk_handles all = ONEBUF_OPTIONS(onebuf_vk_handles);
    all.instance = vk_instance, all.physical_device = vk_physical, all.device = vk_device;
    all.queue_family = vk_family, all.queues = &first, all.queue_count = 1;
    return all;
}

static void refusals(void) {
    onebuf_vk none;
    onebuf_vk_handles wrong = handles();
    ENDS(ONEBUF_NULL_POINTER, onebuf_vk_wrap(hub, NULL, &none));
    wrong.device = NULL;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_vk_wrap(hub, &wrong, &none));
    static const uint32_t beyond = 999;
    wrong = handles(), wrong.queues = &beyond;
    TRUE(onebuf_vk_wrap(hub, &wrong, &none) != ONEBUF_OK && none.id == 0);
    onebuf_hub_options options = ONEBUF_OPTIONS(onebuf_hub_options);
    options.without_vulkan = options.without_gl = options.without_opencl = 1;
    onebuf_hub without;
    wrong = handles();
    OK(onebuf_hub_discover(&options, &without));
    ENDS(ONEBUF_UNAVAILABLE, onebuf_vk_wrap(without, &wrong, &none));
    OK(onebuf_hub_free(without));
}

int main(int argc, char **argv) {
    const char *id = argc > 1 ? argv[1] : "host";
    const char *missing = vk_open();
    if (missing) return printf("skip: Vulkan for C programs: no %s\n", missing), 0;
    TRUE(vk_make(BYTES));
    onebuf_hub_options options = ONEBUF_OPTIONS(onebuf_hub_options);
    options.vulkan_library = "libvulkan.so.1";
    options.without_gl = 1;
    OK(onebuf_hub_discover(&options, &hub));
    OK(onebuf_hub_device(hub, id, &device));
    refusals();
    onebuf_vk_handles all = handles();
    OK(onebuf_vk_wrap(hub, &all, &vk));
    OK(onebuf_vk_device(vk, &vk_side));
    onebuf_string text;
    OK(onebuf_device_id(vk_side, &text));
    TRUE(strcmp(onebuf_string_data(text), "vulkan:0@1") == 0);
    OK(onebuf_string_free(text));
    void *native_device = NULL;
    OK(onebuf_device_native(vk_side, "VkDevice", &native_device));
    TRUE(native_device == vk_device);
    OK(onebuf_device_native(vk_side, "VkPhysicalDevice", &native_device));
    TRUE(native_device == vk_physical);
    OK(onebuf_device_native(vk_side, "VkInstance", &native_device));
    TRUE(native_device == vk_instance);
    ENDS(ONEBUF_UNSUPPORTED, onebuf_device_native(vk_side, "CUcontext", &native_device));
    onebuf_queue queue, other;
    OK(onebuf_queue_create(vk_side, NULL, &queue));
    OK(onebuf_queue_create(device, NULL, &other));
    onebuf_kernel step = shader();
    onebuf_program program = build_add(device, NULL);
    onebuf_kernel add = kernel_add(program);

    uint32_t *words = vk_data;
    for (uint32_t i = 0; i < N; i++) words[i] = i;
    onebuf_vk_buffer told = ONEBUF_OPTIONS(onebuf_vk_buffer);
    told.buffer = vk_buffer, told.bytes = BYTES;
    told.memory = vk_memory, told.memory_bytes = vk_bytes, told.memory_type = vk_kind, told.mapped = vk_data;
    onebuf_wrap_options shared = ONEBUF_OPTIONS(onebuf_wrap_options);
    shared.devices = &device, shared.device_count = 1;
    onebuf_buffer buffer, none;
    ENDS(ONEBUF_NULL_POINTER, onebuf_buffer_wrap_vk(vk, NULL, NULL, &none));
    told.bytes = BYTES * 64; // more than the buffer needs
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_wrap_vk(vk, &told, NULL, &none));
    told.bytes = BYTES;
    OK(onebuf_buffer_wrap_vk(vk, &told, &shared, &buffer));
    launch(queue, step, buffer, 3);
    onebuf_arg args[] = {onebuf_arg_buffer(buffer, ONEBUF_READ_WRITE), ONEBUF_VALUE((uint32_t){7})};
    onebuf_grid grid = onebuf_grid_1d(N);
    OK(onebuf_queue_launch(other, add, &grid, args, 2, NULL));
    launch(queue, step, buffer, 1);

    // The program's own commands on the native queue, under a view.
    onebuf_view view;
    uint64_t number = 0, offset = 1;
    uint32_t name;
    void *native;
    OK(onebuf_view_take(buffer, queue, ONEBUF_READ_WRITE, &view));
    OK(onebuf_view_vk_buffer(view, &number, &offset));
    TRUE(number == vk_buffer && offset == 0);
    ENDS(ONEBUF_UNSUPPORTED, onebuf_view_gl_name(view, &name));
    OK(onebuf_queue_native(queue, &native));
    OK(onebuf_queue_finish(queue, 60000));
    TRUE(vk_fill(native, number, offset, 16, 42));
    OK(onebuf_view_free(view));
    uint32_t seen[N];
    OK(onebuf_buffer_read(buffer, 0, seen, BYTES));
    OK(onebuf_buffer_free(buffer));
    for (uint32_t i = 0; i < N; i++) TRUE(seen[i] == (i < 4 ? 42 : 2 * (2 * i + 3 + 7) + 1) && words[i] == seen[i]);

    // A buffer of onebuf on the program's device.
    onebuf_buffer_options both = ONEBUF_OPTIONS(onebuf_buffer_options);
    both.devices = &vk_side, both.device_count = 1;
    OK(onebuf_buffer_create(hub, BYTES, &both, &buffer));
    OK(onebuf_view_take(buffer, queue, ONEBUF_READ_WRITE, &view));
    OK(onebuf_view_vk_buffer(view, &number, &offset));
    OK(onebuf_queue_finish(queue, 60000));
    TRUE(vk_fill(native, number, offset, BYTES, 9));
    OK(onebuf_view_free(view));
    OK(onebuf_buffer_read(buffer, 0, seen, BYTES));
    for (uint32_t i = 0; i < N; i++) TRUE(seen[i] == 9);
    OK(onebuf_buffer_free(buffer));

    OK(onebuf_kernel_free(step));
    OK(onebuf_kernel_free(add));
    OK(onebuf_program_free(program));
    OK(onebuf_queue_free(queue));
    OK(onebuf_queue_free(other));
    OK(onebuf_vk_free(vk));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_vk_device(vk, &vk_side));
    OK(onebuf_hub_free(hub));
    vk_close();
    printf("foreign Vulkan works with %s\n", id);
    return 0;
}
