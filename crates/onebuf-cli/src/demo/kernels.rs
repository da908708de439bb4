//! The two stages: as OpenCL C, and as Rust for the host.
//!
//! # Safety
//! The one unsafe call declares the signatures of the kernels whose text is in this file.
#![allow(unsafe_code)]

use onebuf::{
    Access, Call, Complex32, Complex64, Device, Kernel, NativeArgs, Result, Signature, Source,
};
use std::f64::consts::{FRAC_1_SQRT_2, TAU};

/// The oscillator has so many phases, and goes on by so many per sample: 3/16 of the sample rate.
/// A table keeps it exact however long the frame is.
pub const PHASES: usize = 16;
const STEP: usize = 3;

/// The scale at which the second stage keeps the signal's power.
pub const SCALE: f64 = FRAC_1_SQRT_2;

/// The first stage: down-conversion, in place, one work-item per sample.
pub const DOWN_CONVERT: &str = "down_convert";
/// The second: two-pulse Doppler processing, the sum and the difference of the frame's two halves. One
/// work-item per pair, so it is in place too.
pub const DOPPLER: &str = "doppler";

const TEXT: &str = "
kernel void down_convert(global float2 *x) {
    size_t i = get_global_id(0);
    float2 a = x[i], w = oscillator[i % PHASES];
    x[i] = (float2)(a.x * w.x - a.y * w.y, a.x * w.y + a.y * w.x);
}
kernel void doppler(global float2 *x) {
    size_t i = get_global_id(0), j = i + get_global_size(0);
    float2 a = x[i], b = x[j];
    x[i] = (a + b) * SCALE;
    x[j] = (a - b) * SCALE;
}
";

/// The oscillator's value for sample `i` is the one at `i % PHASES`.
pub fn oscillator() -> [Complex64; PHASES] {
    std::array::from_fn(|i| Complex64::cis(-TAU * (i * STEP % PHASES) as f64 / PHASES as f64))
}

/// The program with its numbers filled in, so that each is written down once.
fn text() -> String {
    let pair = |w: Complex64| format!("(float2)({:.9e}f, {:.9e}f)", w.re, w.im);
    let table = oscillator().map(pair).join(",\n    ");
    let defines = format!("#define PHASES {PHASES}\n#define SCALE {SCALE:.9e}f");
    format!("{defines}\nconstant float2 oscillator[PHASES] = {{\n    {table}\n}};\n{TEXT}")
}

fn down_convert(args: &mut NativeArgs<'_>) -> Result<()> {
    let items = args.global()[0];
    let oscillator = oscillator().map(|w| Complex32::new(w.re as f32, w.im as f32));
    for chunk in args.slice_mut::<Complex32>(0)?[..items].chunks_mut(PHASES) {
        chunk.iter_mut().zip(oscillator).for_each(|(x, w)| *x *= w);
    }
    Ok(())
}

fn doppler(args: &mut NativeArgs<'_>) -> Result<()> {
    let items = args.global()[0];
    let (first, second) = args.slice_mut::<Complex32>(0)?[..2 * items].split_at_mut(items);
    for (a, b) in first.iter_mut().zip(second) {
        (*a, *b) = ((*a + *b) * SCALE as f32, (*a - *b) * SCALE as f32);
    }
    Ok(())
}

/// How many samples one work-item of a stage changes.
pub fn samples_per_item(name: &str) -> usize {
    if name == DOPPLER { 2 } else { 1 }
}

/// Builds one of the stages for a device.
pub fn build(device: &Device, name: &str) -> Result<Kernel> {
    let source = Source::opencl_c(text())
        .with_native(DOWN_CONVERT, down_convert)
        .with_native(DOPPLER, doppler);
    let program = device.program(&source)?;
    let per_item = samples_per_item(name);
    let fits = move |call: &Call<'_>| match call.global() {
        [items, 1, 1] if items <= call.len(0) / per_item => Ok(()),
        _ => Err("more work-items than the buffer has samples for".into()),
    };
    let signature = Signature::new().buffer::<Complex32>(Access::ReadWrite).require(fits);
    // SAFETY: of G work-items in one dimension, `down_convert` touches elements below G and `doppler`
    // elements below 2 G; `fits` lets only launches through for which the buffer has as many. Both read
    // and write that one buffer, as declared, and contain no loop.
    unsafe { program.kernel(name, signature) }
}
