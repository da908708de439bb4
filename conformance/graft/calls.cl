// Functions that stay functions, private arrays, loops, jumps through tables.
__attribute__((noinline)) float mix_in(global const float *x, uint n, float by) {
    float sum = 0.0f;
    for (uint i = 0; i < n; i++) sum = sum * by + x[i];
    return sum;
}

__attribute__((noinline)) float4 turned(float4 v, int times) {
    for (int i = 0; i < times; i++) v = v.yzwx * (float4)(1.0f, 2.0f, 3.0f, 4.0f);
    return v;
}

kernel void calls_functions(global float4 *out, global const float *x, uint n) {
    size_t i = get_global_id(0);
    float sum = mix_in(x, n, 0.25f);
    out[i] = turned((float4)(sum, i, n, 1.0f), (int)(i & 3));
}

kernel void calls_private(global uint *out, uint seed) {
    uint own[32];
    for (uint i = 0; i < 32; i++) own[i] = seed * (i + 1) + (uint)get_global_id(0);
    for (uint i = 0; i < 32; i++) {
        uint j = own[i] & 31, t = own[i];
        own[i] = own[j];
        own[j] = t;
    }
    uint sum = 0;
    for (uint i = 0; i < 32; i++) sum = sum * 31 + own[i];
    out[get_global_id(0)] = sum;
}

kernel void calls_switch(global uint *x) {
    size_t i = get_global_id(0);
    uint v = x[i];
    for (int n = 0; n < 20; n++) {
        switch (v % 11) {
        case 0: v += 17; break;
        case 1: v = v * 3 + 1; break;
        case 2: v ^= 0x55aa; break;
        case 3: v = rotate(v, 5u); break;
        case 4: v -= 1234567; break;
        case 5: v = v / 3 + 5; break;
        case 6: v = ~v; break;
        case 7: v = v * v; break;
        case 8: v += n; break;
        case 9: v >>= 1; v |= 0x80000000u; break;
        default: v = v * 2654435761u; break;
        }
    }
    x[i] = v;
}

kernel void calls_inner(global uint *x, uint by) { x[get_global_id(0)] += by; }

// A kernel that calls another one.
kernel void calls_kernel(global uint *x, uint by) {
    calls_inner(x, by);
    calls_inner(x, by * 2);
}
