// The application's own CUDA objects in C++: `pointer CUDA-LIBRARY`. A real driver and the stub work alike.

#include <onebuf.hpp>

#include <cstdio>
#include <dlfcn.h>

static void check(bool right, int line) {
    if (right) return;
    std::fprintf(stderr, "line %d\n", line);
    std::exit(1);
}
#define CHECK(right) check(right, __LINE__)

static void *library;
template <class... Args> static void call(const char *name, Args... args) {
    auto function = reinterpret_cast<int (*)(Args...)>(::dlsym(library, name));
    CHECK(function != nullptr);
    CHECK(function(args...) == 0);
}

// As in cuda.h.
using CUdeviceptr = unsigned long long;
using CUstream = struct CUstream_st *;
using CUevent = struct CUevent_st *;
struct IpcHandle { char bytes[64]; };

int main(int argc, char **argv) {
    CHECK(argc > 1);
    library = ::dlopen(argv[1], RTLD_NOW);
    CHECK(library != nullptr);
    onebuf::HubOptions options;
    options.without_opencl = options.without_hip = options.without_verdicts = 1;
    options.cuda_library = options.nvrtc_library = argv[1];
    void *context = nullptr;
    CUdeviceptr pointer = 0;
    CUstream stream = nullptr;
    CUevent event = nullptr;
    const std::size_t count = 5000, bytes = count * sizeof(std::uint32_t);
    {
        auto hub = onebuf::Hub::discover(options);
        auto device = hub.device("cuda:0");
        call("cuDevicePrimaryCtxRetain", &context, 0);
        call("cuCtxPushCurrent_v2", context);
        call("cuMemAlloc_v2", &pointer, bytes);
        call("cuStreamCreate", &stream, 1u);
        call("cuEventCreate", &event, 2u);
        call("cuMemsetD32Async", pointer, 3u, count, stream);
        call("cuEventRecord", event, stream);

        CHECK(hub.pointer_info(device, pointer).bytes >= bytes);
        auto done = hub.wrap_stream_event(device, event);
        auto queue = hub.wrap_stream(device, stream);
        auto buffer = hub.wrap_pointer<std::uint32_t>(device, pointer, count, onebuf::WrapOptions().after(done));
        CHECK(buffer.size() == count && buffer.to_vector() == std::vector<std::uint32_t>(count, 3));
        auto same = reinterpret_cast<std::uint32_t *>(static_cast<std::uintptr_t>(pointer));
        auto again = hub.wrap_pointer<std::uint32_t>(device, same, count);
        again.write(std::vector<std::uint32_t>(count, 4));
        buffer.hand_to(queue);
        std::vector<std::uint32_t> words(count);
        call("cuMemcpyDtoHAsync_v2", static_cast<void *>(words.data()), pointer, bytes, stream);
        queue.finish();
        CHECK(words == std::vector<std::uint32_t>(count, 4));
        CHECK(hub.wrap_stream(device, nullptr).native() == nullptr);

        // An allocation that the application mapped nowhere.
        struct { int kind, handles, where, id; void *none; unsigned char flags[8]; } prop{1, 1, 1, 0, nullptr, {}};
        unsigned long long handle = 0, flags = 0;
        call("cuMemCreate", &handle, static_cast<std::size_t>(2 << 20), &prop, flags);
        auto mapped = hub.wrap_allocation<std::uint32_t>(device, handle, (2 << 20) / sizeof(std::uint32_t));
        call("cuMemRelease", handle);
        mapped.write(std::vector<std::uint32_t>(mapped.size(), 5));
        CHECK(mapped.to_vector() == std::vector<std::uint32_t>(mapped.size(), 5));

        for (int which = 0; which < 3; which++) {
            try {
                if (which == 0) (void)hub.wrap_pointer<std::uint32_t>(device, pointer, count + 1);
                if (which == 1) (void)hub.wrap_pointer<std::uint32_t>(device, &words, 1);
                if (which == 2) (void)hub.open_ipc<std::uint32_t>(device, IpcHandle{}, count);
                CHECK(false);
            } catch (const onebuf::Error &error) {
                CHECK(which == 2 || error.status() == ONEBUF_INVALID_ARGUMENT);
            }
        }
    }
    call("cuEventDestroy_v2", event);
    call("cuStreamDestroy_v2", stream);
    call("cuMemFree_v2", pointer);
    call("cuCtxPopCurrent_v2", &context);
    call("cuDevicePrimaryCtxRelease_v2", 0);
    std::printf("pointers and streams work in C++\n");
}
