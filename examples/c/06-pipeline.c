// 6. A continuous pipeline: a source, a stage on a device, a sink, and three slots that circulate between them.
//
// cc -std=c11 06-pipeline.c $(pkg-config --cflags --libs onebuf) -o pipeline && ./pipeline

#include <onebuf.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 1 << 14, FRAMES = 200 };

static void check(onebuf_status status) {
    if (status == ONEBUF_OK) return;
    fprintf(stderr, "%s: %s\n", onebuf_status_name(status), onebuf_last_error_message());
    exit(1);
}

// The kernel in OpenCL C, and as a function for the CPU.
static const char *TEXT = "kernel void twice(global float *x) { x[get_global_id(0)] *= 2.0f; }";

static int32_t twice(void *user, const onebuf_native_call *call) {
    (void)user;
    float *x = call->args[0].data;
    for (size_t i = 0; i < call->global[0]; i++) x[i] *= 2.0f;
    return 0;
}

// Fills a slot with the frame of this number. A status other than ONEBUF_OK stops the pipeline with its message.
static onebuf_status antenna(void *user, const onebuf_frame *frame, onebuf_filled *filled) {
    (void)user;
    if (frame->number == FRAMES) return *filled = ONEBUF_FILLED_END, ONEBUF_OK;
    float level = (float)frame->number;
    return onebuf_buffer_fill(frame->buffers[0], 0, N * sizeof level, &level, sizeof level);
}

// Enqueues the work of one frame without waiting; the buffer's fences order what follows.
static onebuf_status amplify(void *user, const onebuf_frame *frame) {
    const onebuf_kernel *kernel = user;
    onebuf_arg args[] = {onebuf_arg_buffer(frame->buffers[0], ONEBUF_READ_WRITE)};
    onebuf_grid grid = onebuf_grid_1d(N);
    return onebuf_queue_launch(frame->queue, *kernel, &grid, args, 1, NULL);
}

// Receives the results in frame order.
static onebuf_status detect(void *user, const onebuf_frame *frame) {
    double *sum = user;
    float last;
    onebuf_status status = onebuf_buffer_read(frame->buffers[0], (N - 1) * sizeof last, &last, sizeof last);
    *sum += last;
    return status;
}

int main(void) {
    onebuf_hub hub;
    check(onebuf_hub_discover(NULL, &hub));
    onebuf_device device;
    // The first OpenCL device, or the CPU if there is none.
    if (onebuf_hub_device(hub, "opencl", &device) != ONEBUF_OK) check(onebuf_hub_device(hub, "host", &device));

    onebuf_native native = {"twice", twice, NULL};
    onebuf_program_options text = ONEBUF_OPTIONS(onebuf_program_options);
    text.opencl_c = TEXT;
    text.natives = &native;
    text.native_count = 1;
    onebuf_program program;
    check(onebuf_program_build(device, &text, &program));
    onebuf_param params[] = {{ONEBUF_ARG_BUFFER, ONEBUF_READ_WRITE, 0, sizeof(float)}};
    onebuf_kernel kernel;
    check(onebuf_kernel_create(program, "twice", params, 1, 0, &kernel));

    onebuf_buffer_options shape = ONEBUF_OPTIONS(onebuf_buffer_options);
    shape.devices = &device;
    shape.device_count = 1;
    onebuf_slot_buffer slot[] = {{N * sizeof(float), &shape}};
    onebuf_stage stages[] = {{"amplify", device, amplify, &kernel, &kernel, 1}};
    double sum = 0;
    onebuf_pipeline_options options = ONEBUF_OPTIONS(onebuf_pipeline_options);
    options.depth = 3;
    options.buffers = slot;
    options.buffer_count = 1;
    options.source = antenna;
    options.stages = stages;
    options.stage_count = 1;
    options.sink = detect;
    options.sink_user = &sum;
    options.one_thread = 1; // for drivers that crash with two threads; omit it otherwise
    onebuf_pipeline pipeline;
    check(onebuf_pipeline_create(hub, &options, &pipeline));

    onebuf_pipeline_report report = ONEBUF_OPTIONS(onebuf_pipeline_report);
    check(onebuf_pipeline_run(pipeline, &report));
    printf("%llu frames, the median took %llu us\n", (unsigned long long)report.frames,
           (unsigned long long)report.latency_p50_ns / 1000);
    printf("the sum is %.0f\n", sum);

    check(onebuf_pipeline_free(pipeline));
    check(onebuf_kernel_free(kernel));
    check(onebuf_program_free(program));
    check(onebuf_hub_free(hub));
    return sum == 2.0 * FRAMES * (FRAMES - 1) / 2 ? 0 : 1;
}
