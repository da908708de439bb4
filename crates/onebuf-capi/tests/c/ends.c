// The library's own sources and sinks: `ends FOLDER [DEVICE]`. Frames go through memory, files and the network.

#include "check.h"
#include <arpa/inet.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { N = 1500, BYTES = N * 4, FRAMES = 6 };

static onebuf_hub hub;
static onebuf_device device;
static onebuf_kernel kernel;
static bool one_thread;
static uint32_t sent[FRAMES * N], came[FRAMES * N];
static char folder[512];

static const char *in(const char *name) {
    static char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static onebuf_status add(void *user, const onebuf_frame *frame) {
    (void)user;
    uint32_t n = 7;
    onebuf_arg args[] = {onebuf_arg_buffer(frame->buffers[1], ONEBUF_READ_WRITE), ONEBUF_VALUE(n)};
    onebuf_grid grid = onebuf_grid_1d(N);
    return onebuf_queue_launch(frame->queue, kernel, &grid, args, 2, NULL);
}

// The pipeline uses the second buffer of each slot; the stage adds 7 to every element.
static onebuf_status make(onebuf_source source, onebuf_sink sink, onebuf_pipeline *pipeline) {
    onebuf_buffer_options shape = ONEBUF_OPTIONS(onebuf_buffer_options);
    shape.devices = &device;
    shape.device_count = 1;
    onebuf_slot_buffer buffers[] = {{8, NULL}, {BYTES, &shape}};
    onebuf_stage stage = {"add", device, add, NULL, NULL, 0};
    onebuf_pipeline_options options = ONEBUF_OPTIONS(onebuf_pipeline_options);
    options.depth = 2;
    options.buffers = buffers;
    options.buffer_count = 2;
    options.stages = &stage;
    options.stage_count = 1;
    options.feed = source;
    options.feed_buffer = 1;
    options.drain = sink;
    options.drain_buffer = 1;
    options.one_thread = one_thread;
    return onebuf_pipeline_create(hub, &options, pipeline);
}

static uint64_t run(onebuf_source source, onebuf_sink sink) {
    onebuf_pipeline pipeline;
    onebuf_pipeline_report report = ONEBUF_OPTIONS(onebuf_pipeline_report);
    OK(make(source, sink, &pipeline));
    OK(onebuf_source_free(source));
    OK(onebuf_sink_free(sink));
    OK(onebuf_pipeline_run(pipeline, &report));
    OK(onebuf_pipeline_free(pipeline));
    return report.frames;
}

static onebuf_source memory_source(void) {
    onebuf_source source;
    OK(onebuf_source_memory(sent, sizeof sent, 1, &source));
    return source;
}

static onebuf_sink memory_sink(void) {
    onebuf_sink sink;
    memset(came, 0xee, sizeof came);
    OK(onebuf_sink_memory(came, sizeof came, &sink));
    return sink;
}

// Checks that every element went through this many stages.
static void check(uint32_t stages) {
    for (size_t i = 0; i < FRAMES * N; i++) TRUE(came[i] == sent[i] + 7 * stages);
    TRUE(memcmp(came, sent, sizeof sent) != 0); // control: the stages changed the data
}

static void through_memory(void) {
    TRUE(run(memory_source(), memory_sink()) == FRAMES);
    check(1);
    onebuf_source source;
    OK(onebuf_source_memory(sent, BYTES, FRAMES, &source)); // the first frame, repeated
    TRUE(run(source, memory_sink()) == FRAMES);
    for (size_t i = 0; i < FRAMES * N; i++) TRUE(came[i] == sent[i % N] + 7);
}

static void through_files(void) {
    size_t shape[] = {3, N / 3};
    onebuf_source source;
    onebuf_sink sink;
    OK(onebuf_sink_file(in("frames.raw"), &sink));
    TRUE(run(memory_source(), sink) == FRAMES);
    OK(onebuf_source_file(in("frames.raw"), 1, &source));
    OK(onebuf_sink_npy(in("frames.npy"), "<u4", shape, 2, &sink));
    TRUE(run(source, sink) == FRAMES);
    OK(onebuf_source_npy(in("frames.npy"), "<u4", 1, &source));
    TRUE(run(source, memory_sink()) == FRAMES);
    check(3);
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_source_npy(in("frames.npy"), "<f4", 1, &source));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_source_npy(in("frames.npy"), "float", 1, &source));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_source_npy(in("frames.raw"), "<u4", 1, &source));
    ENDS(ONEBUF_UNAVAILABLE, onebuf_source_file(in("none.raw"), 1, &source));
    ENDS(ONEBUF_UNAVAILABLE, onebuf_sink_file(in("none/none.raw"), &sink));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_source_file(in("frames.raw"), 0, &source));
    TRUE(source.id == 0 && sink.id == 0);
}

static void computed(void) {
    onebuf_wave wave = {2.0, 0.25, 0.0};
    onebuf_synthetic_options signal = ONEBUF_OPTIONS(onebuf_synthetic_options);
    signal.channels = 2;
    signal.samples = N / 4;
    signal.waves = &wave;
    signal.wave_count = 1;
    signal.noise = -1;
    signal.frames = 2;
    onebuf_source source;
    onebuf_pipeline pipeline;
    onebuf_sink sink;
    OK(onebuf_source_synthetic(&signal, &source));
    float *found = (float *)came;
    memset(came, 0xee, sizeof came);
    OK(onebuf_sink_memory(came, sizeof came, &sink));
    onebuf_slot_buffer buffer = {BYTES, NULL};
    onebuf_pipeline_options options = ONEBUF_OPTIONS(onebuf_pipeline_options);
    options.depth = 2;
    options.buffers = &buffer;
    options.buffer_count = 1;
    options.feed = source;
    options.drain = sink;
    OK(onebuf_pipeline_create(hub, &options, &pipeline));
    OK(onebuf_pipeline_run(pipeline, NULL));
    OK(onebuf_pipeline_free(pipeline));
    OK(onebuf_source_free(source));
    OK(onebuf_sink_free(sink));
    // A quarter of a turn per sample, the same on both channels, continuous from frame to frame: 375 samples are 93 turns and
    // three quarters.
    static const float TURNS[] = {2, 0, -2, 0, 2};
    for (size_t frame = 0; frame < 2; frame++) {
        for (size_t i = 0; i < N / 2; i++) {
            size_t turn = (frame * (N / 4) + i % (N / 4)) % 4;
            const float *sample = found + frame * N + 2 * i;
            float re = sample[0] - TURNS[turn], im = sample[1] - TURNS[(turn + 3) % 4];
            TRUE(re * re + im * im < 1e-6f);
        }
    }
}

// Plays the sender, which is usually another process or machine.
typedef struct {
    char to[64];
    bool over_tcp;
} sender;

static void *send_all(void *user) {
    sender *s = user;
    if (s->over_tcp) {
        char *port = strrchr(s->to, ':');
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port + 1))};
        inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        TRUE(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        size_t done = 0;
        while (done < sizeof sent) {
            ssize_t went = send(fd, (char *)sent + done, sizeof sent - done < 1000 ? sizeof sent - done : 1000, 0);
            TRUE(went > 0);
            done += (size_t)went;
        }
        close(fd);
        return NULL;
    }
    onebuf_udp_sink_options options = ONEBUF_OPTIONS(onebuf_udp_sink_options);
    options.address = s->to;
    options.payload_bytes = 1000;
    options.bytes_per_s = 2e6;
    options.one_stream = 1;
    options.stream = 9;
    options.threads = 2;
    onebuf_sink sink;
    OK(onebuf_sink_udp(&options, &sink));
    onebuf_slot_buffer buffer = {BYTES, NULL};
    onebuf_pipeline_options line = ONEBUF_OPTIONS(onebuf_pipeline_options);
    line.depth = 2;
    line.buffers = &buffer;
    line.buffer_count = 1;
    line.feed = memory_source();
    line.drain = sink;
    onebuf_pipeline pipeline;
    OK(onebuf_pipeline_create(hub, &line, &pipeline));
    OK(onebuf_source_free(line.feed));
    OK(onebuf_pipeline_run(pipeline, NULL));
    OK(onebuf_sink_finish(sink));
    onebuf_udp_sent told = ONEBUF_OPTIONS(onebuf_udp_sent);
    OK(onebuf_sink_udp_sent(sink, &told));
    TRUE(told.frames == FRAMES && told.bytes == sizeof sent && told.packets >= FRAMES * 6 && told.lost_packets == 0);
    OK(onebuf_pipeline_free(pipeline));
    OK(onebuf_sink_free(sink));
    return NULL;
}

static void address_of(onebuf_source source, char *to, size_t room) {
    onebuf_string address;
    OK(onebuf_source_address(source, &address));
    snprintf(to, room, "%s", onebuf_string_data(address));
    OK(onebuf_string_free(address));
}

// A socket of the program, bound to a port that the system chose; `to` gets its address.
static int bound(int kind, char *to, size_t room) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    int fd = socket(AF_INET, kind, 0);
    TRUE(bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
    TRUE(getsockname(fd, (struct sockaddr *)&address, &length) == 0);
    snprintf(to, room, "127.0.0.1:%d", ntohs(address.sin_port));
    return fd;
}

static void over_the_network(bool over_tcp, bool own_socket) {
    onebuf_source source;
    sender other = {.over_tcp = over_tcp};
    pthread_t thread;
    int fd = -1;
    if (over_tcp && own_socket) {
        int door = bound(SOCK_STREAM, other.to, sizeof other.to);
        TRUE(listen(door, 1) == 0);
        pthread_create(&thread, NULL, send_all, &other);
        fd = accept(door, NULL, NULL);
        TRUE(fd >= 0 && close(door) == 0);
        onebuf_tcp_source_options options = ONEBUF_OPTIONS(onebuf_tcp_source_options);
        options.has_socket = 1, options.socket = -1;
        ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_source_tcp(&options, &source));
        options.socket = fd;
        OK(onebuf_source_tcp(&options, &source));
    } else if (own_socket) {
        fd = bound(SOCK_DGRAM, other.to, sizeof other.to);
        onebuf_udp_source_options options = ONEBUF_OPTIONS(onebuf_udp_source_options);
        options.has_socket = 1, options.socket = fd;
        OK(onebuf_source_udp(&options, &source));
    } else if (over_tcp) {
        onebuf_tcp_source_options options = ONEBUF_OPTIONS(onebuf_tcp_source_options);
        options.address = "127.0.0.1:0";
        options.listen = 1;
        options.timeout_ms = 60000;
        OK(onebuf_source_tcp(&options, &source));
    } else {
        onebuf_udp_source_options options = ONEBUF_OPTIONS(onebuf_udp_source_options);
        options.address = "127.0.0.1:0";
        options.one_stream = 1;
        options.stream = 9;
        options.window = 3;
        options.timeout_ms = 60000;
        uint32_t cpu = 0;
        options.sockets = 2;
        options.cpus = &cpu, options.cpu_count = 1;
        OK(onebuf_source_udp(&options, &source));
    }
    if (fd >= 0) TRUE(close(fd) == 0); // onebuf has its own
    address_of(source, other.to, sizeof other.to);
    if (!(over_tcp && own_socket)) pthread_create(&thread, NULL, send_all, &other);
    onebuf_sink sink = memory_sink();
    onebuf_pipeline pipeline;
    onebuf_pipeline_report report = ONEBUF_OPTIONS(onebuf_pipeline_report);
    OK(make(source, sink, &pipeline));
    OK(onebuf_pipeline_run(pipeline, &report));
    pthread_join(thread, NULL);
    TRUE(report.frames == FRAMES && report.incomplete == 0);
    check(1);
    onebuf_udp_counts counts = ONEBUF_OPTIONS(onebuf_udp_counts);
    if (over_tcp) {
        ENDS(ONEBUF_UNSUPPORTED, onebuf_source_udp_counts(source, &counts));
    } else {
        OK(onebuf_source_udp_counts(source, &counts));
        TRUE(counts.frames == FRAMES && counts.packets == FRAMES * 6 && counts.lost_packets == 0);
        TRUE(counts.receive_buffer_bytes > 0 && counts.bytes > FRAMES * BYTES && counts.batches > 0);
        onebuf_udp_counts first = ONEBUF_OPTIONS(onebuf_udp_counts);
        OK(onebuf_source_udp_socket_counts(source, 0, &first)); // frames so small are received on one socket
        TRUE(first.packets == counts.packets && first.frames == 0);
        ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_source_udp_socket_counts(source, 2, &first));
    }
    OK(onebuf_pipeline_free(pipeline));
    OK(onebuf_source_free(source));
    OK(onebuf_sink_free(sink));
}

// Wrong calls return errors, and leak nothing.
static void mistakes(void) {
    onebuf_source source = memory_source(), other;
    onebuf_sink sink = memory_sink(), small;
    onebuf_pipeline pipeline, second;
    ENDS(ONEBUF_NULL_POINTER, make((onebuf_source){0}, sink, &pipeline));
    ENDS(ONEBUF_INVALID_HANDLE, make((onebuf_source){sink.id}, sink, &pipeline));
    ENDS(ONEBUF_NULL_POINTER, make(source, (onebuf_sink){0}, &pipeline));
    OK(make(source, sink, &pipeline));
    ENDS(ONEBUF_BUSY, make(source, sink, &second));
    OK(onebuf_pipeline_free(pipeline));
    OK(onebuf_sink_memory(came, BYTES + 4, &small));
    OK(make(source, small, &pipeline)); // the first pipeline has released its claims
    OK(onebuf_sink_free(small));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_pipeline_run(pipeline, NULL));
    TRUE(strstr(onebuf_last_error_message(), "sink at frame 1") && strstr(onebuf_last_error_message(), "4 that are left"));
    OK(onebuf_pipeline_free(pipeline));
    OK(onebuf_source_memory(sent, BYTES + 4, 1, &other));
    OK(make(other, sink, &pipeline));
    OK(onebuf_source_free(other));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_pipeline_run(pipeline, NULL));
    TRUE(strstr(onebuf_last_error_message(), "not a multiple of the frame"));
    OK(onebuf_pipeline_free(pipeline));
    onebuf_string address = {1};
    ENDS(ONEBUF_UNSUPPORTED, onebuf_source_address(source, &address));
    TRUE(address.id == 0);
    ENDS(ONEBUF_UNSUPPORTED, onebuf_sink_finish(sink));
    onebuf_udp_source_options udp = ONEBUF_OPTIONS(onebuf_udp_source_options);
    ENDS(ONEBUF_NULL_POINTER, onebuf_source_udp(&udp, &other));
    udp.address = "127.0.0.1:0", udp.sockets = 65;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_source_udp(&udp, &other));
    udp.address = "nowhere", udp.sockets = 0;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_source_udp(&udp, &other));
    onebuf_udp_sink_options to = ONEBUF_OPTIONS(onebuf_udp_sink_options);
    to.address = "127.0.0.1:9";
    to.payload_bytes = SIZE_MAX;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_sink_udp(&to, &small));
    to.payload_bytes = 0;
    to.threads = 65;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_sink_udp(&to, &small));
    to.threads = 0;
    to.bytes_per_s = -1;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_sink_udp(&to, &small));
    onebuf_tcp_source_options tcp = ONEBUF_OPTIONS(onebuf_tcp_source_options);
    tcp.address = "127.0.0.1:0";
    tcp.listen = 1;
    tcp.timeout_ms = 1;
    OK(onebuf_source_tcp(&tcp, &other));
    OK(make(other, sink, &pipeline));
    OK(onebuf_source_free(other));
    ENDS(ONEBUF_TIMEOUT, onebuf_pipeline_run(pipeline, NULL)); // no sender connects
    OK(onebuf_pipeline_free(pipeline));
    OK(onebuf_source_free(source));
    OK(onebuf_sink_free(sink));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_source_free(source));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_sink_free(sink));
}

int main(int argc, char **argv) {
    if (argc < 2) fail("usage: ends FOLDER [DEVICE]", __LINE__);
    snprintf(folder, sizeof folder, "%s", argv[1]);
    const char *selector = argc > 2 ? argv[2] : "host";
    bool is_host = strcmp(selector, "host") == 0;
    one_thread = !is_host; // some drivers crash with two threads
    onebuf_hub_options options = ONEBUF_OPTIONS(onebuf_hub_options);
    options.without_opencl = is_host;
    options.without_verdicts = 1;
    options.timeout_ms = 120000; // valgrind is slow
    OK(onebuf_hub_discover(&options, &hub));
    OK(onebuf_hub_device(hub, selector, &device));
    onebuf_program program = build_add(device, NULL);
    kernel = kernel_add(program);
    for (uint32_t i = 0; i < FRAMES * N; i++) sent[i] = i * 2654435761u;

    through_memory();
    through_files();
    if (is_host) computed();
    over_the_network(false, false);
    over_the_network(false, true);
    over_the_network(true, false);
    over_the_network(true, true);
    mistakes();

    OK(onebuf_kernel_free(kernel));
    OK(onebuf_program_free(program));
    OK(onebuf_hub_free(hub));
    printf("sources and sinks work on %s\n", selector);
    return 0;
}
