use onebuf::{Device, Each, Result, TypedKernel, prelude::*};

fn declare(device: &Device) -> Result<TypedKernel<(Each<&'static mut f32>, f32)>> {
    device.kernel("kernel void gain(global float *x, float by) {}", "gain")
}

fn main() {
    let _ = declare;
}
