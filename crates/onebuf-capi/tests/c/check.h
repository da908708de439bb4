// Helpers shared by the test programs.

#ifndef CHECK_H
#define CHECK_H

#include <onebuf.h>
#include <stdio.h>
#include <stdlib.h>

// Exits with a message unless the call returns the wanted status.
#define ENDS(want, call) ends(want, call, #call, __LINE__)
#define OK(call) ENDS(ONEBUF_OK, call)
#define TRUE(what) ((what) ? (void)0 : fail(#what, __LINE__))

static inline void fail(const char *what, int line) {
    fprintf(stderr, "line %d: %s\n", line, what);
    exit(1);
}

static inline void ends(onebuf_status want, onebuf_status got, const char *call, int line) {
    if (want == got) return;
    fprintf(stderr, "line %d: %s\n  is %s, not %s: %s\n", line, call, onebuf_status_name(got),
            onebuf_status_name(want), onebuf_last_error_message());
    exit(1);
}

#define TEXT_OF_ADD "kernel void add(global uint *x, uint n) { x[get_global_id(0)] += n; }"

#define CUDA_OF_ADD "extern \"C\" __global__ void add(unsigned *x, unsigned n) { x[blockIdx.x * blockDim.x + threadIdx.x] += n; }"

static inline int32_t native_add(void *user, const onebuf_native_call *call) {
    if (user) ++*(int *)user;
    // A random declaration may have other parameters.
    if (call->arg_count < 2 || !call->args[0].writable || call->args[0].bytes / 4 < call->offset[0] + call->global[0]) return 14;
    if (call->args[1].bytes < 4 || !call->args[1].data) return 15;
    uint32_t *x = (uint32_t *)call->args[0].data;
    uint32_t n = *(const uint32_t *)call->args[1].data;
    for (size_t i = 0; i < call->global[0]; i++) x[call->offset[0] + i] += n;
    return n == 13 ? 13 : 0; // one argument value fails, to test errors of native kernels
}

static inline onebuf_program build_add(onebuf_device device, int *calls) {
    onebuf_native native = {"add", native_add, calls};
    onebuf_program_options source = {0};
    source.size = sizeof source;
    source.opencl_c = TEXT_OF_ADD;
    source.cuda_c = source.hip_c = CUDA_OF_ADD;
    source.natives = &native;
    source.native_count = 1;
    onebuf_program program;
    OK(onebuf_program_build(device, &source, &program));
    return program;
}

static inline onebuf_kernel kernel_add(onebuf_program program) {
    onebuf_param params[] = {{ONEBUF_ARG_BUFFER, ONEBUF_READ_WRITE, 0, 4}, {ONEBUF_ARG_VALUE, 0, 4, 0}};
    onebuf_kernel kernel;
    OK(onebuf_kernel_create(program, "add", params, 2, ONEBUF_KERNEL_OFFSETS, &kernel));
    return kernel;
}

#endif
