//! 4. One program for every device, the CPU among them.
//!
//! `cargo run -p onebuf-examples --example 04-own-kernels-on-the-host`
//!
//! A kernel may be a Rust function as well. The host runs it, so the same pipeline works where there
//! is no OpenCL, and the two check each other where there is.

use onebuf::{Access, Call, Device, Hub, NativeArgs, Result, Signature, Source, args};

const N: usize = 100_000;

const TEXT: &str = "kernel void axpy(global const float *x, global float *y, float a) {
    size_t i = get_global_id(0);
    y[i] = a * x[i] + y[i];
}";
/// The same for CUDA and HIP devices, whose compilers take one text.
const LIKE_CUDA: &str = "
extern \"C\" __global__ void axpy(const float *x, float *y, float a) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = a * x[i] + y[i];
}";

/// The same for OpenGL and Vulkan: a storage block for each buffer, and one uniform block for the values.
const SHADER: &str = "#version 450
layout(local_size_x = 32) in;
layout(std430, binding = 0) readonly buffer X { float x[]; };
layout(std430, binding = 1) buffer Y { float y[]; };
layout(std140, binding = 2) uniform Values { float a; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    y[i] = a * x[i] + y[i];
}";

/// The same as a function: called once for the whole grid, on the thread that launches. Arguments are
/// typed on the way out; asking for the wrong one is an error, not a crash.
fn axpy(args: &mut NativeArgs<'_>) -> Result<()> {
    let [n, ..] = args.global();
    let a = args.value::<f32>(2)?;
    let (x, y) = args.pair::<f32, f32>(0, 1)?; // one to read beside one to change
    y[..n].iter_mut().zip(x).for_each(|(y, x)| *y += a * x);
    Ok(())
}

/// What must hold of a launch for either of them to stay in bounds.
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
    // SAFETY: item i reads x[i] and y[i] and writes y[i]; `fits` says that both have one.
    let axpy = unsafe { program.kernel("axpy", signature)? };

    let queue = device.queue()?;
    queue.launch(&axpy, [N], args![x.read_on(&queue)?, y.write_on(&queue)?, 3.0_f32])?;

    // What does not fit is refused before anything starts.
    let refused =
        queue.launch(&axpy, [N + 1], args![x.read_on(&queue)?, y.write_on(&queue)?, 3.0_f32]);
    assert!(refused.is_err_and(|error| error.to_string().contains("only 100000 elements")));
    y.to_vec()
}
