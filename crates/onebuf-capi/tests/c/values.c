// Values must match their declaration: integers for integers, floating-point numbers for floating-point numbers.

#include "check.h"
#include <string.h>

enum { N = 64 };

#define TEXT "kernel void gain(global float *x, float by, int n) { x[get_global_id(0)] *= by + n; }"

static int32_t native_gain(void *user, const onebuf_native_call *call) {
    (void)user;
    float *x = (float *)call->args[0].data;
    float by = *(const float *)call->args[1].data;
    int32_t n = *(const int32_t *)call->args[2].data;
    for (size_t i = 0; i < call->global[0]; i++) x[i] *= by + (float)n;
    return 0;
}

static onebuf_program build(onebuf_device device) {
    onebuf_native native = {"gain", native_gain, NULL};
    onebuf_program_options source = ONEBUF_OPTIONS(onebuf_program_options);
    source.opencl_c = TEXT;
    source.natives = &native;
    source.native_count = 1;
    onebuf_program program;
    OK(onebuf_program_build(device, &source, &program));
    return program;
}

static onebuf_kernel declare(onebuf_program program, onebuf_arg_kind by, onebuf_arg_kind n) {
    onebuf_param params[] = {{ONEBUF_ARG_BUFFER, ONEBUF_READ_WRITE, 0, 4}, {by, 0, 4, 0}, {n, 0, 4, 0}};
    onebuf_kernel kernel;
    OK(onebuf_kernel_create(program, "gain", params, 3, 0, &kernel));
    return kernel;
}

static onebuf_buffer buffer;
static onebuf_queue queue;

static onebuf_status launch(onebuf_kernel kernel, onebuf_arg by, onebuf_arg n) {
    onebuf_arg args[] = {onebuf_arg_buffer(buffer, ONEBUF_READ_WRITE), by, n};
    onebuf_grid grid = onebuf_grid_1d(N);
    return onebuf_queue_launch(queue, kernel, &grid, args, 3, NULL);
}

static void refused(onebuf_status status, const char *given, const char *wanted) {
    ENDS(ONEBUF_INVALID_ARGUMENT, status);
    const char *why = onebuf_last_error_message();
    if (strstr(why, "`gain`") && strstr(why, given) && strstr(why, wanted)) return;
    fprintf(stderr, "no `%s` or `%s` in: %s\n", given, wanted, why);
    exit(1);
}

int main(int argc, char **argv) {
    onebuf_hub hub;
    onebuf_device device;
    OK(onebuf_hub_discover(NULL, &hub));
    OK(onebuf_hub_device(hub, argc > 1 ? argv[1] : "host", &device));
    OK(onebuf_queue_create(device, NULL, &queue));
    onebuf_buffer_options options = ONEBUF_OPTIONS(onebuf_buffer_options);
    float ones[N];
    for (int i = 0; i < N; i++) ones[i] = 1;
    options.devices = &device;
    options.device_count = 1;
    options.contents = ones;
    OK(onebuf_buffer_create(hub, sizeof ones, &options, &buffer));
    onebuf_program program = build(device);
    onebuf_kernel kernel = declare(program, ONEBUF_ARG_FLOAT, ONEBUF_ARG_INTEGER);

    const float two = 2;
    double large = 2;
    int32_t three = 3;
    uint32_t four = 4;
    int64_t wide = 4;
    OK(launch(kernel, ONEBUF_VALUE(two), ONEBUF_VALUE(three)));
    OK(launch(kernel, ONEBUF_VALUE(two), ONEBUF_VALUE(four))); // signedness is not checked
    const char *wanted = "a floating-point number of 4 bytes is declared";
    refused(launch(kernel, ONEBUF_VALUE(three), ONEBUF_VALUE(three)), "argument 1", wanted);
    refused(launch(kernel, ONEBUF_VALUE(three), ONEBUF_VALUE(three)), "is an integer of 4 bytes", wanted);
    refused(launch(kernel, ONEBUF_VALUE(large), ONEBUF_VALUE(three)), "a floating-point number of 8 bytes", wanted);
    wanted = "an integer of 4 bytes is declared";
    refused(launch(kernel, ONEBUF_VALUE(two), ONEBUF_VALUE(two)), "argument 2", wanted);
    refused(launch(kernel, ONEBUF_VALUE(two), ONEBUF_VALUE(wide)), "an integer of 8 bytes", wanted);

    // If the type is unspecified on either side, only the size is checked.
    OK(launch(kernel, onebuf_arg_value(&two, 4), onebuf_arg_value(&three, 4)));
    onebuf_kernel loose = declare(program, ONEBUF_ARG_VALUE, ONEBUF_ARG_VALUE);
    OK(launch(loose, ONEBUF_VALUE(two), ONEBUF_VALUE(three)));
    OK(onebuf_queue_finish(queue, 60000));
    float seen[N];
    OK(onebuf_buffer_read(buffer, 0, seen, sizeof seen));
    for (int i = 0; i < N; i++) TRUE(seen[i] == 5.0F * 6.0F * 5.0F * 5.0F);
    TRUE(ONEBUF_KIND_OF(seen) == ONEBUF_ARG_VALUE && ONEBUF_KIND_OF(options) == ONEBUF_ARG_VALUE);

    OK(onebuf_kernel_free(loose));
    OK(onebuf_kernel_free(kernel));
    OK(onebuf_program_free(program));
    OK(onebuf_buffer_free(buffer));
    OK(onebuf_queue_free(queue));
    OK(onebuf_hub_free(hub));
    printf("values work on %s\n", argc > 1 ? argv[1] : "host");
    return 0;
}
