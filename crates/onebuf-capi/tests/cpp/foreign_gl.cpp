// An OpenGL program with a context, a buffer and a compute shader of its own, in C++.

#include "../c/egl.h"

#include <onebuf.hpp>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

namespace {

void line_of(bool fine, int line) {
    if (fine) return;
    std::fprintf(stderr, "line %d\n", line);
    std::exit(1);
}
#define TRUE(what) line_of(static_cast<bool>(what), __LINE__)

} // namespace

int main(int argc, char **argv) {
    onebuf::HubOptions options;
    options.egl_library = "libEGL.so.1";
    options.only = "opencl,gl";
    auto hub = onebuf::Hub::discover(options);
    auto device = hub.device(argc > 1 ? argv[1] : "opencl");
    if (const char *missing = egl_open()) return std::printf("skip: OpenGL for C++ programs: no %s\n", missing), 0;
    TRUE(egl_build());
    constexpr std::size_t count = 512;
    std::vector<GLuint> words(count);
    std::iota(words.begin(), words.end(), 0u);
    GLuint name = egl_buffer(words.data(), count * 4);
    {
        auto theirs = hub.foreign_gl();
        auto here = theirs.queue();
        auto add = device.program("kernel void add(global uint *x, uint n) { x[get_global_id(0)] += n; }")
                       .kernel("add", {onebuf::Param::buffer(onebuf::Access::ReadWrite, 4), onebuf::Param::value<unsigned>()});
        auto queue = device.queue();

        TRUE(theirs.buffer_info(name).bytes == count * 4);
        auto before = here.fence();
        auto wrapped = theirs.wrap<GLuint>(name, onebuf::WrapOptions{device}.after(before));
        TRUE(wrapped.size() == count);
        queue.launch(add, count, wrapped, 5u);
        wrapped.hand_to(here);
        egl_run(name, count);
        wrapped.written_until(here.fence());
        TRUE(wrapped.to_vector()[9] == 2 * (9 + 5) + 1);

        auto ours = hub.buffer<GLuint>(words, onebuf::BufferOptions{theirs.device(), device}.allocate_on(theirs.device()));
        queue.launch(add, count, ours, 7u);
        {
            auto view = ours.write_on(here);
            egl_run(view.gl_name(), count);
        }
        TRUE(ours.to_vector()[count - 1] == 2 * (count - 1 + 7) + 1);
        bool refused = false;
        try {
            ours.read_on(queue).vk_buffer();
        } catch (const onebuf::Error &error) {
            refused = error.status() == ONEBUF_UNSUPPORTED;
        }
        TRUE(refused);
    }
    egl_read(name, words.data(), count * 4);
    TRUE(words[9] == 29);
    glDeleteBuffers(1, &name);
    egl_close();
    std::printf("foreign OpenGL works in C++\n");
    return 0;
}
