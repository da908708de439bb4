// onebuf_sycl.hpp with a stand-in for SYCL's header: every function, the reference counts, both directions, every element.

#define CL_TARGET_OPENCL_VERSION 120
#include <onebuf_sycl.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace {

constexpr std::size_t N = 5 * 1024 + 77;

void line_of(bool fine, int line) {
    if (fine) return;
    std::fprintf(stderr, "line %d\n", line);
    std::exit(1);
}
#define TRUE(what) line_of(static_cast<bool>(what), __LINE__)

template <class Call> onebuf_status status_of(Call call) {
    try {
        call();
        return ONEBUF_OK;
    } catch (const onebuf::Error &error) {
        TRUE(error.what()[0] != 0);
        return error.status();
    }
}

template <class What> bool eventually(What what) {
    for (int tries = 0; tries < 20000; ++tries) {
        if (what()) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
}

cl_uint references(cl_context context) {
    cl_uint count = 0;
    TRUE(clGetContextInfo(context, CL_CONTEXT_REFERENCE_COUNT, sizeof count, &count, nullptr) == CL_SUCCESS);
    return count;
}

cl_uint references(cl_command_queue queue) {
    cl_uint count = 0;
    TRUE(clGetCommandQueueInfo(queue, CL_QUEUE_REFERENCE_COUNT, sizeof count, &count, nullptr) == CL_SUCCESS);
    return count;
}

// PoCL, whose queues wait for the host.
cl_device_id pocl() {
    cl_platform_id all[16];
    cl_uint count = 0;
    if (clGetPlatformIDs(16, all, &count) != CL_SUCCESS) return nullptr;
    for (cl_uint at = 0; at < count; ++at) {
        char name[256] = "";
        cl_device_id device = nullptr;
        clGetPlatformInfo(all[at], CL_PLATFORM_NAME, sizeof name, name, nullptr);
        if (std::strstr(name, "Portable") && clGetDeviceIDs(all[at], CL_DEVICE_TYPE_ALL, 1, &device, nullptr) == CL_SUCCESS)
            return device;
    }
    return nullptr;
}

const char *const TEXT = "kernel void grow(global uint *p, uint by) { p[get_global_id(0)] += by; }";

onebuf::Kernel grow(const onebuf::Device &device) {
    onebuf::ProgramOptions source;
    source.opencl_c = TEXT;
    return device.program(source).kernel(
        "grow", {onebuf::Param::buffer(onebuf::Access::ReadWrite, sizeof(std::uint32_t)), onebuf::Param::value<std::uint32_t>()});
}

} // namespace

int main() {
    cl_device_id device = pocl();
    if (!device) return std::puts("skip: PoCL: not found"), 0;
    cl_context context = clCreateContext(nullptr, 1, &device, nullptr, nullptr, nullptr);
    cl_command_queue raw = clCreateCommandQueue(context, device, 0, nullptr);
    TRUE(context && raw);
    const sycl::context of(context);
    const sycl::queue queue(of, raw);
    const cl_uint before[2] = {references(context), references(raw)};
    {
        onebuf::Hub hub = onebuf::Hub::discover();
        // Queues and contexts: onebuf adds one reference to each, and SYCL's are released.
        onebuf::ForeignContext known = onebuf::sycl_context(hub, of);
        onebuf::Queue owners = onebuf::sycl_queue(hub, queue);
        onebuf::Device there = known.device(owners);
        TRUE(there.id().find('@') != std::string::npos);
        auto add = grow(there);
        // onebuf's kernel on SYCL's own queue, held up by an event of SYCL's.
        cl_event gate = clCreateUserEvent(context, nullptr);
        std::vector<onebuf::Fence> fences = onebuf::sycl_fences(hub, sycl::event({gate}));
        TRUE(fences.size() == 1 && !fences[0].done());
        onebuf::Buffer<std::uint32_t> words = hub.buffer<std::uint32_t>(N, onebuf::BufferOptions{there});
        words.fill(7);
        owners.wait_for(fences[0]);
        owners.launch(add, N, words, std::uint32_t(5));
        onebuf::Fence grown = owners.fence();
        std::vector<sycl::event> events = onebuf::sycl_events(grown, of);
        TRUE(events.size() == 1 && !grown.done());
        TRUE(clSetUserEventStatus(gate, CL_COMPLETE) == CL_SUCCESS);
        TRUE(clWaitForEvents(1, events[0].native_.data()) == CL_SUCCESS); // as SYCL waits
        std::vector<std::uint32_t> seen = words.to_vector();
        for (std::uint32_t word : seen) TRUE(word == 12);
        for (auto &event : events)
            for (cl_event native : event.native_) clReleaseEvent(native);
        clReleaseEvent(gate);
        // USM: in place for devices that use the host's pages.
        auto *usm = static_cast<std::uint32_t *>(sycl::aligned(4 * N, sycl::usm::alloc::host));
        for (std::uint32_t i = 0; i < N; ++i) usm[i] = i;
        bool done = false;
        const onebuf::BufferOptions in_place = onebuf::BufferOptions{there}.trust_declared(true);
        {
            auto buffer = onebuf::sycl_usm(hub, queue, usm, N, in_place, [&] { done = true; });
            owners.launch(add, N, buffer, std::uint32_t(3));
            std::uint32_t expected = 3;
            for (std::uint32_t word : buffer.map_read()) TRUE(word == expected++);
            TRUE(expected == N + 3);
        }
        TRUE(eventually([&] { return done; }));
        for (std::uint32_t i = 0; i < N; ++i) TRUE(usm[i] == i + 3);
        // What cannot be used in place is refused, and handed back.
        for (auto kind : {sycl::usm::alloc::device, sycl::usm::alloc::unknown}) {
            auto *other = static_cast<std::uint32_t *>(sycl::aligned(4 * N, kind));
            done = false;
            TRUE(status_of([&] { onebuf::sycl_usm(hub, queue, other, N, in_place, [&] { done = true; }); }) == ONEBUF_UNSUPPORTED);
            TRUE(done && std::strstr(onebuf_last_error_message(), "malloc_host"));
            std::free(other);
        }
        auto *shared = static_cast<std::uint32_t *>(sycl::aligned(4 * N, sycl::usm::alloc::shared));
        const sycl::queue on_gpu(of, raw, false);
        TRUE(status_of([&] { onebuf::sycl_usm(hub, on_gpu, shared, N, in_place, {}); }) == ONEBUF_UNSUPPORTED);
        TRUE(status_of([&] { onebuf::sycl_usm(hub, queue, shared, N, in_place, {}); }) == ONEBUF_OK);
        // Another backend.
        const sycl::context zero(context, sycl::backend::ext_oneapi_level_zero);
        TRUE(status_of([&] { onebuf::sycl_context(hub, zero); }) == ONEBUF_UNSUPPORTED);
        TRUE(status_of([&] { onebuf::sycl_queue(hub, sycl::queue(zero, raw)); }) == ONEBUF_UNSUPPORTED);
        std::free(usm);
        owners.finish();
    }
    TRUE(eventually([&] { return references(context) <= before[0] && references(raw) <= before[1]; }));
    clReleaseCommandQueue(raw);
    clReleaseContext(context);
    std::puts("SYCL's objects are shared");
    return 0;
}
