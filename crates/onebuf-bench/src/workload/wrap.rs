//! What a library does that is handed a `cl_mem`: find out what it is, hold on to it, launch a kernel on it, wait,
//! let go. Beside the same by the raw C calls, on the same `cl_mem` and a queue of their own: a library that has onebuf
//! does not give the queue's handle away as well.
//!
//! What a wrap does more: it finds out whether the memory is wrapped already, plans who sees it how, and has the
//! state that orders its users. The wrap alone, without a kernel, is a row of its own.
//!
//! # Safety
//! One `cl_mem` is given to raw C calls and to onebuf.

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
    about: "a foreign cl_mem wrapped and given back unused, over asking and retaining it",
    cases: |bench| per_platform(bench, ALONE, |bench, device| run(bench, device, false)),
};

fn run(bench: &Bench, device: &Device, used: bool) -> Result<Row, Stop> {
    let context: ForeignContext = bench.hub.second_context(device)?;
    let side = Side::new(&context.device())?;
    // SAFETY: the hub loaded OpenCL by its default name, and that is the queue's context. The memory is used by what follows alone, one after
    // the other: dropping a wrap waits for its work, and so does `RawWrap::used`.
    let raw = unsafe { RawWrap::new(&side.queue, context.raw())? };
    // SAFETY: alive, and used by nobody else.
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
