//! Host cost of a hand-over by semaphores: the thread's time in calls for OpenCL → CUDA → OpenCL, without any wait,
//! compared with the raw C calls.
//!
//! # Safety
//! Memory of onebuf is passed to raw C calls.

#![allow(unsafe_code)]

use super::pipeline::one_chip;
use crate::{
    Bar, Bench, Case, RawCuda, RawLaunch, RawSemaphores, Row, Side, Stop, Unit, Workload,
    abba::compare, machine::check, solo::try_timed,
};
use onebuf::{Device, Result, RouteKind, SyncMethod};

/// Rounds that are enqueued before they are waited for; the wait is not timed.
const BATCH: u64 = 8;

const WORDS: usize = 1 << 18;

pub const WORKLOAD: Workload = Workload {
    name: "handoff_host_<a>_<b>_us",
    about: "host time to enqueue an OpenCL and a CUDA kernel, joined by semaphores, over raw C",
    cases,
};

fn cases(bench: &Bench) -> Vec<Case> {
    let is_cuda = |pair: &[Device; 2]| pair[1].info().api.0 == "cuda";
    let pairs: Vec<_> = one_chip(&bench.hub).into_iter().filter(is_cuda).collect();
    if pairs.is_empty() {
        let why = "a chip that both OpenCL and CUDA see is needed, found 0";
        return vec![Case::absent(WORKLOAD.name, why)];
    }
    pairs.into_iter().map(case).collect()
}

fn case(pair: [Device; 2]) -> Case {
    let name = format!("handoff_host_{}_{}_us", pair[0], pair[1]);
    Case::new(name.clone(), move |bench| {
        run(bench, &pair).map(|row| Row { name: name.clone(), ..row })
    })
}

fn run(bench: &Bench, pair: &[Device; 2]) -> Result<Row, Stop> {
    let [cl, cuda] = pair;
    let builder = bench.hub.buffer::<u32>(WORDS).shared_with(pair).trust_declared(true);
    let builder = builder.allocate_on(cuda).route(RouteKind::OpaqueFd).sync(SyncMethod::Semaphore);
    let plan = builder.plan().map_err(|error| Stop::Absent(error.to_string()))?;
    if !plan.routes.iter().any(|hop| hop.sync == SyncMethod::Semaphore) {
        let why = "semaphores between OpenCL and CUDA: a Vulkan driver of the chip makes them";
        return Err(Stop::Absent(why.into()));
    }
    let (ours, theirs) = (builder.clone().build()?, builder.build()?);
    let sides = [Side::new(cl)?, Side::new(cuda)?];
    // Separate queues: onebuf cannot know what is enqueued in a queue whose handle was given away.
    let (cl_queue, cuda_queue) = (cl.queue()?, cuda.queue()?);
    let mem = theirs.write_on(&cl_queue)?.cl_mem()?;
    let at = theirs.write_on(&cuda_queue)?.cuda_ptr()?;
    // SAFETY: the hub loaded OpenCL and CUDA by their default names, and the memory is of these queues' contexts. Only the
    // raw calls below use it until they have finished.
    let (raw_cl, raw_cuda) =
        unsafe { (RawLaunch::new(&cl_queue, mem)?, RawCuda::new(&cuda_queue, at)?) };
    let semaphores = RawSemaphores::new(&raw_cl, &raw_cuda, cl.info().physical)?;
    let batch = |enqueue: &dyn Fn() -> Result<()>, drain: &dyn Fn() -> Result<()>| {
        let spent = try_timed(BATCH, enqueue)?;
        drain().map(|()| spent.as_nanos() as f64 / BATCH as f64)
    };
    // Measured from the end of one OpenCL kernel to the end of the next. onebuf would not wait for work that is known to be done,
    // but the raw calls signal and wait each time.
    let round = || sides.iter().rev().try_for_each(|side| side.touch(&ours));
    let drain = || sides.iter().try_for_each(|side| side.queue.finish());
    let onebuf = || sides[0].touch(&ours).and_then(|()| batch(&round, &drain));
    let raw = || batch(&|| semaphores.round(), &|| semaphores.drain());
    let found = compare(bench.effort, onebuf, raw)?;
    check(&ours, sides[0].added().wrapping_add(sides[1].added()))?;
    check(&theirs, raw_cl.added().wrapping_add(raw_cuda.added()))?;
    let row = found.row("", Unit::Us).bar(Bar::RatioAtMost(1.05));
    Ok(row.remark("OpenCL to CUDA and back, nothing waited for"))
}
