// Class A creates its objects with CL/opencl.hpp; onebuf uses them directly and as raw handles. Checks every element, and the
// reference counts.

#define CL_HPP_TARGET_OPENCL_VERSION 120
#define CL_HPP_MINIMUM_OPENCL_VERSION 110
#define CL_HPP_ENABLE_EXCEPTIONS
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/opencl.hpp>

#include <onebuf.hpp>

#include <cstdio>
#include <cstdlib>
#include <thread>

namespace {

constexpr std::size_t N = 4096;

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
        TRUE(error.what()[0] != 0);
        return error.status();
    }
}

/// Drivers release the objects of completed commands on their own threads: waits for that, with a limit.
template <class What> bool eventually(What what) {
    for (int tries = 0; tries < 10000; ++tries) {
        if (what()) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
}

using Words = std::vector<cl_uint>;

Words words(cl_uint seed) {
    Words all(N);
    for (cl_uint i = 0; i < N; ++i) all[i] = (seed + i) * 2654435761u;
    return all;
}

Words owners(const cl::CommandQueue &queue, const cl::Buffer &mem) {
    Words found(N);
    queue.enqueueReadBuffer(mem, CL_TRUE, 0, 4 * N, found.data());
    return found;
}

cl_uint references(const cl::Buffer &mem) { return mem.getInfo<CL_MEM_REFERENCE_COUNT>(); }

/// Work of onebuf that needs no compiler.
void add(const onebuf::Buffer<cl_uint> &buffer, Words &model, cl_uint n) {
    for (cl_uint &word : buffer.map()) word += n;
    for (cl_uint &word : model) word += n;
}

void owned(const onebuf::Hub &hub, const cl::Buffer &mem) {
    int calls = 0;
    void *given = nullptr;
    auto release = [&](void *native) { ++calls, given = native; };
    auto stranger = onebuf::Hub::discover().host();
    TRUE(status_of([&] { hub.wrap<cl_uint>(mem, onebuf::WrapOptions().count(3).owned(release)); }) == ONEBUF_INVALID_ARGUMENT);
    TRUE(status_of([&] { hub.wrap<cl_uint>(mem, onebuf::WrapOptions{stranger}.owned(release)); }) == ONEBUF_INVALID_HANDLE);
    TRUE(status_of([&] { hub.wrap<char[3]>(mem, onebuf::WrapOptions().owned(release)); }) == ONEBUF_INVALID_ARGUMENT);
    TRUE(calls == 0);
    hub.wrap<cl_uint>(mem, onebuf::WrapOptions().count(N).owned(release));
    TRUE(calls == 1 && given == mem());
}

void try_device(const cl::Device &raw) {
    Words model = words(1);
    cl::Context context(raw);
    cl::CommandQueue queue(context, raw);
    cl::Buffer mem(context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, 4 * N, model.data()), other(context, CL_MEM_READ_WRITE, 4 * N);
    cl_uint before = references(mem);

    auto hub = onebuf::Hub::discover();
    onebuf::ForeignBufferInfo info = hub.buffer_info(mem);
    TRUE(info.bytes == 4 * N && info.context == context() && info.placement == ONEBUF_PLACEMENT_DEVICE);
    TRUE(hub.buffer_info(mem()).flags == info.flags && hub.context_info(context).device_count == 1);
    TRUE(hub.queue_info(queue).context == context() && hub.queue_info(queue()).order == ONEBUF_QUEUE_IN_ORDER);
    TRUE(status_of([&] { hub.buffer_info(nullptr); }) == ONEBUF_NULL_POINTER);
    info = hub.buffer_at_rest(mem, before);
    TRUE(info.reference_count == before && hub.context_at_rest(context, 99).device_count == 1);
    TRUE(hub.queue_at_rest(queue, 99, std::chrono::seconds(1)).context == context());
    TRUE(status_of([&] { hub.buffer_at_rest(mem, 0, std::chrono::milliseconds(2)); }) == ONEBUF_TIMEOUT);
    TRUE(status_of([&] { hub.wrap<int>(cl::Buffer()); }) == ONEBUF_NULL_POINTER);
    TRUE(status_of([&] { hub.wrap_queue(cl::CommandQueue()); }) == ONEBUF_NULL_POINTER);
    TRUE(status_of([&] { hub.wrap_event(cl::Event()); }) == ONEBUF_NULL_POINTER);
    {
        auto foreign = hub.foreign_context(context);
        auto theirs = hub.wrap_queue(queue);
        TRUE(foreign.cl_context() == context() && theirs.cl_queue() == queue());
        TRUE(foreign.devices().size() == 1 && foreign.device() == foreign.device(theirs));
        TRUE(foreign.device().cl_context() == context() && foreign.device().cl_device() == raw());
        TRUE(foreign.device().cl_platform() == raw.getInfo<CL_DEVICE_PLATFORM>() && foreign.device().info().compute_units > 0);
        TRUE(status_of([&] { foreign.device().native("VkDevice"); }) == ONEBUF_UNSUPPORTED);

        {
            cl::Context second(raw);
            cl::CommandQueue there(second, raw);
            cl::Buffer copy(second, CL_MEM_READ_WRITE, 4 * N);
            auto went = onebuf::bridge::copy_cl(hub, queue, mem, 0, there, copy, 0, 4 * N);
            TRUE(went.onebuf_crossing::bytes == 4 * N && owners(there, copy) == model);
            TRUE(status_of([&] { onebuf::bridge::copy_cl(hub, queue, mem, 4, there(), copy(), 0, 4 * N); }) == ONEBUF_INVALID_ARGUMENT);
        }

        // The owner's work comes first: reported by its queue's fence, then by an event.
        Words fresh = words(2);
        queue.enqueueWriteBuffer(mem, CL_FALSE, 0, 4 * N, fresh.data());
        auto fence = theirs.fence();
        auto buffer = hub.wrap<cl_uint>(mem, onebuf::WrapOptions().count(N).after(fence));
        TRUE(buffer.is_foreign() && buffer.size() == N);
        model = fresh;
        add(buffer, model, 1);
        TRUE(buffer.to_vector() == model);
        buffer.hand_to(theirs);
        Words again = words(3);
        cl::Event written;
        queue.enqueueWriteBuffer(mem, CL_FALSE, 0, 4 * N, again.data(), nullptr, &written);
        queue.flush();
        buffer.written_until(hub.wrap_event(written));
        model = again;
        add(buffer, model, 2);

        // onebuf's work comes first: the owner's copy waits for its events.
        auto ours = buffer.queue();
        buffer.hand_to(ours);
        auto events = onebuf::cl_events(ours.fence());
        queue.enqueueCopyBuffer(mem, other, 0, 0, 4 * N, &events);
        buffer.read_until(theirs.fence());
        Words copied = model;
        add(buffer, model, 4);
        TRUE(owners(queue, other) == copied && buffer.to_vector() == model);

        auto shared = hub.wrap<cl_uint>(mem()); // the raw handle shares the same state
        {
            auto map = buffer.map_read();
            TRUE(status_of([&] { shared.fill(0); }) == ONEBUF_BUSY);
        }
        try {
            auto host_signal = foreign.user_event();
            std::vector<cl::Event> wait{onebuf::cl_event(host_signal)};
            buffer.hand_to(theirs);
            cl::Event late;
            queue.enqueueWriteBuffer(mem, CL_FALSE, 0, 4 * N, fresh.data(), &wait, &late);
            queue.flush();
            buffer.written_until(hub.wrap_event(late()));
            TRUE(!host_signal.fence().done());
            host_signal.complete();
            model = fresh;
            TRUE(shared.to_vector() == model && host_signal.fence().done());
        } catch (const onebuf::Error &error) {
            TRUE(error.status() == ONEBUF_UNSUPPORTED);
            std::printf("skip: events of the host: %s\n", error.what());
        }

        // Copies to every device and back.
        for (const onebuf::Device &device : hub.devices()) {
            auto far = hub.buffer<cl_uint>(N, {device});
            TRUE(onebuf::bridge::copy(shared, 0, N, far).bytes == 4 * N && far.to_vector() == model);
            model[5] += 1;
            TRUE(onebuf::bridge::from_host(&model[5], 1, far, 5).bytes == 4);
            auto started = onebuf::bridge::copy_async(far, 4, 2, shared, 4);
            started.fence.wait();
            TRUE(started.crossing.bytes == 8 && started.crossing.route() != onebuf::Route::Any);
            Words found(N);
            TRUE(onebuf::bridge::to_host(shared, 0, found.data(), N).bytes == 4 * N && found == model);
            TRUE(status_of([&] { onebuf::bridge::copy(shared, 1, N, far); }) == ONEBUF_INVALID_ARGUMENT);
            TRUE(status_of([&] { onebuf::bridge::copy(shared, 0, SIZE_MAX / 2, far); }) == ONEBUF_INVALID_ARGUMENT);
        }

        // Ownership of a buffer of onebuf passes to class A.
        auto options = onebuf::BufferOptions{foreign.device()}.memory_kind(onebuf::MemoryKind::MappedDevice);
        auto mine = hub.buffer(model, options);
        {
            auto map = mine.map_read();
            TRUE(status_of([&] { onebuf::into_cl_buffer(std::move(mine), foreign.device()); }) == ONEBUF_BUSY && mine);
        }
        cl::Buffer given = onebuf::into_cl_buffer(std::move(mine), foreign.device());
        TRUE(!mine && references(given) == 1 && owners(queue, given) == model);
    }
    owned(hub, mem);
    TRUE(owners(queue, mem) == model);
    TRUE(eventually([&] { return references(mem) == before; }));
}

} // namespace

int main() {
    try {
        unsigned tried = 0;
        std::vector<cl::Platform> platforms;
        try {
            cl::Platform::get(&platforms);
        } catch (const cl::Error &) {
            std::printf("no OpenCL here\n");
        }
        for (const cl::Platform &platform : platforms) {
            std::vector<cl::Device> devices;
            try {
                platform.getDevices(CL_DEVICE_TYPE_ALL, &devices);
            } catch (const cl::Error &) {
            }
            if (devices.empty()) continue;
            std::printf("%s\n", platform.getInfo<CL_PLATFORM_NAME>().c_str());
            try_device(devices[0]);
            ++tried;
        }
        std::printf("foreign objects work on %u devices\n", tried);
        return 0;
    } catch (const onebuf::Error &error) {
        std::fprintf(stderr, "%s: %s\n", error.name(), error.what());
    } catch (const cl::Error &error) {
        std::fprintf(stderr, "%s: %d\n", error.what(), error.err());
    }
    return 1;
}
