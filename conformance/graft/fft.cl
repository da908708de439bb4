// The transform of the demonstration, for channels of 256 samples.
#define LEN 256
#define GROUP 32
#define PER 8

float2 times(float2 a, float2 b) { return (float2)(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }

void load2(uint m, uint p, float2 *v, local const float2 *x, global const float2 *turns) {
    for (uint b = 0; b < PER / 2; b++) {
        uint i = m + b * GROUP;
        v[2 * b] = x[i];
        v[2 * b + 1] = times(x[i + LEN / 2], turns[(i & (p - 1)) * (LEN / 2 / p)]);
    }
}
void store2(uint m, uint p, const float2 *v, local float2 *x) {
    for (uint b = 0; b < PER / 2; b++) {
        uint i = m + b * GROUP, j = 2 * i - (i & (p - 1));
        x[j] = v[2 * b] + v[2 * b + 1];
        x[j + p] = v[2 * b] - v[2 * b + 1];
    }
}
void load4(uint m, uint p, float2 *v, local const float2 *x, global const float2 *turns) {
    for (uint b = 0; b < PER / 4; b++) {
        uint i = m + b * GROUP;
        float2 w = turns[(i & (p - 1)) * (LEN / 4 / p)], w2 = times(w, w);
        v[4 * b] = x[i];
        v[4 * b + 1] = times(x[i + LEN / 4], w);
        v[4 * b + 2] = times(x[i + LEN / 2], w2);
        v[4 * b + 3] = times(x[i + LEN / 4 * 3], times(w, w2));
    }
}
void store4(uint m, uint p, const float2 *v, local float2 *x) {
    for (uint b = 0; b < PER / 4; b++) {
        uint i = m + b * GROUP, k = i & (p - 1), j = 4 * (i - k) + k;
        float2 s = v[4 * b] + v[4 * b + 2], d = v[4 * b] - v[4 * b + 2];
        float2 t = v[4 * b + 1] + v[4 * b + 3], e = v[4 * b + 1] - v[4 * b + 3];
        e = (float2)(e.y, -e.x);
        x[j] = s + t;
        x[j + p] = d + e;
        x[j + 2 * p] = s - t;
        x[j + 3 * p] = d - e;
    }
}

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void fft(global float2 *signal, global const float2 *turns) {
    local float2 x[LEN];
    float2 v[PER];
    uint m = get_local_id(0);
    global float2 *channel = signal + get_group_id(0) * LEN;
    for (uint b = 0; b < PER; b++) x[m + b * GROUP] = channel[m + b * GROUP];
    barrier(CLK_LOCAL_MEM_FENCE);
    load4(m, 1, v, x, turns);
    barrier(CLK_LOCAL_MEM_FENCE);
    store4(m, 1, v, x);
    barrier(CLK_LOCAL_MEM_FENCE);
    load4(m, 4, v, x, turns);
    barrier(CLK_LOCAL_MEM_FENCE);
    store4(m, 4, v, x);
    barrier(CLK_LOCAL_MEM_FENCE);
    load4(m, 16, v, x, turns);
    barrier(CLK_LOCAL_MEM_FENCE);
    store4(m, 16, v, x);
    barrier(CLK_LOCAL_MEM_FENCE);
    load4(m, 64, v, x, turns);
    barrier(CLK_LOCAL_MEM_FENCE);
    store4(m, 64, v, x);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint b = 0; b < PER; b++) channel[m + b * GROUP] = x[m + b * GROUP];
}
