// 8. A program with its own stream, cuBLAS or rocBLAS handle and device memory: OpenCL kernels and the library on one buffer.
//
// c++ -std=c++17 08-own-stream.cpp $(pkg-config --cflags --libs onebuf) -lcublas -lcudart -o own && ./own
// hipcc -std=c++17 -DUSE_HIP 08-own-stream.cpp $(pkg-config --cflags --libs onebuf) -lrocblas -o own && ./own

#include <onebuf.hpp>

#include <cstdio>
#ifdef USE_HIP
#include <hip/hip_runtime_api.h>
#include <rocblas/rocblas.h>
#else
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#endif

// What the program has: a stream, a handle that works on it, and memory with ones.
struct Program {
    static constexpr int N = 1 << 20;
    float *ones = nullptr;
#ifdef USE_HIP
    hipStream_t stream{};
    rocblas_handle blas{};
    Program() {
        std::vector<float> filled(N, 1.0f);
        check(hipStreamCreate(&stream));
        check(rocblas_create_handle(&blas));
        check(rocblas_set_stream(blas, stream));
        check(hipMalloc(reinterpret_cast<void **>(&ones), N * sizeof(float)));
        check(hipMemcpyAsync(ones, filled.data(), N * sizeof(float), hipMemcpyHostToDevice, stream));
    }
    void add_twice_ones(void *to) { // to += 2 * ones
        const float two = 2.0f;
        check(rocblas_saxpy(blas, N, &two, ones, 1, static_cast<float *>(to), 1));
    }
    ~Program() {
        (void)hipFree(ones);
        (void)rocblas_destroy_handle(blas);
        (void)hipStreamDestroy(stream);
    }
#else
    cudaStream_t stream{};
    cublasHandle_t blas{};
    Program() {
        std::vector<float> filled(N, 1.0f);
        check(cudaStreamCreate(&stream));
        check(cublasCreate(&blas));
        check(cublasSetStream(blas, stream));
        check(cudaMalloc(reinterpret_cast<void **>(&ones), N * sizeof(float)));
        check(cudaMemcpyAsync(ones, filled.data(), N * sizeof(float), cudaMemcpyHostToDevice, stream));
    }
    void add_twice_ones(void *to) { // to += 2 * ones
        const float two = 2.0f;
        check(cublasSaxpy(blas, N, &two, ones, 1, static_cast<float *>(to), 1));
    }
    ~Program() {
        (void)cudaFree(ones);
        (void)cublasDestroy(blas);
        (void)cudaStreamDestroy(stream);
    }
#endif
    template <class Status> static void check(Status status) {
        if (static_cast<int>(status) == 0) return;
        std::fprintf(stderr, "status %d\n", static_cast<int>(status));
        std::exit(1);
    }
};

int main() {
    Program program;
    auto hub = onebuf::Hub::discover();
#ifdef USE_HIP
    auto gpu = hub.device("hip:0");
#else
    auto gpu = hub.device("cuda:0");
#endif
    auto opencl = hub.device("opencl:0");
    auto x = hub.buffer<float>(Program::N, {opencl, gpu}); // one allocation, if the two can share it
    std::printf("%s\n", x.explain().c_str());

    auto kernels = opencl.program("kernel void count(global float *x) { x[get_global_id(0)] = get_global_id(0); }"
                                  "kernel void twice(global float *x) { x[get_global_id(0)] *= 2; }");
    onebuf::Param each = onebuf::Param::buffer(onebuf::Access::ReadWrite, sizeof(float));
    auto count = kernels.kernel("count", {each}), twice = kernels.kernel("twice", {each});

    auto queue = opencl.queue();
    auto stream = hub.wrap_stream(gpu, program.stream); // the program's stream, as a queue
    queue.launch(count, Program::N, x);
    {
        auto view = x.write_on(stream); // the stream waits for the kernel
#ifdef USE_HIP
        program.add_twice_ones(view.hip_ptr());
#else
        program.add_twice_ones(reinterpret_cast<void *>(view.cuda_ptr()));
#endif
    }
    queue.launch(twice, Program::N, x); // and the kernel for the library

    bool right = true;
    auto found = x.to_vector();
    for (int i = 0; i < Program::N; i++) right = right && found[i] == 2.0f * (static_cast<float>(i) + 2.0f);

    // The program's own memory as a buffer, after its own work.
    auto ones = hub.wrap_pointer<float>(gpu, program.ones, Program::N, onebuf::WrapOptions().after(stream.fence()));
    right = right && ones.to_vector() == std::vector<float>(Program::N, 1.0f);
    std::printf("%s: the last element is %.0f\n", right ? "right" : "wrong", found.back());
    return right ? 0 : 1;
}
