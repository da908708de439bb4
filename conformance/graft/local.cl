// Group-local memory: as arguments, several of them, declared inside, and both.
typedef struct { uint a; double b; uchar c; } odd;

kernel void local_one(global const float *in, global float *out, local float *tile) {
    size_t l = get_local_id(0), n = get_local_size(0);
    tile[l] = in[get_global_id(0)];
    barrier(CLK_LOCAL_MEM_FENCE);
    out[get_global_id(0)] = tile[n - 1 - l];
}

// Parts of odd sizes; each must be aligned for its type, and none may touch another.
kernel void local_many(global uint *out, local uchar *bytes, local double *wide, local uchar *more,
                       local float4 *vectors, local odd *structs) {
    size_t l = get_local_id(0), n = get_local_size(0), back = n - 1 - l;
    bytes[l] = (uchar)(l * 3 + 1);
    wide[l] = (double)l * 0.25;
    more[l] = (uchar)(l ^ 0x5a);
    vectors[l] = (float4)(l, l + 1, l + 2, l + 3);
    structs[l].a = (uint)l * 7;
    structs[l].b = (double)l * 0.5;
    structs[l].c = (uchar)(l + 9);
    barrier(CLK_LOCAL_MEM_FENCE);
    uint sum = bytes[back] + (uint)(wide[back] * 4.0) * 257u + more[back] * 65537u;
    sum += (uint)(vectors[back].x + vectors[back].w * 3.0f);
    sum += structs[back].a + (uint)(structs[back].b * 2.0) + structs[back].c;
    out[get_global_id(0)] = sum;
}

// Memory of its own beside the arguments'.
kernel void local_mixed(global const uint *in, global uint *out, local uint *a, uint by, local uint *b) {
    local uint own[64];
    local uchar flags[3];
    size_t l = get_local_id(0), n = get_local_size(0);
    if (l < 3) flags[l] = (uchar)(l + 1);
    a[l] = in[get_global_id(0)];
    b[l] = a[l] * by;
    own[l] = a[l] ^ b[l];
    barrier(CLK_LOCAL_MEM_FENCE);
    size_t next = (l + 1) % n;
    out[get_global_id(0)] = a[next] + 3 * b[(l + 2) % n] + 5 * own[(l + 3) % n] + flags[l % 3];
}

// Which of two is known only when it runs.
kernel void local_chosen(global uint *out, uint which, local uint *a, local uint *b) {
    size_t l = get_local_id(0), n = get_local_size(0);
    a[l] = (uint)l + 100;
    b[l] = (uint)l + 900;
    barrier(CLK_LOCAL_MEM_FENCE);
    local uint *p = ((which + get_group_id(0)) & 1) ? a : b;
    out[get_global_id(0)] = p[n - 1 - l];
}

__attribute__((noinline)) uint sum_of(local const uint *p, uint n) {
    uint sum = 0;
    for (uint i = 0; i < n; i++) sum = sum * 3 + p[i];
    return sum;
}

kernel void local_called(global uint *out, local uint *a) {
    a[get_local_id(0)] = (uint)get_global_id(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    out[get_global_id(0)] = sum_of(a, get_local_size(0)) + (uint)get_local_id(0);
}

// How far apart the parts lie tells nothing, but each address is as aligned as its type wants.
kernel void local_address(global uint *out, local uchar *first, local double8 *wide, local uchar *last) {
    first[get_local_id(0)] = 1;
    last[get_local_id(0)] = 2;
    wide[get_local_id(0)] = (double8)(3.0);
    barrier(CLK_LOCAL_MEM_FENCE);
    uint aligned = ((size_t)wide % sizeof(double8)) == 0;
    out[get_global_id(0)] = aligned + first[0] * 2 + last[0] * 16 + (uint)wide[0].s7 * 256;
}
