// Values of every size and alignment, between buffers.
kernel void values_scalars(global double *out, char a, uchar b, short c, ushort d, int e, uint f, long g,
                           ulong h, float i, double j) {
    size_t at = get_global_id(0) * 10;
    out[at + 0] = a;
    out[at + 1] = b;
    out[at + 2] = c;
    out[at + 3] = d;
    out[at + 4] = e;
    out[at + 5] = f;
    out[at + 6] = (double)g;
    out[at + 7] = (double)h;
    out[at + 8] = i;
    out[at + 9] = j;
}

kernel void values_vectors(char2 a, global float *out, float2 b, uchar b1, float3 c, short d1, float4 d,
                           double2 e, uchar4 f, float16 g, int3 h) {
    global float *at = out + get_global_id(0) * 40;
    *at++ = a.x; *at++ = a.y;
    *at++ = b.x; *at++ = b.y;
    *at++ = b1;
    *at++ = c.x; *at++ = c.y; *at++ = c.z;
    *at++ = d1;
    *at++ = d.x; *at++ = d.y; *at++ = d.z; *at++ = d.w;
    *at++ = e.x; *at++ = e.y;
    *at++ = f.x; *at++ = f.y; *at++ = f.z; *at++ = f.w;
    vstore16(g, 0, at);
    at += 16;
    *at++ = h.x; *at++ = h.y; *at++ = h.z;
}

typedef struct { uchar tag; double weight; ushort few[3]; } inner;
typedef struct { char sign; inner parts[2]; float4 shift; ulong big; } outer;

kernel void values_struct(global float *out, outer s, uchar last) {
    global float *at = out + get_global_id(0) * 16;
    *at++ = s.sign;
    for (int i = 0; i < 2; i++) {
        *at++ = s.parts[i].tag;
        *at++ = (float)s.parts[i].weight;
        *at++ = s.parts[i].few[0];
        *at++ = s.parts[i].few[2];
    }
    *at++ = s.shift.x; *at++ = s.shift.w;
    *at++ = (float)s.big;
    *at++ = last;
}

// A value whose place is known only when it runs is read through a pointer into the parameters.
kernel void values_indexed(global float *out, outer s, uint which) {
    out[get_global_id(0)] = s.parts[(which + get_global_id(0)) & 1].few[get_global_id(0) % 3];
}

kernel void values_null(global uint *out, global const uint *maybe) {
    out[get_global_id(0)] = maybe ? maybe[get_global_id(0)] : 77u;
}

kernel void values_structs_in_buffers(global outer *all, uint n) {
    size_t i = get_global_id(0);
    all[i].big += i * n;
    all[i].sign = (char)-all[i].sign;
    all[i].parts[1].weight *= 0.5;
    all[i].parts[0].few[2] += (ushort)i;
    all[i].shift = all[i].shift.wzyx;
}

kernel void values_none(void) {}
