// 8. A program with its own CUDA stream and cuBLAS handle: an OpenCL kernel and cuBLAS on one buffer, in order both ways.
//
// cc -std=c11 08-own-stream.c $(pkg-config --cflags --libs onebuf) -lcublas -lcudart -o own && ./own

#include <onebuf.h>

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 1 << 20 };

static void check(onebuf_status status) {
    if (status == ONEBUF_OK) return;
    fprintf(stderr, "%s: %s\n", onebuf_status_name(status), onebuf_last_error_message());
    exit(1);
}

static void fine(int status) {
    if (status == 0) return;
    fprintf(stderr, "status %d of CUDA or cuBLAS\n", status);
    exit(1);
}

static onebuf_kernel build(onebuf_program program, const char *name) {
    onebuf_param params[] = {{ONEBUF_ARG_BUFFER, ONEBUF_READ_WRITE, 0, sizeof(float)}};
    onebuf_kernel kernel;
    check(onebuf_kernel_create(program, name, params, 1, 0, &kernel));
    return kernel;
}

int main(void) {
    // What the program has.
    cudaStream_t stream;
    cublasHandle_t blas;
    float *ones, *filled = malloc(N * sizeof *filled);
    for (int i = 0; i < N; i++) filled[i] = 1.0f;
    fine(cudaStreamCreate(&stream));
    fine(cublasCreate(&blas));
    fine(cublasSetStream(blas, stream));
    fine(cudaMalloc((void **)&ones, N * sizeof *ones));
    fine(cudaMemcpyAsync(ones, filled, N * sizeof *ones, cudaMemcpyHostToDevice, stream));

    onebuf_hub hub;
    onebuf_device devices[2];
    check(onebuf_hub_discover(NULL, &hub));
    check(onebuf_hub_device(hub, "opencl:0", &devices[0]));
    check(onebuf_hub_device(hub, "cuda:0", &devices[1]));
    onebuf_buffer_options options = ONEBUF_OPTIONS(onebuf_buffer_options);
    options.devices = devices;
    options.device_count = 2;
    onebuf_buffer x;
    check(onebuf_buffer_create(hub, N * sizeof(float), &options, &x)); // one allocation, if the two can share it

    onebuf_program_options source = ONEBUF_OPTIONS(onebuf_program_options);
    source.opencl_c = "kernel void count(global float *x) { x[get_global_id(0)] = get_global_id(0); }"
                      "kernel void twice(global float *x) { x[get_global_id(0)] *= 2; }";
    onebuf_program program;
    onebuf_queue queue, theirs;
    check(onebuf_program_build(devices[0], &source, &program));
    check(onebuf_queue_create(devices[0], NULL, &queue));
    check(onebuf_queue_wrap_stream(devices[1], stream, &theirs)); // the program's stream, as a queue
    onebuf_kernel count = build(program, "count"), twice = build(program, "twice");

    onebuf_grid grid = onebuf_grid_1d(N);
    onebuf_arg arg = onebuf_arg_buffer(x, ONEBUF_READ_WRITE);
    check(onebuf_queue_launch(queue, count, &grid, &arg, 1, NULL));
    onebuf_view view;
    uint64_t pointer;
    const float two = 2.0f;
    check(onebuf_view_take(x, theirs, ONEBUF_READ_WRITE, &view)); // the stream waits for the kernel
    check(onebuf_view_cuda_ptr(view, &pointer));
    fine(cublasSaxpy(blas, N, &two, ones, 1, (float *)(uintptr_t)pointer, 1)); // x += 2 * ones
    check(onebuf_view_free(view));
    check(onebuf_queue_launch(queue, twice, &grid, &arg, 1, NULL)); // and the kernel for cuBLAS

    check(onebuf_buffer_read(x, 0, filled, N * sizeof *filled));
    int wrong = 0;
    for (int i = 0; i < N; i++) wrong += filled[i] != 2.0f * ((float)i + 2.0f);

    // The program's own memory as a buffer, after its own work.
    onebuf_fence done;
    check(onebuf_queue_fence(theirs, &done));
    onebuf_wrap_options wrap = ONEBUF_OPTIONS(onebuf_wrap_options);
    wrap.after = &done;
    wrap.after_count = 1;
    onebuf_buffer wrapped;
    check(onebuf_buffer_wrap_pointer(devices[1], ones, N * sizeof *ones, &wrap, &wrapped));
    check(onebuf_buffer_read(wrapped, 0, filled, N * sizeof *filled));
    for (int i = 0; i < N; i++) wrong += filled[i] != 1.0f;
    printf("%s: %d wrong elements\n", wrong ? "wrong" : "right", wrong);

    check(onebuf_buffer_free(wrapped));
    check(onebuf_fence_free(done));
    check(onebuf_kernel_free(count));
    check(onebuf_kernel_free(twice));
    check(onebuf_program_free(program));
    check(onebuf_buffer_free(x));
    check(onebuf_queue_free(theirs));
    check(onebuf_queue_free(queue));
    check(onebuf_hub_free(hub));
    fine(cudaFree(ones));
    fine(cublasDestroy(blas));
    fine(cudaStreamDestroy(stream));
    free(filled);
    return wrong ? 1 : 0;
}
