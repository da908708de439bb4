// 2. Two devices take turns on one buffer, and the ledger shows what was copied.
//
// cc -std=c11 02-two-devices.c $(pkg-config --cflags --libs onebuf) -o two && ./two

#include <onebuf.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 1 << 18, TURNS = 6 };

static void check(onebuf_status status) {
    if (status == ONEBUF_OK) return;
    fprintf(stderr, "%s: %s\n", onebuf_status_name(status), onebuf_last_error_message());
    exit(1);
}

static int32_t add_one(void *user, const onebuf_native_call *call) {
    (void)user;
    uint32_t *x = call->args[0].data;
    for (size_t i = 0; i < call->global[0]; i++) x[i] += 1;
    return 0;
}

static onebuf_kernel build(onebuf_device device) {
    onebuf_native native = {"add_one", add_one, NULL};
    onebuf_program_options source = ONEBUF_OPTIONS(onebuf_program_options);
    source.opencl_c = "kernel void add_one(global uint *x) { x[get_global_id(0)] += 1; }";
    source.natives = &native;
    source.native_count = 1;
    onebuf_program program;
    check(onebuf_program_build(device, &source, &program));
    onebuf_param params[] = {{ONEBUF_ARG_BUFFER, ONEBUF_READ_WRITE, 0, sizeof(uint32_t)}};
    onebuf_kernel kernel;
    check(onebuf_kernel_create(program, "add_one", params, 1, 0, &kernel));
    check(onebuf_program_free(program));
    return kernel;
}

int main(void) {
    onebuf_hub hub;
    check(onebuf_hub_discover(NULL, &hub));
    size_t found;
    check(onebuf_hub_device_count(hub, &found));

    // The last two devices in the list; the host replaces missing ones.
    onebuf_device devices[2];
    for (size_t i = 0; i < 2; i++) {
        size_t at = found > i + 1 ? found - 1 - i : 0;
        check(onebuf_hub_device_at(hub, at, &devices[i]));
    }
    onebuf_buffer_options options = ONEBUF_OPTIONS(onebuf_buffer_options);
    options.devices = devices;
    options.device_count = 2;
    onebuf_buffer buffer;
    check(onebuf_buffer_create(hub, N * sizeof(uint32_t), &options, &buffer)); // one allocation

    onebuf_string text;
    check(onebuf_buffer_explain(buffer, &text)); // home, the route of each device, and the reasons
    printf("%s\n", onebuf_string_data(text));
    check(onebuf_string_free(text));

    onebuf_kernel kernels[2];
    onebuf_queue queues[2];
    for (int i = 0; i < 2; i++) {
        kernels[i] = build(devices[i]);
        check(onebuf_queue_create(devices[i], NULL, &queues[i]));
    }
    onebuf_grid grid = onebuf_grid_1d(N);
    for (int turn = 0; turn < TURNS; turn++) {
        // Each launch waits for the previous one, by the best sync method of the two devices.
        onebuf_arg arg = onebuf_arg_buffer(buffer, ONEBUF_READ_WRITE);
        check(onebuf_queue_launch(queues[turn % 2], kernels[turn % 2], &grid, &arg, 1, NULL));
    }

    // The CPU reads in place.
    void *data;
    onebuf_mapping mapping;
    check(onebuf_buffer_map(buffer, ONEBUF_READ, &data, &mapping));
    const uint32_t *x = data;
    for (size_t i = 0; i < N; i++) {
        if (x[i] == TURNS) continue;
        fprintf(stderr, "element %zu is %u\n", i, (unsigned)x[i]);
        return 1;
    }
    check(onebuf_mapping_unmap(mapping));
    printf("both took their turns: every element is %d\n", TURNS);

    // Implied copies were not requested; `onebuf doctor` proves routes that need none.
    check(onebuf_ledger_text(hub, &text));
    printf("%s\n", onebuf_string_data(text));
    check(onebuf_string_free(text));

    for (int i = 0; i < 2; i++) {
        check(onebuf_queue_free(queues[i]));
        check(onebuf_kernel_free(kernels[i]));
    }
    check(onebuf_buffer_free(buffer));
    check(onebuf_hub_free(hub));
    return 0;
}
