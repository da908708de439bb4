// Pipelines, persistent maps and the rules for other processes in C++, with exceptions and without.

#include <onebuf.hpp>

#include <cstdio>
#include <cstring>
#include <utility>

namespace {

using onebuf::Filled;
using onebuf::Frame;
using onebuf::Result;

constexpr std::size_t N = 1000;
constexpr std::uint64_t FRAMES = 25;

[[noreturn]] void fail(int line, const char *what) {
    std::fprintf(stderr, "line %d: %s\n", line, what);
    std::exit(1);
}
#define TRUE(what) ((what) ? (void)0 : fail(__LINE__, #what))

// Returns the value of a result, with exceptions or without.
#ifdef ONEBUF_NO_EXCEPTIONS
template <class T> T take(onebuf::Result<T> result) { return *std::move(result); }
inline void done(onebuf::Result<void> result) { TRUE(result && result.has_value()); }
#define NOTHING std::monostate{}
template <class Call> onebuf_status status_of(Call call, std::string &said) {
    auto result = call();
    if (result) return ONEBUF_OK;
    said = result.error().what();
    return result.error().status();
}
#else
template <class T> T take(T value) { return value; }
#define done(call) (call)
#define NOTHING
template <class Call> onebuf_status status_of(Call call, std::string &said) {
    try {
        (void)call();
        return ONEBUF_OK;
    } catch (const onebuf::Error &error) {
        said = error.what();
        return error.status();
    }
}
#endif

std::int32_t add(void *, const onebuf_native_call *call) {
    auto *x = static_cast<std::uint32_t *>(call->args[0].data);
    for (std::size_t i = 0; i < call->global[0]; ++i) x[i] += 10;
    return 0;
}

onebuf::Kernel build(const onebuf::Device &device) {
    onebuf_native native{"add", add, nullptr};
    onebuf::ProgramOptions source;
    source.natives = &native;
    source.native_count = 1;
    auto program = take(device.program(source));
    TRUE(take(program.origin()) == onebuf::Origin::Built);
    return take(program.kernel("add", {onebuf::Param::buffer(onebuf::Access::ReadWrite, 4)}));
}

struct Story {
    std::uint64_t fails_at = UINT64_MAX;
    std::uint64_t passed = 0;
};

onebuf::PipelineOptions options(const onebuf::Device &device, const onebuf::Kernel &kernel, Story &story) {
    onebuf::PipelineOptions made(3);
    made.buffer<std::uint32_t>(N, {device}).buffer<float>(4);
    made.source([](const Frame &frame) -> Result<Filled> {
        if (frame.number() == FRAMES) return Filled::End;
        auto buffer = frame.buffer<std::uint32_t>();
        TRUE(buffer->size() == N && frame.buffer<float>(1)->size() == 4);
        done(buffer->fill(static_cast<std::uint32_t>(frame.number())));
        return Filled::Frame;
    });
    made.stage("add", device, [&](const Frame &frame) -> Result<void> {
        if (frame.number() == story.fails_at) {
            std::uint32_t word;
            return frame.buffer<std::uint32_t>()->read(&word, 1, N); // beyond the end
        }
        auto buffer = frame.buffer<std::uint32_t>();
        return frame.queue()->launch(kernel, N, *buffer);
    });
    made.sink([&](const Frame &frame) -> Result<void> {
        auto all = take(frame.buffer<std::uint32_t>()->to_vector());
        for (std::uint32_t x : all) TRUE(x == frame.number() + 10 && x != frame.number());
        story.passed += 1;
        return Result<void>(NOTHING);
    });
    return made;
}

void pipelines(const onebuf::Hub &hub, const onebuf::Device &device, const onebuf::Kernel &kernel) {
    Story story;
    std::string said;
    auto made = options(device, kernel, story);
    auto pipeline = take(made.build(hub));
    TRUE(status_of([&] { return made.build(hub); }, said) == ONEBUF_NULL_POINTER); // the functions moved to the pipeline
    auto moved = std::move(pipeline);
    auto report = take(moved.run());
    TRUE(report.frames == FRAMES && story.passed == FRAMES && report.frames_per_second() > 0);
    TRUE(take(moved.report()).frames == FRAMES);
    TRUE(take(moved.json()).find("\"add\"") != std::string::npos);

    story.fails_at = 6;
    TRUE(status_of([&] { return moved.run(); }, said) == ONEBUF_INVALID_ARGUMENT);
    TRUE(said.find("add at frame 6") != std::string::npos && said.find("inside") != std::string::npos);
    story = Story();
    TRUE(take(moved.run()).frames == FRAMES);
    done(moved.stop());

#ifndef ONEBUF_NO_EXCEPTIONS
    // An exception thrown by a callback is reported as the cause.
    auto throwing = options(device, kernel, story);
    throwing.sink([](const Frame &frame) {
        if (frame.number() == 2) throw std::out_of_range("a beam too far");
    });
    auto third = throwing.when_full(onebuf::WhenFull::DropNewest).one_thread().batch(2).build(hub);
    TRUE(status_of([&] { return third.run(); }, said) == ONEBUF_OTHER);
    TRUE(said.find("sink at frame 2") != std::string::npos && said.find("a beam too far") != std::string::npos);
#endif
}

// Passes frames from a source of the library to a sink of the library, without callbacks.
onebuf_status through(const onebuf::Hub &hub, const onebuf::Source &source, const onebuf::Sink &sink, std::string &said) {
    auto made = std::move(onebuf::PipelineOptions(2).buffer<float>(1).buffer<float>(N).feed(source, 1).drain(sink, 1));
    auto pipeline = take(made.build(hub));
    return status_of([&] { return pipeline.run(); }, said);
}

void sources_and_sinks(const onebuf::Hub &hub) {
    std::string said;
    std::vector<float> sent(3 * N), came(3 * N, -1.0f);
    for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<float>(i) * 0.5f;
    auto udp = take(onebuf::Source::udp(onebuf::UdpSourceOptions("127.0.0.1:0")));
    std::string address = take(udp.address());
    {
        auto sink = take(onebuf::Sink::udp(onebuf::UdpSinkOptions(address.c_str())));
        TRUE(through(hub, take(onebuf::Source::memory(sent)), sink, said) == ONEBUF_OK);
        done(sink.finish());
        TRUE(take(sink.udp_sent()).frames == 3);
    }
    TRUE(through(hub, udp, take(onebuf::Sink::memory(came)), said) == ONEBUF_OK);
    TRUE(came == sent && take(udp.udp_counts()).frames == 3);
    TRUE(take(udp.udp_socket_counts(0)).packets == take(udp.udp_counts()).packets);
    TRUE(status_of([&] { return udp.udp_socket_counts(1); }, said) == ONEBUF_INVALID_ARGUMENT);
    came.pop_back();
    auto again = take(onebuf::Source::memory(sent, onebuf::Source::Forever));
    TRUE(through(hub, again, take(onebuf::Sink::memory(came)), said) == ONEBUF_INVALID_ARGUMENT);
    TRUE(said.find("sink at frame 2") != std::string::npos);
    TRUE(status_of([&] { return onebuf::Source::file("/no/such/file"); }, said) == ONEBUF_UNAVAILABLE);
    TRUE(status_of([&] { return onebuf::Sink::npy("/no/such/file", "<f4", {N}); }, said) == ONEBUF_UNAVAILABLE);
    TRUE(status_of([&] { return onebuf::Source::tcp("nowhere"); }, said) == ONEBUF_INVALID_ARGUMENT);
    TRUE(take(onebuf::Source::synthetic(onebuf::SyntheticOptions(2, 5))).handle().id != 0);
}

// Checks the C++ counterparts of the other sections of onebuf.h.
void the_rest(const onebuf::Hub &hub, const onebuf::Device &device, const onebuf::Kernel &kernel) {
    std::string said;
    auto buffer = take(hub.buffer<std::uint32_t>(N, onebuf::BufferOptions({device}).raw_addresses(true)));
    std::uint32_t *data = take(buffer.to_host());
    data[3] = 4;
    TRUE(take(buffer.load(3)) == 4);
    done(buffer.store(3, 5));
    TRUE(data[3] == 5 && take(buffer.to_host(onebuf::Access::Read)) == data);
    std::uint32_t many[] = {6, 7};
    done(buffer.store_many({{0, many, 4}, {4, many + 1, 4}}));
    TRUE(data[0] == 6 && data[1] == 7);
    done(buffer.flush(0, 2));
    TRUE(status_of([&] { return buffer.flush(1, N); }, said) == ONEBUF_INVALID_ARGUMENT);
    TRUE(take(buffer.state()).data == data && take(buffer.state()).writable);
    auto turns = take(device.queue());
    TRUE(status_of([&] { return turns.launch(kernel, N, buffer); }, said) == ONEBUF_BUSY); // the host's turn
    done(turns.launch(kernel, N, onebuf::turn(buffer)));
    done(take(buffer.uses()).wait_ns(std::chrono::seconds(60)));
    TRUE(take(buffer.load(3)) == 15 && take(buffer.load(4)) == 10);
    done(buffer.to_device());
    done(buffer.wait(std::chrono::seconds(60)));
    int address = 0;
    done(onebuf::own(&address, buffer.handle().id));
    done(onebuf::disown(&address));
    done(onebuf::disown(&address)); // the object is freed by the call after the last owner's end
    TRUE(status_of([&] { return buffer.load(3); }, said) == ONEBUF_INVALID_HANDLE);
    buffer.release();

    auto shared = take(hub.buffer<std::uint32_t>(N));
    TRUE(status_of([&] { return hub.attach<std::uint32_t>("nobody-offers-this"); }, said) != ONEBUF_OK);
    TRUE(status_of([&] { return onebuf::Offer::open(shared, ""); }, said) != ONEBUF_OK);
    TRUE(take(device.max_buffer_bytes()) > 0);
    TRUE(std::strchr(onebuf::version(), '.') != nullptr && onebuf::version_number() > 0);
    auto pool = take(hub.pool());
    take(pool.get<float>(100)).reset();
    TRUE(take(pool.trim()) > 0);
    auto queue = take(device.queue());
    done(take(queue.fence()).wait_ns(std::chrono::seconds(60)));
}

} // namespace

int main() {
    onebuf::HubOptions quiet;
    quiet.without_opencl = 1;
    quiet.timeout_ms = 120000; // valgrind is slow
    auto hub = take(onebuf::Hub::discover(quiet));
    auto device = take(hub.host());
    auto kernel = build(device);
    pipelines(hub, device, kernel);
    sources_and_sinks(hub);
    the_rest(hub, device, kernel);
    std::printf("pipelines work in C++\n");
}
