// Queue pools, warm-ups, prepared pools, write batches, plans, traces, the live view, and buffers over the caller's memory.

#include <onebuf.hpp>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

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

alignas(4096) std::array<unsigned, 2048> pages;

} // namespace

int main(int argc, char **argv) {
    onebuf::HubOptions options;
    options.trace_events = 1024;
    auto hub = onebuf::Hub::discover(options);
    auto device = hub.device(argc > 1 ? argv[1] : "opencl");
    auto program = device.program("kernel void add(global uint *x, uint n) { x[get_global_id(0)] += n; }");
    auto add = program.kernel("add", {onebuf::Param::buffer(onebuf::Access::ReadWrite, 4), onebuf::Param::value<unsigned>()});
    auto queues = device.queues(2);

    // Initial elements of any contiguous range.
    const std::array<unsigned, 4> four{1, 2, 3, 4};
    const unsigned plain[] = {5, 6};
    auto x = hub.buffer<unsigned>(four, {device});
    TRUE(x.size() == 4 && x.map_read()[3] == 4 && hub.buffer<unsigned>(plain).map_read()[1] == 6);
    TRUE(queues.next_queue().warm_up(add, x.size(), x, 10u).count() > 0);
    queues.least_busy().launch(add, x.size(), x, 1u);
    queues.finish();
    TRUE(x.map_read()[0] == 12);
    x.write_batch({{0, plain, 2}, {3, plain, 1}});
    TRUE(x.map_read()[1] == 6 && x.map_read()[2] == 14 && x.map_read()[3] == 5);
    x.release_to(device);

    // The caller's memory, in place or by a copy that is written back.
    bool done = false;
    pages.fill(7);
    {
        auto over = hub.buffer_over(pages.data(), pages.size(), {device, hub.host()}, [&] { done = true; });
        queues.next_queue().launch(add, over.size(), over, 1u);
        TRUE(over.map_read()[2047] == 8 && !done);
    }
    queues.finish();
    add.reset(); // kernels of some drivers hold their arguments
    TRUE(done);
    done = false;
    TRUE(status_of([&] { hub.buffer_over(pages.data(), 0, {device}, [&] { done = true; }); }) != ONEBUF_OK && done);

    auto pool = hub.pool();
    pool.prepare<float>(256, 2, {device});
    TRUE(pool.statistics().idle_buffers == 2);
    TRUE(hub.plan<float>(256, {device}).find(device.id()) != std::string::npos);
    TRUE(hub.plan_json<float>(256, {device}).find("memory_kind") != std::string::npos);
    TRUE(hub.trace().find("\"add\"") != std::string::npos && hub.trace_dropped() == 0);
    hub.clear_trace();
    TRUE(hub.trace().find("\"add\"") == std::string::npos);
    TRUE(status_of([&] { hub.save_trace("/nowhere/at/all"); }) == ONEBUF_UNAVAILABLE);
    auto shown = hub.publish("extras-in-cpp");
    TRUE(shown.path().find("extras-in-cpp") != std::string::npos);
    TRUE(status_of([&] { hub.publish("extras-in-cpp"); }) == ONEBUF_BUSY);
    bool grafted = true;
    program.graft_if_proven(hub.host(), &grafted);
    TRUE(!grafted && status_of([&] { program.graft(hub.host()); }) == ONEBUF_UNSUPPORTED);
    std::printf("extras work in C++ on %s\n", argc > 1 ? argv[1] : "opencl");
    return 0;
}
