// Fixed group sizes, fences, and copies that a group makes together.
__attribute__((reqd_work_group_size(32, 2, 1))) kernel void groups_required(global uint *out) {
    local uint tile[64];
    size_t l = get_local_id(1) * 32 + get_local_id(0);
    tile[l] = (uint)(get_global_id(1) * 1000 + get_global_id(0));
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    out[get_global_id(1) * get_global_size(0) + get_global_id(0)] = tile[63 - l];
}

__attribute__((work_group_size_hint(64, 1, 1))) __attribute__((vec_type_hint(float4)))
kernel void groups_hinted(global float4 *x) { x[get_global_id(0)] *= 2.0f; }

kernel void groups_copies(global const float *in, global float *out, local float *tile, uint n) {
    size_t first = get_group_id(0) * n;
    event_t e = async_work_group_copy(tile, in + first, n, 0);
    wait_group_events(1, &e);
    for (uint i = get_local_id(0); i < n; i += get_local_size(0)) tile[i] = tile[i] * 2.0f + i;
    barrier(CLK_LOCAL_MEM_FENCE);
    e = async_work_group_copy(out + first, tile, n, 0);
    wait_group_events(1, &e);
}

kernel void groups_scan(global const uint *in, global uint *out, local uint *sums) {
    size_t l = get_local_id(0), n = get_local_size(0);
    sums[l] = in[get_global_id(0)];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (size_t by = 1; by < n; by *= 2) {
        uint more = l >= by ? sums[l - by] : 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        sums[l] += more;
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    out[get_global_id(0)] = sums[l];
}

kernel void groups_fences(global volatile uint *x, global uint *out) {
    x[get_global_id(0)] = (uint)get_global_id(0) * 3;
    mem_fence(CLK_GLOBAL_MEM_FENCE);
    read_mem_fence(CLK_GLOBAL_MEM_FENCE);
    write_mem_fence(CLK_LOCAL_MEM_FENCE);
    out[get_global_id(0)] = x[get_global_id(0)] + 1;
}
