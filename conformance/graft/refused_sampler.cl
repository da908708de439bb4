constant sampler_t how = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;
kernel void refused_sampler(read_only image2d_t in, global float4 *out) {
    out[get_global_id(0)] = read_imagef(in, how, (int2)(get_global_id(0), 0));
}
