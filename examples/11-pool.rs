//! 11. Pools: reusing buffers instead of allocating new ones.
//!
//! `cargo run -p onebuf-examples --example 11-pool`

use onebuf::{
    Error, Pool, Result,
    pool::{FreeLists, Fresh, Leaks, Limit, SizeClasses},
};

const FRAME: usize = 1 << 16;

fn main() -> Result<()> {
    let hub = onebuf::discover()?;
    let device = hub.device("opencl").unwrap_or_else(|missing| {
        println!("{missing}");
        hub.host()
    });

    // A builder is the request. The pool builds a buffer only if none is idle.
    let frame = hub.buffer::<f32>(FRAME).shared_with([&device]);
    let pool = Pool::new(&hub);
    pool.prepare(&frame, 2)?; // so that the loop below allocates nothing

    let queue = device.queue()?;
    for number in 0..100 {
        // The contents are those of the previous use; `get_cleared` returns zeroes.
        let samples = pool.get(&frame)?;
        samples.fill(number as f32)?;
        drop(samples.read_on(&queue)?);
        // Dropping returns the buffer with the fences of its pending work. The next user waits for that
        // work; this thread does not.
    }
    let statistics = pool.statistics();
    println!("on {device}: {statistics}");
    assert_eq!(statistics.made, 2);

    // A pool is a stack of layers. This one has a limit and reports buffers that were not returned.
    let resource =
        Leaks::new(SizeClasses(FreeLists::new(Limit::new(Fresh::default(), 4 * 4 * FRAME as u64))));
    let pool = Pool::over(&hub, resource);
    let mut frames = Vec::new();
    let full = loop {
        match pool.get(&frame) {
            Ok(frame) => frames.push(frame),
            Err(error @ Error::OutOfMemory { .. }) => break error,
            Err(error) => return Err(error),
        }
    };
    println!("after {} frames: {full}", frames.len());
    println!("{}", pool.statistics().leak_report());

    drop(frames);
    println!("trimmed {} bytes", pool.trim(0));
    Ok(())
}
