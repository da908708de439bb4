// `rest DEVICE`: methods that no other program calls: profiles, orders, offsets, binaries, hints, and what else a device of OpenCL has.

#include "check.hpp"

#include <thread>

namespace {

using namespace std::chrono_literals;
using onebuf::Access;

constexpr std::size_t N = 4096;

void profiles(const onebuf::Hub &hub, const onebuf::Device &device, const onebuf::Kernel &add) {
    auto timed = device.queue(onebuf::QueueOptions().profiled());
    TRUE(timed.info().profiling);
    auto x = hub.buffer<unsigned>(N, {device});
    auto fence = timed.launch_fenced(add, N, x, 1u);
    fence.wait_ns(10s);
    onebuf_profile profile{};
    auto measured = status_of([&] { profile = fence.profile(); });
    TRUE(measured == ONEBUF_UNSUPPORTED || (measured == ONEBUF_OK && profile.ended_ns > 0 && profile.ended_ns >= profile.started_ns));
    TRUE(fence.done());
    if (device.info().out_of_order) {
        auto any_order = device.queue(onebuf::QueueOptions().out_of_order());
        TRUE(any_order.info().order == ONEBUF_QUEUE_OUT_OF_ORDER);
        any_order.wait_for(fence);
        any_order.launch(add, N, x, 1u);
        any_order.finish();
    } else {
        auto refused = status_of([&] { device.queue(onebuf::QueueOptions().out_of_order()); });
        TRUE(refused == ONEBUF_UNSUPPORTED);
        device.queue().wait_for(fence);
        timed.launch(add, N, x, 1u);
    }
    TRUE(x.to_vector()[N - 1] == 2);
    timed.launch(add, N, x, 1u);
    timed.flush(); // it starts without further calls
    x.fence().wait();
    auto read = x.read_async(0, N);
    for (int i = 0; i < 1000 && !read.done(); ++i) std::this_thread::sleep_for(1ms);
    TRUE(read.wait()[0] == 3 && read.done());
    const unsigned plain[] = {7, 8};
    x.write(plain); // an array, like any contiguous range
    device.queue().launch_within(1s, add, 1, x, 1u).wait();
    TRUE(x.load(0) == 8 && x.load(1) == 8);
}

void programs(const onebuf::Hub &hub, const onebuf::Device &device) {
    auto program = add_for(device);
    TRUE(program.log().size() < 100000);
    auto shifted = program.kernel("add", {onebuf::Param::buffer(Access::ReadWrite, 4), onebuf::Param::value<unsigned>()},
                                  ONEBUF_KERNEL_OFFSETS);
    auto x = hub.buffer<unsigned>(N, {device});
    auto queue = device.queue();
    queue.launch(shifted, onebuf::Grid(N / 2).from(N / 2), x, 3u); // the second half
    auto seen = x.to_vector();
    TRUE(seen[0] == 0 && seen[N / 2 - 1] == 0 && seen[N / 2] == 3 && seen[N - 1] == 3);
    std::string binary;
    auto has_binary = status_of([&] { binary = program.binary(); });
    if (has_binary == ONEBUF_OK && !binary.empty()) {
        onebuf::ProgramOptions again;
        again.binary = binary.data(), again.binary_bytes = binary.size();
        auto same = device.program(again);
        TRUE(same.origin() == onebuf::Origin::Binary);
        queue.launch(kernel_of(same), N, x, 1u);
        TRUE(x.to_vector()[N - 1] == 4);
    }
    bool grafted = true;
    (void)program.graft_if_proven(hub.host(), &grafted);
    TRUE(!grafted && status_of([&] { hub.graft_foreign(nullptr, device); }) == ONEBUF_NULL_POINTER);
}

void choices(const onebuf::Hub &hub, const onebuf::Device &device) {
    onebuf::BufferOptions options{device};
    options.hint(onebuf::Hint::Streaming).sync(onebuf::SyncMethod::HostWait).trust_declared(true);
    TRUE(options.plain().hint == ONEBUF_HINT_STREAMING && options.plain().device_count == 1);
    auto x = hub.buffer<unsigned>(N, options);
    x.fill(5);
    auto map = x.map(onebuf::MapOptions().overwrite());
    for (auto &one : map) one = 6;
    map.unmap();
    TRUE(x.to_vector()[N - 1] == 6 && hub.asked_bytes() > 0 && has(hub.ledger(), "asked"));
    // What is wrapped can be described, and named.
    auto queue = device.queue();
    auto view = x.read_on(queue);
    void *mem = nullptr;
    if (status_of([&] { mem = view.cl_mem(); }) == ONEBUF_OK) TRUE(has(hub.describe(mem), "bytes"));
    auto named = onebuf::WrapOptions().name("theirs").trust_declared(true);
    auto wrapped = named.plainly<unsigned>(N, [&](const onebuf_wrap_options *plain) {
        TRUE(std::string(plain->name) == "theirs" && plain->bytes == 4 * N && plain->trust_declared);
        return ONEBUF_OK;
    });
    TRUE(wrapped == ONEBUF_OK);
}

void maths(const onebuf::Hub &hub) {
    auto queue = hub.host().queue();
    auto a = hub.buffer<double>(std::vector<double>{2, 0, 0, 4});
    auto inverse = hub.buffer<double>(4);
    auto lu = onebuf::Lu<double>::factor(queue, 2, a);
    lu.invert(queue, a, inverse);
    auto seen = inverse.to_vector();
    TRUE(seen[0] == 0.5 && seen[1] == 0 && seen[3] == 0.25);
}

} // namespace

int main(int argc, char **argv) {
    auto hub = onebuf::Hub::discover();
    auto device = hub.device(argc > 1 ? argv[1] : "opencl");
    TRUE(has(device.version(), "OpenCL") && (device.info().what() != onebuf::DeviceKind::Other || device.info().compute_units > 0));
    auto add = kernel_of(add_for(device));
    profiles(hub, device, add);
    programs(hub, device);
    choices(hub, device);
    maths(hub);
    std::printf("the rest works in C++ on %s\n", device.id().c_str());
}
