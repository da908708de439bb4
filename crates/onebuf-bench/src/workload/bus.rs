//! Transfers between the host and each device, and staged hand-overs, over the ceiling of pinned raw copies.
//!
//! # Safety
//! Queues are passed to raw C calls.

#![allow(unsafe_code)]

use super::growth::{affordable, size_name};
use crate::{
    Bar, Bench, Case, Direction, Effort, RawBus, Row, Stop, Unit, Workload, abba::compare,
};
use onebuf::{Buffer, Device, Error, MemoryKind, Pending, Result, RouteKind, bridge};
use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

/// Sizes of transfers, and those for `--quick`, which also measures the size of hand-overs.
const SIZES: [usize; 10] =
    [4, 1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28, 1 << 30];
const QUICK_SIZES: [usize; 2] = [1 << 12, 1 << 24];

/// Sizes below this are reported as times.
const SMALL: usize = 1 << 20;
/// Bars are for transfers of at least this size, over a bus.
const BARRED: usize = 1 << 24;
/// Bytes of a batch, if it has neither the least nor the most transfers.
const BATCH_BYTES: usize = 256 << 20;
/// How long an asynchronous transfer may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum number of bytes that a row measures.
const VOLUME: usize = 32 << 30;

pub const UPLOAD: Workload = Workload {
    name: "upload_<a>_<size>",
    about: "writing an ordinary slice, over a raw copy of pinned memory",
    cases: |bench| cases(bench, UPLOAD.name, Direction::Up, Ceiling::Pinned),
};

pub const DOWNLOAD: Workload = Workload {
    name: "download_<a>_<size>",
    about: "reading into an ordinary slice, over a raw copy to pinned memory",
    cases: |bench| cases(bench, DOWNLOAD.name, Direction::Down, Ceiling::Pinned),
};

pub const UPLOAD_ORDINARY: Workload = Workload {
    name: "upload_ordinary_<a>_<size>",
    about: "writing an ordinary slice, over the driver's own copy of ordinary memory",
    cases: |bench| cases(bench, UPLOAD_ORDINARY.name, Direction::Up, Ceiling::Ordinary),
};

pub const DOWNLOAD_ORDINARY: Workload = Workload {
    name: "download_ordinary_<a>_<size>",
    about: "reading into an ordinary slice, over the driver's own copy to ordinary memory",
    cases: |bench| cases(bench, DOWNLOAD_ORDINARY.name, Direction::Down, Ceiling::Ordinary),
};

pub const UPLOAD_PINNED: Workload = Workload {
    name: "upload_pinned_<a>_<size>",
    about: "copying a buffer in host memory that the device maps, over a raw copy of pinned memory",
    cases: |bench| cases(bench, UPLOAD_PINNED.name, Direction::Up, Ceiling::Both),
};

pub const DOWNLOAD_PINNED: Workload = Workload {
    name: "download_pinned_<a>_<size>",
    about: "copying to a buffer in host memory that the device maps, over a raw copy to pinned memory",
    cases: |bench| cases(bench, DOWNLOAD_PINNED.name, Direction::Down, Ceiling::Both),
};

pub const UPLOAD_ASYNC: Workload = Workload {
    name: "upload_async_<a>_<size>",
    about: "asynchronous writes of ordinary memory, two under way, over a raw copy of pinned memory",
    cases: |bench| cases(bench, UPLOAD_ASYNC.name, Direction::Up, Ceiling::Later),
};

pub const DOWNLOAD_ASYNC: Workload = Workload {
    name: "download_async_<a>_<size>",
    about: "asynchronous reads into ordinary memory, two under way, over a raw copy to pinned memory",
    cases: |bench| cases(bench, DOWNLOAD_ASYNC.name, Direction::Down, Ceiling::Later),
};

pub const STAGED: Workload = Workload {
    name: "staged_<a>_<b>_<size>",
    about: "a staged hand-over, over a raw copy of pinned memory in one direction",
    cases: staged_cases,
};

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ceiling {
    /// Ordinary memory with the raw copy of pinned memory.
    Pinned,
    /// Ordinary memory with the raw copy of ordinary memory.
    Ordinary,
    /// Pinned memory on both sides.
    Both,
    /// Asynchronous transfers of ordinary memory with the raw copy of pinned memory.
    Later,
}

fn sizes(bench: &Bench) -> Vec<usize> {
    let quick = bench.effort == Effort::QUICK;
    let mut all = if quick { QUICK_SIZES.to_vec() } else { SIZES.to_vec() };
    all.push(bench.bytes);
    all.sort_unstable();
    all.dedup();
    // At 256 MiB unless requested otherwise, up to 1 GiB.
    all.retain(|&bytes| bytes <= bench.bytes.saturating_mul(4));
    all
}

fn devices(bench: &Bench) -> Vec<Device> {
    bench.hub.devices().into_iter().filter(|device| device.info().api.0 != "host").collect()
}

fn cases(bench: &Bench, name: &'static str, direction: Direction, rival: Ceiling) -> Vec<Case> {
    let case = |device: &Device, bytes: usize| {
        let name = name.replace("<a>", device.id()).replace("<size>", &size_name(bytes));
        let device = device.clone();
        Case::new(name.clone(), move |bench| {
            let row = run(bench, &device, bytes, direction, rival)?;
            Ok(Row { name: name.clone(), ..row })
        })
    };
    let sizes = sizes(bench);
    let all = devices(bench);
    let all = all.iter().flat_map(|device| sizes.iter().map(move |&bytes| (device, bytes)));
    let all: Vec<Case> = all.map(|(device, bytes)| case(device, bytes)).collect();
    if all.is_empty() {
        vec![Case::absent(name, "devices other than the host: found 0")]
    } else {
        all
    }
}

fn run(
    bench: &Bench,
    device: &Device,
    bytes: usize,
    direction: Direction,
    rival: Ceiling,
) -> Result<Row, Stop> {
    affordable(std::slice::from_ref(device), bytes, 4)?;
    // SAFETY: the hub loaded each API by its default name.
    let raw = unsafe { RawBus::of(&bench.hub, device, bytes) };
    let raw = RefCell::new(raw.map_err(absent)?);
    let target = on_device(bench, device, bytes)?;
    let (mut host, mut theirs) = (stamped(bytes, 1), stamped(bytes, 2));
    target.write(&host)?;
    let effort = effort(bench, bytes);
    let batch = batch(bytes);
    let baseline = || {
        batch.timed(|| match rival {
            Ceiling::Ordinary => raw.borrow_mut().ordinary(direction, &mut theirs),
            Ceiling::Pinned | Ceiling::Both | Ceiling::Later => raw.borrow_mut().pinned(direction),
        })
    };
    let found = if rival == Ceiling::Both {
        let pinned = mapped(bench, device, bytes)?;
        pinned.write(&host)?;
        let copy = || match direction {
            // The host has written: without reading, so that nothing is brought to it first.
            Direction::Up => {
                pinned.map_write(..)?.unmap()?;
                bridge::copy(&pinned, .., &target, 0).map(drop)
            }
            Direction::Down => {
                bridge::copy(&target, .., &pinned, 0)?;
                pinned.map().map(drop)
            }
        };
        let found = compare(effort, || batch.timed(copy), baseline)?;
        let to = if direction == Direction::Up { &target } else { &pinned };
        to.read(&mut host)?;
        found
    } else if rival == Ceiling::Later {
        let other = on_device(bench, device, bytes)?;
        other.write(&host)?;
        let mut two = UnderWay::of([&target, &other], direction, &host);
        let found = compare(effort, || two.timed(batch), baseline)?;
        let [first, second] = two.into_vecs()?;
        check(&first, 1)?;
        host = second;
        if direction == Direction::Up {
            other.read(&mut host)?;
            check(&host, 1)?;
            target.read(&mut host)?;
        }
        found
    } else {
        let mut transfer = || match direction {
            Direction::Up => target.write(&host),
            Direction::Down => target.read(&mut host),
        };
        let found = compare(effort, || batch.timed(&mut transfer), baseline)?;
        if direction == Direction::Up {
            host.fill(0);
            target.read(&mut host)?;
        }
        found
    };
    check(&host, 1)?;
    let row = found.row("", unit(bytes));
    let (pinned, ordinary, driver) = (0.95, 0.8, 1.0);
    Ok(match rival {
        _ if bytes < BARRED || device.info().caps.unified_memory => row,
        Ceiling::Both => row.bar(Bar::RatioAtLeast(pinned)),
        Ceiling::Pinned | Ceiling::Later => row.bar(Bar::RatioAtLeast(ordinary)),
        Ceiling::Ordinary => row.bar(Bar::RatioAtLeast(driver)),
    })
}

fn absent(error: Error) -> Stop {
    match error {
        Error::Unsupported { .. } | Error::Unavailable { .. } => Stop::Absent(error.to_string()),
        error => Stop::Failed(error),
    }
}

fn unit(bytes: usize) -> Unit {
    if bytes < SMALL { Unit::Us } else { Unit::GbPerS(bytes as u64) }
}

fn effort(bench: &Bench, bytes: usize) -> Effort {
    // Four batches a block. Six blocks are needed for an interval.
    let most = (VOLUME / bytes / 4 / batch(bytes).0 as usize).max(6);
    let time = bench.effort.time.min(Duration::from_secs(1));
    Effort { time, ..bench.effort }.at_most(most)
}

/// How many transfers follow each other without a pause. Otherwise each would begin with the GPU's switch to another context, if the
/// baseline is another API's.
#[derive(Clone, Copy)]
struct TransferBatch(u32);

fn batch(bytes: usize) -> TransferBatch {
    TransferBatch((BATCH_BYTES / bytes).clamp(2, 8) as u32)
}

impl TransferBatch {
    /// Nanoseconds per transfer.
    fn timed(self, mut transfer: impl FnMut() -> Result<()>) -> Result<f64> {
        let clock = Instant::now();
        (0..self.0).try_for_each(|_| transfer())?;
        Ok(clock.elapsed().as_nanos() as f64 / f64::from(self.0))
    }
}

/// Two asynchronous transfers in turn, each of its own buffer and vector.
struct UnderWay<'b> {
    direction: Direction,
    sides: [(&'b Buffer<u8>, SideState); 2],
}

/// The vector of a transfer, which owns it while it is under way.
enum SideState {
    Idle(Vec<u8>),
    Moving(Pending<u8>),
}

impl<'b> UnderWay<'b> {
    fn of(buffers: [&'b Buffer<u8>; 2], direction: Direction, host: &[u8]) -> Self {
        Self { direction, sides: buffers.map(|buffer| (buffer, SideState::Idle(host.to_vec()))) }
    }

    /// Nanoseconds per transfer, with the wait for the last ones.
    fn timed(&mut self, TransferBatch(count): TransferBatch) -> Result<f64> {
        let clock = Instant::now();
        (0..count).try_for_each(|number| self.start(number as usize % 2))?;
        self.sides.iter_mut().try_for_each(|(_, side)| side.settle().map(drop))?;
        Ok(clock.elapsed().as_nanos() as f64 / f64::from(count))
    }

    fn start(&mut self, number: usize) -> Result<()> {
        let (buffer, side) = &mut self.sides[number];
        let vec = std::mem::take(side.settle()?);
        *side = SideState::Moving(match self.direction {
            Direction::Up => buffer.write_async(.., vec)?,
            Direction::Down => buffer.read_async(.., vec)?,
        });
        Ok(())
    }

    fn into_vecs(mut self) -> Result<[Vec<u8>; 2]> {
        let [(_, one), (_, two)] = &mut self.sides;
        Ok([std::mem::take(one.settle()?), std::mem::take(two.settle()?)])
    }
}

impl SideState {
    /// Waits for the transfer, if there is one.
    fn settle(&mut self) -> Result<&mut Vec<u8>> {
        if let SideState::Moving(pending) = self {
            *self = SideState::Idle(pending.wait(PATIENCE)?);
        }
        match self {
            SideState::Idle(vec) => Ok(vec),
            SideState::Moving(_) => Err(Error::invalid("a transfer that was waited for")),
        }
    }
}

fn on_device(bench: &Bench, device: &Device, bytes: usize) -> Result<Buffer<u8>> {
    let builder = bench.hub.buffer::<u8>(bytes).shared_with([device]).allocate_on(device);
    match device.info().caps.memory_kinds.contains(&MemoryKind::Device) {
        true => builder.memory_kind(MemoryKind::Device).build(),
        false => builder.build(),
    }
}

/// Host memory that the device accesses itself.
fn mapped(bench: &Bench, device: &Device, bytes: usize) -> Result<Buffer<u8>, Stop> {
    if !device.info().caps.memory_kinds.contains(&MemoryKind::MappedDevice) {
        return Err(Stop::Absent(format!("{device} maps no memory of its own")));
    }
    let builder = bench.hub.buffer::<u8>(bytes).shared_with([device]).allocate_on(device);
    Ok(builder.memory_kind(MemoryKind::MappedDevice).build()?)
}

/// Bytes that differ from page to page.
fn stamped(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|at| stamp(at, seed)).collect()
}

fn stamp(at: usize, seed: usize) -> u8 {
    (at ^ (at >> 12).wrapping_mul(31) ^ seed) as u8
}

fn check(host: &[u8], seed: usize) -> Result<()> {
    match host.iter().enumerate().position(|(at, &byte)| byte != stamp(at, seed)) {
        None => Ok(()),
        Some(at) => Err(Error::invalid(format!("the measured copy is wrong from byte {at} on"))),
    }
}

/// Pairs of devices of different APIs, or of different platforms if there is only one API.
fn pairs(bench: &Bench) -> Vec<[Device; 2]> {
    let all = devices(bench);
    let discrete = |device: &Device| !device.info().caps.unified_memory;
    let mut pairs = Vec::new();
    for (n, a) in all.iter().enumerate() {
        for b in &all[n + 1..] {
            let (one, two) = (a.info(), b.info());
            if one.platform != two.platform || one.api != two.api {
                pairs.push([a.clone(), b.clone()]);
            }
        }
    }
    if pairs.iter().any(|pair| pair.iter().all(discrete)) {
        pairs.retain(|pair| pair.iter().all(discrete));
    }
    pairs
}

fn staged_cases(bench: &Bench) -> Vec<Case> {
    let quick = bench.effort == Effort::QUICK;
    let sizes = sizes(bench).into_iter().filter(|&bytes| bytes >= BARRED);
    let sizes: Vec<usize> = sizes.filter(|&bytes| !quick || bytes == bench.bytes).collect();
    let case = |pair: &[Device; 2], bytes: usize| {
        let name = STAGED.name.replace("<a>", pair[0].id()).replace("<b>", pair[1].id());
        let (name, pair) = (name.replace("<size>", &size_name(bytes)), pair.clone());
        Case::new(name.clone(), move |bench| {
            Ok(Row { name: name.clone(), ..run_staged(bench, &pair, bytes)? })
        })
    };
    let pairs = pairs(bench);
    let all = pairs.iter().flat_map(|pair| sizes.iter().map(move |&bytes| (pair, bytes)));
    let all: Vec<Case> = all.map(|(pair, bytes)| case(pair, bytes)).collect();
    if all.is_empty() { vec![Case::absent(STAGED.name, "pairs of devices: found 0")] } else { all }
}

fn run_staged(bench: &Bench, pair: &[Device; 2], bytes: usize) -> Result<Row, Stop> {
    affordable(pair, bytes, 4)?;
    // SAFETY: the hub loaded each API by its default name.
    let raw = unsafe { RawBus::of(&bench.hub, &pair[1], bytes) };
    let raw = RefCell::new(raw.map_err(absent)?);
    let builder = bench.hub.buffer::<u8>(bytes).shared_with(pair).allocate_on(&pair[0]);
    let buffer = builder.route(RouteKind::Staged).build()?;
    let mut host = stamped(bytes, 1);
    buffer.write(&host)?;
    let queues = [pair[0].queue()?, pair[1].queue()?];
    // Both sides write, so that the other's copy is always outdated.
    let round = || {
        queues.iter().rev().try_for_each(|queue| {
            drop(buffer.write_on(queue)?);
            queue.finish()
        })
    };
    let ceiling = || {
        let mut raw = raw.borrow_mut();
        raw.pinned(Direction::Up)?;
        raw.pinned(Direction::Down)
    };
    let batch = batch(bytes);
    let round = || batch.timed(round).map(|both| both / 2.0);
    let ceiling = || batch.timed(ceiling).map(|both| both / 2.0);
    let found = compare(effort(bench, bytes), round, ceiling)?;
    host.fill(0);
    buffer.read(&mut host)?;
    check(&host, 1)?;
    let row = found.row("", Unit::GbPerS(bytes as u64));
    let unified = pair.iter().any(|device| device.info().caps.unified_memory);
    Ok(if unified { row } else { row.bar(Bar::RatioAtLeast(0.7)) })
}
