// 2. Two devices take turns on one buffer, and the ledger shows what was copied.
//
// c++ -std=c++17 02-two-devices.cpp $(pkg-config --cflags --libs onebuf) -o two && ./two

#include <onebuf.hpp>

#include <algorithm>
#include <cstdio>

namespace {

constexpr std::size_t N = 1 << 18;
constexpr std::uint32_t TURNS = 6;

std::int32_t add_one(void *, const onebuf_native_call *call) {
    auto *x = static_cast<std::uint32_t *>(call->args[0].data);
    std::for_each(x, x + call->global[0], [](std::uint32_t &each) { each += 1; });
    return 0;
}

onebuf::Kernel build(const onebuf::Device &device) {
    onebuf_native native{"add_one", add_one, nullptr};
    onebuf::ProgramOptions source;
    source.opencl_c = "kernel void add_one(global uint *x) { x[get_global_id(0)] += 1; }";
    source.natives = &native;
    source.native_count = 1;
    return device.program(source).kernel("add_one", {onebuf::Param::buffer(onebuf::Access::ReadWrite, 4)});
}

} // namespace

int main() {
    try {
        auto hub = onebuf::Hub::discover();
        auto devices = hub.devices();
        std::reverse(devices.begin(), devices.end());
        devices.resize(2, devices.back()); // the last two devices; the host replaces missing ones

        auto buffer = hub.buffer<std::uint32_t>(N, onebuf::BufferOptions().shared_with(devices)); // one allocation
        std::printf("%s\n", buffer.explain().c_str());

        std::vector<onebuf::Queue> queues;
        std::vector<onebuf::Kernel> kernels;
        for (const auto &device : devices) {
            queues.push_back(device.queue());
            kernels.push_back(build(device));
        }
        // Each launch waits for the previous one, by the best sync method of the two devices.
        for (std::uint32_t turn = 0; turn < TURNS; ++turn) queues[turn % 2].launch(kernels[turn % 2], N, buffer);

        auto map = buffer.map_read();
        if (std::any_of(map.begin(), map.end(), [](std::uint32_t x) { return x != TURNS; })) return 1;
        std::printf("both took their turns: every element is %u\n", static_cast<unsigned>(map[0]));
        std::printf("%s\n", hub.ledger().c_str());
    } catch (const onebuf::Error &error) {
        std::fprintf(stderr, "%s: %s\n", error.name(), error.what());
        return 1;
    }
}
