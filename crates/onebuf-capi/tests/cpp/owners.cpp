// What the C++ header adds: types, moves, scopes, ranges.

#include <onebuf.hpp>

#include <array>
#include <cstdio>
#include <cstdlib>

namespace {

int line_of(bool fine, int line) {
    if (fine) return 0;
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

struct Point {
    float x, y;
};

std::int32_t shift(void *, const onebuf_native_call *call) {
    auto *points = static_cast<Point *>(call->args[0].data);
    Point by = *static_cast<const Point *>(call->args[1].data);
    for (std::size_t i = 0; i < call->global[0]; ++i) points[i].x += by.x, points[i].y += by.y;
    return 0;
}

static_assert(!std::is_copy_constructible_v<onebuf::Buffer<int>>);
static_assert(std::is_nothrow_move_constructible_v<onebuf::Buffer<int>>);
static_assert(std::is_nothrow_move_constructible_v<onebuf::View<int>>);
static_assert(!std::is_copy_assignable_v<onebuf::Hub>);

} // namespace

int main() {
    onebuf::HubOptions looks;
    looks.without_opencl = 1;
    auto hub = onebuf::Hub::discover(looks);
    auto host = hub.host();
    TRUE(hub.devices().size() == 1 && hub.devices()[0] == host && host.id() == "host");
    TRUE(!host.name().empty() && host.api() == "host" && !hub.missing().empty());

    onebuf_native native{"shift", shift, nullptr};
    onebuf::ProgramOptions source;
    source.natives = &native;
    source.native_count = 1;
    auto kernel = host.program(source).kernel(
        "shift", {onebuf::Param::buffer(onebuf::Access::ReadWrite, sizeof(Point)), onebuf::Param::value<Point>()});

    auto points = hub.buffer<Point>(100, {host});
    TRUE(points.size() == 100 && points.size_bytes() == 800);
    auto queue = host.queue();
    queue.launch(kernel, 100, points, Point{1, 2});
    {
        auto view = points.write_on(queue);
        TRUE(status_of([&] { points.fill({0, 0}); }) == ONEBUF_BUSY);
        queue.launch(kernel, onebuf::Grid(100), view, Point{1, 0});
        TRUE(view.address() != nullptr);
        TRUE(status_of([&] { view.cl_mem(); }) == ONEBUF_UNSUPPORTED);
        auto moved = std::move(view);
        TRUE(!view && moved);
        moved = onebuf::View<Point>(); // frees the view that it owned
        points.fill({3, 4}, 50, 50);
    }
    std::size_t count = 0;
    for (const Point &point : points.map_read()) {
        Point want = count++ < 50 ? Point{2, 2} : Point{3, 4};
        TRUE(point.x == want.x && point.y == want.y);
    }
    TRUE(count == 100);
    auto fence = queue.launch_fenced(kernel, 50, points.region(0, 50), Point{0, 1});
    fence.wait();
    TRUE(fence.done() && points.to_vector()[49].y == 3);
    TRUE(status_of([&] { queue.launch(kernel, 101, points, Point{0, 1}); }) == ONEBUF_INVALID_ARGUMENT);
    TRUE(status_of([&] { queue.launch(kernel, 100, onebuf::reads(points), Point{0, 1}); }) == ONEBUF_INVALID_ARGUMENT);

    auto numbers = hub.buffer(std::vector<int>{1, 2, 3, 4});
    auto others = hub.buffer<int>(4);
    others.write(std::array<int, 2>{8, 9});
    others.copy_from(numbers, 0, 2, 2);
    auto read = others.read_async(1, 2);
    const int *found = read.wait();
    TRUE(found[0] == 9 && found[1] == 1);
    others.write_async(found, 1, 3).wait();
    auto map = others.map();
    map[0] = 7;
    TRUE(map.size() == 4 && map.end()[-1] == 9);
    map.unmap();
    TRUE(others.to_vector() == (std::vector<int>{7, 9, 1, 9}));
    TRUE(status_of([&] { hub.buffer<double>(SIZE_MAX / 4); }) == ONEBUF_INVALID_ARGUMENT);
    TRUE(status_of([&] { numbers.read(nullptr, 1); }) == ONEBUF_NULL_POINTER);

    auto pool = hub.pool();
    pool.get<int>(100);
    auto again = pool.get<int>(100);
    TRUE(pool.statistics().hits == 1 && again.size() == 100);
    TRUE(hub.asked_bytes() > 0 && hub.implied_bytes() == 0 && hub.ledger().find("asked") == 0);
    hub.reset(); // objects made with it stay usable
    numbers.fill(5);
    TRUE(numbers.to_vector()[3] == 5);
    TRUE(status_of([&] { hub.ledger(); }) == ONEBUF_INVALID_HANDLE);
    std::printf("owners work\n");
}
