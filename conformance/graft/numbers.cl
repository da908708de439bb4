#pragma OPENCL EXTENSION cl_khr_fp64 : enable

// What the compiler makes of the maths library: tables, calls, double precision.
kernel void numbers_double(global double *out, global const double *in) {
    size_t i = get_global_id(0);
    double x = in[i];
    global double *at = out + i * 12;
    at[0] = fma(x, x, -1.0);
    at[1] = sqrt(fabs(x));
    at[2] = sin(x);
    at[3] = cos(x * 1.0e7);
    at[4] = exp(x * 0.125);
    at[5] = log(fabs(x) + 1.0);
    at[6] = pow(fabs(x), 1.75);
    at[7] = x / 3.0;
    at[8] = floor(x);
    at[9] = fmod(x, 0.75);
    at[10] = (double)convert_int_sat_rte(x);
    at[11] = atan2(x, 2.0);
}

kernel void numbers_single(global float *out, global const float *in) {
    size_t i = get_global_id(0);
    float x = in[i];
    global float *at = out + i * 14;
    at[0] = mad(x, x, -1.0f);
    at[1] = rsqrt(fabs(x) + 1.0f);
    at[2] = sin(x * 1.0e6f);
    at[3] = cos(x);
    at[4] = exp2(x);
    at[5] = native_sin(x);
    at[6] = native_exp(x * 0.125f);
    at[7] = half_recip(x + 100.0f);
    at[8] = pow(fabs(x), 1.75f);
    at[9] = tanh(x);
    at[10] = x / 3.0f;
    at[11] = erf(x);
    at[12] = ldexp(x, 3);
    at[13] = as_float(as_uint(x) ^ 1u);
}

kernel void numbers_narrow(global char *c, global uchar *uc, global short *s, global ushort *us) {
    size_t i = get_global_id(0);
    c[i] = add_sat(c[i], (char)100);
    uc[i] = sub_sat(uc[i], (uchar)100);
    s[i] = mul_hi(s[i], (short)12345) + (short)c[i];
    us[i] = rotate(us[i], (ushort)3) ^ (ushort)uc[i];
    c[i] = (char)popcount((uchar)c[i]);
    uc[i] = hadd(uc[i], (uchar)7);
    s[i] = abs_diff(s[i], (short)-5);
    us[i] = clz(us[i]);
}

kernel void numbers_integers(global ulong *out, global const ulong *in) {
    size_t i = get_global_id(0);
    ulong x = in[i];
    uint y = (uint)x;
    global ulong *at = out + i * 10;
    at[0] = mul_hi(x, 0x123456789abcdefful);
    at[1] = mad24((int)(y & 0xfff), 1234, 77);
    at[2] = upsample(y, y ^ 5u);
    at[3] = rotate(x, 13ul);
    at[4] = x / (y | 1u);
    at[5] = x % (y | 1u);
    at[6] = mad_hi(y, 77u, 3u);
    at[7] = clamp(y, 10u, 1000u);
    at[8] = bitselect(x, ~x, 0x0f0f0f0f0f0f0f0ful);
    at[9] = mad_sat(y, y, 5u);
}

kernel void numbers_half(global half *halves, global float *out) {
    size_t i = get_global_id(0);
    float x = vload_half(i, halves);
    out[i] = x * 1.5f;
    vstore_half(x * 0.5f, i, halves);
}
