// A Vulkan program with a device and a buffer of its own, in C++.

#include "../c/vk.h"

#include <onebuf.hpp>

#include <cstdio>
#include <cstdlib>

namespace {

void line_of(bool fine, int line) {
    if (fine) return;
    std::fprintf(stderr, "line %d\n", line);
    std::exit(1);
}
#define TRUE(what) line_of(static_cast<bool>(what), __LINE__)

} // namespace

int main() {
    if (const char *missing = vk_open()) return std::printf("skip: Vulkan for C++ programs: no %s\n", missing), 0;
    constexpr std::size_t count = 256;
    TRUE(vk_make(count * 4));
    auto *words = static_cast<std::uint32_t *>(vk_data);
    for (std::uint32_t i = 0; i < count; ++i) words[i] = i;
    {
        onebuf::HubOptions options;
        options.vulkan_library = "libvulkan.so.1";
        options.without_gl = options.without_opencl = 1;
        auto hub = onebuf::Hub::discover(options);
        onebuf::VulkanHandles handles;
        const std::uint32_t first = 0;
        handles.instance = vk_instance, handles.physical_device = vk_physical, handles.device = vk_device;
        handles.queue_family = vk_family, handles.queues = &first, handles.queue_count = 1;
        auto theirs = hub.foreign_vulkan(handles);
        auto queue = theirs.device().queue();
        onebuf::VulkanBuffer told;
        told.buffer = vk_buffer, told.bytes = count * 4;
        told.memory = vk_memory, told.memory_bytes = vk_bytes, told.memory_type = vk_kind, told.mapped = vk_data;
        bool released = false;
        {
            auto buffer = theirs.wrap<std::uint32_t>(told, onebuf::WrapOptions().owned([&](void *) { released = true; }));
            TRUE(buffer.size() == count && buffer.to_vector()[7] == 7);
            auto view = buffer.write_on(queue);
            auto [number, offset] = view.vk_buffer();
            TRUE(number == vk_buffer);
            TRUE(vk_fill(queue.native(), number, offset, 8, 5));
            view.reset();
            TRUE(buffer.map_read()[1] == 5);
            TRUE(!released);
        }
        TRUE(released && words[0] == 5 && words[2] == 2);
        bool refused = false;
        told.memory_type = 99;
        try {
            theirs.wrap<std::uint32_t>(told);
        } catch (const onebuf::Error &error) {
            refused = error.status() == ONEBUF_INVALID_ARGUMENT;
        }
        TRUE(refused);
    }
    vk_close();
    std::printf("foreign Vulkan works in C++\n");
    return 0;
}
