//! What a kernel makes of memory that another API allocated and OpenCL imported, beside OpenCL's own.
//!
//! # Safety
//! One kernel is declared here; its text is below.

#![allow(unsafe_code)]

use crate::{Bar, Bench, Case, Row, Stop, Unit, Workload, abba::compare};
use onebuf::{
    Access, Buffer, Call, Device, Error, Grid, Kernel, Queue, Result, RouteKind, Signature, Source,
    Strategy, args,
};
use std::{cell::Cell, time::Instant};

const NAME: &str = "imported_bandwidth_ratio";

/// One work-item's share, and a group.
type Four = [u32; 4];
const GROUP: usize = 64;

/// Launches in one measurement: enough that the wait for them does not show.
const BATCH: u32 = 16;

const TEXT: &str = "kernel void step(global uint4 *x) { x[get_global_id(0)] += 1; }";

pub const WORKLOAD: Workload = Workload {
    name: NAME,
    about: "a kernel's bandwidth on memory imported by a file descriptor, over OpenCL's own",
    cases,
};

fn cases(bench: &Bench) -> Vec<Case> {
    let topology = bench.hub.topology();
    let api = |device| topology.node(device).info.api.0;
    let by_fd = topology.routes().iter().filter(|route| {
        route.kind == RouteKind::OpaqueFd && api(route.to) == "opencl" && route.from != route.to
    });
    let id = |device| topology.node(device).id.clone();
    let pairs: Vec<[String; 2]> = by_fd.map(|route| [id(route.from), id(route.to)]).collect();
    let Some([from, to]) = pairs.into_iter().next() else {
        let why = "OpenCL devices that import another API's memory by a file descriptor: found 0";
        return vec![Case::absent(NAME, why)];
    };
    vec![Case::new(NAME, move |bench| {
        run(bench, &[bench.hub.device(&from)?, bench.hub.device(&to)?])
    })]
}

fn run(bench: &Bench, [from, to]: &[Device; 2]) -> Result<Row, Stop> {
    let count = (bench.bytes / size_of::<Four>()).next_multiple_of(GROUP).max(GROUP);
    let imported = bench.hub.buffer::<Four>(count).shared_with([from, to]).trust_declared(true);
    let imported = imported.allocate_on(from).route(RouteKind::OpaqueFd);
    imported.plan().map_err(|error| Stop::Absent(error.to_string()))?;
    let native = bench.hub.buffer::<Four>(count).shared_with([to]).allocate_on(to);
    let sides = [imported.build()?, native.strategy(Strategy::Device).build()?];
    let sides = sides.map(|buffer| Side { buffer, steps: Cell::new(0) });
    let (queue, step) = (to.queue()?, kernel(to)?);
    let found =
        compare(bench.effort, || sides[0].batch(&queue, &step), || sides[1].batch(&queue, &step))?;
    sides.iter().try_for_each(Side::check)?;
    // Every byte is read and written.
    let bytes = 2 * (count * size_of::<Four>()) as u64;
    let row = found.row(NAME, Unit::GbPerS(bytes)).bar(Bar::RatioAtLeast(0.99));
    Ok(row.remark(format!("memory of {from} on {to}")))
}

fn kernel(device: &Device) -> Result<Kernel> {
    let fits = |call: &Call<'_>| match call.global() {
        [items, 1, 1] if items <= call.len(0) => Ok(()),
        _ => Err("more work-items than the buffer has elements".into()),
    };
    let signature = Signature::new().buffer::<Four>(Access::ReadWrite).require(fits);
    // SAFETY: work-item i touches element i only, and `fits` checks that there is one.
    unsafe { device.program(&Source::opencl_c(TEXT))?.kernel("step", signature) }
}

struct Side {
    buffer: Buffer<Four>,
    steps: Cell<u32>,
}

impl Side {
    /// Nanoseconds per launch.
    fn batch(&self, queue: &Queue, step: &Kernel) -> Result<f64> {
        let clock = Instant::now();
        for _ in 0..BATCH {
            let grid = Grid::from([self.buffer.len()]).local([GROUP]);
            queue.launch(step, grid, args![self.buffer.write_on(queue)?])?;
        }
        queue.finish()?;
        self.steps.set(self.steps.get().wrapping_add(BATCH));
        Ok(clock.elapsed().as_nanos() as f64 / f64::from(BATCH))
    }

    /// Whether every launch changed every element: buffers begin as zeroes.
    fn check(&self) -> Result<()> {
        match self.buffer.to_vec()?.iter().all(|four| *four == [self.steps.get(); 4]) {
            true => Ok(()),
            false => Err(Error::invalid("the kernel that was measured did not step everywhere")),
        }
    }
}
