//! Two OpenCL platforms take turns on one buffer: over shared host pages, and by staged copies. OpenCL and CUDA on one
//! chip are in `crossing`.

use super::{absent, crossing};
use crate::{
    Bar, Bench, Case, Row, Side, Stop, Unit, Workload, abba::compare, machine::check, platforms,
};
use onebuf::{Buffer, BufferBuilder, Device, Result, RouteKind, hal::DeviceKind};
use std::time::Instant;

/// The size that the goal is stated for.
const BAR_BYTES: usize = 256 << 20;

pub const WORKLOAD: Workload = Workload {
    name: "handoff_<a>_<b>_ratio",
    about: "a hand-over of shared host pages, over a staged copy; OpenCL to CUDA, over raw C",
    cases,
};

fn cases(bench: &Bench) -> Vec<Case> {
    let (platforms, mut cases) = (platforms(&bench.hub), crossing::cases(bench));
    if platforms.len() < 2 && cases.is_empty() {
        return vec![absent(bench, WORKLOAD.name, 2)];
    }
    let pairs = platforms.iter().enumerate().flat_map(|(number, first)| {
        platforms[number + 1..].iter().map(|second| [first.clone(), second.clone()])
    });
    cases.extend(pairs.map(case));
    cases
}

fn case(pair: [Device; 2]) -> Case {
    let name = format!("handoff_{}_{}_ratio", pair[0], pair[1]);
    Case::new(name.clone(), move |bench| {
        run(bench, &pair).map(|row| Row { name: name.clone(), ..row })
    })
}

fn run(bench: &Bench, pair: &[Device; 2]) -> Result<Row, Stop> {
    // Declared routes are sufficient: a benchmark compares, and `onebuf doctor` proves.
    let builder = bench.hub.buffer::<u32>(bench.bytes.div_ceil(4)).shared_with(pair);
    let builder = builder.trust_declared(true);
    let shared = builder.clone().allocate_on(&bench.hub.host()).route(RouteKind::HostPointer);
    let remark = remark(bench, pair, &shared)?;
    let shared = shared.build()?;
    let staged = builder.allocate_on(&pair[0]).route(RouteKind::Staged).build()?;
    // Separate sides, so that the launches on each buffer can be summed up.
    let sides = || -> Result<[Side; 2]> { Ok([Side::new(&pair[0])?, Side::new(&pair[1])?]) };
    let (for_shared, for_staged) = (sides()?, sides()?);
    let found =
        compare(bench.effort, || round(&for_shared, &shared), || round(&for_staged, &staged))?;
    for (sides, buffer) in [(for_shared, &shared), (for_staged, &staged)] {
        check(buffer, sides[0].added().wrapping_add(sides[1].added()))?;
    }
    let row = found.row("", Unit::Us).remark(remark);
    // The goal: a hundred times as fast without a copy, at a size where copying is slow.
    let cpus = pair.iter().all(|device| device.info().kind == DeviceKind::Cpu);
    Ok(if cpus && bench.bytes >= BAR_BYTES { row.bar(Bar::RatioAtMost(0.01)) } else { row })
}

/// Hands over in both directions; returns nanoseconds per hand-over. A tiny kernel runs at each end and is waited for, because
/// some drivers move nothing before a kernel runs. The time of the same kernel without a hand-over is subtracted.
fn round(sides: &[Side; 2], buffer: &Buffer<u32>) -> Result<f64> {
    let mut sum = 0.0;
    for side in sides {
        let (after_other, after_own) = (turn(side, buffer)?, turn(side, buffer)?);
        sum += after_other - after_own;
    }
    Ok(sum / 2.0)
}

/// Nanoseconds of a launch that is waited for.
fn turn(side: &Side, buffer: &Buffer<u32>) -> Result<f64> {
    let clock = Instant::now();
    side.turn(buffer)?;
    Ok(clock.elapsed().as_nanos() as f64)
}

/// States whether experiments have proven the shared route, or why there is none.
fn remark(
    bench: &Bench,
    pair: &[Device; 2],
    shared: &BufferBuilder<'_, u32>,
) -> Result<&'static str, Stop> {
    shared.plan().map_err(|error| Stop::Absent(error.to_string()))?;
    let host = bench.hub.host().index();
    let proven = |device: &Device| {
        let mut routes = bench.hub.topology().between(host, device.index()).iter();
        let shared = routes.find(|route| route.kind == RouteKind::HostPointer);
        shared.is_some_and(|route| route.verdict.proven_for(bench.bytes as u64))
    };
    Ok(match pair.iter().all(proven) {
        true => "the route is proven",
        false => "the route is declared, not proven: run `onebuf doctor`",
    })
}
