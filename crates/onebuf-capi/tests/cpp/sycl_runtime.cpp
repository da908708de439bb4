// onebuf_sycl.hpp with SYCL's own header and library: a kernel that SYCL's run-time compiler builds and kernels of onebuf take turns
// on USM memory and in SYCL's queue, both directions, every element.

#define CL_TARGET_OPENCL_VERSION 300
#include <onebuf_sycl.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <thread>

namespace {

constexpr std::size_t N = 5 * 1024 + 128;
using Word = std::uint32_t;

void line_of(bool fine, int line) {
    if (fine) return;
    std::fprintf(stderr, "line %d\n", line);
    std::exit(1);
}
#define TRUE(what) line_of(static_cast<bool>(what), __LINE__)

// The status and the message of a refused call.
template <class Call> bool refused(Call call, const char *message) {
    try {
        call();
    } catch (const onebuf::Error &error) {
        return error.status() == ONEBUF_UNSUPPORTED && std::strstr(error.what(), message);
    }
    return false;
}

cl_uint references(const sycl::context &context) {
    cl_uint count = 0;
    cl_context native = sycl::get_native<sycl::backend::opencl>(context);
    TRUE(clGetContextInfo(native, CL_CONTEXT_REFERENCE_COUNT, sizeof count, &count, nullptr) == CL_SUCCESS);
    clReleaseContext(native);
    return count;
}

cl_uint references(const sycl::queue &queue) {
    cl_uint count = 0;
    cl_command_queue native = sycl::get_native<sycl::backend::opencl>(queue);
    TRUE(clGetCommandQueueInfo(native, CL_QUEUE_REFERENCE_COUNT, sizeof count, &count, nullptr) == CL_SUCCESS);
    clReleaseCommandQueue(native);
    return count;
}

const char *const IN_SYCL = R"(
#include <sycl/sycl.hpp>
namespace exp = sycl::ext::oneapi::experimental;
extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((exp::nd_range_kernel<1>))
void scale(unsigned *p, unsigned by) { p[sycl::ext::oneapi::this_work_item::get_nd_item<1>().get_global_linear_id()] *= by; }
)";
const char *const IN_OPENCL = "kernel void grow(global uint *p, uint by) { p[get_global_id(0)] += by; }";

// The compiler that SYCL's library contains: the one that builds this program knows C++ alone.
sycl::kernel scale(const sycl::queue &queue) {
    namespace exp = sycl::ext::oneapi::experimental;
    auto source = exp::create_kernel_bundle_from_source(queue.get_context(), exp::source_language::sycl, IN_SYCL);
    return exp::build(source).ext_oneapi_get_kernel("scale");
}

onebuf::Kernel grow(const onebuf::Device &device) {
    return device.program(IN_OPENCL)
        .kernel("grow", {onebuf::Param::buffer(onebuf::Access::ReadWrite, sizeof(Word)), onebuf::Param::value<Word>()});
}

// A kernel of SYCL on the words, after these events.
sycl::event multiply(sycl::queue &queue, const sycl::kernel &kernel, Word *words, Word by, const std::vector<sycl::event> &after = {}) {
    return queue.submit([&](sycl::handler &group) {
        group.depends_on(after);
        group.set_args(words, by);
        group.parallel_for(sycl::nd_range<1>(N, 64), kernel);
    });
}

// The CPU of a platform of OpenCL.
sycl::device on(const char *platform) {
    for (const sycl::platform &one : sycl::platform::get_platforms())
        if (one.get_info<sycl::info::platform::name>().find(platform) != std::string::npos) return one.get_devices()[0];
    std::printf("skip: SYCL finds no platform %s\n", platform);
    std::exit(0);
}

// PoCL as a device of the hub.
onebuf::Device pocl(const onebuf::Hub &hub) {
    for (const onebuf::Device &device : hub.devices()) {
        if (device.id().rfind("opencl:", 0) != 0) continue;
        char name[256] = "";
        clGetPlatformInfo(device.cl_platform(), CL_PLATFORM_NAME, sizeof name, name, nullptr);
        if (std::strstr(name, "Portable")) return device;
    }
    std::puts("skip: PoCL: not found");
    std::exit(0);
}

// Kernels of SYCL on Intel's OpenCL and of onebuf on another driver, in turn on the same memory.
void turns_on_usm(const onebuf::Hub &hub, const onebuf::Device &other, sycl::queue &queue, const sycl::kernel &kernel, Word *words) {
    auto add = grow(other);
    for (std::size_t i = 0; i < N; ++i) words[i] = static_cast<Word>(i);
    std::vector<Word> model(words, words + N);
    for (Word round = 2; round < 6; ++round) {
        multiply(queue, kernel, words, round).wait();
        std::promise<void> returned;
        {
            const auto options = onebuf::BufferOptions{other}.trust_declared(true);
            auto shared = onebuf::sycl_usm(hub, queue, words, N, options, [&] { returned.set_value(); });
            other.default_queue().launch(add, N, shared, round);
            TRUE(shared.explain().find("staged") == std::string::npos);
        }
        TRUE(returned.get_future().wait_for(std::chrono::seconds(20)) == std::future_status::ready);
        for (std::size_t i = 0; i < N; ++i) TRUE(words[i] == (model[i] = model[i] * round + round));
    }
    // The control: a kernel on a copy leaves SYCL's memory as it is.
    auto copied = hub.buffer<Word>(N, onebuf::BufferOptions{other});
    copied.write(words, N);
    other.default_queue().launch(add, N, copied, Word(9));
    const std::vector<Word> seen = copied.to_vector();
    for (std::size_t i = 0; i < N; ++i) TRUE(seen[i] == model[i] + 9 && words[i] == model[i]);
}

// A kernel of onebuf in SYCL's own queue, held up by an event, and SYCL's next kernel behind it. No thread waits.
void turns_in_the_queue(const onebuf::Hub &hub, sycl::queue &queue, const sycl::kernel &kernel) {
    const sycl::context of = queue.get_context();
    onebuf::ForeignContext known = onebuf::sycl_context(hub, of);
    onebuf::Queue owners = onebuf::sycl_queue(hub, queue);
    onebuf::Device there = known.device(owners);
    TRUE(there.id().find('@') != std::string::npos);
    auto add = grow(there);

    cl_context native = sycl::get_native<sycl::backend::opencl>(of);
    cl_event gate = clCreateUserEvent(native, nullptr);
    auto held = sycl::make_event<sycl::backend::opencl>(std::vector<cl_event>{gate}, of);
    std::vector<onebuf::Fence> fences = onebuf::sycl_fences(hub, held);
    TRUE(fences.size() == 1 && !fences[0].done());

    auto data = hub.buffer<Word>(N, onebuf::BufferOptions{there});
    data.fill(7);
    owners.wait_for(fences[0]);
    owners.launch(add, N, data, Word(5));
    onebuf::Fence grown = owners.fence();
    Word *words = sycl::malloc_shared<Word>(N, queue);
    for (std::size_t i = 0; i < N; ++i) words[i] = static_cast<Word>(i);
    sycl::event after = multiply(queue, kernel, words, 3, onebuf::sycl_events(grown, of));
    TRUE(!grown.done());
    TRUE(after.get_info<sycl::info::event::command_execution_status>() != sycl::info::event_command_status::complete);
    TRUE(words[N - 1] == N - 1); // SYCL's kernel has not run
    TRUE(clSetUserEventStatus(gate, CL_COMPLETE) == CL_SUCCESS);
    after.wait();
    TRUE(grown.done());
    for (std::size_t i = 0; i < N; ++i) TRUE(words[i] == 3 * i);
    for (Word word : data.to_vector()) TRUE(word == 12);

    // SYCL's event as fences: what waits for them comes after SYCL's kernel.
    sycl::event last = multiply(queue, kernel, words, 2);
    for (const onebuf::Fence &fence : onebuf::sycl_fences(hub, last)) fence.wait();
    for (std::size_t i = 0; i < N; ++i) TRUE(words[i] == 6 * i);
    sycl::free(words, queue);
    clReleaseEvent(gate);
    clReleaseContext(native);
}

void refusals(const onebuf::Hub &hub, const onebuf::Device &other, sycl::queue &queue) {
    std::vector<Word> plain(N);
    Word *device = sycl::malloc_device<Word>(N, queue);
    for (Word *pointer : {device, plain.data()}) {
        bool done = false;
        TRUE(refused([&] { onebuf::sycl_usm(hub, queue, pointer, N, onebuf::BufferOptions{other}, [&] { done = true; }); }, "malloc_host"));
        TRUE(done);
    }
    sycl::free(device, queue);
}

} // namespace

int main() {
    sycl::queue queue{on("Intel"), sycl::property::queue::in_order()};
    const sycl::kernel kernel = scale(queue);
    const cl_uint before[2] = {references(queue.get_context()), references(queue)};
    {
        onebuf::Hub hub = onebuf::Hub::discover();
        onebuf::Device other = pocl(hub);
        Word *words[2] = {sycl::aligned_alloc_host<Word>(4096, N, queue), sycl::aligned_alloc_shared<Word>(4096, N, queue)};
        for (Word *one : words) {
            turns_on_usm(hub, other, queue, kernel, one);
            sycl::free(one, queue);
        }
        turns_in_the_queue(hub, queue, kernel);
        refusals(hub, other, queue);
    }
    for (int tries = 0; references(queue.get_context()) > before[0] || references(queue) > before[1]; ++tries) {
        TRUE(tries < 20000);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::puts("SYCL's own objects are shared");
}
