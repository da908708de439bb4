//! 4. One program for every device, including the CPU.
//!
//! `cargo run -p onebuf-examples --example 04-own-kernels-on-the-host`
//!
//! A kernel can also be a Rust function, which the host runs. The same pipeline then works without
//! OpenCL, and with OpenCL the two results can be compared.

use onebuf::{Access, Call, Device, Hub, NativeArgs, Result, Signature, Source, args};

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

/// Checks that a launch of any of these kernels stays in bounds.
fn fits(call: &Call<'_>) -> Result<(), String> {
    let room = call.len(0).min(call.len(1));
    if call.global()[0] <= room { Ok(()) } else { Err(format!("only {room} elements")) }
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
    let x = hub.buffer(N).shared_with([device]).access(Access::Read).init(ramp).build()?;
    let y = hub.buffer(N).shared_with([device]).init(vec![1.0_f32; N]).build()?;

    let texts = Source::opencl_c(TEXT).with_cuda_c(LIKE_CUDA).with_hip_c(LIKE_CUDA);
    let texts = texts.with_glsl("axpy", SHADER);
    let program = device.program(&texts.with_native("axpy", axpy))?;
    let signature = Signature::new()
        .buffer::<f32>(Access::Read)
        .buffer::<f32>(Access::ReadWrite)
        .value::<f32>()
        .require(fits);
    // SAFETY: item i reads x[i] and y[i] and writes y[i]; `fits` checks that both exist.
    let axpy = unsafe { program.kernel("axpy", signature)? };

    let queue = device.queue()?;
    queue.launch(&axpy, [N], args![x.read_on(&queue)?, y.write_on(&queue)?, 3.0_f32])?;

    // A launch that does not fit is refused before any work starts.
    let refused =
        queue.launch(&axpy, [N + 1], args![x.read_on(&queue)?, y.write_on(&queue)?, 3.0_f32]);
    assert!(refused.is_err_and(|error| error.to_string().contains("only 100000 elements")));
    y.to_vec()
}
