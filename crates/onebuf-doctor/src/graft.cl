// What the doctor grafts: every index function, local memory of three sorts, constant memory, a struct, atomics,
// double precision and the maths library.
#ifdef SPIRV // A runtime over OpenCL gets the size of a padded struct wrong; a fourth dimension is no valid SPIR-V.
#define FEW 4
#else
#define FEW 3
#endif
typedef struct { uchar tag; double weight; ushort few[FEW]; } setting;
constant uint table[4] = { 3, 141, 59, 26535 };

kernel void places(global uint *out, uint nx, uint ny) {
    uint x = (uint)(get_global_id(0) - get_global_offset(0));
    uint y = (uint)(get_global_id(1) - get_global_offset(1));
    uint z = (uint)(get_global_id(2) - get_global_offset(2));
    global uint *at = out + ((z * ny + y) * nx + x) * 16;
    for (uint d = 0; d < 2; d++) {
        at[d] = (uint)get_global_id(d);
        at[2 + d] = (uint)get_local_id(d) * 1000u + (uint)get_group_id(d);
        at[4 + d] = (uint)get_global_size(d);
        at[6 + d] = (uint)get_local_size(d) * 1000u + (uint)get_num_groups(d);
        at[8 + d] = (uint)get_global_offset(d);
    }
    at[10] = (uint)get_global_id(2);
    at[11] = (uint)get_global_size(2) * 1000u + (uint)get_num_groups(2);
    at[12] = (uint)get_local_id(2) * 1000u + (uint)get_group_id(2);
    at[13] = (uint)get_global_offset(2);
    at[14] = get_work_dim();
#ifndef SPIRV
    at[15] = (uint)get_global_id(3) + 10u * (uint)get_global_size(3);
#endif
}

kernel void shared(global const uint *in, global uint *out, local uchar *bytes, setting s, local double *wide,
                   constant uint *weights, local uint *words) {
    local uint own[64], total;
    uint l = (uint)get_local_id(0), n = (uint)get_local_size(0), i = (uint)get_global_id(0);
    if (l == 0) total = 0;
    bytes[l] = (uchar)(in[i] * 7u);
    wide[l] = in[i] * s.weight;
    words[l] = in[i] ^ weights[l & 15];
    own[l] = in[i] + table[l & 3];
    barrier(CLK_LOCAL_MEM_FENCE);
    atomic_add(&total, words[n - 1 - l]);
    barrier(CLK_LOCAL_MEM_FENCE);
    uint back = n - 1 - l;
    out[i + 1] = bytes[back] + (uint)wide[back] * 3u + words[back] * 5u + own[back] * 7u + total + s.few[l % 3] + s.tag;
    atomic_max(&out[0], in[i]);
}

kernel void numbers(global float *x, global double *y) {
    uint i = (uint)get_global_id(0);
    x[i] = sin(x[i] * 1.0e4f) + exp(x[i] * 0.01f) + rsqrt(fabs(x[i]) + 1.0f);
    y[i] = fma(y[i], y[i], -1.0) + cos(y[i]) / 3.0;
}
