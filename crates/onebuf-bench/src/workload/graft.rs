//! OpenCL kernels in CUDA streams: a kernel of each API, compared with two CUDA kernels by raw C calls; and the
//! pipeline of `onebuf demo`, compared with CUDA's libraries alone.
//!
//! # Safety
//! Memory of onebuf is passed to raw C calls.

#![allow(unsafe_code)]

use super::pipeline::{check as check_frames, one_chip, round, setup};
use crate::{
    Bar, Bench, Case, RawCuda, Row, Side, Stop, Unit, Workload,
    abba::compare,
    bandwidth::copy_bandwidth,
    machine::{TOUCH, check},
    solo::try_timed,
};
use onebuf::{Complex32, Device, Error, Result};
use onebuf_demo::Pipeline;

/// Rounds in one measurement.
const BATCH: u64 = 8;

pub const HANDOFF: Workload = Workload {
    name: "graft_handoff_<a>_<b>_us",
    about: "an OpenCL and a CUDA kernel in one stream, and a wait, over two raw CUDA launches",
    cases: |bench| cases(bench, HANDOFF.name, run),
};

pub const PIPELINE: Workload = Workload {
    name: "graft_pipeline_<a>_<b>_us",
    about: "a frame through the OpenCL transform and the CUDA product in one stream, over all in CUDA",
    cases: |bench| cases(bench, PIPELINE.name, |bench, pair| run_pipeline(bench, pair, 1)),
};

pub const FRAMES: Workload = Workload {
    name: "graft_frames_<a>_<b>_us",
    about: "the same, frames back to back with one wait",
    cases: |bench| cases(bench, FRAMES.name, |bench, pair| run_pipeline(bench, pair, RING)),
};

/// Frames that go through the stages between two waits. Together they are larger than a GPU's caches.
const RING: usize = 16;

type RunOnPair = fn(&Bench, &[Device; 2]) -> Result<Row, Stop>;

/// Why no graft is possible.
pub(super) const NO_CHIP: &str = "a chip that both OpenCL and CUDA see is needed, found 0";

/// The OpenCL and CUDA devices of every chip that both support.
pub(super) fn chips(bench: &Bench) -> Vec<[Device; 2]> {
    let is_cuda = |pair: &[Device; 2]| pair[1].info().api.0 == "cuda";
    one_chip(&bench.hub).into_iter().filter(is_cuda).collect()
}

/// A case for every such chip.
fn cases(bench: &Bench, name: &'static str, run: RunOnPair) -> Vec<Case> {
    let pairs = chips(bench);
    if pairs.is_empty() {
        return vec![Case::absent(name, NO_CHIP)];
    }
    let case = |pair: [Device; 2]| {
        let name = name.replace("<a>", pair[0].id()).replace("<b>", pair[1].id());
        Case::new(name.clone(), move |bench| {
            run(bench, &pair).map(|row| Row { name: name.clone(), ..row })
        })
    };
    pairs.into_iter().map(case).collect()
}

fn run(bench: &Bench, [cl, cuda]: &[Device; 2]) -> Result<Row, Stop> {
    let queue = cuda.queue()?;
    let buffer = || bench.hub.buffer::<u32>(bench.bytes.div_ceil(4)).shared_with([cuda]).build();
    let (ours, theirs) = (buffer()?, buffer()?);
    let sides = [grafted(cl, &queue)?, Side::build(&queue, TOUCH)?];
    let at = theirs.write_on(&queue)?.cuda_ptr()?;
    // SAFETY: the hub loaded CUDA by its default name, the address is of the queue's device, and only the raw calls
    // use it until they have finished.
    let raw = unsafe { RawCuda::new(&queue, at)? };
    let round = || -> Result<()> {
        sides[0].touch(&ours)?;
        sides[1].turn(&ours)
    };
    let raw_round = || -> Result<()> {
        raw.touch()?;
        raw.turn()
    };
    let batch = |round: &dyn Fn() -> Result<()>| -> Result<f64> {
        Ok(try_timed(BATCH, round)?.as_nanos() as f64 / BATCH as f64)
    };
    let found = compare(bench.effort, || batch(&round), || batch(&raw_round))?;
    check(&ours, sides[0].added().wrapping_add(sides[1].added()))?;
    check(&theirs, raw.added())?;
    let row = found.row("", Unit::Us).bar(Bar::RatioAtMost(1.15));
    Ok(row.remark("two kernels and a wait, over the raw C calls"))
}

/// A driver whose programs cannot be grafted is not a failure.
fn grafted(cl: &Device, queue: &onebuf::Queue) -> Result<Side, Stop> {
    Side::grafted(cl, queue).map_err(absent)
}

/// A missing requirement is not a failure.
pub(super) fn absent(error: Error) -> Stop {
    match error {
        Error::Unsupported { .. } | Error::Unavailable { .. } => Stop::Absent(error.to_string()),
        other => other.into(),
    }
}

/// Nanoseconds per frame, for rounds of this many.
fn run_pipeline(bench: &Bench, pair: &[Device; 2], many: usize) -> Result<Row, Stop> {
    let (setup, cuda) = (setup(bench, pair)?, &pair[1]);
    let shape = setup.shape;
    let builder = bench.hub.buffer::<Complex32>(shape.samples()).shared_with([cuda]);
    let grafted = Pipeline::grafted(pair, setup.clone()).map_err(absent)?;
    let native = Pipeline::open(&[cuda.clone(), cuda.clone()], setup).map_err(absent)?;
    let (ours, theirs) = (grafted.frames(&builder, many)?, native.frames(&builder, many)?);
    check_frames(&grafted, &ours)?;
    check_frames(&native, &theirs)?;
    let found = compare(bench.effort, || round(&grafted, &ours), || round(&native, &theirs))?;
    let remark = format!("{} x {}, {} beams", shape.channels, shape.length, shape.beams);
    let row = found.row("", Unit::Us).of_copy(shape.bytes_moved(), copy_bandwidth(cuda)?);
    Ok(row.bar(Bar::RatioAtMost(1.25)).remark(remark))
}
