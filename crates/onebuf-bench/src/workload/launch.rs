//! A launch beside the same launch by the raw C calls, on the same queue and the same `cl_mem`.
//!
//! What a launch through onebuf does more: it takes a view, checks every argument against the signature,
//! and notes where the queue is.
//!
//! # Safety
//! One `cl_mem` is given to raw C calls.

#![allow(unsafe_code)]

use super::per_platform;
use crate::{
    Bar, Bench, RawLaunch, Row, Side, Stop, Unit, Workload, abba::compare, machine::check,
    solo::try_timed,
};
use onebuf::{Device, Result, Strategy};

const NAME: &str = "launch_enqueue_ratio";

/// Launches between two waits: only enqueueing is timed, and no driver's queue grows without end.
const BATCH: u64 = 64;

pub const WORKLOAD: Workload = Workload {
    name: NAME,
    about: "a launch with its view and checks, over the raw C calls",
    cases: |bench| per_platform(bench, NAME, run),
};

fn run(bench: &Bench, device: &Device) -> Result<Row, Stop> {
    let side = Side::new(device)?;
    // A `cl_mem`, for the raw call.
    let wish = bench.hub.buffer::<u32>(1024).shared_with([device]);
    let wish = wish.strategy(Strategy::MappedDevice);
    wish.plan().map_err(|error| Stop::Absent(error.to_string()))?;
    let buffer = wish.build()?;
    let mem = buffer.write_on(&side.queue)?.cl_mem()?;
    // SAFETY: the hub loaded OpenCL by its default name, and the memory is of this queue's context. Only
    // the launches below use it, all on this queue, which is finished after each batch.
    let raw = unsafe { RawLaunch::new(&side.queue, mem)? };
    let batch = |launch: &dyn Fn() -> Result<()>| -> Result<f64> {
        let spent = try_timed(BATCH, launch)?;
        side.queue.finish()?;
        Ok(spent.as_nanos() as f64 / BATCH as f64)
    };
    let found =
        compare(bench.effort, || batch(&|| side.touch(&buffer)), || batch(&|| raw.touch()))?;
    check(&buffer, side.added().wrapping_add(raw.added()))?;
    Ok(found.row(NAME, Unit::Ns).bar(Bar::RatioAtMost(1.05)))
}
