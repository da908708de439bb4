// `queries FOLDER`: what C++ asks about hubs, devices, pools, pipelines and failures, and what an observer is told. Uses devices for
// tests, which have memory of their own, so that the answers are known on every machine.

#include "check.hpp"

#include <atomic>
#include <memory>

namespace {

using namespace std::chrono_literals;
using onebuf::Access;

constexpr std::size_t N = 1024;

struct Counts : onebuf::Observer {
    std::atomic<unsigned> launches{0}, buffers{0}, handed{0}, failed{0};
    std::atomic<std::uint64_t> copied{0};

    void event(const onebuf_event &event) override { launches += event.kind == ONEBUF_EVENT_LAUNCH; }
    void buffer_made(const onebuf_new_buffer &buffer) override { buffers += buffer.route_count > 0; }
    void handed_over(std::uint64_t, std::int32_t from, std::int32_t to, onebuf::SyncMethod) override { handed += from != to; }
    void copied_implicitly(std::uint64_t, std::uint64_t bytes) override { copied += bytes; }
    void route_failed(std::uint64_t, std::size_t) override { ++failed; }
};

// The base class does nothing: an observer overrides what it needs.
void observers_do_nothing_by_default() {
    onebuf::Observer none;
    none.event({}), none.buffer_made({}), none.copied_implicitly(0, 0), none.route_failed(0, 0);
    none.handed_over(0, 0, 0, onebuf::SyncMethod::Any);
}

void words() {
    TRUE(std::string(to_string(onebuf::Route::OpaqueFd)) == "opaque_fd");
    TRUE(std::string(to_string(onebuf::Access::ReadWrite)) == "read_write");
    TRUE(std::string(to_string(static_cast<onebuf::Hint>(99))) == "unknown");
    using namespace onebuf;
    const std::pair<const char *, const char *> all[] = {
        {to_string(LogLevel::Trace), "trace"}, {to_string(HostAccess::None), "none"}, {to_string(Copies::Forbid), "forbid"},
        {to_string(MemoryKind::FineSvm), "fine_svm"}, {to_string(SyncMethod::HostWait), "host_wait"},
        {to_string(DeviceKind::Gpu), "gpu"}, {to_string(EventKind::HandOver), "hand_over"},
        {to_string(ProgramCache::Off), "off"}, {to_string(VerdictState::Refuted), "refuted"},
        {to_string(QueueOrder::OutOfOrder), "out_of_order"}, {to_string(Origin::Disk), "disk"}, {to_string(ArgKind::Turn), "turn"},
        {to_string(Placement::OnChip), "on_chip"}, {to_string(PointerKind::Managed), "managed"}, {to_string(FdKind::DmaBuf), "dma_buf"},
        {to_string(Number::C64), "c64"}, {to_string(Op::Adjoint), "adjoint"}, {to_string(Library::Solver), "solver"},
        {to_string(Filled::Incomplete), "incomplete"}, {to_string(WhenFull::DropOldest), "drop_oldest"},
        {to_string(RunState::Finished), "finished"},
    };
    for (const auto &[said, wanted] : all) TRUE(std::string(said) == wanted);
    TRUE(onebuf::Timeout(1500us).ms() == 2 && onebuf::Timeout().ms() == ONEBUF_DEFAULT_TIMEOUT);
}

void about_the_hub(const onebuf::Hub &hub, const onebuf::Device &fake) {
    TRUE(hub.info().device_count == 3 && hub.info().timeout_ms == 12345);
    auto fakes = hub.select("fake");
    TRUE(fakes.size() == 2 && fakes[0] == fake && hub.select("no such thing").empty());
    TRUE(hub.device(fake.default_queue()) == fake && fake.default_queue().info().order == ONEBUF_QUEUE_IN_ORDER);
    TRUE(has(hub.topology_json(), "\"fake:1\"") && hub.missing_json().front() == '[');
    TRUE(!fake.platform().empty() && !fake.driver().empty() && !fake.features().empty() && fake.memory_bytes() > 0);
    auto judged = route_verdict(fakes[0], fakes[1], onebuf::Route::Staged);
    TRUE(judged.verdict.what() == onebuf::VerdictState::Declared);
    TRUE(status_of([&] { route_verdict(fakes[0], fakes[1], onebuf::Route::Ipc); }) == ONEBUF_UNSUPPORTED);
    auto graft = graft_verdict(fakes[0], fakes[1]);
    TRUE(!graft.possible && has(graft.why, "doctor"));
    auto pool = fake.queues(2);
    TRUE(pool.size() == 2 && status_of([&] { pool.at(2); }) == ONEBUF_INVALID_ARGUMENT);
    pool.at(1).finish();
    TRUE(status_of([&] { fake.default_queue().open_library(onebuf::Library::Blas); }) == ONEBUF_UNSUPPORTED);
    hub.host().queue().open_library(onebuf::Library::Fft);
}

// What is overwritten is not copied to the device that overwrites it.
void overwriting(const onebuf::Hub &hub, const Counts &counts) {
    auto fake = hub.device("fake:0"), other = hub.device("fake:1");
    auto here = fake.queue(), there = other.queue();
    auto x = hub.buffer<unsigned>(N, onebuf::BufferOptions{fake, other}.name("x"));
    auto add = kernel_of(add_for(fake)), far = kernel_of(add_for(other));
    auto writes = kernel_of(add_for(other), Access::Write);
    here.launch(add, N, x, 1u);
    there.launch(far, N, x, 1u);
    there.finish();
    TRUE(hub.traffic(fake, other).implied_bytes == 4 * N && counts.copied == 4 * N && counts.handed > 0);
    here.launch(add, N, x, 1u); // back to the first
    here.finish();
    auto before = hub.implied_bytes();
    there.launch(writes, N, onebuf::overwrites(x), 1u);
    there.finish();
    TRUE(hub.implied_bytes() == before);
    {
        auto view = x.overwrite_on(here);
        TRUE(status_of([&] { here.launch(add, N, view, 1u); }) == ONEBUF_INVALID_ARGUMENT); // it reads
        TRUE(view.sync_method() != onebuf::SyncMethod::Any);
    }
    there.launch(far, N, x, 1u);
    before = hub.implied_bytes();
    x.discard(); // the first device gets none of the contents
    here.launch(add, N, x, 1u);
    TRUE(hub.implied_bytes() == before);
    there.launch(far, N, x, 1u); // the control
    TRUE(hub.implied_bytes() == before + 4 * N);
    TRUE(has(x.explain_json(), "\"memory_kind\""));
    here.wait_for(there.fence());
    TRUE(std::string(to_string(there.fence().sync_method())) != "unknown");
    TRUE(counts.launches >= 3 && counts.buffers >= 1 && counts.failed == 0);
}

std::int32_t refuses_zero(void *user, const onebuf_native_call *call) {
    ++*static_cast<int *>(user);
    if (*static_cast<const unsigned *>(call->args[1].data)) return 0;
    onebuf_set_error_message("zero is useless");
    return 1;
}

void kernels(const onebuf::Hub &hub, const onebuf::Device &fake) {
    auto program = add_for(fake);
    auto kernel = kernel_of(program);
    TRUE(kernel.name() == "add" && program.build_time_ns() > 0 && program.warm_up() <= 1);
    TRUE(!kernel.graft_if_proven(hub.device("fake:1")));
    TRUE(status_of([&] { kernel.graft(hub.device("fake:1")); }) == ONEBUF_UNSUPPORTED);
    TRUE(status_of([&] { program.graft(hub.device("fake:1")); }) == ONEBUF_UNSUPPORTED);
    int calls = 0;
    auto checked = program.kernel("add", {onebuf::Param::buffer(Access::ReadWrite, 4), onebuf::Param::value<unsigned>()}, 0,
                                  refuses_zero, &calls);
    auto x = hub.buffer<unsigned>(N, {fake});
    auto queue = fake.queue();
    queue.launch(checked, N, x, 2u);
    auto error = ERROR_OF(queue.launch(checked, N, x, 0u));
    TRUE(error.status() == ONEBUF_INVALID_ARGUMENT && has(error.reason(), "zero is useless") && calls == 2);
    TRUE(x.to_vector()[N - 1] == 2);
    auto local = add_for(hub.host()).kernel("add", {onebuf::Param::local(8)});
    auto on_host = hub.host().queue();
    error = ERROR_OF(on_host.launch(local, onebuf::Grid(64).groups(16), onebuf::Local{120}));
    TRUE(has(error.what(), "16 work-items of a group need 8 each"));
    auto graft = status_of([&] { onebuf::graft::ptx("no PTX"); });
    TRUE(graft == ONEBUF_UNSUPPORTED);
    TRUE(status_of([&] { onebuf::graft::code_object("none", 4); }) == ONEBUF_UNSUPPORTED);
    TRUE(status_of([&] { onebuf::graft::spirv("none", 4); }) == ONEBUF_UNSUPPORTED);
}

void pools(const onebuf::Hub &hub) {
    onebuf::PoolOptions options;
    options.limit_bytes = 8 * N, options.exact_sizes = 1;
    auto pool = hub.pool(options);
    pool.get<unsigned>(N).fill(7);
    auto cleared = pool.get_cleared<unsigned>(N); // the same memory
    TRUE(cleared.to_vector()[N - 1] == 0 && pool.statistics().made == 1 && pool.statistics().hits == 1);
    TRUE(pool.statistics().fragmentation() == 0.0);
    auto error = ERROR_OF(pool.get<unsigned>(2 * N));
    TRUE(error.status() == ONEBUF_OUT_OF_MEMORY && error.asked_bytes() == 8 * N && error.limit_bytes() == 8 * N);
    TRUE(error.subject() == "the pool" && error.driver_code() == 0 && error.driver_call().empty());
    cleared.detach();
    cleared.reset();
    TRUE(pool.statistics().lost == 1);
}

void pipelines(const onebuf::Hub &hub, const onebuf::Device &fake) {
    std::uint64_t fails_at = 99;
    auto kernel = kernel_of(add_for(fake));
    onebuf::PipelineOptions options(2);
    options.buffer<unsigned>(N, {fake}).batch(1).threads().no_graft();
    options.source([](const onebuf::Frame &frame) { return frame.number() < 3 ? onebuf::Filled::Frame : onebuf::Filled::End; });
    options.stage("only", fake, [&](const onebuf::Frame &frame) {
        if (frame.number() == fails_at) throw std::runtime_error("no more");
        frame.queue()->launch(kernel, N, *frame.buffer<unsigned>(), 1u);
    });
    options.launches({kernel}).sink([](const onebuf::Frame &) {});
    auto pipeline = options.build(hub);
    TRUE(pipeline.pulse().state == ONEBUF_RUN_READY && pipeline.pulse().batch == 1 && has(pipeline.explain(), "only on fake:0"));
    TRUE(pipeline.run().frames == 3 && pipeline.stage(0).frames == 3 && pipeline.failure().first.empty());
    TRUE(pipeline.report().frames_per_second() > 0);
    fails_at = 1;
    TRUE(status_of([&] { pipeline.run(); }) == ONEBUF_OTHER);
    TRUE(pipeline.failure().first == "only" && pipeline.failure().second == 1);
    auto shown = hub.publish("queries-cpp");
    shown.pipeline("line", pipeline);
    TRUE(has(onebuf::Viewer::names(), "queries-cpp\n") && has(shown.path(), "queries-cpp"));
    TRUE(has(onebuf::Viewer::attach("queries-cpp", 1s).next(10s), "\"line\""));
}

void signals() {
    const onebuf_wave ahead{1.0, 0.25, 0.0};
    onebuf::SyntheticOptions options(2, 4);
    options.waves = &ahead, options.wave_count = 1, options.noise = -1;
    std::complex<float> frame[8];
    onebuf::Source::synthetic_frame(options, 7, frame, 8);
    TRUE(std::abs(frame[1] - std::complex<float>(0, 1)) < 1e-5f && frame[0] == frame[4]); // from ahead both sensors get the same
    const double late[] = {0, 1};
    options.late = late, options.late_count = 2;
    onebuf::Source::synthetic_frame(options, 7, frame, 8);
    TRUE(std::abs(frame[5] - frame[0]) < 1e-5f); // one sample late
    TRUE(status_of([&] { onebuf::Source::synthetic_frame(options, 7, frame, 7); }) == ONEBUF_INVALID_ARGUMENT);
}

void files(const onebuf::Hub &hub, const std::string &folder) {
    const std::string path = folder + "/frames.npy";
    std::vector<float> six(6, 1.0f);
    {
        auto sink = onebuf::Sink::npy(path, "<f4", {3});
        auto source = onebuf::Source::memory(six);
        onebuf::PipelineOptions options(2);
        options.buffer<float>(3).feed(source).drain(sink).build(hub).run();
    }
    auto frames = onebuf::Source::memory(six); // without a pipeline
    float three[3] = {};
    TRUE(frames.fill(three, sizeof three) == onebuf::Filled::Frame && three[2] == 1.0f);
    TRUE(frames.fill(three, sizeof three) == onebuf::Filled::Frame && frames.fill(three, sizeof three) == onebuf::Filled::End);
    std::vector<float> taken(3);
    onebuf::Sink::memory(taken).take(three, sizeof three, 0);
    TRUE(taken[2] == 1.0f);
    const std::string raw = folder + "/frame.raw";
    onebuf::Sink::file(raw).take(three, sizeof three, 0);
    float back[3] = {};
    TRUE(onebuf::Source::file(raw).fill(back, sizeof back) == onebuf::Filled::Frame && back[2] == 1.0f);
    auto shape = onebuf::Source::npy(path, "<f4").shape();
    TRUE(shape.size() == 2 && shape[0] == 2 && shape[1] == 3);
    TRUE(status_of([&] { onebuf::Source::memory(six).shape(); }) == ONEBUF_UNSUPPORTED);
}

void times_and_caches(const onebuf::Hub &hub, const onebuf::Device &fake, const std::string &folder) {
    auto from = hub.trace_now_ns();
    auto x = hub.buffer<unsigned>(N, {fake});
    auto queue = fake.queue();
    queue.launch(kernel_of(add_for(fake)), N, x, 1u);
    queue.finish();
    hub.trace_catch_up();
    auto to = hub.trace_now_ns();
    TRUE(has(hub.trace_account(from, to), ("\"total_ns\":" + std::to_string(to - from)).c_str()));
    const std::string none = folder + "/none";
    TRUE(onebuf::cache::contents(none.c_str()).programs == 0 && onebuf::cache::clear(none.c_str()).bytes == 0);
    TRUE(has(onebuf::cache::folder(), "onebuf"));
}

} // namespace

int main(int argc, char **argv) {
    TRUE(argc == 2);
    auto counts = std::make_shared<Counts>();
    std::weak_ptr<Counts> observer = counts;
    {
        onebuf::HubOptions options;
        options.fake_devices = 99;
        TRUE(status_of([&] { onebuf::Hub::discover(options, counts); }) == ONEBUF_INVALID_ARGUMENT && counts.use_count() == 1);
        options.fake_devices = 0, options.only = "host";
        TRUE(onebuf::Hub::discover(options, nullptr).devices().size() == 1);
        options.fake_devices = 2, options.only = "fake", options.timeout_ms = 12345, options.cache_folder = argv[1];
        options.trace_events = 4096, options.trace_devices = 1;
        auto hub = onebuf::Hub::discover(options, counts);
        auto fake = hub.device("fake:0");
        observers_do_nothing_by_default();
        words();
        about_the_hub(hub, fake);
        overwriting(hub, *counts);
        kernels(hub, fake);
        pools(hub);
        pipelines(hub, fake);
        signals();
        files(hub, argv[1]);
        times_and_caches(hub, fake, argv[1]);
    }
    counts.reset();
    TRUE(observer.expired()); // the hub has released it
    std::printf("queries are answered in C++\n");
}
