// Foreign objects without any OpenCL header and without exceptions: native handles are `void *`, and every function returns a
// Result. Class A's objects are those of a second context, whose ownership onebuf has passed on.

#define ONEBUF_NO_EXCEPTIONS
#include <onebuf.hpp>

#include <cstdio>
#include <cstdlib>

namespace {

void line_of(bool fine, int line) {
    if (fine) return;
    std::fprintf(stderr, "line %d: %s\n", line, onebuf_last_error_message());
    std::exit(1);
}
#define TRUE(what) line_of(static_cast<bool>(what), __LINE__)

using Words = std::vector<std::uint32_t>;

} // namespace

int main() {
    auto hub = onebuf::Hub::discover().value();
    auto found = hub.device("opencl");
    if (!found) {
        std::printf("no OpenCL here: %s\n", found.error().what());
        return 0;
    }
    auto context = hub.second_context(*found).value();
    void *raw_context = context.cl_context().value();
    TRUE(hub.context_info(raw_context)->device_count == 1);
    auto again = hub.foreign_context(raw_context).value();
    onebuf::Device device = again.device().value();
    TRUE(again.devices()->size() == 1);
    auto queue = device.queue().value();
    void *raw_queue = queue.cl_queue().value();
    auto theirs = hub.wrap_queue(raw_queue).value();
    TRUE(hub.queue_info(raw_queue)->context == raw_context && again.device(theirs).value() == device);

    Words model(1000);
    for (std::uint32_t i = 0; i < 1000; ++i) model[i] = i * 3;
    auto options = onebuf::BufferOptions{device}.memory_kind(onebuf::MemoryKind::MappedDevice);
    auto made = hub.buffer(model, options).value();
    TRUE(!made.is_foreign().value());
    void *mem = std::move(made).into_cl_mem(device).value();
    TRUE(!made && hub.buffer_info(mem)->bytes == 4000 && hub.buffer_info(mem)->reference_count == 1);

    int released = 0;
    auto fence = theirs.fence().value();
    auto builder = onebuf::WrapOptions().after(fence).owned([&](void *native) { released += native == mem; });
    auto wrong = hub.wrap<std::uint32_t>(mem, onebuf::WrapOptions(builder).count(999));
    TRUE(!wrong && wrong.error().status() == ONEBUF_INVALID_ARGUMENT && released == 0);
    struct Odd {
        char bytes[7];
    };
    TRUE(!hub.wrap<Odd>(mem, builder) && !hub.wrap<int>(nullptr, builder) && released == 0);
    {
        auto buffer = hub.wrap<std::uint32_t>(mem, builder).value();
        TRUE(buffer.is_foreign().value() && buffer.size() == 1000 && buffer.to_vector().value() == model);
        TRUE(buffer.hand_to(theirs) && buffer.written_until(fence) && buffer.read_until(fence) && buffer.queue());
        TRUE(theirs.fence()->cl_events()->size() <= 1);

        auto near = hub.buffer<std::uint32_t>(1000).value();
        auto crossing = onebuf::bridge::copy(buffer, 0, 1000, near);
        TRUE(crossing->bytes == 4000 && near.to_vector().value() == model);
        std::uint32_t word = 5;
        TRUE(onebuf::bridge::from_host(&word, 1, near, 999)->bytes == 4);
        auto started = onebuf::bridge::copy_async(near, 999, 1, buffer, 0).value();
        TRUE(started.fence.wait() && onebuf::bridge::to_host(buffer, 0, &model[0], 1) && model[0] == 5);
        TRUE(onebuf::bridge::copy(buffer, 1, 1000, near).error().status() == ONEBUF_INVALID_ARGUMENT);
    }
    TRUE(released == 1); // the reference was passed to the callback, which does not release it
    auto event = again.user_event();
    if (event) {
        auto point = event->fence().value();
        auto wrapped = hub.wrap_event(event->cl_event().value()).value();
        TRUE(!*point.done() && !*wrapped.done());
        TRUE(event->complete() && point.wait() && wrapped.wait());
    } else {
        TRUE(event.error().status() == ONEBUF_UNSUPPORTED);
    }
    TRUE(!context.wrap_svm<int>(nullptr, 4));
    std::printf("raw handles work\n");
}
