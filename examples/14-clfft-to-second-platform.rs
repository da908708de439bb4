//! 14. clFFT transforms in its own context; a second platform works on the spectrum; clFFT transforms back.
//!
//! `cargo run -p onebuf-examples --example 14-clfft-to-second-platform`

use onebuf::{Complex32, Device, Each, Hub, Result, Source, bytemuck::cast_slice, prelude::*};
use onebuf_conformance::class_a::{ClFft, ClassA};

const N: usize = 1 << 16;
const TEXT: &str = "kernel void gain(global float2 *x, float by) { x[get_global_id(0)] *= by; }";

fn main() -> Result<()> {
    let hub = onebuf::discover()?;
    // The application owns the context, the queue, the memory and the plan.
    let (Some(app), Some(clfft)) = (ClassA::all().into_iter().next(), ClFft::open()) else {
        println!("clFFT or OpenCL is not here: nothing to transform");
        return Ok(());
    };
    let tone =
        |i: usize| Complex32::from_polar(1.0, std::f32::consts::TAU * 5.0 * i as f32 / N as f32);
    let signal: Vec<Complex32> = (0..N).map(tone).collect();
    let mem = app.words(cast_slice(&signal));
    let plan = clfft.plan(&app, &app.queue, N);
    let transformed = plan.forward(app.queue.get(), mem.get(), &[]);

    // The application passes the memory, and the event after which it holds the spectrum. The second device
    // uses the same bytes if a route between the two is proven (example 6, or `onebuf doctor`), otherwise a counted copy.
    let second = second_platform(&hub, &app);
    // SAFETY: the application keeps both alive, and does not use the memory until `hand_to`.
    let (event, builder) =
        unsafe { (hub.wrap_event(transformed.raw())?, hub.wrap_buffer::<Complex32>(mem.raw())) };
    let spectrum = builder.len(N).after(&event).shared_with([&second]).build()?;
    println!("{}", spectrum.explain());

    let map = spectrum.map()?;
    let peak = (0..N).max_by(|&a, &b| map[a].norm().total_cmp(&map[b].norm())).unwrap_or(0);
    println!("clFFT on {} found the tone in line {peak}", app.platform);
    assert_eq!(peak, 5);
    drop(map);

    double(&second, &spectrum)?;
    println!("{second} made it twice as loud");

    // Hands the buffer back to the application's queue, ordered after our work. clFFT needs no change.
    // SAFETY: the application keeps the queue alive.
    let theirs = unsafe { hub.wrap_queue(app.queue.raw()) }?;
    println!("clFFT waits for us by {}", spectrum.hand_to(&theirs)?);
    plan.backward(app.queue.get(), mem.get(), &[]);

    let words = app.read(&app.queue, &mem, 2 * N);
    let louder: &[Complex32] = cast_slice(&words);
    assert!(louder.iter().zip(&signal).all(|(loud, x)| (loud - x * 2.0).norm() < 1e-4));
    println!("and transformed back: every sample is twice what it was");
    println!("{}", hub.ledger());
    Ok(())
}

/// Returns a device of a platform other than the application's, or the host if there is none.
fn second_platform(hub: &Hub, app: &ClassA) -> Device {
    let mut devices = hub.select("opencl").into_iter();
    devices.find(|device| device.info().platform != app.platform).unwrap_or_else(|| hub.host())
}

fn double(device: &Device, x: &onebuf::Buffer<Complex32>) -> Result<()> {
    let source = Source::opencl_c(TEXT).with_native("gain", |args| {
        let by = args.value::<f32>(1)?;
        args.slice_mut::<Complex32>(0)?.iter_mut().for_each(|x| *x *= by);
        Ok(())
    });
    // SAFETY: work-item i touches x[i] only.
    let gain = unsafe { device.kernel::<(Each<&mut Complex32>, f32)>(source, "gain")? };
    gain.launch([x.len()], (x, 2.0))
}
