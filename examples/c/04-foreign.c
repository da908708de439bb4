// 4. A library function that works on its caller's cl_context, cl_command_queue and cl_mem in place: after the
// caller's enqueued commands and before its next ones, without a copy and without waiting.
//
// cc -std=c11 04-foreign.c $(pkg-config --cflags --libs onebuf) -lOpenCL -o foreign && ./foreign

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <onebuf.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 1 << 16 };

// The library =====================================================================================

static onebuf_hub hub; // one for the process: it caches compiled programs

static onebuf_status build(onebuf_device device, onebuf_kernel *kernel) {
    onebuf_program_options source = ONEBUF_OPTIONS(onebuf_program_options);
    source.opencl_c = "kernel void square(global float *x) { x[get_global_id(0)] *= x[get_global_id(0)]; }";
    onebuf_program program;
    onebuf_status status = onebuf_program_build(device, &source, &program);
    onebuf_param params[] = {{ONEBUF_ARG_BUFFER, ONEBUF_READ_WRITE, 0, sizeof(float)}};
    if (status == ONEBUF_OK) status = onebuf_kernel_create(program, "square", params, 1, 0, kernel);
    onebuf_program_free(program);
    return status;
}

// Squares `count` floats in order with the commands of the caller's queue.
static onebuf_status square(cl_context context, cl_command_queue queue, cl_mem mem, size_t count) {
    onebuf_context theirs = {0};
    onebuf_queue on = {0};
    onebuf_fence before = {0};
    onebuf_buffer buffer = {0};
    onebuf_device device = {0};
    onebuf_kernel kernel = {0};
    onebuf_status status = onebuf_context_wrap(hub, context, &theirs);
    if (status == ONEBUF_OK) status = onebuf_queue_wrap(hub, queue, &on);
    if (status == ONEBUF_OK) status = onebuf_context_device_of(theirs, on, &device);
    if (status == ONEBUF_OK) status = build(device, &kernel);
    if (status == ONEBUF_OK) status = onebuf_queue_fence(on, &before); // covers the caller's work so far
    onebuf_wrap_options options = ONEBUF_OPTIONS(onebuf_wrap_options);
    options.bytes = count * sizeof(float); // checked against the size of `mem`
    options.after = &before;
    options.after_count = 1;
    if (status == ONEBUF_OK) status = onebuf_buffer_wrap(hub, mem, &options, &buffer);
    onebuf_grid grid = onebuf_grid_1d(count);
    onebuf_arg arg = onebuf_arg_buffer(buffer, ONEBUF_READ_WRITE);
    if (status == ONEBUF_OK) status = onebuf_queue_launch(on, kernel, &grid, &arg, 1, NULL);
    if (status == ONEBUF_OK) status = onebuf_buffer_hand_to(buffer, on, NULL); // orders the caller's next commands after ours
    // Freeing a null handle is allowed. This frees what was created and returns every reference.
    onebuf_buffer_free(buffer);
    onebuf_fence_free(before);
    onebuf_kernel_free(kernel);
    onebuf_queue_free(on);
    onebuf_context_free(theirs);
    return status;
}

// The caller ======================================================================================

static void check(cl_int status, const char *what) {
    if (status == CL_SUCCESS) return;
    fprintf(stderr, "%s: %d\n", what, (int)status);
    exit(1);
}

int main(void) {
    if (onebuf_hub_discover(NULL, &hub) != ONEBUF_OK) return 1;
    cl_platform_id platforms[8];
    cl_device_id device = NULL;
    cl_uint found = 0;
    onebuf_device any;
    if (onebuf_hub_device(hub, "opencl", &any) != ONEBUF_OK || clGetPlatformIDs(8, platforms, &found) != CL_SUCCESS) {
        printf("no OpenCL here\n");
        return 0;
    }
    for (cl_uint i = 0; !device && i < found && i < 8; i++) // some platforms have no device
        if (clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, 1, &device, NULL) != CL_SUCCESS) device = NULL;
    cl_int status;
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &status);
    check(status, "clCreateContext");
    cl_command_queue queue = clCreateCommandQueue(context, device, 0, &status);
    check(status, "clCreateCommandQueue");
    cl_mem mem = clCreateBuffer(context, CL_MEM_READ_WRITE, N * sizeof(float), NULL, &status);
    check(status, "clCreateBuffer");

    static float x[N];
    for (int i = 0; i < N; i++) x[i] = (float)(i % 100);
    check(clEnqueueWriteBuffer(queue, mem, CL_FALSE, 0, sizeof x, x, 0, NULL, NULL), "write");
    if (square(context, queue, mem, N) != ONEBUF_OK) {
        fprintf(stderr, "%s\n", onebuf_last_error_message());
        return 1;
    }
    check(clEnqueueReadBuffer(queue, mem, CL_TRUE, 0, sizeof x, x, 0, NULL, NULL), "read");
    for (int i = 0; i < N; i++) {
        float want = (float)(i % 100) * (float)(i % 100);
        if (x[i] == want) continue;
        fprintf(stderr, "element %d is %g, not %g\n", i, (double)x[i], (double)want);
        return 1;
    }
    printf("squared in place: element 99 is %g\n", (double)x[99]);

    // The library holds no references any more.
    check(clReleaseMemObject(mem), "release");
    check(clReleaseCommandQueue(queue), "release");
    check(clReleaseContext(context), "release");
    onebuf_hub_free(hub);
    return 0;
}
