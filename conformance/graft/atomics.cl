#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable
#pragma OPENCL EXTENSION cl_khr_int64_extended_atomics : enable

// Results that do not depend on who comes first.
kernel void atomics_global(global uint *u, global int *s, global const uint *in) {
    uint v = in[get_global_id(0)];
    atomic_add(&u[0], v);
    atomic_sub(&u[1], v);
    atomic_inc(&u[2]);
    atomic_dec(&u[3]);
    atomic_min(&u[4], v);
    atomic_max(&u[5], v);
    atomic_and(&u[6], v | 0xff00u);
    atomic_or(&u[7], v);
    atomic_xor(&u[8], v);
    atomic_min(&s[0], (int)v - 1000);
    atomic_max(&s[1], (int)v - 1000);
    uint old = u[9], seen;
    while ((seen = atomic_cmpxchg(&u[9], old, old + v)) != old) old = seen;
}

kernel void atomics_local(global uint *out, global const uint *in, local uint *bins, uint n) {
    local uint all;
    for (uint i = get_local_id(0); i < n; i += get_local_size(0)) bins[i] = 0;
    if (get_local_id(0) == 0) all = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    atomic_inc(&bins[in[get_global_id(0)] % n]);
    atomic_add(&all, in[get_global_id(0)]);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = get_local_id(0); i < n; i += get_local_size(0)) atomic_add(&out[i], bins[i]);
    if (get_local_id(0) == 0) atomic_xor(&out[n], all);
}

kernel void atomics_wide(global ulong *out, global const uint *in) {
    ulong v = in[get_global_id(0)];
    atom_add(&out[0], v << 20);
    atom_max(&out[1], v * v);
    atom_min(&out[2], v * v);
    atom_xor(&out[3], v << 33);
    atom_or(&out[4], v << 7);
    atom_and(&out[5], v | 0xffff0000ffff0000ul);
}

kernel void atomics_float(global uint *slots, global float *out, global const float *in) {
    float old = atomic_xchg(&out[get_global_id(0)], in[get_global_id(0)]);
    slots[get_global_id(0)] = as_uint(old);
}
