//! One-time costs per program: compilation, and work that drivers defer to the first launch.

use super::per_platform;
use crate::{
    Bench, Row, Side, Stop, Unit, Workload,
    abba::compare,
    distinct_text,
    solo::{self, try_timed},
};
use onebuf::{Device, Result};
use std::time::{Duration, Instant};

const BUILD_NAME: &str = "program_build_ms";
const FIRST_NAME: &str = "first_launch_us";

/// Every build uses a new text, which stays in the driver's own cache, if it has one.
const BUILDS: usize = 15;

pub const BUILD: Workload = Workload {
    name: BUILD_NAME,
    about: "building a program that the driver has never compiled, up to the kernel",
    cases: |bench| per_platform(bench, BUILD_NAME, build),
};

pub const FIRST_LAUNCH: Workload = Workload {
    name: FIRST_NAME,
    about: "the first launch of a new program, over the same launch later",
    cases: |bench| per_platform(bench, FIRST_NAME, first_launch),
};

fn build(bench: &Bench, device: &Device) -> Result<Row, Stop> {
    let queue = device.queue()?;
    let one = |times| -> Result<Duration> {
        let texts: Vec<String> = (0..times).map(|_| distinct_text()).collect();
        let mut texts = texts.into_iter();
        try_timed(times, || Side::build(&queue, texts.next().unwrap_or_default()).map(drop))
    };
    Ok(solo::measure(bench.effort.at_most(BUILDS), one)?.row(BUILD_NAME, Unit::Ms))
}

fn first_launch(bench: &Bench, device: &Device) -> Result<Row, Stop> {
    let buffer = bench.hub.buffer::<u32>(1024).shared_with([device]).build()?;
    let queue = device.queue()?;
    let turn = |side: &Side| -> Result<f64> {
        let clock = Instant::now();
        side.turn(&buffer)?;
        Ok(clock.elapsed().as_nanos() as f64)
    };
    let old = Side::build(&queue, distinct_text())?;
    let first = || turn(&Side::build(&queue, distinct_text())?);
    let found = compare(bench.effort.at_most(BUILDS), first, || turn(&old))?;
    Ok(found.row(FIRST_NAME, Unit::Us))
}
