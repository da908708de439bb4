// Matrix products, transforms and linear systems in C on the given device, and calls that are refused.

#include "check.h"
#include <math.h>
#include <string.h>

static onebuf_hub hub;
static onebuf_device device;
static onebuf_queue queue;

static onebuf_buffer holding(const void *data, size_t bytes) {
    onebuf_buffer_options options = ONEBUF_OPTIONS(onebuf_buffer_options);
    options.devices = &device;
    options.device_count = 1;
    options.contents = data;
    onebuf_buffer buffer;
    OK(onebuf_buffer_create(hub, bytes, &options, &buffer));
    return buffer;
}

static void holds(onebuf_buffer buffer, const float *want, size_t count) {
    float found[64];
    OK(onebuf_buffer_read(buffer, 0, found, count * sizeof *found));
    for (size_t i = 0; i < count; i++) TRUE(fabsf(found[i] - want[i]) < 1e-4f);
}

// [1 3; 2 4] [5 7; 6 8] = [23 31; 34 46], column by column.
static void products(void) {
    const float a[] = {1, 2, 3, 4}, b[] = {5, 6, 7, 8}, zero[4] = {0};
    onebuf_buffer x = holding(a, sizeof a), y = holding(b, sizeof b), z = holding(zero, sizeof zero);
    onebuf_gemm_options gemm = ONEBUF_OPTIONS(onebuf_gemm_options);
    gemm.m = gemm.n = gemm.k = 2;
    OK(onebuf_gemm(queue, &gemm, x, y, z));
    holds(z, (float[]){23, 34, 31, 46}, 4);
    const double two[] = {2, 0}, one[] = {1, 0}, i[] = {0, 1};
    gemm.alpha = two;
    gemm.beta = one;
    gemm.op_a = ONEBUF_OP_TRANSPOSE; // 2 [1 2; 3 4] [5 7; 6 8] + previous contents
    OK(onebuf_gemm(queue, &gemm, x, y, z));
    holds(z, (float[]){23 + 34, 34 + 78, 31 + 46, 46 + 106}, 4);

    ENDS(ONEBUF_BUSY, onebuf_gemm(queue, &gemm, x, y, x)); // the output is also an input
    gemm.alpha = i;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_gemm(queue, &gemm, x, y, z)); // an imaginary factor for real matrices
    gemm.alpha = NULL;
    gemm.k = 3;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_gemm(queue, &gemm, x, y, z)); // larger than the buffers
    gemm.k = 2;
    gemm.op_b = 3;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_gemm(queue, &gemm, x, y, z));
    gemm.op_b = 0;
    gemm.number = 4;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_gemm(queue, &gemm, x, y, z));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_gemm(queue, NULL, x, y, z)); // all sizes are zero
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_gemm(queue, &gemm, x, (onebuf_buffer){0}, z));
    OK(onebuf_buffer_free(x));
    OK(onebuf_buffer_free(y));
    OK(onebuf_buffer_free(z));
}

// The spectrum of a constant has one line; back and forth multiplies by four.
static void transforms(void) {
    const float ones[] = {1, 0, 1, 0, 1, 0, 1, 0}, zero[8] = {0};
    onebuf_buffer x = holding(ones, sizeof ones), y = holding(zero, sizeof zero);
    onebuf_fft_options fft = ONEBUF_OPTIONS(onebuf_fft_options);
    fft.number = ONEBUF_C32;
    fft.len = 4;
    OK(onebuf_fft(queue, &fft, x, y));
    holds(y, (float[]){4, 0, 0, 0, 0, 0, 0, 0}, 8);
    holds(x, ones, 8);
    fft.inverse = 1;
    OK(onebuf_fft(queue, &fft, y, (onebuf_buffer){0}));
    holds(y, (float[]){4, 0, 4, 0, 4, 0, 4, 0}, 8);
    fft.batch = 2;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_fft(queue, &fft, x, x)); // larger than the buffer
    fft.number = ONEBUF_F32;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_fft(queue, &fft, x, y));
    OK(onebuf_buffer_free(x));
    OK(onebuf_buffer_free(y));
}

// Solves 2 a = 2, a + 4 b = 9.
static void systems(void) {
    const float a[] = {2, 1, 0, 4}, b[] = {2, 9}, none[4] = {0};
    onebuf_buffer x = holding(a, sizeof a), y = holding(b, sizeof b), z = holding(none, sizeof none);
    onebuf_lu lu;
    ENDS(ONEBUF_NULL_POINTER, onebuf_lu_factor(queue, ONEBUF_F32, 2, 0, x, NULL));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_lu_factor(queue, ONEBUF_F32, 3, 0, x, &lu));
    TRUE(lu.id == 0);
    OK(onebuf_lu_factor(queue, ONEBUF_F32, 2, 0, x, &lu));
    OK(onebuf_lu_solve(queue, lu, ONEBUF_OP_NONE, x, 1, 0, y));
    holds(y, (float[]){1, 2}, 2);
    OK(onebuf_lu_invert(queue, lu, x, z));
    holds(z, (float[]){0.5f, -0.125f, 0, 0.25f}, 4);
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_lu_solve(queue, lu, ONEBUF_OP_NONE, x, 2, 0, y));
    OK(onebuf_lu_free(lu));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_lu_solve(queue, lu, ONEBUF_OP_NONE, x, 1, 0, y));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_lu_free(lu));
    OK(onebuf_buffer_fill(z, 0, sizeof none, none, sizeof none));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_lu_factor(queue, ONEBUF_F32, 2, 0, z, &lu)); // singular
    OK(onebuf_buffer_free(x));
    OK(onebuf_buffer_free(y));
    OK(onebuf_buffer_free(z));
}

// `none` is no library, whatever the environment says.
static void without_libraries(const char *name, onebuf_hub_options options) {
    options.cublas_library = options.cufft_library = options.cusolver_library = "none";
    options.rocblas_library = options.rocfft_library = options.rocsolver_library = "none";
    OK(onebuf_hub_discover(&options, &hub));
    OK(onebuf_hub_device(hub, name, &device));
    OK(onebuf_queue_create(device, NULL, &queue));
    for (onebuf_library library = 0; library < 3; library++) ENDS(ONEBUF_UNAVAILABLE, onebuf_library_open(queue, library));
    OK(onebuf_queue_free(queue));
    OK(onebuf_hub_free(hub));
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "host";
    onebuf_hub_options options = ONEBUF_OPTIONS(onebuf_hub_options);
    options.without_opencl = 1;
    options.without_verdicts = 1;
    if (argc > 2) {
        without_libraries(name, options);
        options.cublas_library = options.cufft_library = options.cusolver_library = argv[2];
        options.rocblas_library = options.rocfft_library = options.rocsolver_library = argv[2];
    }
    OK(onebuf_hub_discover(&options, &hub));
    OK(onebuf_hub_device(hub, name, &device));
    OK(onebuf_queue_create(device, NULL, &queue));
    for (onebuf_library library = 0; library < 3; library++) OK(onebuf_library_open(queue, library));
    products();
    transforms();
    systems();
    OK(onebuf_queue_free(queue));
    OK(onebuf_hub_free(hub));
    printf("libraries work on %s\n", name);
    return 0;
}
