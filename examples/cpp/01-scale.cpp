// 1. Scales a vector on every device, including the CPU.
//
// c++ -std=c++17 01-scale.cpp $(pkg-config --cflags --libs onebuf) -o scale && ./scale

#include <onebuf.hpp>

#include <cstdio>
#include <numeric>

namespace {

constexpr std::size_t N = 1 << 16;

// The kernel for OpenGL and Vulkan: the buffer is argument 0, the value argument 1.
constexpr const char *SHADER = R"(#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Data { float x[]; };
layout(std140, binding = 1) uniform Values { float by; };
void main() { x[gl_GlobalInvocationID.x] *= by; }
)";

// The kernel for the CPU: called once for the whole launch.
std::int32_t scale(void *, const onebuf_native_call *call) {
    auto *x = static_cast<float *>(call->args[0].data);
    float by = *static_cast<const float *>(call->args[1].data);
    for (std::size_t i = 0; i < call->global[0]; ++i) x[i] *= by;
    return 0;
}

bool scale_on(const onebuf::Hub &hub, const onebuf::Device &device) {
    onebuf_native native{"scale", scale, nullptr};
    onebuf_shader shader{"scale", SHADER};
    onebuf::ProgramOptions source;
    source.opencl_c = "kernel void scale(global float *x, float by) { x[get_global_id(0)] *= by; }";
    source.shaders = &shader;
    source.shader_count = 1;
    source.natives = &native;
    source.native_count = 1;
    auto kernel = device.program(source).kernel(
        "scale", {onebuf::Param::buffer(onebuf::Access::ReadWrite, sizeof(float)), onebuf::Param::value<float>()});

    std::vector<float> first(N);
    std::iota(first.begin(), first.end(), 0.0f);
    auto buffer = hub.buffer(first, {device}); // typed; freed at the end of its scope
    auto queue = device.queue();
    queue.launch(kernel, N, buffer, 2.0f); // takes a view of the buffer for the launch

    std::size_t wrong = 0, i = 0;
    for (float x : buffer.map_read()) wrong += x != 2.0f * first[i++]; // waits for the kernel, reads in place
    std::printf("%s (%s): %s\n", device.id().c_str(), device.name().c_str(), wrong ? "wrong" : "scaled");
    return wrong == 0;
}

} // namespace

int main() {
    try {
        auto hub = onebuf::Hub::discover();
        auto devices = hub.devices();
        for (const auto &device : devices) {
            if (!scale_on(hub, device)) return 1;
        }
        std::printf("%zu devices agree\n", devices.size());
    } catch (const onebuf::Error &error) {
        std::fprintf(stderr, "%s: %s\n", error.name(), error.what());
        return 1;
    }
}
