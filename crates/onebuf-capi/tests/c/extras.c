// Queue pools, warm-ups, prepared pools, write batches, early releases, plans, traces and the live view.

#include "check.h"
#include <stdlib.h>
#include <string.h>

enum { N = 1024, BYTES = N * 4 };

static onebuf_hub hub;
static onebuf_device device, host;
static onebuf_queue queue;
static onebuf_kernel kernel;
static const char *id;
static bool is_host;

static onebuf_buffer_options shared(void) {
    onebuf_buffer_options options = ONEBUF_OPTIONS(onebuf_buffer_options);
    options.devices = &device, options.device_count = 1;
    options.name = "extras";
    return options;
}

static onebuf_buffer fresh(void) {
    onebuf_buffer_options options = shared();
    onebuf_buffer buffer;
    OK(onebuf_buffer_create(hub, BYTES, &options, &buffer));
    return buffer;
}

static void holds(onebuf_buffer buffer, uint32_t want) {
    uint32_t seen[N];
    OK(onebuf_buffer_read(buffer, 0, seen, BYTES));
    for (int i = 0; i < N; i++) TRUE(seen[i] == want);
}

static bool has(onebuf_string text, const char *part) {
    bool found = strstr(onebuf_string_data(text), part) != NULL;
    if (!found) fprintf(stderr, "no `%s` in: %.300s\n", part, onebuf_string_data(text));
    OK(onebuf_string_free(text));
    return found;
}

static void queue_pools(void) {
    onebuf_queue_pool pool;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_queue_pool_create(device, 0, NULL, &pool));
    OK(onebuf_queue_pool_create(device, 3, NULL, &pool));
    onebuf_buffer buffer = fresh();
    void *natives[4];
    for (uint32_t i = 0; i < 4; i++) {
        onebuf_queue next;
        OK(onebuf_queue_pool_next(pool, &next));
        OK(onebuf_queue_native(next, &natives[i]));
        onebuf_arg args[] = {onebuf_arg_buffer(buffer, ONEBUF_READ_WRITE), ONEBUF_VALUE(i)};
        onebuf_grid grid = onebuf_grid_1d(N);
        OK(onebuf_queue_launch(next, kernel, &grid, args, 2, NULL));
        OK(onebuf_queue_free(next)); // it stays in the pool
    }
    if (!is_host) TRUE(natives[0] == natives[3] && natives[0] != natives[1] && natives[1] != natives[2]);
    onebuf_queue idle;
    OK(onebuf_queue_pool_finish(pool));
    OK(onebuf_queue_pool_least_busy(pool, &idle));
    OK(onebuf_queue_pool_free(pool));
    OK(onebuf_queue_finish(idle, 60000)); // its handle stays usable
    OK(onebuf_queue_free(idle));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_queue_pool_next(pool, &idle));
    holds(buffer, 0 + 1 + 2 + 3);
    OK(onebuf_buffer_free(buffer));
}

static void warm_ups(void) {
    onebuf_buffer buffer = fresh();
    uint32_t five = 5;
    onebuf_arg args[] = {onebuf_arg_buffer(buffer, ONEBUF_READ_WRITE), ONEBUF_VALUE(five)};
    onebuf_grid grid = onebuf_grid_1d(N);
    uint64_t took = 0;
    OK(onebuf_queue_warm_up(queue, kernel, &grid, args, 2, &took));
    TRUE(took > 0);
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_queue_warm_up(queue, kernel, &grid, args, 1, &took));
    TRUE(took == 0);
    holds(buffer, 5); // it does run
    OK(onebuf_buffer_free(buffer));
}

static void prepared_pools(void) {
    onebuf_pool pool;
    onebuf_buffer_options options = shared();
    onebuf_pool_statistics counts = ONEBUF_OPTIONS(onebuf_pool_statistics);
    OK(onebuf_pool_create(hub, 0, &pool));
    OK(onebuf_pool_prepare(pool, BYTES, &options, 3));
    OK(onebuf_pool_get_statistics(pool, &counts));
    TRUE(counts.idle_buffers == 3 && counts.hits == 0);
    onebuf_buffer buffer;
    OK(onebuf_pool_get(pool, BYTES, &options, 0, &buffer));
    OK(onebuf_pool_get_statistics(pool, &counts));
    TRUE(counts.hits == 1 && counts.idle_buffers == 2);
    OK(onebuf_buffer_free(buffer));
    OK(onebuf_pool_free(pool));
}

static void batches(void) {
    onebuf_buffer buffer = fresh();
    uint32_t one = 1, pair[2] = {2, 3}, seen[4];
    onebuf_write writes[] = {{0, &one, 4}, {8, pair, 8}, {8, &one, 4}};
    OK(onebuf_buffer_write_batch(buffer, writes, 3));
    OK(onebuf_buffer_read(buffer, 0, seen, sizeof seen));
    TRUE(seen[0] == 1 && seen[1] == 0 && seen[2] == 1 && seen[3] == 3); // the later one wins
    writes[0].data = &pair[1], writes[2].offset = BYTES;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_write_batch(buffer, writes, 3));
    OK(onebuf_buffer_read(buffer, 0, seen, 4));
    TRUE(seen[0] == 1); // nothing was written
    OK(onebuf_buffer_write_batch(buffer, NULL, 0));
    OK(onebuf_buffer_free(buffer));
}

static void releases(void) {
    onebuf_buffer buffer = fresh();
    uint32_t two = 2;
    onebuf_arg args[] = {onebuf_arg_buffer(buffer, ONEBUF_READ_WRITE), ONEBUF_VALUE(two)};
    onebuf_grid grid = onebuf_grid_1d(N);
    OK(onebuf_queue_launch(queue, kernel, &grid, args, 2, NULL));
    OK(onebuf_buffer_release_to(buffer, device, ONEBUF_READ_WRITE));
    onebuf_view view;
    OK(onebuf_view_take(buffer, queue, ONEBUF_READ_WRITE, &view));
    ENDS(ONEBUF_BUSY, onebuf_buffer_release_to(buffer, device, ONEBUF_READ_WRITE));
    OK(onebuf_view_free(view));
    holds(buffer, 2);
    OK(onebuf_buffer_free(buffer));
}

static void plans(void) {
    onebuf_string text;
    onebuf_buffer_options options = shared();
    OK(onebuf_buffer_plan(hub, BYTES, &options, &text));
    TRUE(has(text, id));
    OK(onebuf_buffer_plan_json(hub, BYTES, &options, &text));
    TRUE(has(text, "\"memory_kind\""));
    options.memory_kind = ONEBUF_MEMORY_KIND_ON_CHIP; // no device here has such memory
    TRUE(onebuf_buffer_plan(hub, BYTES, &options, &text) != ONEBUF_OK && text.id == 0);
}

static void traces(const char *folder) {
    onebuf_string text;
    OK(onebuf_trace_json(hub, &text));
    TRUE(has(text, "\"extras\""));
    uint64_t dropped = 9;
    OK(onebuf_trace_dropped(hub, &dropped));
    TRUE(dropped == 0);
    char path[512];
    snprintf(path, sizeof path, "%s/trace.json", folder);
    OK(onebuf_trace_save(hub, path));
    FILE *file = fopen(path, "r");
    TRUE(file && fgetc(file) == '{');
    fclose(file);
    ENDS(ONEBUF_UNAVAILABLE, onebuf_trace_save(hub, "/nowhere/at/all/trace.json"));
    OK(onebuf_trace_clear(hub));
    OK(onebuf_trace_json(hub, &text));
    TRUE(!strstr(onebuf_string_data(text), "\"extras\"")); // the control
    OK(onebuf_string_free(text));
    onebuf_hub plain;
    onebuf_hub_options options = ONEBUF_OPTIONS(onebuf_hub_options);
    options.only = "";
    OK(onebuf_hub_discover(&options, &plain));
    ENDS(ONEBUF_UNSUPPORTED, onebuf_trace_json(plain, &text));
    size_t count;
    OK(onebuf_hub_device_count(plain, &count));
    TRUE(count == 1); // no API but the host
    OK(onebuf_hub_free(plain));
    options.only = "time_machine";
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_hub_discover(&options, &plain));
}

static void live(void) {
    onebuf_published shown, second;
    onebuf_string path;
    OK(onebuf_publish(hub, "extras-in-c", &shown));
    OK(onebuf_published_path(shown, &path));
    TRUE(has(path, "extras-in-c"));
    ENDS(ONEBUF_BUSY, onebuf_publish(hub, "extras-in-c", &second)); // the name is taken
    TRUE(second.id == 0);
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_published_pipeline(shown, "none", (onebuf_pipeline){0}));
    OK(onebuf_published_free(shown));
    OK(onebuf_publish(hub, "extras-in-c", &second));
    OK(onebuf_published_free(second));
}

static void grafts(onebuf_program program) {
    onebuf_program moved;
    bool grafted = true;
    ENDS(ONEBUF_UNSUPPORTED, onebuf_program_graft(program, host, NULL, &moved)); // the host runs no moved programs
    OK(onebuf_program_graft(program, host, &grafted, &moved));
    TRUE(grafted == is_host && moved.id != 0); // otherwise the same program
    OK(onebuf_program_free(moved));
}

int main(int argc, char **argv) {
    id = argc > 2 ? argv[2] : "host";
    is_host = strcmp(id, "host") == 0;
    onebuf_hub_options options = ONEBUF_OPTIONS(onebuf_hub_options);
    options.trace_events = 4096;
    OK(onebuf_hub_discover(&options, &hub));
    OK(onebuf_hub_device(hub, id, &device));
    OK(onebuf_hub_device(hub, "host", &host));
    OK(onebuf_queue_create(device, NULL, &queue));
    onebuf_program program = build_add(device, NULL);
    kernel = kernel_add(program);
    queue_pools();
    warm_ups();
    prepared_pools();
    batches();
    releases();
    plans();
    traces(argc > 1 ? argv[1] : ".");
    live();
    grafts(program);
    OK(onebuf_kernel_free(kernel));
    OK(onebuf_program_free(program));
    OK(onebuf_queue_free(queue));
    OK(onebuf_hub_free(hub));
    printf("extras work on %s\n", id);
    return 0;
}
