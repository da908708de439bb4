//! 8. Several queues, out-of-order queues, fences between queues, and profiling.
//!
//! `cargo run -p onebuf-examples --example 08-queues-and-profiles`

use onebuf::{Each, Error, QueueSpec, Result, Source, prelude::*};
use std::time::Duration;

const N: usize = 1 << 18;
const TEXT: &str = "kernel void add(global uint *x, uint n) { x[get_global_id(0)] += n; }";

fn main() -> Result<()> {
    let hub = onebuf::discover()?;
    let device = hub.device("opencl").unwrap_or_else(|missing| {
        println!("{missing}");
        hub.host()
    });
    let source = Source::opencl_c(TEXT).with_native("add", |args| {
        let n = args.value::<u32>(1)?;
        args.slice_mut::<u32>(0)?.iter_mut().for_each(|x| *x += n);
        Ok(())
    });
    // SAFETY: item i touches x[i] only.
    let add = unsafe { device.kernel::<(Each<&mut u32>, u32)>(source, "add")? };
    let buffer = || hub.buffer::<u32>(N).shared_with([&device]).build();

    // A pool of queues for many jobs. Buffers order the work, so any queue can be used: the next in turn,
    // or the least busy one.
    let pool = device.queues(3, QueueSpec::default())?;
    let sum = buffer()?;
    for n in 1..=9 {
        add.launch_on(&pool.round_robin(), [N], (&sum, n))?;
    }
    add.launch_on(&pool.least_busy(), [N], (&sum, 10))?;
    assert_eq!(sum.map()?[N - 1], 55);
    println!("on {device}: ten launches on three queues, and the sum is 55");

    // On an out-of-order queue independent chains may overtake each other; within a chain the buffer keeps
    // the order. A driver without such queues returns `Unsupported`.
    match device.queue_with(QueueSpec::out_of_order()) {
        Ok(queue) => {
            let chains = [buffer()?, buffer()?];
            for n in 0..10 {
                add.launch_on(&queue, [N], (&chains[n % 2], n as u32))?;
            }
            println!("out of order: {} and {}", chains[0].map()?[0], chains[1].map()?[0]);
        }
        Err(Error::Unsupported { what, needs }) => println!("no {what}: it needs {needs}"),
        Err(error) => return Err(error),
    }

    // A queue can wait for a fence of any other queue, also of another device, by the best available sync method.
    let (first, second) = (device.queue()?, hub.host().queue()?);
    add.launch_on(&first, [N], (&sum, 1))?;
    println!("the host's queue waits by {}", second.wait_for(&first.fence())?);

    // A queue opened for profiling records when each launch ran, by the device's clock.
    let timed = device.queue_with(QueueSpec::default().profiled())?;
    let fence = add.launch_fenced(&timed, [N], (&sum, 1))?;
    fence.wait(Duration::from_secs(60))?;
    match fence.profile() {
        Ok(times) => println!("it waited {:?} and ran {:?}", times.waited(), times.run()),
        Err(error) => println!("no times: {error}"),
    }
    Ok(())
}
