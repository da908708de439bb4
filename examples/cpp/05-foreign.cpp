// 5. A library function that works on its caller's context, queue and buffer (raw handles or objects of
// CL/opencl.hpp) in place, in order with the caller's commands.
//
// c++ -std=c++17 05-foreign.cpp $(pkg-config --cflags --libs onebuf) -lOpenCL -o foreign && ./foreign

#define CL_HPP_TARGET_OPENCL_VERSION 120
#define CL_HPP_MINIMUM_OPENCL_VERSION 110
#define CL_HPP_ENABLE_EXCEPTIONS
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/opencl.hpp>

#include <onebuf.hpp>

#include <cstdio>
#include <numeric>

namespace library {

const char *const SQUARE = "kernel void square(global float *x) { x[get_global_id(0)] *= x[get_global_id(0)]; }";

/// Squares a buffer in order with the commands of the caller's queue.
template <class Context, class Queue, class Mem> // cl_context or cl::Context, and so on
void square(const onebuf::Hub &hub, const Context &context, const Queue &queue, const Mem &mem) {
    auto theirs = hub.foreign_context(context);
    auto on = hub.wrap_queue(queue);
    auto kernel = theirs.device(on).program(SQUARE).kernel(
        "square", {onebuf::Param::buffer(onebuf::Access::ReadWrite, sizeof(float))});
    auto before = on.fence(); // covers the caller's work so far
    auto buffer = hub.wrap<float>(mem, onebuf::WrapOptions().after(before));
    on.launch(kernel, buffer.size(), buffer);
    buffer.hand_to(on); // orders the caller's next commands after ours
}

} // namespace library

int main() {
    try {
        auto hub = onebuf::Hub::discover();
        try {
            hub.device("opencl");
        } catch (const onebuf::Error &missing) {
            std::printf("no OpenCL here: %s\n", missing.what());
            return 0;
        }
        // The caller, which does not use onebuf itself.
        std::vector<cl::Platform> platforms;
        cl::Platform::get(&platforms);
        std::vector<cl::Device> devices;
        for (std::size_t at = 0; devices.empty() && at < platforms.size(); ++at) // some platforms have no device
            platforms[at].getDevices(CL_DEVICE_TYPE_ALL, &devices);
        cl::Context context(devices.at(0));
        cl::CommandQueue queue(context, devices[0]);
        std::vector<float> x(1024);
        std::iota(x.begin(), x.end(), 0.0f);
        cl::Buffer buffer(context, CL_MEM_READ_WRITE, x.size() * sizeof(float));
        queue.enqueueWriteBuffer(buffer, CL_FALSE, 0, x.size() * sizeof(float), x.data());

        library::square(hub, context, queue, buffer);
        library::square(hub, context(), queue(), buffer()); // raw handles work too

        std::vector<float> found(x.size());
        queue.enqueueReadBuffer(buffer, CL_TRUE, 0, x.size() * sizeof(float), found.data());
        for (std::size_t i = 0; i < x.size(); ++i) {
            float squared = x[i] * x[i], want = squared * squared;
            if (found[i] == want) continue;
            std::fprintf(stderr, "element %zu is %g, not %g\n", i, double(found[i]), double(want));
            return 1;
        }
        std::printf("squared in place, twice: element 3 is %g\n", double(found[3]));
        return 0;
    } catch (const onebuf::Error &error) {
        std::fprintf(stderr, "%s: %s\n", error.name(), error.what());
    } catch (const cl::Error &error) {
        std::fprintf(stderr, "%s: %d\n", error.what(), error.err());
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
    }
    return 1;
}
