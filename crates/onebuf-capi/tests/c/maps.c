// Mappings of a range, for writing only, without earlier contents, and asynchronous ones.

#define _DEFAULT_SOURCE
#include "check.h"
#include <string.h>
#include <unistd.h>

enum { N = 8192, BYTES = N * 4 };

static onebuf_hub hub;
static onebuf_device device, host;
static onebuf_queue queue;
static onebuf_kernel kernel;
static bool is_host;

static onebuf_buffer made(onebuf_host_access access, onebuf_memory_kind kind) {
    onebuf_buffer_options options = ONEBUF_OPTIONS(onebuf_buffer_options);
    options.devices = &device, options.device_count = 1;
    options.host_access = access, options.memory_kind = kind;
    onebuf_buffer buffer;
    OK(onebuf_buffer_create(hub, BYTES, &options, &buffer));
    return buffer;
}

static void add(onebuf_buffer buffer, uint32_t n) {
    onebuf_arg args[] = {onebuf_arg_buffer(buffer, ONEBUF_READ_WRITE), ONEBUF_VALUE(n)};
    onebuf_grid grid = onebuf_grid_1d(N);
    OK(onebuf_queue_launch(queue, kernel, &grid, args, 2, NULL));
}

static uint64_t implied(void) {
    uint64_t bytes;
    OK(onebuf_ledger_implied_bytes(hub, &bytes));
    return bytes;
}

static onebuf_map_options options(onebuf_access access, size_t at, size_t count) {
    onebuf_map_options all = ONEBUF_OPTIONS(onebuf_map_options);
    all.access = access, all.offset = at * 4, all.bytes = count * 4;
    return all;
}

static uint32_t *map(onebuf_buffer buffer, onebuf_map_options how, onebuf_mapping *mapping) {
    void *data = NULL;
    OK(onebuf_buffer_map_with(buffer, &how, &data, mapping));
    return data;
}

static void ranges(void) {
    onebuf_buffer buffer = made(ONEBUF_HOST_READ_WRITE, ONEBUF_MEMORY_KIND_ANY);
    onebuf_mapping mapping;
    void *data = NULL;
    add(buffer, 1);
    uint32_t *words = map(buffer, options(ONEBUF_READ_WRITE, 100, 4), &mapping);
    for (int i = 0; i < 4; i++) TRUE(words[i] == 1);
    words[0] = 50, words[3] = 53;
    ENDS(ONEBUF_BUSY, onebuf_buffer_read(buffer, 0, &(uint32_t){0}, 4)); // it excludes others
    OK(onebuf_mapping_unmap(mapping));
    add(buffer, 1);
    words = map(buffer, options(ONEBUF_READ, 99, 0), &mapping); // all the rest
    TRUE(words[0] == 2 && words[1] == 51 && words[2] == 2 && words[4] == 54 && words[5] == 2 && words[N - 100] == 2);
    OK(onebuf_mapping_unmap(mapping));

    onebuf_map_options wrong = options(ONEBUF_READ, N - 1, 2);
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_map_with(buffer, &wrong, &data, &mapping));
    wrong = options(ONEBUF_READ, N, 0);
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_map_with(buffer, &wrong, &data, &mapping));
    wrong = options(ONEBUF_READ_WRITE, 0, 0), wrong.discard = 1;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_map_with(buffer, &wrong, &data, &mapping));
    TRUE(strstr(onebuf_last_error_message(), "ONEBUF_WRITE") && data == NULL && mapping.id == 0);

    // For writing only: what is not written stays.
    words = map(buffer, options(ONEBUF_WRITE, 10, 3), &mapping);
    words[1] = 77;
    OK(onebuf_mapping_unmap(mapping));
    uint32_t seen[4];
    OK(onebuf_buffer_read(buffer, 40, seen, sizeof seen));
    TRUE(seen[0] == 2 && seen[1] == 77 && seen[2] == 2);

    // A region, and a range of it.
    onebuf_buffer region;
    OK(onebuf_buffer_region(buffer, BYTES / 2, BYTES / 2, ONEBUF_READ_WRITE, &region));
    words = map(region, options(ONEBUF_READ_WRITE, 1, 1), &mapping);
    words[0] = 9;
    OK(onebuf_mapping_unmap(mapping));
    OK(onebuf_buffer_read(buffer, BYTES / 2, seen, sizeof seen));
    TRUE(seen[0] == 2 && seen[1] == 9 && seen[2] == 2);
    OK(onebuf_buffer_free(region));
    OK(onebuf_buffer_free(buffer));
}

// A mapping that discards brings no contents to the host.
static void discarding(void) {
    onebuf_device both[] = {device, host};
    onebuf_buffer_options how = ONEBUF_OPTIONS(onebuf_buffer_options);
    how.devices = both, how.device_count = is_host ? 1 : 2;
    if (!is_host) how.allocate_on = device, how.route = ONEBUF_ROUTE_STAGED;
    onebuf_buffer buffer;
    OK(onebuf_buffer_create(hub, BYTES, &how, &buffer));
    for (int discard = 0; discard < 2; discard++) {
        add(buffer, 1);
        uint64_t before = implied();
        onebuf_map_options over = options(ONEBUF_WRITE, 0, 0);
        over.discard = (uint32_t)discard;
        onebuf_mapping mapping;
        uint32_t *words = map(buffer, over, &mapping);
        TRUE(implied() - before == (discard || is_host ? 0 : BYTES)); // without it: the control
        for (int i = 0; i < N; i++) words[i] = 40;
        OK(onebuf_mapping_unmap(mapping));
        add(buffer, 2);
        uint32_t seen[N];
        OK(onebuf_buffer_read(buffer, 0, seen, BYTES));
        for (int i = 0; i < N; i++) TRUE(seen[i] == 42);
    }
    OK(onebuf_buffer_free(buffer));
}

// A buffer that the host only writes is filled in place.
static void host_writes(void) {
    if (is_host) return;
    onebuf_memory_kind kinds[] = {ONEBUF_MEMORY_KIND_MAPPED_DEVICE, ONEBUF_MEMORY_KIND_DEVICE};
    for (int i = 0; i < 2; i++) {
        onebuf_buffer buffer = made(ONEBUF_HOST_WRITE, kinds[i]), seen = made(ONEBUF_HOST_READ_WRITE, ONEBUF_MEMORY_KIND_ANY);
        onebuf_mapping mapping;
        void *data = NULL;
        ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_map(buffer, ONEBUF_READ, &data, &mapping));
        ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_map(buffer, ONEBUF_READ_WRITE, &data, &mapping));
        onebuf_map_options over = options(ONEBUF_WRITE, 0, 0);
        over.discard = 1;
        uint64_t before = implied();
        uint32_t *words = map(buffer, over, &mapping);
        for (int at = 0; at < N; at++) words[at] = (uint32_t)at;
        OK(onebuf_mapping_unmap(mapping));
        add(buffer, 5);
        if (i == 0) {
            OK(onebuf_buffer_map(buffer, ONEBUF_WRITE, &data, &mapping)); // keeps what it does not write
            ((uint32_t *)data)[0] = 1000;
            OK(onebuf_mapping_unmap(mapping));
            add(buffer, 1);
        }
        OK(onebuf_buffer_copy(seen, 0, buffer, 0, BYTES));
        uint32_t back[N];
        OK(onebuf_buffer_read(seen, 0, back, BYTES));
        uint32_t more = i == 0 ? 6 : 5;
        TRUE(back[0] == (i == 0 ? 1001 : 5));
        for (uint32_t at = 1; at < N; at++) TRUE(back[at] == at + more);
        if (i == 1) TRUE(implied() - before >= BYTES); // the host worked on a copy
        ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_read(buffer, 0, back, BYTES));
        onebuf_queue on_host;
        onebuf_view view;
        OK(onebuf_queue_create(host, NULL, &on_host));
        ENDS(ONEBUF_NOT_SHARED, onebuf_view_take(buffer, on_host, ONEBUF_READ, &view)); // the host gets maps alone
        OK(onebuf_queue_free(on_host));
        OK(onebuf_buffer_free(buffer));
        OK(onebuf_buffer_free(seen));
    }
}

static void asynchronous(void) {
    onebuf_buffer buffer = made(ONEBUF_HOST_READ_WRITE, ONEBUF_MEMORY_KIND_ANY);
    onebuf_mapping mapping;
    void *data = NULL;
    for (int round = 0; round < 10; round++) add(buffer, 1);
    onebuf_map_options how = options(ONEBUF_READ_WRITE, 4, 8);
    OK(onebuf_buffer_map_async(buffer, &how, &mapping));
    add(buffer, 1); // not mapped yet: others may use the buffer
    bool ready = false;
    for (int tries = 0; !ready; tries++) {
        OK(onebuf_mapping_poll(mapping, &ready));
        TRUE(tries < 20000);
        if (!ready) usleep(1000);
    }
    OK(onebuf_mapping_wait(mapping, 60000, &data));
    TRUE(((uint32_t *)data)[0] == 11 && ((uint32_t *)data)[7] == 11);
    void *again = NULL;
    OK(onebuf_mapping_wait(mapping, 0, &again));
    TRUE(again == data);
    ((uint32_t *)data)[0] = 30;
    ENDS(ONEBUF_BUSY, onebuf_buffer_fill(buffer, 0, 4, &(uint32_t){0}, 4)); // mapped now
    OK(onebuf_mapping_unmap(mapping));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_mapping_wait(mapping, 0, &again));
    uint32_t seen[2];
    OK(onebuf_buffer_read(buffer, 12, seen, sizeof seen));
    TRUE(seen[0] == 11 && seen[1] == 30);

    // Held by a view: the wait ends by its time, and may be repeated.
    onebuf_view view;
    OK(onebuf_view_take(buffer, queue, ONEBUF_READ_WRITE, &view));
    OK(onebuf_buffer_map_async(buffer, NULL, &mapping));
    ENDS(ONEBUF_TIMEOUT, onebuf_mapping_wait(mapping, 30, &data));
    TRUE(data == NULL && strstr(onebuf_last_error_message(), "is in use"));
    OK(onebuf_view_free(view));
    OK(onebuf_mapping_wait(mapping, 10000, &data));
    TRUE(((uint32_t *)data)[4] == 30);
    OK(onebuf_mapping_unmap(mapping));
    OK(onebuf_buffer_map_async(buffer, NULL, &mapping));
    OK(onebuf_mapping_unmap(mapping)); // before it began
    OK(onebuf_buffer_write(buffer, 0, &(uint32_t){1}, 4));
    OK(onebuf_buffer_free(buffer));
}

int main(int argc, char **argv) {
    const char *id = argc > 1 ? argv[1] : "host";
    is_host = strcmp(id, "host") == 0;
    OK(onebuf_hub_discover(NULL, &hub));
    OK(onebuf_hub_device(hub, id, &device));
    OK(onebuf_hub_device(hub, "host", &host));
    OK(onebuf_queue_create(device, NULL, &queue));
    onebuf_program program = build_add(device, NULL);
    kernel = kernel_add(program);
    ranges();
    discarding();
    host_writes();
    asynchronous();
    OK(onebuf_kernel_free(kernel));
    OK(onebuf_program_free(program));
    OK(onebuf_queue_free(queue));
    OK(onebuf_hub_free(hub));
    printf("maps work on %s\n", id);
    return 0;
}
