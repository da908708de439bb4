// Descriptors, native handles and libraries in C++: `export CUDA-LIBRARY`.

#include <onebuf.hpp>

#include <cstdio>
#include <unistd.h>

static void check(bool right, int line) {
    if (right) return;
    std::fprintf(stderr, "line %d\n", line);
    std::exit(1);
}
#define CHECK(right) check(right, __LINE__)

int main(int argc, char **argv) {
    CHECK(argc > 1);
    onebuf::HubOptions options;
    options.without_opencl = options.without_hip = options.without_verdicts = 1;
    options.cuda_library = options.nvrtc_library = argv[1];
    auto hub = onebuf::Hub::discover(options);
    auto device = hub.device("cuda:0");
    onebuf::BufferOptions builder{device};
    builder.memory_kind(onebuf::MemoryKind::Exportable);
    auto ours = hub.buffer<std::uint32_t>(1 << 20, builder), apart = hub.buffer<std::uint32_t>(1 << 20, builder);

    auto out = ours.export_fd(onebuf::FdKind::Opaque);
    onebuf::ImportOptions in(out.fd, onebuf::FdKind::Opaque, out.allocation_bytes);
    auto theirs = hub.import_fd<std::uint32_t>(device, in.range(out.offset, out.bytes));
    CHECK(theirs.size() == ours.size() && ::close(out.fd) == 0);
    std::vector<std::uint32_t> words(1 << 20);
    for (std::size_t i = 0; i < words.size(); i++) words[i] = static_cast<std::uint32_t>(i * 2654435761u + 1);
    theirs.write(words);
    CHECK(ours.to_vector() == words && apart.to_vector() != words);

    auto queue = device.queue();
    auto view = ours.read_on(queue);
    CHECK(view.cuda_ptr() != 0 && queue.native() != nullptr);
    try {
        (void)view.hip_ptr();
        CHECK(false);
    } catch (const onebuf::Error &error) {
        CHECK(error.status() == ONEBUF_UNSUPPORTED);
    }
    std::printf("descriptors work in C++\n");
}
