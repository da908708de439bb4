// Persistent maps and owners, on one device: `persistent host`, `persistent opencl`.

#include "check.h"
#include <string.h>

enum { N = 3 * 4096 + 10, BYTES = N * 4 };

static onebuf_hub hub;
static onebuf_device device;

static onebuf_buffer fresh(void) {
    onebuf_buffer_options options = ONEBUF_OPTIONS(onebuf_buffer_options);
    options.devices = &device;
    options.device_count = 1;
    onebuf_buffer buffer;
    OK(onebuf_buffer_create(hub, BYTES, &options, &buffer));
    return buffer;
}

static void add(onebuf_queue queue, onebuf_kernel kernel, onebuf_buffer buffer, uint32_t n) {
    onebuf_arg args[] = {onebuf_arg_buffer(buffer, ONEBUF_READ_WRITE), ONEBUF_VALUE(n)};
    onebuf_grid grid = onebuf_grid_1d(N);
    OK(onebuf_queue_launch(queue, kernel, &grid, args, 2, NULL));
}

static bool all_are(const uint32_t *data, uint32_t first) {
    for (uint32_t i = 0; i < N; i++)
        if (data[i] != first + i) return false;
    return true;
}

// A map for writing does not read, and one for reading replaces it.
static void one_way(onebuf_queue queue, onebuf_kernel kernel) {
    onebuf_buffer buffer = fresh();
    uint32_t word = 7;
    void *data;
    onebuf_buffer_state state = ONEBUF_OPTIONS(onebuf_buffer_state);
    OK(onebuf_buffer_fill(buffer, 0, BYTES, &word, 4));
    OK(onebuf_buffer_to_host(buffer, ONEBUF_WRITE, &data));
    ((uint32_t *)data)[1] = 8;
    OK(onebuf_buffer_get_state(buffer, &state));
    TRUE(state.mapped && state.writable && state.data == data);
    word = 9;
    OK(onebuf_buffer_store(buffer, 8, &word, 4));
    ENDS(ONEBUF_BUSY, onebuf_buffer_load(buffer, 0, &word, 4)); // this map does not read
    OK(onebuf_buffer_to_host(buffer, ONEBUF_READ, &data));
    TRUE(((uint32_t *)data)[0] == 7 && ((uint32_t *)data)[1] == 8 && ((uint32_t *)data)[2] == 9);
    OK(onebuf_buffer_get_state(buffer, &state));
    TRUE(state.mapped && !state.writable);
    OK(onebuf_buffer_to_device(buffer));
    add(queue, kernel, buffer, 2);
    OK(onebuf_buffer_load(buffer, 4, &word, 4));
    TRUE(word == 10);
    OK(onebuf_buffer_free(buffer));
}

// Host and kernels take turns; every element is checked.
static void turns(onebuf_queue queue, onebuf_kernel kernel) {
    onebuf_buffer buffer = fresh();
    void *data, *again;
    OK(onebuf_buffer_to_host(buffer, ONEBUF_READ_WRITE, &data));
    for (uint32_t i = 0; i < N; i++) ((uint32_t *)data)[i] = i;
    for (uint32_t round = 1; round <= 4; round++) {
        OK(onebuf_buffer_to_host(buffer, round % 2 ? ONEBUF_READ : ONEBUF_READ_WRITE, &again));
        TRUE(all_are(again, 10 * (round - 1)));
        onebuf_arg args[] = {onebuf_arg_buffer(buffer, ONEBUF_READ_WRITE), ONEBUF_VALUE(round)};
        onebuf_grid grid = onebuf_grid_1d(N);
        ENDS(ONEBUF_BUSY, onebuf_queue_launch(queue, kernel, &grid, args, 2, NULL)); // it is the host's turn
        if (round < 3) {
            OK(onebuf_buffer_to_device(buffer));
            OK(onebuf_buffer_to_device(buffer));
            add(queue, kernel, buffer, 10);
        } else { // the launch itself ends the host's turn
            uint32_t ten = 10;
            onebuf_arg turn[] = {onebuf_arg_turn(buffer, ONEBUF_READ_WRITE), ONEBUF_VALUE(ten)};
            OK(onebuf_queue_launch(queue, kernel, &grid, turn, 2, NULL));
        }
        OK(onebuf_buffer_wait_ns(buffer, ONEBUF_READ_WRITE, 60000000000ull));
        OK(onebuf_buffer_to_host(buffer, ONEBUF_READ, &again));
        TRUE(all_are(again, 10 * round));
        // A map for reading becomes one for reading and writing.
        OK(onebuf_buffer_to_host(buffer, ONEBUF_READ_WRITE, &data));
        ((uint32_t *)data)[N - 1] = 5;
        ((uint32_t *)data)[N - 1] = 10 * round + N - 1;
    }
    OK(onebuf_buffer_free(buffer)); // also ends its map
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_buffer_to_host(buffer, ONEBUF_READ, &again));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_buffer_to_device(buffer));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_buffer_wait_ns(buffer, ONEBUF_READ, 1));
}

// Stores and loads, with a persistent map and without.
static void stores(void) {
    onebuf_buffer buffer = fresh();
    uint32_t *data, word = 7, found = 0;
    for (int mapped = 0; mapped < 2; mapped++) {
        if (mapped) OK(onebuf_buffer_to_host(buffer, ONEBUF_READ_WRITE, (void **)&data));
        word += 1;
        OK(onebuf_buffer_store(buffer, BYTES - 4, &word, 4));
        if (mapped) TRUE(data[N - 1] == word);
        OK(onebuf_buffer_load(buffer, BYTES - 4, &found, 4));
        TRUE(found == word);
        ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_store(buffer, BYTES - 3, &word, 4));
        ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_load(buffer, SIZE_MAX, &found, 4));
        ENDS(ONEBUF_NULL_POINTER, onebuf_buffer_store(buffer, 0, NULL, 4));
        ENDS(ONEBUF_NULL_POINTER, onebuf_buffer_load(buffer, 0, NULL, 4));
    }
    // The data may lie in the buffer itself and overlap the target.
    OK(onebuf_buffer_store(buffer, 4, data, BYTES - 4));
    TRUE(data[N - 1] == 0);
    OK(onebuf_buffer_to_device(buffer));
    // A map for reading does not allow stores.
    OK(onebuf_buffer_to_host(buffer, ONEBUF_READ, (void **)&data));
    ENDS(ONEBUF_BUSY, onebuf_buffer_store(buffer, 0, &word, 4));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_to_host(buffer, 77, (void **)&data));
    ENDS(ONEBUF_NULL_POINTER, onebuf_buffer_to_host(buffer, ONEBUF_READ, NULL));
    OK(onebuf_buffer_free(buffer));
}

// Several writes at once, with a persistent map and without; a wrong one among them prevents all.
static void batches(void) {
    onebuf_buffer buffer = fresh();
    uint32_t *data, words[] = {11, 12, 13}, found[3];
    onebuf_write writes[] = {{0, words, 4}, {BYTES - 4, words + 1, 4}, {0, words + 2, 4}};
    for (int mapped = 0; mapped < 2; mapped++) {
        for (int i = 0; i < 3; i++) words[i] += 10;
        if (mapped) OK(onebuf_buffer_to_host(buffer, ONEBUF_READ_WRITE, (void **)&data));
        OK(onebuf_buffer_store_many(buffer, writes, 3));
        OK(onebuf_buffer_load(buffer, 0, found, 4));
        OK(onebuf_buffer_load(buffer, BYTES - 4, found + 1, 4));
        TRUE(found[0] == words[2] && found[1] == words[1]); // the later write wins
        onebuf_write wrong[] = {{4, words, 4}, {BYTES - 3, words, 4}};
        ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_store_many(buffer, wrong, 2));
        OK(onebuf_buffer_load(buffer, 4, found, 4));
        TRUE(found[0] == 0);
        ENDS(ONEBUF_NULL_POINTER, onebuf_buffer_store_many(buffer, NULL, 1));
        OK(onebuf_buffer_store_many(buffer, NULL, 0));
    }
    OK(onebuf_buffer_free(buffer));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_buffer_store_many(buffer, writes, 3));
}

// The state of the persistent map, and flushes of its ranges.
static void states(void) {
    onebuf_buffer buffer = fresh();
    onebuf_buffer_state state = {.size = sizeof state};
    void *data;
    OK(onebuf_buffer_get_state(buffer, &state));
    TRUE(state.bytes == BYTES && !state.mapped && !state.writable && state.data == NULL);
    TRUE(state.memory_kind != ONEBUF_MEMORY_KIND_ANY);
    OK(onebuf_buffer_to_host(buffer, ONEBUF_READ, &data));
    OK(onebuf_buffer_get_state(buffer, &state));
    TRUE(state.mapped && !state.writable && state.data == data);
    OK(onebuf_buffer_to_host(buffer, ONEBUF_READ_WRITE, &data));
    OK(onebuf_buffer_get_state(buffer, &state));
    TRUE(state.mapped && state.writable && state.data == data);
    bool svm = state.memory_kind == ONEBUF_MEMORY_KIND_FINE_SVM;
    onebuf_device host;
    OK(onebuf_hub_device(hub, "host", &host));
    TRUE((state.coherent != 0) == (svm || device.id == host.id));
    OK(onebuf_buffer_flush(buffer, BYTES - 8, 8));
    OK(onebuf_buffer_flush(buffer, BYTES, 0));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_flush(buffer, BYTES - 8, 9));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_flush(buffer, BYTES + 1, 0));
    OK(onebuf_buffer_to_device(buffer));
    OK(onebuf_buffer_get_state(buffer, &state));
    TRUE(!state.mapped && state.data == NULL);
    ENDS(ONEBUF_NULL_POINTER, onebuf_buffer_get_state(buffer, NULL));
    OK(onebuf_buffer_free(buffer));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_buffer_get_state(buffer, &state));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_buffer_flush(buffer, 0, 0));
}

// A fence for all uses: none before the first, reached after the last.
static void uses(onebuf_queue queue, onebuf_kernel kernel) {
    onebuf_buffer buffer = fresh();
    onebuf_fence fence;
    add(queue, kernel, buffer, 1);
    OK(onebuf_buffer_uses(buffer, &fence));
    TRUE(fence.id != 0);
    OK(onebuf_fence_wait_ns(fence, 60000000000ull));
    OK(onebuf_fence_free(fence));
    ENDS(ONEBUF_NULL_POINTER, onebuf_buffer_uses(buffer, NULL));
    onebuf_view view;
    uint32_t name;
    OK(onebuf_view_take(buffer, queue, ONEBUF_READ, &view));
    ENDS(ONEBUF_UNSUPPORTED, onebuf_view_gl_name(view, &name)); // not a queue of OpenGL's
    OK(onebuf_view_free(view));
    OK(onebuf_buffer_free(buffer));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_buffer_uses(buffer, &fence));
}

static bool lives(onebuf_buffer buffer) {
    size_t bytes;
    return onebuf_buffer_size(buffer, &bytes) == ONEBUF_OK;
}

// Addresses of variables as owners, whatever the variables contain.
static void owners(onebuf_kernel kernel) {
    int a, b, c;
    onebuf_buffer one = fresh(), two = fresh();
    OK(onebuf_own(&a, one.id));
    OK(onebuf_own(&b, one.id));
    OK(onebuf_own(&b, one.id)); // b = b
    OK(onebuf_own(&a, two.id));
    TRUE(lives(one) && lives(two));
    OK(onebuf_own(&b, two.id));
    TRUE(!lives(one));
    OK(onebuf_disown(&c)); // this address owned nothing
    OK(onebuf_own(&a, 0));
    TRUE(lives(two));
    OK(onebuf_disown(&b)); // then b = b again: the object still exists
    OK(onebuf_own(&b, two.id));
    OK(onebuf_disown(&c));
    TRUE(lives(two));
    OK(onebuf_disown(&b));
    OK(onebuf_disown(&c));
    TRUE(!lives(two));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_own(&a, two.id));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_own(&a, device.id));
    // A pool with its owner.
    onebuf_pool pool;
    OK(onebuf_pool_create(hub, 0, &pool));
    OK(onebuf_own(&a, pool.id));
    OK(onebuf_pool_trim(pool, 0, NULL));
    OK(onebuf_own(&a, 0));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_pool_trim(pool, 0, NULL));
    ENDS(ONEBUF_NULL_POINTER, onebuf_own(NULL, 0));
    ENDS(ONEBUF_NULL_POINTER, onebuf_disown(NULL));
    // An object that the caller frees explicitly is gone for its owners, too.
    one = fresh();
    OK(onebuf_own(&a, one.id));
    OK(onebuf_buffer_free(one));
    OK(onebuf_own(&a, 0));
    // The last owner of a kernel frees it.
    OK(onebuf_own(&a, kernel.id));
    OK(onebuf_own(&a, 0));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_kernel_free(kernel));
}

static void fences(onebuf_queue queue, onebuf_kernel kernel) {
    onebuf_buffer buffer = fresh();
    onebuf_fence fence;
    add(queue, kernel, buffer, 1);
    OK(onebuf_queue_fence(queue, &fence));
    OK(onebuf_fence_wait_ns(fence, 60000000000ull));
    OK(onebuf_fence_wait_ns(fence, 0)); // already reached
    OK(onebuf_fence_free(fence));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_fence_wait_ns(fence, 1));
    OK(onebuf_buffer_free(buffer));
}

int main(int argc, char **argv) {
    const char *selector = argc > 1 ? argv[1] : "host";
    onebuf_hub_options options = ONEBUF_OPTIONS(onebuf_hub_options);
    options.without_opencl = strcmp(selector, "host") == 0;
    options.without_verdicts = 1;
    options.timeout_ms = 120000; // valgrind is slow
    OK(onebuf_hub_discover(&options, &hub));
    OK(onebuf_hub_device(hub, selector, &device));
    onebuf_program program = build_add(device, NULL);
    onebuf_kernel kernel = kernel_add(program);
    onebuf_queue queue;
    OK(onebuf_queue_create(device, NULL, &queue));
    turns(queue, kernel);
    one_way(queue, kernel);
    stores();
    batches();
    states();
    uses(queue, kernel);
    fences(queue, kernel);
    owners(kernel);
    OK(onebuf_program_free(program));
    OK(onebuf_queue_free(queue));
    OK(onebuf_hub_free(hub));
    printf("persistent maps and owners work on %s\n", selector);
    return 0;
}
