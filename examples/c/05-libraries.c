// 5. A Fourier transform and a linear system, with the library of the device: cuFFT and cuSOLVER, rocFFT and rocSOLVER,
//    or the CPU.
//
// cc -std=c11 05-libraries.c $(pkg-config --cflags --libs onebuf) -lm -o libraries && ./libraries

#include <onebuf.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 1024, LINE = 37 };

static void check(onebuf_status status) {
    if (status == ONEBUF_OK) return;
    fprintf(stderr, "%s: %s\n", onebuf_status_name(status), onebuf_last_error_message());
    exit(1);
}

static onebuf_buffer holding(onebuf_hub hub, onebuf_device device, const void *data, size_t bytes) {
    onebuf_buffer_options options = ONEBUF_OPTIONS(onebuf_buffer_options);
    options.devices = &device;
    options.device_count = 1;
    options.contents = data;
    onebuf_buffer buffer;
    check(onebuf_buffer_create(hub, bytes, &options, &buffer));
    return buffer;
}

int main(void) {
    onebuf_hub hub;
    onebuf_device device;
    onebuf_queue queue;
    check(onebuf_hub_discover(NULL, &hub));
    check(onebuf_hub_device(hub, "host", &device)); // or "cuda", "hip"
    check(onebuf_queue_create(device, NULL, &queue));

    static float tone[N][2], spectrum[N][2];
    for (int i = 0; i < N; i++) {
        double turn = 6.283185307179586 * LINE * i / N;
        tone[i][0] = (float)cos(turn);
        tone[i][1] = (float)sin(turn);
    }
    onebuf_buffer signal = holding(hub, device, tone, sizeof tone);
    onebuf_fft_options fft = ONEBUF_OPTIONS(onebuf_fft_options);
    fft.number = ONEBUF_C32;
    fft.len = N;
    check(onebuf_fft(queue, &fft, signal, (onebuf_buffer){0})); // in place
    check(onebuf_buffer_read(signal, 0, spectrum, sizeof spectrum)); // waits for the transform
    int peak = 0;
    for (int i = 0; i < N; i++)
        if (hypotf(spectrum[i][0], spectrum[i][1]) > hypotf(spectrum[peak][0], spectrum[peak][1])) peak = i;
    printf("the tone is in line %d\n", peak);

    // 2 a = 2, a + 4 b = 9, in column-major order like all matrices here.
    const float matrix[] = {2, 1, 0, 4}, sides[] = {2, 9};
    onebuf_buffer a = holding(hub, device, matrix, sizeof matrix), b = holding(hub, device, sides, sizeof sides);
    onebuf_lu lu;
    check(onebuf_lu_factor(queue, ONEBUF_F32, 2, 0, a, &lu));
    check(onebuf_lu_solve(queue, lu, ONEBUF_OP_NONE, a, 1, 0, b));
    float solution[2];
    check(onebuf_buffer_read(b, 0, solution, sizeof solution));
    printf("and the solution is %g, %g\n", solution[0], solution[1]);

    check(onebuf_lu_free(lu));
    check(onebuf_buffer_free(a));
    check(onebuf_buffer_free(b));
    check(onebuf_buffer_free(signal));
    check(onebuf_queue_free(queue));
    check(onebuf_hub_free(hub));
    return peak == LINE ? 0 : 1;
}
