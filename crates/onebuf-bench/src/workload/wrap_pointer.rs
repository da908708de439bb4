//! What a library does with a CUDA pointer that it is given: query it, launch a kernel on it, wait. Compared with the raw C
//! calls on the same memory and their own stream. The wrap without a kernel is a separate row.
//!
//! # Safety
//! One allocation is passed to raw C calls and to onebuf.

#![allow(unsafe_code)]

use crate::{
    Bar, Bench, Case, RawCuda, Row, Side, Stop, Unit, Workload, abba::compare, machine::check,
    solo::try_timed,
};
use onebuf::{Buffer, Device, Result, prelude::*};

/// Wraps in one measurement.
const BATCH: u64 = 32;
const WORDS: usize = 1024;

pub const WORKLOAD: Workload = Workload {
    name: "wrap_pointer_<a>_ratio",
    about: "a CUDA pointer wrapped, used by one kernel and given back, over the raw C calls",
    cases: |bench| cases(bench, "wrap_pointer", true),
};

pub const WITHOUT_USE: Workload = Workload {
    name: "wrap_pointer_alone_<a>_ratio",
    about: "a CUDA pointer wrapped and given back unused, over querying it",
    cases: |bench| cases(bench, "wrap_pointer_alone", false),
};

fn cases(bench: &Bench, name: &'static str, used: bool) -> Vec<Case> {
    let devices = bench.hub.select("cuda");
    if devices.is_empty() {
        return vec![Case::absent(format!("{name}_<a>_ratio"), "a CUDA device is needed, found 0")];
    }
    let case = |device: Device| {
        let name = format!("{name}_{device}_ratio");
        Case::new(name.clone(), move |bench| {
            run(bench, &device, used).map(|row| Row { name: name.clone(), ..row })
        })
    };
    devices.into_iter().map(case).collect()
}

fn run(bench: &Bench, device: &Device, used: bool) -> Result<Row, Stop> {
    let side = Side::new(device)?;
    // SAFETY: the hub loaded CUDA by its default name. Only the code below uses the memory, one user after the other: dropping a
    // wrap waits for its work, and so does `RawCuda::turn`.
    let raw = unsafe { RawCuda::with_memory(&device.queue()?, WORDS * size_of::<u32>())? };
    let wrap = || -> Result<Buffer<u32>> {
        // SAFETY: the memory is live, and nothing else uses it.
        unsafe { bench.hub.wrap_pointer(device, raw.pointer(), WORDS) }.build()
    };
    let ours: &dyn Fn() -> Result<()> =
        if used { &|| side.touch(&wrap()?) } else { &|| wrap().map(drop) };
    let theirs: &dyn Fn() -> Result<()> =
        if used { &|| raw.query().and_then(|()| raw.turn()) } else { &|| raw.query() };
    let batch = |one: &dyn Fn() -> Result<()>| -> Result<f64> {
        Ok(try_timed(BATCH, one)?.as_nanos() as f64 / BATCH as f64)
    };
    let found = compare(bench.effort, || batch(ours), || batch(theirs))?;
    check(&wrap()?, side.added().wrapping_add(raw.added()))?;
    match used {
        true => Ok(found.row(WORKLOAD.name, Unit::Ns).bar(Bar::RatioAtMost(1.1))),
        false => Ok(found.row(WITHOUT_USE.name, Unit::Ns)),
    }
}
