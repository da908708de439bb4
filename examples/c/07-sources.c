// 7. Ready-made sources and sinks: a computed signal is sent over UDP and received into a NumPy file.
//
// cc -std=c11 07-sources.c $(pkg-config --cflags --libs onebuf) -lpthread -o sources && ./sources [signal.npy]

#include <onebuf.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

// The shape of a frame: sensors, and complex samples (two floats) of each.
enum { CHANNELS = 16, SAMPLES = 256, FRAMES = 50 };

static void check(onebuf_status status) {
    if (status == ONEBUF_OK) return;
    fprintf(stderr, "%s: %s\n", onebuf_status_name(status), onebuf_last_error_message());
    exit(1);
}

// Two slots, a source and a sink; stages would come between them.
static onebuf_pipeline_report carry(onebuf_hub hub, onebuf_source source, onebuf_sink sink) {
    onebuf_slot_buffer frame = {CHANNELS * SAMPLES * 2 * sizeof(float), NULL};
    onebuf_pipeline_options options = ONEBUF_OPTIONS(onebuf_pipeline_options);
    options.depth = 2;
    options.buffers = &frame;
    options.buffer_count = 1;
    options.feed = source;
    options.drain = sink;
    onebuf_pipeline pipeline;
    onebuf_pipeline_report report = ONEBUF_OPTIONS(onebuf_pipeline_report);
    check(onebuf_pipeline_create(hub, &options, &pipeline));
    check(onebuf_pipeline_run(pipeline, &report));
    check(onebuf_pipeline_free(pipeline));
    return report;
}

typedef struct {
    onebuf_hub hub;
    const char *to;
} sender;

// The sender, which could be another program or machine.
static void *send_signal(void *user) {
    const sender *s = user;
    onebuf_synthetic_options signal = ONEBUF_OPTIONS(onebuf_synthetic_options);
    signal.channels = CHANNELS;
    signal.samples = SAMPLES;
    signal.frames = FRAMES;
    onebuf_udp_sink_options udp = ONEBUF_OPTIONS(onebuf_udp_sink_options);
    udp.address = s->to;
    udp.bytes_per_s = 20e6; // evenly paced, so that nothing is lost
    onebuf_source source;
    onebuf_sink sink;
    check(onebuf_source_synthetic(&signal, &source));
    check(onebuf_sink_udp(&udp, &sink));
    carry(s->hub, source, sink);
    check(onebuf_source_free(source));
    check(onebuf_sink_free(sink)); // freeing the sink signals the end of the stream
    return NULL;
}

int main(int argc, char **argv) {
    onebuf_hub hub;
    check(onebuf_hub_discover(NULL, &hub));
    onebuf_udp_source_options udp = ONEBUF_OPTIONS(onebuf_udp_source_options);
    udp.address = "127.0.0.1:0"; // any port
    onebuf_source source;
    onebuf_sink sink;
    size_t shape[] = {CHANNELS, SAMPLES};
    check(onebuf_source_udp(&udp, &source));
    check(onebuf_sink_npy(argc > 1 ? argv[1] : "/dev/null", "<c8", shape, 2, &sink));

    onebuf_string address;
    check(onebuf_source_address(source, &address));
    sender other = {hub, onebuf_string_data(address)};
    pthread_t thread;
    if (pthread_create(&thread, NULL, send_signal, &other) != 0) return 1;
    onebuf_pipeline_report report = carry(hub, source, sink);
    pthread_join(thread, NULL);

    onebuf_udp_counts counts = ONEBUF_OPTIONS(onebuf_udp_counts);
    check(onebuf_source_udp_counts(source, &counts));
    printf("%llu frames came, %llu incomplete, %llu packets lost\n", (unsigned long long)report.frames,
           (unsigned long long)report.incomplete, (unsigned long long)counts.lost_packets);
    printf("all of them are accounted for: %s\n", report.frames + report.incomplete == FRAMES ? "yes" : "no");
    check(onebuf_string_free(address));
    check(onebuf_source_free(source));
    check(onebuf_sink_free(sink));
    check(onebuf_hub_free(hub));
    return 0;
}
