//! The pipeline of `onebuf demo`: delays, window and transform on one device, a matrix product on the other, one buffer
//! between them. Compared with a staged copy between them.

use crate::{Bench, Case, Row, Stop, Unit, Workload, abba::compare, platforms, too_few_platforms};
use onebuf::{Complex32, Device, Error, Hub, Result, RouteKind, hal::DeviceKind};
use onebuf_demo::{Expected, Frame, Interpolator, Pipeline, Setup, Shape};
use std::time::Instant;

/// Frames per switch.
const BATCHES: [usize; 2] = [1, 8];

/// Maximum number of samples of a frame, and the maximum if CPUs compute both stages.
const MOST: usize = 1 << 22;
const MOST_ON_CPUS: usize = 1 << 16;

pub(super) const BEAMS: usize = 16;

/// The order of the interpolator for the delays.
pub(super) const ORDER: usize = 3;

pub const WORKLOAD: Workload = Workload {
    name: "pipeline_<a>_<b>_us",
    about: "a frame through delay, window and fft on a and beams on b, over the same with a staged copy between",
    cases,
};

fn cases(bench: &Bench) -> Vec<Case> {
    let pairs = pairs(&bench.hub);
    if pairs.is_empty() {
        let why = too_few_platforms(&bench.hub, 2);
        let why = format!("{why}; or a chip that both OpenCL and CUDA or HIP see");
        return vec![Case::absent(WORKLOAD.name, why)];
    }
    let both = pairs.into_iter().flat_map(|pair| BATCHES.map(|batch| (pair.clone(), batch)));
    both.map(|(pair, batch)| case(pair, batch)).collect()
}

/// Every chip that two APIs support, or else the first two platforms.
pub(super) fn pairs(hub: &Hub) -> Vec<[Device; 2]> {
    let (platforms, mut found) = (platforms(hub), one_chip(hub));
    if let ([first, second, ..], true) = (&platforms[..], found.is_empty()) {
        found.push([first.clone(), second.clone()]);
    }
    found
}

/// The OpenCL device and the device of another API, for every chip that both support.
pub(super) fn one_chip(hub: &Hub) -> Vec<[Device; 2]> {
    let others = hub.select("cuda").into_iter().chain(hub.select("hip"));
    let opencl = hub.select("opencl");
    let pair = |other: Device| {
        let same = |cl: &&Device| cl.info().physical.same_chip(&other.info().physical);
        Some([opencl.iter().find(same)?.clone(), other])
    };
    others.filter_map(pair).collect()
}

fn case(pair: [Device; 2], batch: usize) -> Case {
    let many = if batch == 1 { String::new() } else { format!("batch{batch}_") };
    let name = format!("pipeline_{}_{}_{many}us", pair[0], pair[1]);
    Case::new(name.clone(), move |bench| {
        run(bench, &pair, batch).map(|row| Row { name: name.clone(), ..row })
    })
}

fn run(bench: &Bench, pair: &[Device; 2], batch: usize) -> Result<Row, Stop> {
    let setup = setup(bench, pair)?;
    let shape = setup.shape;
    let builder = bench.hub.buffer::<Complex32>(shape.samples()).shared_with(pair);
    let direct = builder.clone().trust_declared(true);
    let plan = direct.plan().map_err(|error| Stop::Absent(error.to_string()))?;
    if plan.routes.iter().any(|hop| hop.kind == RouteKind::Staged) {
        return Err(Stop::Absent(format!(
            "no route but a copy between {} and {}",
            pair[0], pair[1]
        )));
    }
    let staged = builder.allocate_on(&pair[0]).route(RouteKind::Staged);
    let pipeline = match Pipeline::open(pair, setup) {
        Err(missing @ Error::Unavailable { .. }) => return Err(Stop::Absent(missing.to_string())),
        opened => opened?,
    };
    let ways = [pipeline.frames(&direct, batch)?, pipeline.frames(&staged, batch)?];
    for frames in &ways {
        check(&pipeline, frames)?;
    }
    let found =
        compare(bench.effort, || round(&pipeline, &ways[0]), || round(&pipeline, &ways[1]))?;
    let remark = format!("{} x {}, {} beams", shape.channels, shape.length, shape.beams);
    Ok(found.row("", Unit::Us).remark(remark))
}

pub(super) fn setup(bench: &Bench, pair: &[Device; 2]) -> Result<Setup> {
    let cpus = pair.iter().all(|device| device.info().kind == DeviceKind::Cpu);
    let most = if cpus { MOST_ON_CPUS } else { MOST };
    let asked = (bench.bytes / size_of::<Complex32>()).clamp(4, most);
    let shape = Shape::of(1 << asked.ilog2(), BEAMS).map_err(Error::invalid)?;
    Ok(Setup::new(shape, Interpolator::new(ORDER).map_err(Error::invalid)?))
}

/// Nanoseconds per frame. Repeated transforms must stay finite, so the input is zero.
pub(super) fn round(pipeline: &Pipeline, frames: &[Frame]) -> Result<f64> {
    pipeline.prepare(frames)?;
    let clock = Instant::now();
    pipeline.run(frames)?;
    Ok(clock.elapsed().as_nanos() as f64 / frames.len() as f64)
}

/// Checks the result, because a wrong result makes the measurement void. Leaves zeroes.
pub(super) fn check(pipeline: &Pipeline, frames: &[Frame]) -> Result<()> {
    let samples: Vec<Complex32> = (0..pipeline.shape().samples())
        .map(|i| Complex32::new((i * 7 % 23) as f32 - 11.0, (i * 5 % 19) as f32 - 9.0))
        .collect();
    let expected = Expected::of(&pipeline.setup, &samples);
    frames.iter().try_for_each(|frame| frame.signal.write(&samples))?;
    pipeline.run(frames)?;
    for frame in frames {
        let error = expected.max_rel_error(&frame.beams.to_vec()?);
        if error.is_nan() || error > 1e-4 {
            return Err(Error::unsupported(
                "measuring a pipeline whose result is wrong",
                format!(
                    "beams that are right, not off by {error:.1e}: try `onebuf doctor --fresh`"
                ),
            ));
        }
        frame.signal.fill(Complex32::ZERO)?;
    }
    Ok(())
}
