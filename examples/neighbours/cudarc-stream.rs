//! A program that uses cudarc: its stream, its slice and its kernel, with memory that the host reads in place.
//!
//! `cargo run -p onebuf-examples --example cudarc-stream`

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use onebuf::{MemoryKind, Source};
use onebuf_cudarc::{CudarcDeviceExt, CudarcHubExt};
use std::error::Error;

const N: usize = 1 << 16;
const TEXT: &str = r#"extern "C" __global__ void add(unsigned *p, unsigned by) {
    p[blockIdx.x * blockDim.x + threadIdx.x] += by;
}"#;

fn main() -> Result<(), Box<dyn Error>> {
    let hub = onebuf::discover()?;
    let Ok(device) = hub.device("cuda:0") else {
        println!("no CUDA device here: nothing for cudarc to do");
        return Ok(());
    };
    // What every program with cudarc has. The module could also be compiled by `cudarc::nvrtc`.
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let add =
        context.load_program(&device.program(&Source::cuda_c(TEXT))?)?.load_function("add")?;
    let mut samples = stream.clone_htod(&vec![1u32; N])?;

    // onebuf takes the stream that the program has.
    let ours = hub.cudarc_stream(&stream)?;

    // Memory of cudarc in onebuf, while the function runs: after cudarc's copy, and before its next call.
    ours.wrap(&mut samples)?.run(|shared| shared.fill(7))?;

    // Memory of onebuf in cudarc: pinned, so that the host uses it in place, too.
    let pinned = hub.buffer::<u32>(N).shared_with([&device, &hub.host()]);
    let pinned = pinned.memory_kind(MemoryKind::MappedDevice).build()?;
    pinned.fill(0)?;
    let mut view = ours.write(&pinned)?; // the stream waits for the fill
    stream.memcpy_dtod(&samples, &mut view.as_view_mut())?;
    let mut words = view.as_view_mut();
    let mut launch = stream.launch_builder(&add);
    launch.arg(&mut words).arg(&5u32);
    let config = LaunchConfig {
        grid_dim: (N as u32 / 256, 1, 1),
        block_dim: (256, 1, 1),
        shared_mem_bytes: 0,
    };
    // SAFETY: N threads, and each touches its own word.
    unsafe { launch.launch(config) }?;
    drop(view); // cudarc's work so far is what the next user waits for
    let sum: u64 = pinned.map()?.iter().map(|&x| u64::from(x)).sum();
    assert_eq!(sum, 12 * N as u64);
    println!("{}", pinned.explain());
    println!("the host sums {sum}, which cudarc computed");
    println!("{}", hub.ledger());
    Ok(())
}
