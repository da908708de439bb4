// 9. SYCL: its kernels and those of another OpenCL device take turns on USM memory, and a kernel of onebuf runs in SYCL's own queue.
//
// icpx -fsycl 09-sycl.cpp $(pkg-config --cflags --libs onebuf) -lOpenCL -o sycl && ONEAPI_DEVICE_SELECTOR=opencl:cpu ./sycl

#include <onebuf_sycl.hpp>

#include <cstdio>
#include <future>

constexpr std::size_t N = 1 << 20;

const onebuf::Param EACH = onebuf::Param::buffer(onebuf::Access::ReadWrite, sizeof(float));

onebuf::Kernel kernel(const onebuf::Device &device, const char *text, const char *name) {
    return device.program(text).kernel(name, {EACH});
}

// A device of another driver than SYCL's, if there is one: a GPU beside Intel's CPU, PoCL.
onebuf::Device another(const onebuf::Hub &hub, const sycl::queue &queue) {
    const auto name = queue.get_device().get_info<sycl::info::device::name>();
    onebuf::Device found = hub.device("host");
    for (const onebuf::Device &device : hub.devices())
        if (device.id().rfind("opencl:", 0) == 0 && device.name() != name) found = device;
    return found;
}

// The other device works on SYCL's memory in place, if its driver can, and the memory is SYCL's again.
void add_one(const onebuf::Hub &hub, const onebuf::Device &other, sycl::queue &queue, float *samples) {
    queue.wait(); // SYCL's work on the samples is done
    std::promise<void> returned;
    {
        auto shared = onebuf::sycl_usm(hub, queue, samples, N, onebuf::BufferOptions{other}, [&] { returned.set_value(); });
        auto add = kernel(other, "kernel void add(global float *x) { x[get_global_id(0)] += 1; }", "add");
        other.default_queue().launch(add, N, shared);
        std::printf("%s\n", shared.explain().c_str());
    }
    returned.get_future().wait();
}

int main() {
    try {
        sycl::queue queue{sycl::cpu_selector_v, sycl::property::queue::in_order()};
        auto hub = onebuf::Hub::discover();

        // 1. Kernels of SYCL before and after a kernel of another device, on memory that SYCL allocated.
        float *samples = sycl::aligned_alloc_host<float>(4096, N, queue);
        queue.parallel_for(sycl::range<1>(N), [=](sycl::id<1> i) { samples[i] = static_cast<float>(i[0]); });
        onebuf::Device other = another(hub, queue);
        if (other.id() != "host") add_one(hub, other, queue, samples);
        queue.parallel_for(sycl::range<1>(N), [=](sycl::id<1> i) { samples[i] *= 2; }).wait();
        const float expected = 2 * (static_cast<float>(N - 1) + (other.id() == "host" ? 0 : 1));
        std::printf("after %s the last sample is %.0f\n", other.id().c_str(), samples[N - 1]);

        // 2. A kernel of onebuf in SYCL's queue. SYCL's next command depends on it, and no thread waits in between.
        onebuf::ForeignContext context = onebuf::sycl_context(hub, queue.get_context());
        onebuf::Queue owners = onebuf::sycl_queue(hub, queue);
        onebuf::Device device = context.device(owners);
        auto data = hub.buffer<float>(N, onebuf::BufferOptions{device});
        data.fill(20);
        owners.launch(kernel(device, "kernel void more(global float *x) { x[get_global_id(0)] += 1; }", "more"), N, data);
        queue.submit([&](sycl::handler &group) {
            group.depends_on(onebuf::sycl_events(owners.fence(), queue.get_context()));
            group.parallel_for(sycl::range<1>(N), [=](sycl::id<1> i) { samples[i] += 1; });
        });
        queue.wait();
        const bool right = samples[N - 1] == expected + 1 && data.to_vector() == std::vector<float>(N, 21);
        sycl::free(samples, queue);
        std::printf("%s\n", right ? "right" : "wrong");
        return right ? 0 : 1;
    } catch (const onebuf::Error &error) {
        std::fprintf(stderr, "%s: %s\n", error.name(), error.what());
    } catch (const sycl::exception &error) {
        std::fprintf(stderr, "SYCL: %s\n", error.what());
    }
    return 1;
}
