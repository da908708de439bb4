// Constant memory: as an argument, as a table of the program, and both beside local memory.
constant float table[16] = { 1.0f, 0.5f, 0.25f, 0.125f, 3.0f, 5.0f, 7.0f, 11.0f,
                             13.0f, 17.0f, 19.0f, 23.0f, 29.0f, 31.0f, 37.0f, 41.0f };
constant uchar text[] = "a table of bytes";
typedef struct { float gain; int shift[3]; } setting;
constant setting settings[2] = { { 1.5f, { 1, 2, 3 } }, { -2.5f, { 40, 50, 60 } } };

kernel void constant_argument(global float *out, constant float *taps, uint n) {
    float sum = 0.0f;
    for (uint i = 0; i < n; i++) sum = sum * 0.5f + taps[(get_global_id(0) + i) % n];
    out[get_global_id(0)] = sum;
}

kernel void constant_table(global float *out) {
    size_t i = get_global_id(0);
    constant setting *s = &settings[i & 1];
    out[i] = table[i & 15] * s->gain + s->shift[i % 3] + text[i % sizeof(text)];
}

kernel void constant_both(global float *out, constant float *a, local float *tile, constant short *b) {
    size_t l = get_local_id(0), n = get_local_size(0);
    tile[l] = a[l] * table[l & 15];
    barrier(CLK_LOCAL_MEM_FENCE);
    out[get_global_id(0)] = tile[n - 1 - l] + b[l];
}
