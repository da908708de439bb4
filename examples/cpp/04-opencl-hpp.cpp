// 4. Interoperation with Khronos' C++ bindings: a view of a onebuf buffer as a cl::Buffer, a queue
// as a cl::CommandQueue. Work that is enqueued while the view is held is fenced like onebuf's own.
//
// c++ -std=c++17 04-opencl-hpp.cpp $(pkg-config --cflags --libs onebuf) -lOpenCL -o hpp && ./hpp

#define CL_HPP_TARGET_OPENCL_VERSION 120
#define CL_HPP_MINIMUM_OPENCL_VERSION 110
#define CL_HPP_ENABLE_EXCEPTIONS
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/opencl.hpp>

#include <onebuf.hpp>

#include <cstdio>

int main() {
    try {
        auto hub = onebuf::Hub::discover();
        onebuf::Device device;
        try {
            device = hub.device("opencl");
        } catch (const onebuf::Error &missing) {
            std::printf("no OpenCL here: %s\n", missing.what());
            return 0;
        }
        // A cl_mem, even if the planner would choose another memory kind.
        auto options = onebuf::BufferOptions{device}.memory_kind(onebuf::MemoryKind::MappedDevice);
        auto buffer = hub.buffer<cl_uint>(1024, options);
        auto queue = device.queue();
        {
            auto view = buffer.write_on(queue);
            cl::CommandQueue native = onebuf::cl_queue(queue);
            native.enqueueFillBuffer(onebuf::cl_buffer(view), cl_uint{42}, 0, buffer.size_bytes());
        }
        auto map = buffer.map_read(); // waits for the fill
        std::printf("on %s the last element is %u\n", device.id().c_str(), map[1023]);
        return map[1023] == 42 ? 0 : 1;
    } catch (const onebuf::Error &error) {
        std::fprintf(stderr, "%s: %s\n", error.name(), error.what());
    } catch (const cl::Error &error) {
        std::fprintf(stderr, "%s: %d\n", error.what(), error.err());
    }
    return 1;
}
