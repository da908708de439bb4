//! 19. A kernel in OpenCL, then a library's transform, on one buffer.
//!
//! `cargo run -p onebuf-examples --example 19-opencl-to-libraries`
//!
//! The library is cuFFT or rocFFT if there is such a device, and the CPU's otherwise: the calls are the same.

use onebuf::{
    Complex32, Each, Result, Source,
    libs::{Fft, Fft1d},
    prelude::*,
};
use std::f32::consts::TAU;

/// Samples of each channel; below, the number of channels.
const N: usize = 1024;
const CHANNELS: usize = 16;
const TEXT: &str = "kernel void window(global float2 *x, uint n) {
    size_t i = get_global_id(0);
    x[i] *= 0.5f - 0.5f * cos(6.2831853f * (float)(i % n) / (float)n);
}";

fn main() -> Result<()> {
    let hub = onebuf::discover()?;
    let kernels = hub.device("opencl").unwrap_or_else(|missing| {
        println!("{missing}");
        hub.host()
    });
    let has_library =
        |id: &&str| hub.device(id).and_then(|device| Fft::on(&device.queue()?)).is_ok();
    let libraries = hub.device(["cuda", "hip"].into_iter().find(has_library).unwrap_or("host"))?;
    println!("a kernel on {kernels}, a transform on {libraries}");

    // One buffer for both. The plan says by which route the second device accesses it.
    let signal = hub.buffer_from(tones()).shared_with([&kernels, &libraries]).build()?;
    println!("{}", signal.explain());

    let source = Source::opencl_c(TEXT).with_native("window", |args| {
        let n = args.value::<u32>(1)? as usize;
        for (i, x) in args.slice_mut::<Complex32>(0)?.iter_mut().enumerate() {
            *x *= 0.5 - 0.5 * (TAU * (i % n) as f32 / n as f32).cos();
        }
        Ok(())
    });
    // SAFETY: work-item i touches x[i] only.
    let window = unsafe { kernels.kernel::<(Each<&mut Complex32>, u32)>(source, "window")? };
    window.launch([N * CHANNELS], (&signal, N as u32))?;

    // The view waits for the kernel, on the device where a sync method is proven for the two.
    let queue = libraries.queue()?;
    let mut view = signal.write_on(&queue)?;
    println!("the transform waits for the kernel by {}", view.sync_method());
    Fft::on(&queue)?.transform(&Fft1d::forward(N, CHANNELS), &mut view)?;
    drop(view);

    // Channel c has a tone of c + 1 turns, and a window leaves its peak in that bin.
    let spectra = signal.map()?;
    for (channel, bins) in spectra.chunks(N).enumerate() {
        let peak = (0..N).max_by(|&a, &b| bins[a].norm().total_cmp(&bins[b].norm())).unwrap_or(0);
        assert_eq!(peak, channel + 1);
        // Hann's window halves the amplitude.
        assert!((bins[peak].norm() / N as f32 - 0.5).abs() < 1e-3, "{}", bins[peak]);
    }
    println!("{CHANNELS} channels, and each peak is in its bin");
    println!("{}", hub.ledger());
    Ok(())
}

/// In each channel a tone with another frequency.
fn tones() -> Vec<Complex32> {
    let turns = |i: usize| (i / N + 1) as f32 * (i % N) as f32 / N as f32;
    (0..N * CHANNELS).map(|i| Complex32::from_polar(1.0, TAU * turns(i))).collect()
}
