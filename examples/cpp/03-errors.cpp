// 3. The same interface with and without exceptions: with -DONEBUF_NO_EXCEPTIONS every function
// returns a Result that holds a value or an Error.
//
// c++ -std=c++17 03-errors.cpp $(pkg-config --cflags --libs onebuf) -o errors && ./errors

#include <onebuf.hpp>

#include <cstdio>

namespace {

void show(const onebuf::Error &error) { std::printf("%s: %s\n", error.name(), error.what()); }

#ifdef ONEBUF_NO_EXCEPTIONS

int run() {
    auto hub = onebuf::Hub::discover();
    if (!hub) return show(hub.error()), 1;
    auto device = hub->device("quantum:0");
    if (device) return 1;
    show(device.error());

    auto buffer = hub->buffer<int>(16);
    if (!buffer) return show(buffer.error()), 1;
    auto map = buffer->map();
    if (!map) return show(map.error()), 1;
    auto filled = buffer->fill(7); // the map is held
    if (filled) return 1;
    show(filled.error());
    return filled.error().status() == ONEBUF_BUSY ? 0 : 1;
}

#else

int run() {
    auto hub = onebuf::Hub::discover();
    try {
        hub.device("quantum:0");
        return 1;
    } catch (const onebuf::Error &error) {
        show(error);
    }
    auto buffer = hub.buffer<int>(16);
    auto map = buffer.map();
    try {
        buffer.fill(7); // the map is held
        return 1;
    } catch (const onebuf::Error &error) {
        show(error);
        return error.status() == ONEBUF_BUSY ? 0 : 1;
    }
}

#endif

} // namespace

int main() {
    int wrong = run();
    std::printf(wrong ? "not as expected\n" : "all as expected\n");
    return wrong;
}
