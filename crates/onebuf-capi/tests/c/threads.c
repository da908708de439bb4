// Some threads use handles that others free: every call returns a status, none crashes, and no object is freed during a call that
// uses it.

#define _DEFAULT_SOURCE
#include "check.h"
#include <pthread.h>

enum { THREADS = 4, ROUNDS = 400, BYTES = 1 << 14 };

static onebuf_hub hub;
static onebuf_queue queue;
static onebuf_kernel kernel;
static onebuf_buffer buffer; // created anew for each round
static onebuf_view view;
static pthread_barrier_t barrier;
static int worked, late;

static void expected(onebuf_status status) {
    switch (status) {
    case ONEBUF_OK: __atomic_add_fetch(&worked, 1, __ATOMIC_RELAXED); return;
    case ONEBUF_INVALID_HANDLE: __atomic_add_fetch(&late, 1, __ATOMIC_RELAXED); return;
    case ONEBUF_BUSY: return;
    default: ends(ONEBUF_OK, status, "a call of a thread", __LINE__);
    }
}

static void use(unsigned thread, unsigned round) {
    static const uint32_t n = 1;
    char data[BYTES];
    void *mapped;
    onebuf_mapping mapping;
    onebuf_grid grid = onebuf_grid_1d(BYTES / 4);
    onebuf_arg args[] = {onebuf_arg_view(view), ONEBUF_VALUE(n)};
    onebuf_status status;
    switch ((thread + round) % 8) {
    case 0: expected(onebuf_buffer_read(buffer, 0, data, BYTES)); break;
    case 1: expected(onebuf_queue_launch(queue, kernel, &grid, args, 2, NULL)); break;
    case 2: expected(onebuf_view_free(view)); break;
    case 3: expected(onebuf_buffer_free(buffer)); break;
    case 4:
        args[0] = onebuf_arg_buffer(buffer, ONEBUF_READ_WRITE);
        expected(onebuf_queue_launch(queue, kernel, &grid, args, 2, NULL));
        break;
    case 5: expected(onebuf_buffer_to_host(buffer, ONEBUF_READ, &mapped)); break;
    case 6: expected(onebuf_buffer_to_device(buffer)); break;
    default:
        expected(status = onebuf_buffer_map(buffer, ONEBUF_READ_WRITE, &mapped, &mapping));
        if (status == ONEBUF_OK) {
            ((char *)mapped)[0] = 1;
            expected(onebuf_mapping_unmap(mapping));
        }
    }
}

static void *thread(void *number) {
    for (unsigned round = 0; round < ROUNDS; round++) {
        if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
            onebuf_buffer_free(buffer);
            onebuf_view_free(view);
            OK(onebuf_buffer_create(hub, BYTES, NULL, &buffer));
            if (round % 2) OK(onebuf_view_take(buffer, queue, ONEBUF_READ_WRITE, &view));
        }
        pthread_barrier_wait(&barrier);
        for (unsigned i = 0; i < 3; i++) use((unsigned)(size_t)number + 2 * i, round);
    }
    return NULL;
}

int main(void) {
    onebuf_hub_options options = ONEBUF_OPTIONS(onebuf_hub_options);
    options.without_opencl = 1;
    OK(onebuf_hub_discover(&options, &hub));
    onebuf_device host;
    OK(onebuf_hub_device(hub, "host", &host));
    OK(onebuf_queue_create(host, NULL, &queue));
    onebuf_program program = build_add(host, NULL);
    kernel = kernel_add(program);
    pthread_barrier_init(&barrier, NULL, THREADS);
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++) TRUE(pthread_create(&threads[i], NULL, thread, (void *)i) == 0);
    for (size_t i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    onebuf_buffer_free(buffer);
    onebuf_view_free(view);
    OK(onebuf_kernel_free(kernel));
    OK(onebuf_program_free(program));
    OK(onebuf_queue_free(queue));
    OK(onebuf_hub_free(hub));
    TRUE(worked > ROUNDS && late > ROUNDS); // control: both outcomes occurred
    printf("%d calls worked, %d came too late\n", worked, late);
    return 0;
}
