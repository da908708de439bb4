// Warnings about implied copies: `log DEVICE` writes them to standard error, `log DEVICE callback` receives them by a function.

#include "check.h"
#include <string.h>

enum { N = 1024 };

struct taken {
    int count;
    int wrong;
    const char *device;
};

static void take(void *user, onebuf_log_level level, const char *target, const char *message) {
    struct taken *taken = user;
    taken->count++;
    if (level != ONEBUF_LOG_WARN || strcmp(target, "onebuf::copies") != 0) taken->wrong++;
    if (!strstr(message, "an implied copy") || !strstr(message, "bytes=4096")) taken->wrong++;
    if (!strstr(message, taken->device) || !strstr(message, "host")) taken->wrong++;
    // Refused inside of the callback.
    if (onebuf_log_to(ONEBUF_LOG_WARN, take, user) != ONEBUF_BUSY) taken->wrong++;
}

static void add_on(onebuf_device device, onebuf_buffer buffer, uint32_t n) {
    onebuf_program program = build_add(device, NULL);
    onebuf_kernel kernel = kernel_add(program);
    onebuf_queue queue;
    OK(onebuf_queue_create(device, NULL, &queue));
    onebuf_arg args[] = {onebuf_arg_buffer(buffer, ONEBUF_READ_WRITE), ONEBUF_VALUE(n)};
    onebuf_grid grid = onebuf_grid_1d(N);
    OK(onebuf_queue_launch(queue, kernel, &grid, args, 2, NULL));
    OK(onebuf_queue_finish(queue, 60000));
    OK(onebuf_queue_free(queue));
    OK(onebuf_kernel_free(kernel));
    OK(onebuf_program_free(program));
}

// The device and the host take turns, with staged copies between them.
static void take_turns(onebuf_device device, onebuf_device host, onebuf_buffer buffer) {
    add_on(device, buffer, 1);
    add_on(host, buffer, 2);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "opencl";
    onebuf_hub hub;
    OK(onebuf_hub_discover(NULL, &hub));
    onebuf_device devices[2];
    OK(onebuf_hub_device(hub, name, &devices[0]));
    OK(onebuf_hub_device(hub, "host", &devices[1]));
    onebuf_buffer_options options = ONEBUF_OPTIONS(onebuf_buffer_options);
    options.devices = devices;
    options.device_count = 2;
    options.copies = ONEBUF_COPIES_WARN;
    options.route = ONEBUF_ROUTE_STAGED;
    options.allocate_on = devices[0];
    onebuf_buffer buffer;
    OK(onebuf_buffer_create(hub, N * sizeof(uint32_t), &options, &buffer));
    if (argc > 2) {
        struct taken taken = {0, 0, name};
        ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_log_to(6, take, &taken));
        OK(onebuf_log_to(ONEBUF_LOG_WARN, take, &taken));
        take_turns(devices[0], devices[1], buffer);
        OK(onebuf_log_to(0, NULL, NULL));
        TRUE(taken.count > 0 && taken.wrong == 0);
        printf("%d taken\n", taken.count);
        taken.count = 0;
        // Messages go to standard error again.
        take_turns(devices[0], devices[1], buffer);
        TRUE(taken.count == 0);
    } else {
        take_turns(devices[0], devices[1], buffer);
    }
    uint64_t implied;
    OK(onebuf_ledger_implied_bytes(hub, &implied));
    TRUE(implied > 0);
    OK(onebuf_buffer_free(buffer));
    OK(onebuf_hub_free(hub));
    printf("copied on %s\n", name);
    return 0;
}
