//! A view that has nothing to wait for.

use crate::{Bar, Bench, Case, Row, Stop, Unit, Workload, platforms, solo};

const NAME: &str = "view_idle_ns";

pub const WORKLOAD: Workload = Workload {
    name: NAME,
    about: "taking and dropping a read view of an idle buffer",
    cases: |_| vec![Case::new(NAME, run)],
};

fn run(bench: &Bench) -> Result<Row, Stop> {
    let device = platforms(&bench.hub).into_iter().next().unwrap_or_else(|| bench.hub.host());
    let buffer = bench.hub.buffer::<u32>(1024).shared_with([&device]).build()?;
    let queue = device.queue()?;
    buffer.write_on(&queue)?;
    queue.finish()?;
    let view = || buffer.read_on(&queue).map(drop);
    let found = solo::measure(bench.effort, |times| solo::try_timed(times, view))?;
    Ok(found.row(NAME, Unit::Ns).bar(Bar::ValueAtMost(50.0)).remark(device.info().platform.trim()))
}
