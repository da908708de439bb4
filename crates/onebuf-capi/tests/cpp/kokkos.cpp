// The functions of docs/neighbours/kokkos.md, with a real Kokkos: both directions, every element, references.

#include "kokkos-page.cpp"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t N = 5 * 1024 + 77;

void line_of(bool fine, int line) {
    if (fine) return;
    std::fprintf(stderr, "line %d\n", line);
    std::exit(1);
}
#define TRUE(what) line_of(static_cast<bool>(what), __LINE__)

onebuf::Kernel plus_one(const onebuf::Device &device) {
    onebuf::ProgramOptions source;
    source.opencl_c = "kernel void plus_one(global float *x) { x[get_global_id(0)] += 1; }";
    return device.program(source).kernel("plus_one", {onebuf::Param::buffer(onebuf::Access::ReadWrite, sizeof(float))});
}

template <class What> bool eventually(What what) {
    for (int tries = 0; tries < 20000; ++tries) {
        if (what()) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
}

// No doctor has run here.
onebuf::BufferOptions trusting(const onebuf::Device &device) { return onebuf::BufferOptions{device}.trust_declared(true); }

// A view that begins where every device wants it, at a page. Kokkos itself aligns to 64 bytes only.
using Host = Kokkos::View<float *, Kokkos::HostSpace>;
Host aligned_view() {
    constexpr std::size_t PAGE = 4096;
    Host all("samples", N + PAGE / sizeof(float));
    auto over = reinterpret_cast<std::uintptr_t>(all.data()) % PAGE;
    std::size_t first = (PAGE - over) % PAGE / sizeof(float);
    return Kokkos::subview(all, std::make_pair(first, first + N));
}

// The view is the device's memory: no byte is copied, and Kokkos sees what the device wrote.
void in_place(const onebuf::Hub &hub, const onebuf::Device &device) {
    Host view = aligned_view();
    Kokkos::parallel_for(N, [view](std::size_t i) { view(i) = static_cast<float>(i); });
    TRUE(view.use_count() == 1);
    {
        onebuf::Buffer<float> buffer = shared(hub, view, trusting(device));
        TRUE(view.use_count() == 2); // the buffer has one
        device.default_queue().launch(plus_one(device), N, buffer);
        double_all(buffer);
        device.default_queue().launch(plus_one(device), N, buffer);
        buffer.map_read(); // waits
    }
    TRUE(eventually([&] { return view.use_count() == 1; }));
    for (std::size_t i = 0; i < N; ++i) TRUE(view(i) == 2 * (static_cast<float>(i) + 1) + 1);
}

// The control: an unmanaged view over other memory does not see the device's writes.
void over_onebufs_memory(const onebuf::Hub &hub, const onebuf::Device &device) {
    onebuf::Buffer<float> buffer = hub.buffer<float>(N, onebuf::BufferOptions{device});
    std::vector<float> copy(N, 1.0f);
    buffer.fill(1.0f);
    double_all(buffer);
    device.default_queue().launch(plus_one(device), N, buffer);
    auto map = buffer.map_read();
    Lent other(copy.data(), N);
    for (std::size_t i = 0; i < N; ++i) TRUE(map.data()[i] == 3 && other(i) == 1);
}

// A column of a matrix has gaps, and a view may begin anywhere.
void other_views_are_refused(const onebuf::Hub &hub, const onebuf::Device &device) {
    Kokkos::View<float **, Kokkos::LayoutRight, Kokkos::HostSpace> matrix("matrix", 8, 8);
    auto column = Kokkos::subview(matrix, Kokkos::ALL(), 3);
    try {
        shared(hub, column, trusting(device));
        TRUE(false);
    } catch (const std::invalid_argument &error) {
        TRUE(std::string(error.what()).find("gaps") != std::string::npos);
    }
    Host odd = aligned_view();
    Lent beside(odd.data() + 1, 64); // a device wants it aligned
    try {
        shared(hub, beside, trusting(device));
        TRUE(false);
    } catch (const onebuf::Error &error) {
        TRUE(std::string(error.what()).find("aligned") != std::string::npos);
    }
}

} // namespace

int main(int count, char **words) {
    Kokkos::initialize(count, words);
    int tried = 0;
    {
        onebuf::Hub hub = onebuf::Hub::discover();
        for (const onebuf::Device &device : hub.devices()) {
            if (device.id().rfind("opencl:", 0) != 0) continue;
            in_place(hub, device);
            over_onebufs_memory(hub, device);
            other_views_are_refused(hub, device);
            ++tried;
        }
    }
    Kokkos::finalize();
    tried ? std::printf("Kokkos and %d devices share views\n", tried) : std::puts("skip: no OpenCL device");
}
