// A pipeline on one device: `pipeline host`, `pipeline opencl:0`.

#include "check.h"
#include <string.h>

enum { N = 4096 + 100, BYTES = N * 4, FRAMES = 20 };

static onebuf_hub hub;
static onebuf_device device;
static onebuf_kernel kernel;
static bool is_host;

// State shared by the callbacks. Only the sink writes `passed`; the callbacks of one run use no other field at the same time.
typedef struct {
    uint64_t frames;     // number of frames of the source
    uint64_t fails_at;   // the frame at which the stage fails, with its own message
    uint64_t stops_at;   // the frame at which the sink stops the pipeline
    bool wrong_call;     // the sink makes a call that fails
    bool says_nothing;   // the stage fails without a message
    uint64_t incomplete; // the number of the incomplete frame
    uint64_t passed, idle;
    onebuf_pipeline pipeline;
} run;

static const run PLAIN = {FRAMES, UINT64_MAX, UINT64_MAX, false, false, UINT64_MAX, 0, 0, {0}};

static onebuf_status source(void *user, const onebuf_frame *frame, onebuf_filled *filled) {
    run *r = user;
    TRUE(frame->buffer_count == 2 && frame->queue.id == 0);
    if (frame->number == r->frames) return *filled = ONEBUF_FILLED_END, ONEBUF_OK;
    if (frame->number == 3 && r->idle++ < 2) return *filled = ONEBUF_FILLED_IDLE, ONEBUF_OK;
    if (frame->number == r->incomplete) return *filled = ONEBUF_FILLED_INCOMPLETE, ONEBUF_OK;
    uint32_t number = (uint32_t)frame->number;
    onebuf_status status = onebuf_buffer_fill(frame->buffers[0], 0, BYTES, &number, 4);
    if (status != ONEBUF_OK) return status;
    number *= 7;
    return onebuf_buffer_fill(frame->buffers[1], 0, 8, &number, 4);
}

static onebuf_status add(const onebuf_frame *frame, uint32_t n) {
    onebuf_arg args[] = {onebuf_arg_buffer(frame->buffers[0], ONEBUF_READ_WRITE), ONEBUF_VALUE(n)};
    onebuf_grid grid = onebuf_grid_1d(N);
    return onebuf_queue_launch(frame->queue, kernel, &grid, args, 2, NULL);
}

static onebuf_status first(void *user, const onebuf_frame *frame) {
    run *r = user;
    if (frame->number == r->fails_at) {
        if (!r->says_nothing) onebuf_set_error_message("no power in the antenna");
        return ONEBUF_OTHER;
    }
    return add(frame, 1000);
}

static onebuf_status second(void *user, const onebuf_frame *frame) {
    (void)user;
    return add(frame, 500000);
}

// Checks every element of every frame.
static onebuf_status sink(void *user, const onebuf_frame *frame) {
    run *r = user;
    static uint32_t data[N];
    uint32_t word = 0;
    if (r->wrong_call && frame->number == 5) return onebuf_buffer_read(frame->buffers[0], 0, data, BYTES + 1);
    OK(onebuf_buffer_read(frame->buffers[0], 0, data, BYTES));
    for (size_t i = 0; i < N; i++) TRUE(data[i] == frame->number + 501000);
    TRUE(data[0] != frame->number); // control: the stages did run
    OK(onebuf_buffer_read(frame->buffers[1], 4, &word, 4));
    TRUE(word == 7 * frame->number);
    if (frame->number == r->stops_at) OK(onebuf_pipeline_stop(r->pipeline));
    r->passed++;
    return ONEBUF_OK;
}

static onebuf_pipeline make(run *r, onebuf_when_full when_full) {
    onebuf_buffer_options shape = ONEBUF_OPTIONS(onebuf_buffer_options);
    shape.devices = &device;
    shape.device_count = 1;
    onebuf_slot_buffer buffers[] = {{BYTES, &shape}, {8, NULL}};
    onebuf_stage stages[] = {{"first", device, first, r, NULL, 0}, {"second", device, second, r, NULL, 0}};
    onebuf_pipeline_options options = ONEBUF_OPTIONS(onebuf_pipeline_options);
    options.depth = 3;
    options.buffers = buffers;
    options.buffer_count = 2;
    options.source = source;
    options.source_user = r;
    options.stages = stages;
    options.stage_count = 2;
    options.sink = sink;
    options.sink_user = r;
    options.when_full = when_full;
    options.one_thread = !is_host; // some drivers crash with two threads
    OK(onebuf_pipeline_create(hub, &options, &r->pipeline));

    onebuf_pipeline none = {1};
    options.depth = 0;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_pipeline_create(hub, &options, &none));
    TRUE(none.id == 0);
    options.depth = SIZE_MAX;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_pipeline_create(hub, &options, &none));
    options.depth = 3;
    options.batch = 4;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_pipeline_create(hub, &options, &none));
    options.batch = 0;
    options.when_full = 9;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_pipeline_create(hub, &options, &none));
    options.when_full = 0;
    options.buffer_count = 0;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_pipeline_create(hub, &options, &none));
    options.buffer_count = 2;
    shape.contents = &shape;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_pipeline_create(hub, &options, &none));
    shape.contents = NULL;
    stages[1].run = NULL;
    ENDS(ONEBUF_NULL_POINTER, onebuf_pipeline_create(hub, &options, &none));
    stages[1].run = second;
    stages[1].device.id = 0;
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_pipeline_create(hub, &options, &none));
    options.sink = NULL;
    ENDS(ONEBUF_NULL_POINTER, onebuf_pipeline_create(hub, &options, &none));
    return r->pipeline;
}

// Checks that the run fails with this status and with these words in its message, and that the slots stay usable.
static void fails(run r, onebuf_status status, const char *at, const char *why) {
    onebuf_pipeline pipeline = make(&r, ONEBUF_WHEN_FULL_BLOCK);
    onebuf_pipeline_report report = ONEBUF_OPTIONS(onebuf_pipeline_report);
    ENDS(status, onebuf_pipeline_run(pipeline, &report));
    const char *said = onebuf_last_error_message();
    if (!strstr(said, at) || !strstr(said, why)) fail(said, __LINE__);
    TRUE(report.frames == r.passed && report.frames < FRAMES);
    r.fails_at = UINT64_MAX;
    r.wrong_call = false;
    r.passed = 0;
    OK(onebuf_pipeline_run(pipeline, &report));
    TRUE(report.frames == FRAMES && r.passed == FRAMES);
    OK(onebuf_pipeline_free(pipeline));
}

int main(int argc, char **argv) {
    const char *selector = argc > 1 ? argv[1] : "host";
    is_host = strcmp(selector, "host") == 0;
    onebuf_hub_options options = ONEBUF_OPTIONS(onebuf_hub_options);
    options.without_opencl = is_host;
    options.without_verdicts = 1;
    options.timeout_ms = 120000; // valgrind is slow
    OK(onebuf_hub_discover(&options, &hub));
    OK(onebuf_hub_device(hub, selector, &device));
    onebuf_program program = build_add(device, NULL);
    kernel = kernel_add(program);

    run r = PLAIN;
    r.incomplete = 11;
    onebuf_pipeline pipeline = make(&r, ONEBUF_WHEN_FULL_BLOCK);
    onebuf_pipeline_report report = ONEBUF_OPTIONS(onebuf_pipeline_report);
    OK(onebuf_pipeline_run(pipeline, &report));
    TRUE(report.frames == FRAMES - 1 && report.incomplete == 1 && report.dropped == 0);
    TRUE(r.passed == FRAMES - 1 && r.idle == 3 && report.on_the_way == 0);
    TRUE(report.elapsed_ns > 0 && report.latency_p50_ns > 0 && report.latency_p99_ns >= report.latency_p50_ns);
    onebuf_string json;
    OK(onebuf_pipeline_json(pipeline, &json));
    TRUE(strstr(onebuf_string_data(json), "\"name\":\"second\"") != NULL);
    OK(onebuf_string_free(json));
    r.stops_at = 4;
    r.frames = UINT64_MAX;
    r.passed = 0;
    OK(onebuf_pipeline_run(pipeline, NULL));
    OK(onebuf_pipeline_get_report(pipeline, &report));
    TRUE(r.passed >= 5 && report.frames == r.passed);
    OK(onebuf_pipeline_free(pipeline));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_pipeline_run(pipeline, &report));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_pipeline_stop(pipeline));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_pipeline_free(pipeline));

    r = PLAIN;
    pipeline = make(&r, ONEBUF_WHEN_FULL_DROP_OLDEST);
    OK(onebuf_pipeline_run(pipeline, &report));
    TRUE(report.frames + report.dropped == FRAMES && report.frames == r.passed);
    OK(onebuf_pipeline_free(pipeline));

    r = PLAIN;
    r.fails_at = 7;
    fails(r, ONEBUF_OTHER, "first at frame 7", "no power in the antenna");
    r.says_nothing = true;
    fails(r, ONEBUF_OTHER, "first at frame 7", "returned 103 (ONEBUF_OTHER)");
    r = PLAIN;
    r.wrong_call = true;
    fails(r, ONEBUF_INVALID_ARGUMENT, "sink at frame 5", "the range must be non-empty and inside");

    OK(onebuf_kernel_free(kernel));
    OK(onebuf_program_free(program));
    OK(onebuf_hub_free(hub));
    printf("pipelines work on %s\n", selector);
    return 0;
}
