// Returns from `main` while the driver compiles the launched kernels, and frees nothing.

#include "check.h"
#include <string.h>
#include <unistd.h>

enum { N = 4096, TERMS = 16 };

// A text that is unique to this process, so that no cache contains it.
static const char *busy(int kernel) {
    static char text[8192];
    int at = snprintf(text, sizeof text, "kernel void busy(global float *x) { float v = x[get_global_id(0)];\n");
    for (int n = 0; n < TERMS; n++)
        at += snprintf(text + at, sizeof text - (size_t)at, "v = v * %d.5f + v * v * %d.25f + %d.0f;\n", n,
                       (int)getpid(), kernel);
    snprintf(text + at, sizeof text - (size_t)at, "x[get_global_id(0)] = v; }");
    return text;
}

// Registered first, so it runs last: gives the driver's threads time to use what other exit handlers have freed.
static void linger(void) { sleep(1); }

int main(int argc, char **argv) {
    atexit(linger);
    onebuf_hub hub;
    onebuf_device device;
    OK(onebuf_hub_discover(NULL, &hub));
    OK(onebuf_hub_device(hub, argc > 1 ? argv[1] : "host", &device));
    for (int kernel = 0; kernel < 2; kernel++) {
        onebuf_queue queue;
        OK(onebuf_queue_create(device, NULL, &queue));
        onebuf_buffer_options options = ONEBUF_OPTIONS(onebuf_buffer_options);
        options.devices = &device;
        options.device_count = 1;
        onebuf_buffer buffer;
        OK(onebuf_buffer_create(hub, N * sizeof(float), &options, &buffer));
        onebuf_program_options source = ONEBUF_OPTIONS(onebuf_program_options);
        source.opencl_c = busy(kernel);
        onebuf_program program;
        OK(onebuf_program_build(device, &source, &program));
        onebuf_param param = {ONEBUF_ARG_BUFFER, ONEBUF_READ_WRITE, 0, 4};
        onebuf_kernel launched;
        OK(onebuf_kernel_create(program, "busy", &param, 1, 0, &launched));
        onebuf_arg arg = onebuf_arg_buffer(buffer, ONEBUF_READ_WRITE);
        onebuf_grid grid = onebuf_grid_1d(N);
        OK(onebuf_queue_launch(queue, launched, &grid, &arg, 1, NULL));
        OK(onebuf_queue_flush(queue));
    }
    printf("returned with work pending on %s\n", argc > 1 ? argv[1] : "host");
    return 0;
}
