//! 12. Programs: loaded from a file, built once, cached for the next process, and warmed up.
//!
//! `cargo run -p onebuf-examples --example 12-programs`

use onebuf::{Each, Result, Source, args, prelude::*};
use std::time::Instant;

const N: usize = 1 << 14;
/// Beside this file. `Source::from_file` detects text and SPIR-V.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scale.cl");

fn main() -> Result<()> {
    let hub = onebuf::discover()?;
    let device = hub.device("opencl").unwrap_or_else(|missing| {
        println!("{missing}");
        hub.host()
    });
    let source = Source::from_file(FILE)?.with_native("scale", |args| {
        let by = args.value::<f32>(1)?;
        args.slice_mut::<f32>(0)?.iter_mut().for_each(|x| *x *= by);
        Ok(())
    });

    // Built now, or loaded from the cache folder if an earlier run stored the driver's binary there. Run
    // this example twice to see both; `onebuf cache info` shows the cache.
    let program = device.program(&source)?;
    println!(
        "on {device}: the program came from {:?} in {:?}",
        program.origin(),
        program.build_time()
    );
    // The same source again returns the same program, without a build.
    println!("asked again: from {:?}", device.program(&source)?.origin());

    // SAFETY: item i touches x[i] only.
    let scale = unsafe { program.typed::<(Each<&mut f32>, f32)>("scale")? };

    // Drivers postpone work to the first use. Do it here and not in a frame with a deadline:
    // `Program::warm_up` creates the kernels, `Queue::warm_up` launches once and waits.
    let kernels = program.warm_up()?;
    let (queue, x) = (device.queue()?, hub.buffer::<f32>(N).shared_with([&device]).build()?);
    x.fill(1.0)?;
    let first = queue.warm_up(&scale, [N], args![&x, 2.0f32])?;
    println!("{kernels} kernels made, the first launch took {first:?}");

    const LAUNCHES: u32 = 20;
    let clock = Instant::now();
    for _ in 0..LAUNCHES {
        scale.launch_on(&queue, [N], (&x, 1.0))?;
    }
    queue.finish()?;
    println!("in steady state a launch takes {:?}", clock.elapsed() / LAUNCHES);
    assert!(x.map()?.iter().all(|&x| x == 2.0));
    Ok(())
}
