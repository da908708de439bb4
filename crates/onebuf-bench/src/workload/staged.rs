//! The staged route compared with a copy written by hand.
//!
//! # Safety
//! Two queues are passed to raw C calls.

#![allow(unsafe_code)]

use super::absent;
use crate::{Bar, Bench, Case, RawCopy, Row, Stop, Unit, Workload, abba::compare, platforms};
use onebuf::{Buffer, Device, Queue, Result, RouteKind};
use std::{cell::RefCell, time::Instant};

const NAME: &str = "staged_ratio";

pub const WORKLOAD: Workload = Workload {
    name: NAME,
    about: "bandwidth of a staged hand-over, over a blocking read and a blocking write",
    cases: |bench| match <[Device; 2]>::try_from(first_two(bench)) {
        Ok(pair) => vec![Case::new(NAME, move |bench| run(bench, &pair))],
        Err(_) => vec![absent(bench, NAME, 2)],
    },
};

fn first_two(bench: &Bench) -> Vec<Device> {
    platforms(&bench.hub).into_iter().take(2).collect()
}

fn run(bench: &Bench, pair: &[Device; 2]) -> Result<Row, Stop> {
    let builder = bench.hub.buffer::<u8>(bench.bytes).shared_with(pair).allocate_on(&pair[0]);
    let buffer = builder.route(RouteKind::Staged).build()?;
    let queues = [pair[0].queue()?, pair[1].queue()?];
    // SAFETY: the hub loaded OpenCL by its default name.
    let raw = unsafe { RawCopy::new([&queues[0], &queues[1]], bench.bytes)? };
    let raw = RefCell::new(raw);
    let found = compare(bench.effort, || round(&queues, &buffer), || raw_round(&raw))?;
    let row = found.row(NAME, Unit::GbPerS(bench.bytes as u64)).bar(Bar::RatioAtLeast(0.95));
    Ok(row.remark(format!("{} and {}", pair[0], pair[1])))
}

/// Hands over in both directions; returns nanoseconds per hand-over. Both sides write, so that the other's copy is always
/// outdated.
fn round(queues: &[Queue; 2], buffer: &Buffer<u8>) -> Result<f64> {
    let clock = Instant::now();
    for queue in queues.iter().rev() {
        drop(buffer.write_on(queue)?);
        queue.finish()?;
    }
    Ok(clock.elapsed().as_nanos() as f64 / 2.0)
}

fn raw_round(raw: &RefCell<RawCopy>) -> Result<f64> {
    let clock = Instant::now();
    let mut raw = raw.borrow_mut();
    raw.copy(0, 1)?;
    raw.copy(1, 0)?;
    Ok(clock.elapsed().as_nanos() as f64 / 2.0)
}
