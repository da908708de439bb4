//! 4. One program for every device, including the CPU.
//!
//! `cargo run -p onebuf-examples --example 04-own-kernels-on-the-host`
//!
//! A kernel can also be a Rust function, which the host runs. The same pipeline then works without
//! OpenCL, and with OpenCL the two results can be compared.

use onebuf::{Access, Device, Each, Hub, NativeArgs, Result, Source, prelude::*};

const N: usize = 100_000;

const TEXT: &str = "kernel void axpy(global const float *x, global float *y, float a) {
    size_t i = get_global_id(0);
    y[i] = a * x[i] + y[i];
}";
/// The kernel for CUDA and HIP devices, whose compilers accept the same text.
const LIKE_CUDA: &str = "
extern \"C\" __global__ void axpy(const float *x, float *y, float a) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = a * x[i] + y[i];
}";

/// The kernel for OpenGL and Vulkan: one storage block for each buffer, one uniform block for all values.
const SHADER: &str = "#version 450
layout(local_size_x = 32) in;
layout(std430, binding = 0) readonly buffer X { float x[]; };
layout(std430, binding = 1) buffer Y { float y[]; };
layout(std140, binding = 2) uniform Values { float a; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    y[i] = a * x[i] + y[i];
}";

/// The kernel for the host: called once for the whole grid, on the launching thread. Arguments are typed
/// when read; a wrong type is an error.
fn axpy(args: &mut NativeArgs<'_>) -> Result<()> {
    let [n, ..] = args.global();
    let a = args.value::<f32>(2)?;
    let (x, y) = args.pair::<f32, f32>(0, 1)?; // one buffer to read, one to write
    y[..n].iter_mut().zip(x).for_each(|(y, x)| *y += a * x);
    Ok(())
}

fn main() -> Result<()> {
    let hub = onebuf::discover()?;
    let expected: Vec<f32> = (0..N).map(|i| 3.0 * i as f32 + 1.0).collect();
    for device in hub.devices() {
        assert_eq!(run(&hub, &device)?, expected, "{device}");
        println!("{device} agrees: {}", device.info().name);
    }
    Ok(())
}

fn run(hub: &Hub, device: &Device) -> Result<Vec<f32>> {
    let ramp: Vec<f32> = (0..N).map(|i| i as f32).collect();
    let x = hub.buffer_from(ramp).shared_with([device]).access(Access::Read).build()?;
    let y = hub.buffer_from(vec![1.0_f32; N]).shared_with([device]).build()?;

    let texts = Source::opencl_c(TEXT).with_cuda_c(LIKE_CUDA).with_hip_c(LIKE_CUDA);
    let texts = texts.with_glsl("axpy", SHADER);
    let source = texts.with_native("axpy", axpy);
    // SAFETY: item i reads x[i] and y[i] and writes y[i].
    let axpy = unsafe { device.kernel::<(Each<&f32>, Each<&mut f32>, f32)>(source, "axpy")? };
    axpy.launch([N], (&x, &y, 3.0))?;

    // A launch that does not fit is refused before any work starts.
    let refused = axpy.launch([N + 1], (&x, &y, 3.0));
    assert!(refused.is_err_and(|error| error.to_string().contains("has 100000 elements")));
    y.to_vec()
}
