// Launches take values of the declared types; implied copies are logged if requested.

#include <onebuf.hpp>

#include <complex>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

void line_of(bool fine, int line) {
    if (fine) return;
    std::fprintf(stderr, "line %d\n", line);
    std::exit(1);
}
#define TRUE(what) line_of(static_cast<bool>(what), __LINE__)

template <class Call> std::string refusal(Call call) {
    try {
        call();
    } catch (const onebuf::Error &error) {
        TRUE(error.status() == ONEBUF_INVALID_ARGUMENT);
        return error.what();
    }
    return "";
}

bool has(const std::string &text, const char *part) {
    if (text.find(part) != std::string::npos) return true;
    std::fprintf(stderr, "no `%s` in: %s\n", part, text.c_str());
    return false;
}

template <class T> onebuf_arg_kind kind() { return onebuf::Param::value<T>().kind; }

} // namespace

int main(int argc, char **argv) {
    auto hub = onebuf::Hub::discover();
    auto device = hub.device(argc > 1 ? argv[1] : "opencl");
    auto queue = device.queue();
    auto program = device.program("kernel void gain(global float *x, float by) { x[get_global_id(0)] *= by; }");
    auto gain = program.kernel("gain", {onebuf::Param::buffer(onebuf::Access::ReadWrite, sizeof(float)),
                                        onebuf::Param::value<float>()});
    constexpr std::size_t count = 256;
    onebuf::BufferOptions options{device, hub.host()};
    options.copies(onebuf::Copies::Warn).route(onebuf::Route::Staged).allocate_on(device);
    auto x = hub.buffer<float>(count, options);
    {
        auto mapped = x.map();
        for (float &each : mapped) each = 21;
    }

    std::string why = refusal([&] { queue.launch(gain, count, x, 2); });
    TRUE(has(why, "argument 1 of kernel `gain` is an integer of 4 bytes"));
    TRUE(has(why, "a floating-point number of 4 bytes is declared"));
    TRUE(has(refusal([&] { queue.launch(gain, count, x, 2u); }), "an integer of 4 bytes"));
    TRUE(has(refusal([&] { queue.launch(gain, count, x, 2.0); }), "a floating-point number of 8 bytes"));
    queue.launch(gain, count, x, 2.0f);
    queue.finish();
    {
        auto mapped = x.map_read();
        for (const float &each : mapped) TRUE(each == 42);
    }

    TRUE(kind<float>() == ONEBUF_ARG_FLOAT && kind<double>() == ONEBUF_ARG_FLOAT);
    TRUE(kind<int>() == ONEBUF_ARG_INTEGER && kind<std::uint64_t>() == ONEBUF_ARG_INTEGER);
    enum class Choice : int { One };
    TRUE(kind<Choice>() == ONEBUF_ARG_INTEGER);
    TRUE(has(refusal([&] { queue.launch(gain, count, x, Choice::One); }), "an integer of 4 bytes"));
    TRUE(kind<bool>() == ONEBUF_ARG_INTEGER && kind<std::complex<float>>() == ONEBUF_ARG_VALUE);
    TRUE(hub.implied_bytes() > 0);

    int taken = 0;
    auto count_it = [](void *user, onebuf_log_level, const char *, const char *) { ++*static_cast<int *>(user); };
    onebuf::log_to(onebuf::LogLevel::Warn, count_it, &taken);
    queue.launch(gain, count, x, 2.0f);
    queue.finish();
    TRUE(x.map_read()[0] == 84);
    onebuf::log_to_stderr();
    TRUE(taken > 0);
    std::printf("values work on %s\n", argc > 1 ? argv[1] : "opencl");
    return 0;
}
