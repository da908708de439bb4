//! OpenCL and CUDA take turns on one chip's memory, compared with the raw C calls: acquire, launch, release,
//! `clFinish`, launch, and wait for the stream.
//!
//! # Safety
//! Memory of onebuf is passed to raw C calls.

#![allow(unsafe_code)]

use super::pipeline::one_chip;
use crate::{
    Bar, Bench, Case, RawCuda, RawLaunch, Row, Side, Stop, Unit, abba::compare, machine::check,
    solo::try_timed,
};
use onebuf::{Device, Result, RouteKind};

/// Rounds in one measurement.
const BATCH: u64 = 8;

/// A case for every chip that both APIs support.
pub fn cases(bench: &Bench) -> Vec<Case> {
    let is_cuda = |pair: &[Device; 2]| pair[1].info().api.0 == "cuda";
    one_chip(&bench.hub).into_iter().filter(is_cuda).map(case).collect()
}

fn case(pair: [Device; 2]) -> Case {
    let name = format!("handoff_{}_{}_ratio", pair[0], pair[1]);
    Case::new(name.clone(), move |bench| {
        run(bench, &pair).map(|row| Row { name: name.clone(), ..row })
    })
}

fn run(bench: &Bench, pair: &[Device; 2]) -> Result<Row, Stop> {
    let [cl, cuda] = pair;
    let builder = bench.hub.buffer::<u32>(bench.bytes.div_ceil(4)).shared_with(pair);
    let builder = builder.trust_declared(true).allocate_on(cuda).route(RouteKind::OpaqueFd);
    builder.plan().map_err(|error| Stop::Absent(error.to_string()))?;
    // Separate buffers: onebuf does not know what the raw calls do.
    let (ours, theirs) = (builder.clone().build()?, builder.build()?);
    let sides = [Side::new(cl)?, Side::new(cuda)?];
    let mem = theirs.write_on(&sides[0].queue)?.cl_mem()?;
    let at = theirs.write_on(&sides[1].queue)?.cuda_ptr()?;
    // SAFETY: the hub loaded OpenCL by its default name, and the memory is of this queue's context. Only the raw
    // calls below use it until they have finished.
    let raw_cl = unsafe { RawLaunch::new(&sides[0].queue, mem)? };
    // SAFETY: as above, for CUDA.
    let raw_cuda = unsafe { RawCuda::new(&sides[1].queue, at)? };
    let external = raw_cl.external()?;
    let round = || -> Result<()> {
        sides[0].touch(&ours)?;
        sides[1].turn(&ours)
    };
    let raw_round = || -> Result<()> {
        raw_cl.turn_with(&external)?;
        raw_cuda.turn()
    };
    let batch = |round: &dyn Fn() -> Result<()>| -> Result<f64> {
        Ok(try_timed(BATCH, round)?.as_nanos() as f64 / BATCH as f64)
    };
    let found = compare(bench.effort, || batch(&round), || batch(&raw_round))?;
    check(&ours, sides[0].added().wrapping_add(sides[1].added()))?;
    check(&theirs, raw_cl.added().wrapping_add(raw_cuda.added()))?;
    let row = found.row("", Unit::Us).bar(Bar::RatioAtMost(1.05));
    Ok(row.remark("there and back, over the raw C calls"))
}
