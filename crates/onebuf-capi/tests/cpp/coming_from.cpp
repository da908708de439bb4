// The C++ blocks that docs/coming-from.md shows as "after"; every such block is an extract of this program.

#include <onebuf.hpp>

#include <atomic>
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

void check(bool fine, int line) {
    if (fine) return;
    std::fprintf(stderr, "line %d\n", line);
    std::exit(1);
}
#define TRUE(what) check(static_cast<bool>(what), __LINE__)

/// Whether this device does not support the call.
template <class Call> bool refused(Call call) {
    try {
        call();
    } catch (const onebuf::Error &error) {
        return error.status() == ONEBUF_UNSUPPORTED;
    }
    return false;
}

const char *text = "kernel void scale(global float *x, float by) { x[get_global_id(0)] *= by; }\n"
                   "kernel void turn(global float *x, local float *tile) {\n"
                   "    size_t i = get_local_id(0), n = get_local_size(0), first = get_group_id(0) * n;\n"
                   "    tile[i] = x[first + i];\n"
                   "    barrier(CLK_LOCAL_MEM_FENCE);\n"
                   "    x[first + i] = tile[n - 1 - i];\n"
                   "}\n";

const std::size_t n = 1 << 16;

void manager(onebuf::Hub &hub, onebuf::Device &device) {
    const std::vector<float> samples(n, 1.0f);

    auto program = device.program(text, "-cl-mad-enable");     // cached in memory and on disk
    auto scale = program.kernel("scale", {
        onebuf::Param::buffer(onebuf::Access::ReadWrite, sizeof(float)), // one element for each work-item
        onebuf::Param::value<float>(),
    });
    auto x = hub.buffer<float>(n, {device});
    x.write(samples);
    auto queue = device.queue();
    queue.launch(scale, n, x, 2.0f);                           // checked against the parameters
    assert(x.to_vector()[n - 1] == 2.0f);                      // waits for the kernel

    auto queues = device.queues(4);                            // the pool of queues
    for (int i = 0; i < 3; ++i) queues.next_queue().launch(scale, n, x, 0.5f); // in order: they share a buffer
    queues.least_busy().launch(scale, n, x, 0.5f);
    TRUE(x.to_vector()[0] == 0.125f);
}

void buffers(onebuf::Hub &hub, onebuf::Device &device) {
    auto any = hub.buffer<float>(n, {device});                 // the plan chooses
    auto regular = hub.buffer<float>(n, onebuf::BufferOptions{device}.memory_kind(onebuf::MemoryKind::Device));
    auto input = hub.buffer<float>(n, onebuf::BufferOptions{device}
        .access(onebuf::Access::Read)                          // of kernels
        .copies(onebuf::Copies::Forbid));                      // an error rather than a copy
    std::puts(any.explain().c_str());                          // the plan, and why
    if (device.has("svm_coarse")) {
        auto svm = hub.buffer<float>(n, onebuf::BufferOptions{device}.memory_kind(onebuf::MemoryKind::CoarseSvm));
        svm.map()[0] = 1.0f;                                   // mapped and unmapped for you
        assert(svm.map_read()[0] == 1.0f);
    }

    const std::vector<float> samples(n, 3.0f);
    auto written = any.write_async(samples.data(), n);         // copies: `samples` is yours again
    auto read = any.read_async(0, n);                          // after the write, without a wait
    const float *found = read.wait();                          // in the transfer's own memory
    TRUE(found[n - 1] == 3.0f);

    auto filled = hub.buffer<float>(n, onebuf::BufferOptions{device}.host_access(onebuf::HostAccess::Write));
    for (float &each : filled.map_overwrite()) each = 4.0f;    // in place, where the driver allows it
    alignas(4096) static float mine[n];                        // CL_MEM_USE_HOST_PTR: not ours until `done` was called
    static std::atomic<bool> done{false};
    auto options = onebuf::BufferOptions().shared_with({device, hub.host()});
    auto over = hub.buffer_over(mine, n, options, [] { done = true; });
    over.copy_from(filled, 0, n);
    TRUE(over.map_read()[n - 1] == 4.0f && !done);

    regular.copy_from(any, 0, n);                              // inside the device, where both are there
    TRUE(regular.to_vector()[5] == 3.0f);
    input.write(samples);
}

void libraries(onebuf::Hub &hub, onebuf::Device &device) {
    auto x = hub.buffer<float>(n, onebuf::BufferOptions{device}.memory_kind(onebuf::MemoryKind::Device));
    auto queue = device.queue();
    {
        auto view = x.write_on(queue);                         // waits for earlier work, wherever it was
        auto mem = view.cl_mem();                              // a cl_mem, with CL/cl.h included before
        auto native = queue.cl_queue();                        // a cl_command_queue
        assert(mem != nullptr && native != nullptr);           // clblast::Scal(n, 2.0f, mem, 0, 1, &native);
    }                                                          // the next user waits for that

    // Pointers are those of the view's own API, and descriptors those of memory that can be exported.
    auto view = x.write_on(queue);
    TRUE(refused([&] { view.hip_ptr(); }) && refused([&] { view.cuda_ptr(); }));
    view.reset();
    TRUE(refused([&] { x.export_fd(onebuf::FdKind::Opaque); }));
}

/// Receives another component's objects: raw handles here, or objects of CL/opencl.hpp if that was included before.
void foreign(const onebuf::Hub &hub, void *context, void *queue, void *mem) {
    auto registered = hub.foreign_context(context);            // its devices are the hub's now, such as opencl:0@1
    auto info = hub.buffer_info(mem);                          // retains nothing; an image or NULL is an error
    if (info.bytes != n * sizeof(float)) return;
    auto theirs = hub.wrap_queue(queue);                       // a queue like any other
    auto scale = registered.device(theirs).program(text).kernel("scale", {
        onebuf::Param::buffer(onebuf::Access::ReadWrite, sizeof(float)), onebuf::Param::value<float>()});

    auto x = hub.wrap<float>(mem, onebuf::WrapOptions().count(n).after(theirs.fence()));
    auto ours = x.queue();                                     // of our own, in their context
    ours.launch(scale, n, x, 2.0f);                            // ordered after their work, without a host wait
    x.hand_to(theirs);                                         // and their next work behind ours
}

/// The wrapped buffer is `a`, which lies in a context that is not the hub's own.
void bridges(const onebuf::Hub &hub, const onebuf::Device &device, void *mem) {
    auto a = hub.wrap<float>(mem);
    auto b = hub.buffer<float>(n, {device});

    auto crossing = onebuf::bridge::copy(a, 0, n, b);          // wrapped or not, any device, context or hub
    assert(crossing.bytes == n * sizeof(float));
    assert(crossing.implied_bytes == 0);                       // only the requested copy
    if (crossing.route() == onebuf::Route::Staged)             // the fastest path, which is reported
        std::printf("through host memory, chunks: %u\n", unsigned(crossing.chunks));
    auto started = onebuf::bridge::copy_async(b, 0, 16, a);    // and back: wrapped buffers are targets, too
    started.fence.wait();

    TRUE(b.to_vector() == std::vector<float>(n, 42.0f));
    a.fill(1.0f, 16, n - 16);
    TRUE(a.map_read()[15] == 42.0f && a.map_read()[16] == 1.0f);
}

/// A device of the hub accesses the owner's memory.
void shared(const onebuf::Hub &hub, const onebuf::Device &device, void *mem) {
    auto x = hub.wrap<float>(mem, {device});
    auto queue = device.queue();
    auto scale = device.program(text).kernel("scale", {
        onebuf::Param::buffer(onebuf::Access::ReadWrite, sizeof(float)), onebuf::Param::value<float>()});
    queue.launch(scale, n, x, 0.5f);
    TRUE(x.map_read()[15] == 21.0f && x.map_read()[16] == 0.5f);
}

/// Plays the owner: another hub, and a context that the first hub does not know.
void owner(const onebuf::Hub &hub, const onebuf::Device &device) {
    auto other = onebuf::Hub::discover();
    auto context = other.second_context(other.device(device.id().c_str()));
    auto apart = context.device();
    auto queue = apart.queue();
    auto made = other.buffer<float>(n, onebuf::BufferOptions{apart}.memory_kind(onebuf::MemoryKind::Device));
    made.fill(21.0f);
    void *mem = std::move(made).into_cl_mem(apart);            // never released: no OpenCL call is available here
    foreign(hub, context.cl_context(), queue.cl_queue(), mem);
    queue.finish();                                            // the owner's queue, which has waited for onebuf's work
    TRUE(other.wrap<float>(mem).to_vector() == std::vector<float>(n, 42.0f));
    bridges(hub, device, mem);
    shared(hub, device, mem);
    bool released = false;
    hub.wrap<float>(mem, onebuf::WrapOptions().owned([&](void *) { released = true; })).reset();
    TRUE(released);                                            // the reference would be released there
    if (apart.has("svm_coarse")) {
        auto svm = other.buffer<float>(n, onebuf::BufferOptions{apart}.memory_kind(onebuf::MemoryKind::CoarseSvm));
        auto view = svm.write_on(queue);
        float *pointer = view.address();                       // as clSVMAlloc returns it
        auto theirs = hub.foreign_context(context.cl_context());
        auto same = theirs.wrap_svm(pointer, n);
        same.fill(7.0f);
        same.reset(), view.reset();
        TRUE(svm.map_read()[n - 1] == 7.0f);
    }
    TRUE(other.wrap<float>(mem).to_vector()[15] == 21.0f);     // the result is in the owner's memory
}

void embedded(onebuf::Hub &hub, onebuf::Device &device) {
    constexpr std::uint64_t read_only = 1 << 2, alloc_host_ptr = 1 << 4;
    auto flags = onebuf::BufferOptions{device}.cl_flags(read_only | alloc_host_ptr);
    auto coefficients = hub.buffer<float>(n, flags);
    for (float &each : coefficients.map()) each = 0.5f;        // in place; unmapped when the loop ends

    auto queue = device.queue();
    auto frame = hub.buffer<float>(n, onebuf::BufferOptions{device}.align(128));
    auto head = 4 * device.region_align() / sizeof(float);     // regions begin at multiples of region_align()
    auto left = frame.region(0, head, onebuf::Access::Write);
    auto right = frame.region(head, n - head, onebuf::Access::Read);
    auto writes = left.write_on(queue);                        // both at once: no byte in common
    auto reads = right.read_on(queue);
    TRUE(writes && reads);
    writes.reset(), reads.reset();

    auto turn = device.program(text).kernel("turn", {
        onebuf::Param::buffer(onebuf::Access::ReadWrite, sizeof(float)), onebuf::Param::local()});
    queue.launch(turn, onebuf::Grid(n).groups(32), frame, onebuf::Local{32 * sizeof(float)});
    queue.finish();
    TRUE(coefficients.map_read()[n - 1] == 0.5f);
}

} // namespace

int main(int count, char **words) {
    auto hub = onebuf::Hub::discover();
    onebuf::Device device;
    try {
        device = hub.device("opencl");                         // "opencl:1", "gpu", a part of its name
    } catch (const onebuf::Error &missing) {
        std::printf("no OpenCL here: %s\n", missing.what());   // and what was tried
        return 0;
    }
    if (count > 1) device = hub.device(words[1]);
    std::printf("%s: %s\n", device.id().c_str(), device.name().c_str());
    manager(hub, device);
    buffers(hub, device);
    libraries(hub, device);
    owner(hub, device);
    embedded(hub, device);
    std::printf("implied copies: %llu bytes\n", static_cast<unsigned long long>(hub.implied_bytes()));
    std::printf("all of it works\n");
}
