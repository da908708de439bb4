kernel void vectors_maths(global float4 *x, global const float4 *y, global float *lengths) {
    size_t i = get_global_id(0);
    float4 a = x[i], b = y[i];
    x[i] = a * b.wzyx + cross(a, b) - (float4)(dot(a, b));
    lengths[i] = length(a.xyz) + distance(a, b) + fast_length(b.xy);
}

kernel void vectors_wide(global float8 *x, global int8 *n, global double2 *d) {
    size_t i = get_global_id(0);
    float8 v = x[i];
    n[i] = convert_int8_sat(v * 1.0e8f) + select((int8)(1), (int8)(2), v > 0.0f);
    x[i] = shuffle(v, (uint8)(7, 6, 5, 4, 3, 2, 1, 0));
    d[i] = convert_double2(v.s07) * (double2)(0.5, 2.0);
}

kernel void vectors_threes(global float *x, global uchar *b) {
    size_t i = get_global_id(0);
    float3 v = vload3(i, x);
    uchar3 c = vload3(i, b);
    vstore3(v.zxy * convert_float3(c), i, x);
    vstore3(c.yzx + (uchar3)(1, 2, 3), i, b);
}

kernel void vectors_bytes(global uchar16 *x, global const uchar16 *y) {
    size_t i = get_global_id(0);
    x[i] = add_sat(x[i], y[i]) ^ rhadd(x[i].sfedcba9876543210, y[i]);
}
