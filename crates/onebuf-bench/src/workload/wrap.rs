//! What a library does with a `cl_mem` that it is given: query it, retain it, launch a kernel on it, wait, release it.
//! Compared with the raw C calls on the same `cl_mem` and their own queue, because a library that uses onebuf does not
//! give the queue's handle away as well.
//!
//! A wrap does more: it checks whether the memory is wrapped already, plans the routes, and creates the state that
//! orders its users. The wrap without a kernel is a separate row.
//!
//! # Safety
//! One `cl_mem` is passed to raw C calls and to onebuf.

#![allow(unsafe_code)]

use super::per_platform;
use crate::{
    Bar, Bench, RawWrap, Row, Side, Stop, Unit, Workload, abba::compare, machine::check,
    solo::try_timed,
};
use onebuf::{Buffer, Device, ForeignContext, Result, prelude::*};

const USED: &str = "wrap_ratio";
const ALONE: &str = "wrap_alone_ratio";

/// Wraps in one measurement.
const BATCH: u64 = 32;

pub const WORKLOAD: Workload = Workload {
    name: USED,
    about: "a foreign cl_mem wrapped, used by one kernel and given back, over the raw C calls",
    cases: |bench| per_platform(bench, USED, |bench, device| run(bench, device, true)),
};

pub const WITHOUT_USE: Workload = Workload {
    name: ALONE,
    about: "a foreign cl_mem wrapped and given back unused, over querying and retaining it",
    cases: |bench| per_platform(bench, ALONE, |bench, device| run(bench, device, false)),
};

fn run(bench: &Bench, device: &Device, used: bool) -> Result<Row, Stop> {
    let context: ForeignContext = bench.hub.second_context(device)?;
    let side = Side::new(&context.device())?;
    // SAFETY: the hub loaded OpenCL by its default name, and `context` is the queue's. Only the code below uses the memory, one
    // user after the other: dropping a wrap waits for its work, and so does `RawWrap::used`.
    let raw = unsafe { RawWrap::new(&side.queue, context.raw())? };
    // SAFETY: the memory is live, and nothing else uses it.
    let wrap = || -> Result<Buffer<u32>> { unsafe { bench.hub.wrap_buffer(raw.mem()) }.build() };
    let ours: &dyn Fn() -> Result<()> =
        if used { &|| side.touch(&wrap()?) } else { &|| wrap().map(drop) };
    let theirs: &dyn Fn() -> Result<()> = if used { &|| raw.used() } else { &|| raw.unused() };
    let batch = |one: &dyn Fn() -> Result<()>| -> Result<f64> {
        Ok(try_timed(BATCH, one)?.as_nanos() as f64 / BATCH as f64)
    };
    let found = compare(bench.effort, || batch(ours), || batch(theirs))?;
    check(&wrap()?, side.added().wrapping_add(raw.added()))?;
    match used {
        true => Ok(found.row(USED, Unit::Ns).bar(Bar::RatioAtMost(1.1))),
        false => Ok(found.row(ALONE, Unit::Ns)),
    }
}
