// Mappings of a range, for writing only, without earlier contents, and asynchronous ones.

#include <onebuf.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>

using namespace std::chrono_literals;

namespace {

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
        return error.status();
    }
}

} // namespace

int main(int argc, char **argv) {
    auto hub = onebuf::Hub::discover();
    auto device = hub.device(argc > 1 ? argv[1] : "opencl");
    auto queue = device.queue();
    auto add = device.program("kernel void add(global uint *x, uint n) { x[get_global_id(0)] += n; }")
                   .kernel("add", {onebuf::Param::buffer(onebuf::Access::ReadWrite, 4), onebuf::Param::value<unsigned>()});
    constexpr std::size_t count = 512;
    auto buffer = hub.buffer<unsigned>(count, {device});
    {
        auto all = buffer.map_overwrite();
        TRUE(all.size() == count);
        for (unsigned &each : all) each = 7;
    }
    queue.launch(add, count, buffer, 1u);
    {
        auto some = buffer.map_range(10, 3);
        TRUE(some.size() == 3 && some[0] == 8);
        some[1] = 100;
    }
    TRUE(buffer.map_range_read(11, 1)[0] == 100 && buffer.map_range_read(12, 1)[0] == 8);
    buffer.map(onebuf::MapOptions().access(onebuf::Access::Write).range<unsigned>(500))[0] = 5;
    TRUE(buffer.to_vector()[500] == 5 && buffer.to_vector()[501] == 8);
    TRUE(status_of([&] { buffer.map_range(count - 1, 2); }) == ONEBUF_INVALID_ARGUMENT);

    queue.launch(add, count, buffer, 1u);
    auto pending = buffer.map_async(onebuf::MapOptions().range<unsigned>(11, 2));
    while (!pending.ready()) {
    }
    {
        auto mapped = pending.wait(10s);
        TRUE(!pending && mapped.size() == 2 && mapped[0] == 101 && mapped[1] == 9);
    }
    auto view = buffer.write_on(queue);
    auto later = buffer.map_async();
    TRUE(status_of([&] { later.wait(20ms); }) == ONEBUF_TIMEOUT && later);
    view.reset();
    TRUE(later.wait(10s)[11] == 101);

    auto filled = hub.buffer<unsigned>(count, onebuf::BufferOptions{device}.host_access(onebuf::HostAccess::Write));
    TRUE(status_of([&] { filled.map(); }) == ONEBUF_INVALID_ARGUMENT);
    for (unsigned &each : filled.map_overwrite()) each = 41;
    queue.launch(add, count, filled, 1u);
    buffer.copy_from(filled, 0, count);
    TRUE(buffer.map_read()[count - 1] == 42);
    std::printf("maps work in C++ on %s\n", argc > 1 ? argv[1] : "opencl");
    return 0;
}
