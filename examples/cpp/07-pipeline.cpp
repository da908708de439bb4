// 7. A continuous pipeline: a source, a stage on a device, a sink, and three slots that circulate between them.
//
// c++ -std=c++17 07-pipeline.cpp $(pkg-config --cflags --libs onebuf) -o pipeline && ./pipeline

#include <onebuf.hpp>

#include <algorithm>
#include <cstdio>

namespace {

constexpr std::size_t N = 1 << 14;
constexpr std::uint64_t FRAMES = 200;

std::int32_t twice(void *, const onebuf_native_call *call) {
    auto *x = static_cast<float *>(call->args[0].data);
    std::for_each(x, x + call->global[0], [](float &each) { each *= 2.0f; });
    return 0;
}

onebuf::Kernel build(const onebuf::Device &device) {
    onebuf_native native{"twice", twice, nullptr};
    onebuf::ProgramOptions source;
    source.opencl_c = "kernel void twice(global float *x) { x[get_global_id(0)] *= 2.0f; }";
    source.natives = &native;
    source.native_count = 1;
    return device.program(source).kernel("twice", {onebuf::Param::buffer(onebuf::Access::ReadWrite, sizeof(float))});
}

} // namespace

int main() {
    try {
        auto hub = onebuf::Hub::discover();
        auto device = hub.devices().size() > 1 ? hub.devices()[1] : hub.host();
        if (device.api() != "opencl") device = hub.host();
        auto kernel = build(device);

        double sum = 0;
        auto pipeline = onebuf::PipelineOptions(3)
            .buffer<float>(N, {device})
            .source([](const onebuf::Frame &frame) {
                if (frame.number() == FRAMES) return onebuf::Filled::End;
                frame.buffer<float>()->fill(static_cast<float>(frame.number()));
                return onebuf::Filled::Frame;
            })
            .stage("amplify", device, [&](const onebuf::Frame &frame) { // enqueues, does not wait
                frame.queue()->launch(kernel, N, *frame.buffer<float>());
            })
            .sink([&](const onebuf::Frame &frame) { sum += frame.buffer<float>()->map_read()[N - 1]; })
            .one_thread() // for drivers that crash with two threads; omit it otherwise
            .build(hub);

        auto report = pipeline.run(); // throws an Error if a callback threw, with its message
        std::printf("%llu frames, the median took %llu us\n", static_cast<unsigned long long>(report.frames),
                    static_cast<unsigned long long>(report.latency_p50_ns / 1000));
        std::printf("the sum is %.0f\n", sum);
        return sum == 2.0 * FRAMES * (FRAMES - 1) / 2 ? 0 : 1;
    } catch (const onebuf::Error &error) {
        std::fprintf(stderr, "%s: %s\n", error.name(), error.what());
        return 1;
    }
}
