// Every index function, in every dimension, and those that are asked with a dimension known at run time.
#define PER_ITEM 40

kernel void index_all(global ulong *out, uint nx, uint ny) {
    size_t x = get_global_id(0) - get_global_offset(0);
    size_t y = get_global_id(1) - get_global_offset(1);
    size_t z = get_global_id(2) - get_global_offset(2);
    global ulong *at = out + ((z * ny + y) * nx + x) * PER_ITEM;
    *at++ = get_work_dim();
    *at++ = get_global_id(0);
    *at++ = get_global_id(1);
    *at++ = get_global_id(2);
    *at++ = get_local_id(0);
    *at++ = get_local_id(1);
    *at++ = get_local_id(2);
    *at++ = get_group_id(0);
    *at++ = get_group_id(1);
    *at++ = get_group_id(2);
    *at++ = get_global_size(0);
    *at++ = get_global_size(1);
    *at++ = get_global_size(2);
    *at++ = get_local_size(0);
    *at++ = get_local_size(1);
    *at++ = get_local_size(2);
    *at++ = get_num_groups(0);
    *at++ = get_num_groups(1);
    *at++ = get_num_groups(2);
    *at++ = get_global_offset(0);
    *at++ = get_global_offset(1);
    *at++ = get_global_offset(2);
}

// A dimension that the compiler does not know; 3 and more have answers too.
kernel void index_any(global ulong *out, uint d, uint nx, uint ny) {
    size_t x = get_global_id(0) - get_global_offset(0);
    size_t y = get_global_id(1) - get_global_offset(1);
    size_t z = get_global_id(2) - get_global_offset(2);
    global ulong *at = out + ((z * ny + y) * nx + x) * 8;
    at[0] = get_global_id(d);
    at[1] = get_local_id(d);
    at[2] = get_group_id(d);
    at[3] = get_global_size(d);
    at[4] = get_local_size(d);
    at[5] = get_num_groups(d);
    at[6] = get_global_offset(d);
    at[7] = get_work_dim();
}

// As most kernels are: the index and nothing else.
kernel void index_plain(global uint *out) {
    size_t i = get_global_id(0) - get_global_offset(0);
    out[i] = (uint)get_global_id(0);
}

#if __OPENCL_C_VERSION__ >= 200
kernel void index_linear(global ulong *out, uint nx, uint ny) {
    size_t x = get_global_id(0) - get_global_offset(0);
    size_t y = get_global_id(1) - get_global_offset(1);
    size_t z = get_global_id(2) - get_global_offset(2);
    global ulong *at = out + ((z * ny + y) * nx + x) * 5;
    at[0] = get_global_linear_id();
    at[1] = get_local_linear_id();
    at[2] = get_enqueued_local_size(0);
    at[3] = get_enqueued_local_size(1);
    at[4] = get_enqueued_local_size(2);
}
#endif
