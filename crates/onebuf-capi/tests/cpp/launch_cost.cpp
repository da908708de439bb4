// `launch_cost DEVICE ROUNDS`: a launch by onebuf.hpp over the same launch by onebuf.h. Blocks of both alternate in one run; the
// ratio is the median over pairs of neighbouring blocks. Build it with -O2 against an optimised library. It checks the results, not the times.

#include "check.hpp"

#include <algorithm>

namespace {

constexpr std::size_t N = 256;
constexpr unsigned BLOCK = 20;

using Clock = std::chrono::steady_clock;

template <class Launch> double block(const onebuf::Queue &queue, Launch launch) {
    auto start = Clock::now();
    for (unsigned i = 0; i < BLOCK; ++i) launch();
    double ns = std::chrono::duration<double, std::nano>(Clock::now() - start).count() / BLOCK;
    queue.finish(); // outside of the time
    return ns;
}

double median(std::vector<double> all) {
    std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
    return all[all.size() / 2];
}

} // namespace

int main(int argc, char **argv) {
    const char *id = argc > 1 ? argv[1] : "host";
    const unsigned rounds = argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 2000;
    auto hub = onebuf::Hub::discover();
    auto device = hub.device(id);
    auto add = kernel_of(add_for(device));
    auto x = hub.buffer<unsigned>(N, {device});
    auto queue = device.queue();
    const unsigned one = 1;

    auto by_c = [&] {
        const onebuf_arg args[] = {onebuf_arg_buffer(x.handle(), ONEBUF_READ_WRITE), ONEBUF_VALUE(one)};
        const onebuf_grid grid = onebuf_grid_1d(N);
        if (onebuf_queue_launch(queue.handle(), add.handle(), &grid, args, 2, nullptr) != ONEBUF_OK) std::abort();
    };
    auto by_cpp = [&] { queue.launch(add, N, x, one); };
    std::vector<double> c, cpp;
    for (unsigned round = 0; round < rounds; ++round) {
        const bool first = round % 2 == 0; // neither always comes second
        if (first) c.push_back(block(queue, by_c));
        cpp.push_back(block(queue, by_cpp));
        if (!first) c.push_back(block(queue, by_c));
    }
    TRUE(x.to_vector()[N - 1] == 2 * rounds * BLOCK);
    std::vector<double> ratios;
    for (unsigned round = 0; round < rounds; ++round) ratios.push_back(cpp[round] / c[round]);
    std::printf("%s: C %.0f ns, C++ %.0f ns, ratio %.3f\n", id, median(c), median(cpp), median(ratios));
}
