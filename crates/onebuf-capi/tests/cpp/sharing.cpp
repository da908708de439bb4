// Launches take what their parameters declare; one buffer for two parameters; waiting until a buffer is free.

#include <onebuf.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

using namespace std::chrono_literals;
using onebuf::Access;
using onebuf::Param;

namespace {

void line_of(bool fine, int line) {
    if (fine) return;
    std::fprintf(stderr, "line %d\n", line);
    std::exit(1);
}
#define TRUE(what) line_of(static_cast<bool>(what), __LINE__)

template <class Call> bool fails(onebuf_status status, const char *part, Call call) {
    try {
        call();
    } catch (const onebuf::Error &error) {
        if (error.status() == status && std::string(error.what()).find(part) != std::string::npos) return true;
        std::fprintf(stderr, "%s: %s\n", error.name(), error.what());
    }
    return false;
}

const char *const TEXT = "kernel void axpy(global const float *x, global float *y, float a) {"
                         "    size_t i = get_global_id(0); y[i] = a * x[i] + y[i]; }";

} // namespace

int main(int argc, char **argv) {
    auto hub = onebuf::Hub::discover();
    auto device = hub.device(argc > 1 ? argv[1] : "opencl");
    auto queue = device.queue(), other = device.queue();
    auto program = device.program(TEXT);
    auto axpy = program.kernel("axpy", {Param::buffer(Access::Read, 4), Param::buffer(Access::ReadWrite, 4), Param::value<float>()});
    auto elementwise = program.kernel("axpy", {Param::buffer(Access::Read, 4), Param::buffer(Access::ReadWrite, 4), Param::value<float>()},
                                      ONEBUF_KERNEL_ELEMENTWISE);
    constexpr std::size_t count = 256;
    auto x = hub.buffer<float>(count, onebuf::BufferOptions{device}.name("samples"));
    auto y = hub.buffer<float>(count, {device});
    x.fill(3), y.fill(1);

    {
        auto reader = x.read_on(other);
        queue.launch(axpy, count, x, y, 2.0f); // a reader beside a reader, without reads()
        queue.finish();
        TRUE(y.map_read()[7] == 7);
        TRUE(fails(ONEBUF_BUSY, "samples is in use", [&] { queue.launch(axpy, count, y, x, 2.0f); })); // the control
    }
    TRUE(fails(ONEBUF_INVALID_ARGUMENT, "are the same memory", [&] { queue.launch(axpy, count, y, y, 2.0f); }));
    queue.launch(elementwise, count, y, y, 2.0f);
    TRUE(y.map_read()[count - 1] == 21);
    TRUE(fails(ONEBUF_INVALID_ARGUMENT, "read", [&] { queue.launch(axpy, count, x, onebuf::reads(y), 2.0f); }));

    auto held = x.map();
    std::thread end([&] {
        std::this_thread::sleep_for(50ms);
        held.unmap();
    });
    queue.launch_within(10s, axpy, count, x, y, 1.0f);
    end.join();
    TRUE(y.map_read_within(10s)[0] == 24);
    {
        auto writer = y.write_on_within(queue, 10s);
        TRUE(fails(ONEBUF_TIMEOUT, "holds a write view", [&] { y.map_within(20ms); }));
        TRUE(fails(ONEBUF_TIMEOUT, "holds a write view", [&] { y.read_on_within(other, 20ms); }));
        TRUE(fails(ONEBUF_TIMEOUT, "holds a write view", [&] { other.launch_within(20ms, axpy, count, x, y, 1.0f); }));
    }
    TRUE(y.map_read()[0] == 24);
    std::printf("sharing works in C++ on %s\n", argc > 1 ? argv[1] : "opencl");
    return 0;
}
