//! Getting a buffer from a warm pool, and returning it.

use crate::{Bar, Bench, Case, Row, Stop, Unit, Workload, platforms, solo};
use onebuf::Pool;

const NAME: &str = "pool_get_put_ns";
const BYTES: usize = 1 << 20;

pub const WORKLOAD: Workload = Workload {
    name: NAME,
    about: "a buffer of 1 MiB from a warm pool and back, on OpenCL or else the host",
    cases: |_| vec![Case::new(NAME, run)],
};

fn run(bench: &Bench) -> Result<Row, Stop> {
    let device = platforms(&bench.hub).into_iter().next().unwrap_or_else(|| bench.hub.host());
    let pool = Pool::new(&bench.hub);
    let builder = bench.hub.buffer::<u8>(BYTES).shared_with([&device]);
    pool.prepare(&builder, 1)?;
    let get_put = || pool.get(&builder).map(drop);
    let found = solo::measure(bench.effort, |times| solo::try_timed(times, get_put))?;
    let row = found.row(NAME, Unit::Ns).bar(Bar::ValueAtMost(100.0));
    Ok(row.remark(device.info().platform.trim()))
}
