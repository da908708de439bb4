//! A launch compared with the same launch by raw C calls, on the same queue and the same `cl_mem`.
//!
//! A launch through onebuf also checks every argument against the signature. The cost of holding the buffer is a
//! separate row: a view is taken for each launch, which also records the queue's progress.
//!
//! # Safety
//! One `cl_mem` is passed to raw C calls.

#![allow(unsafe_code)]

use super::per_platform;
use crate::{
    Bar, Bench, RawLaunch, Row, Side, Stop, Unit, Workload, abba::compare, machine::check,
    solo::try_timed,
};
use onebuf::{Device, MemoryKind, Result};

const HELD: &str = "launch_enqueue_ratio";
const TAKEN: &str = "launch_view_ratio";

/// Launches between two waits: only enqueueing is timed, and the driver's queue stays bounded.
const BATCH: u64 = 64;

pub const WITH_HELD: Workload = Workload {
    name: HELD,
    about: "a launch on a held view with its checks, over the raw C calls",
    cases: |bench| per_platform(bench, HELD, |bench, device| run(bench, device, true)),
};

pub const WITH_TAKEN: Workload = Workload {
    name: TAKEN,
    about: "a launch that takes its own view, over the raw C calls",
    cases: |bench| per_platform(bench, TAKEN, |bench, device| run(bench, device, false)),
};

fn run(bench: &Bench, device: &Device, held: bool) -> Result<Row, Stop> {
    let side = Side::new(device)?;
    // Memory that has a `cl_mem`, for the raw call.
    let builder = bench.hub.buffer::<u32>(1024).shared_with([device]);
    let builder = builder.memory_kind(MemoryKind::MappedDevice);
    builder.plan().map_err(|error| Stop::Absent(error.to_string()))?;
    let buffer = builder.build()?;
    let mem = buffer.write_on(&side.queue)?.cl_mem()?;
    // SAFETY: the hub loaded OpenCL by its default name, and the memory belongs to this queue's context. Only the launches below
    // use it, all on this queue, which is finished after each batch.
    let raw = unsafe { RawLaunch::new(&side.queue, mem)? };
    let batch = |launch: &mut dyn FnMut() -> Result<()>| -> Result<f64> {
        let spent = try_timed(BATCH, launch)?;
        side.queue.finish()?;
        Ok(spent.as_nanos() as f64 / BATCH as f64)
    };
    let theirs = || batch(&mut || raw.touch());
    let found = if held {
        let mut view = buffer.write_on(&side.queue)?;
        compare(bench.effort, || batch(&mut || side.touch_held(&mut view)), theirs)?
    } else {
        compare(bench.effort, || batch(&mut || side.touch(&buffer)), theirs)?
    };
    check(&buffer, side.added().wrapping_add(raw.added()))?;
    match held {
        true => Ok(found.row(HELD, Unit::Ns).bar(Bar::RatioAtMost(1.05))),
        false => Ok(found.row(TAKEN, Unit::Ns)),
    }
}
