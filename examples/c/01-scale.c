// 1. Scales a vector on every device, including the CPU.
//
// cc -std=c11 01-scale.c $(pkg-config --cflags --libs onebuf) -o scale && ./scale

#include <onebuf.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 1 << 16 };

// Every function that can fail returns a status. The message says what to do.
static void check(onebuf_status status) {
    if (status == ONEBUF_OK) return;
    fprintf(stderr, "%s: %s\n", onebuf_status_name(status), onebuf_last_error_message());
    exit(1);
}

static const char *TEXT = "kernel void scale(global float *x, float by) { x[get_global_id(0)] *= by; }";

// The kernel for OpenGL and Vulkan: the buffer is argument 0, the value argument 1.
static const char *SHADER =
    "#version 450\n"
    "layout(local_size_x = 64) in;\n"
    "layout(std430, binding = 0) buffer Data { float x[]; };\n"
    "layout(std140, binding = 1) uniform Values { float by; };\n"
    "void main() { x[gl_GlobalInvocationID.x] *= by; }\n";

// The kernel for the CPU: called once for the whole launch.
static int32_t scale(void *user, const onebuf_native_call *call) {
    (void)user;
    float *x = call->args[0].data;
    float by = *(const float *)call->args[1].data;
    for (size_t i = 0; i < call->global[0]; i++) x[i] *= by;
    return 0;
}

static onebuf_kernel build(onebuf_device device) {
    // A program in several forms; the device uses one that it supports.
    onebuf_native native = {"scale", scale, NULL};
    onebuf_program_options source = ONEBUF_OPTIONS(onebuf_program_options);
    onebuf_shader shader = {"scale", SHADER};
    source.opencl_c = TEXT;
    source.shaders = &shader;
    source.shader_count = 1;
    source.natives = &native;
    source.native_count = 1;
    onebuf_program program;
    check(onebuf_program_build(device, &source, &program));

    // The caller vouches for the parameters. The buffer's size is checked at each launch.
    onebuf_param params[] = {
        {ONEBUF_ARG_BUFFER, ONEBUF_READ_WRITE, 0, sizeof(float)},
        {ONEBUF_ARG_FLOAT, 0, sizeof(float), 0},
    };
    onebuf_kernel kernel;
    check(onebuf_kernel_create(program, "scale", params, 2, 0, &kernel));
    check(onebuf_program_free(program));
    return kernel;
}

static void scale_on(onebuf_hub hub, onebuf_device device, float *data) {
    onebuf_string id, name;
    check(onebuf_device_id(device, &id));
    check(onebuf_device_name(device, &name));

    onebuf_buffer_options options = ONEBUF_OPTIONS(onebuf_buffer_options);
    options.devices = &device;
    options.device_count = 1;
    onebuf_buffer buffer;
    check(onebuf_buffer_create(hub, N * sizeof(float), &options, &buffer));
    for (size_t i = 0; i < N; i++) data[i] = (float)i;
    check(onebuf_buffer_write(buffer, 0, data, N * sizeof(float)));

    onebuf_kernel kernel = build(device);
    onebuf_queue queue;
    check(onebuf_queue_create(device, NULL, &queue));
    float by = 2.0f;
    onebuf_arg args[] = {onebuf_arg_buffer(buffer, ONEBUF_READ_WRITE), ONEBUF_VALUE(by)};
    onebuf_grid grid = onebuf_grid_1d(N);
    check(onebuf_queue_launch(queue, kernel, &grid, args, 2, NULL));

    // Reading waits for the kernel through the buffer's fence.
    check(onebuf_buffer_read(buffer, 0, data, N * sizeof(float)));
    for (size_t i = 0; i < N; i++) {
        if (data[i] == 2.0f * (float)i) continue;
        fprintf(stderr, "%s: element %zu is %g\n", onebuf_string_data(id), i, (double)data[i]);
        exit(1);
    }
    printf("%s (%s): scaled\n", onebuf_string_data(id), onebuf_string_data(name));

    check(onebuf_queue_free(queue));
    check(onebuf_kernel_free(kernel));
    check(onebuf_buffer_free(buffer));
    check(onebuf_string_free(name));
    check(onebuf_string_free(id));
}

int main(void) {
    onebuf_hub hub;
    check(onebuf_hub_discover(NULL, &hub)); // a missing API is not an error
    size_t devices;
    check(onebuf_hub_device_count(hub, &devices));
    float *data = malloc(N * sizeof(float));
    if (!data) return 1;
    for (size_t i = 0; i < devices; i++) {
        onebuf_device device;
        check(onebuf_hub_device_at(hub, i, &device));
        scale_on(hub, device, data);
    }
    printf("%zu devices agree\n", devices);
    free(data);
    check(onebuf_hub_free(hub));
    return 0;
}
