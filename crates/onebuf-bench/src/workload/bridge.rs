//! Bridge copies compared with hand-written C calls: through a pointer, and between two platforms.
//!
//! # Safety
//! Queues are passed to raw C calls.

#![allow(unsafe_code)]

use super::{absent, per_platform};
use crate::{
    Bar, Bench, Case, RawCopy, RawWrite, Row, Stop, Unit, Workload, abba::compare, platforms,
};
use onebuf::{Buffer, Device, Error, MemoryKind, Result, RouteKind, bridge};
use std::{cell::RefCell, time::Instant};

const ALIASED_NAME: &str = "bridge_aliased_ratio";
const STAGED_NAME: &str = "bridge_staged_ratio";

pub const ALIASED: Workload = Workload {
    name: ALIASED_NAME,
    about: "a bridge copy from memory that the host accesses in place, over a blocking write from it",
    cases: |bench| per_platform(bench, ALIASED_NAME, aliased),
};

pub const STAGED: Workload = Workload {
    name: STAGED_NAME,
    about: "a bridge copy between two platforms, over a blocking read and a blocking write",
    cases: |bench| match <[Device; 2]>::try_from(first_two(bench)) {
        Ok(pair) => vec![Case::new(STAGED_NAME, move |bench| staged(bench, &pair))],
        Err(_) => vec![absent(bench, STAGED_NAME, 2)],
    },
};

fn first_two(bench: &Bench) -> Vec<Device> {
    platforms(&bench.hub).into_iter().take(2).collect()
}

/// Allocates memory of one device alone.
fn on(bench: &Bench, device: &Device) -> Result<Buffer<u8>> {
    let memory_kinds = &device.info().caps.memory_kinds;
    let memory_kind = if memory_kinds.contains(&MemoryKind::Device) {
        MemoryKind::Device
    } else {
        memory_kinds[0]
    };
    bench
        .hub
        .buffer(bench.bytes)
        .shared_with([device])
        .allocate_on(device)
        .memory_kind(memory_kind)
        .build()
}

fn aliased(bench: &Bench, device: &Device) -> Result<Row, Stop> {
    let host = bench.hub.host();
    let pages = bench.hub.buffer::<u8>(bench.bytes).shared_with([&host]).build()?;
    // Written first, so that its pages are allocated.
    pages.fill(3)?;
    let target = on(bench, device)?;
    // SAFETY: the hub loaded OpenCL by its default name.
    let raw = unsafe { RawWrite::new(&device.queue()?, bench.bytes)? };
    // Both sides read the same pages: the page size matters more than the code that copies.
    let by_hand = || timed(|| raw.write(&pages.map()?));
    let found = compare(bench.effort, || timed(|| cross(&pages, &target)), by_hand)?;
    check(&target, 3)?;
    Ok(found.row(ALIASED_NAME, Unit::Us).bar(Bar::RatioAtMost(1.05)))
}

fn staged(bench: &Bench, pair: &[Device; 2]) -> Result<Row, Stop> {
    let buffers = [on(bench, &pair[0])?, on(bench, &pair[1])?];
    buffers[0].fill(5)?;
    let queues = [pair[0].queue()?, pair[1].queue()?];
    // SAFETY: the hub loaded OpenCL by its default name.
    let raw = unsafe { RawCopy::new([&queues[0], &queues[1]], bench.bytes)? };
    let raw = RefCell::new(raw);
    let ours = || timed(|| cross(&buffers[0], &buffers[1]));
    let found = compare(bench.effort, ours, || timed(|| raw.borrow_mut().copy(0, 1)))?;
    check(&buffers[1], 5)?;
    let row = found.row(STAGED_NAME, Unit::Us).bar(Bar::RatioAtMost(1.05));
    Ok(row.remark(format!("{} and {}", pair[0], pair[1])))
}

fn cross(from: &Buffer<u8>, to: &Buffer<u8>) -> Result<()> {
    let crossing = bridge::copy(from, .., to, 0)?;
    match crossing.way {
        RouteKind::Same => Err(Error::invalid(format!("{crossing}: not what is measured"))),
        _ => Ok(()),
    }
}

fn timed(copy: impl FnOnce() -> Result<()>) -> Result<f64> {
    let clock = Instant::now();
    copy()?;
    Ok(clock.elapsed().as_nanos() as f64)
}

/// Checks that the measured operation gave the right result.
fn check(buffer: &Buffer<u8>, value: u8) -> Result<()> {
    match buffer.to_vec()?.iter().all(|&byte| byte == value) {
        true => Ok(()),
        false => Err(Error::invalid("the copy that was measured did not copy")),
    }
}
