//! Looking up the routes between two devices.

use crate::{Bar, Bench, Case, Row, Stop, Unit, Workload, solo};
use onebuf::{doctor::Verdicts, fake::FakeConfig, topology::DeviceIx};
use std::hint::black_box;

const NAME: &str = "route_lookup_ns";

pub const WORKLOAD: Workload = Workload {
    name: NAME,
    about: "the routes of an ordered pair of devices, from the topology",
    cases: |_| vec![Case::new(NAME, run)],
};

/// A synthetic topology, so that every machine measures the same.
fn run(bench: &Bench) -> Result<Row, Stop> {
    let builder =
        onebuf::builder().without(["opencl", "vulkan", "gl"]).verdicts(Verdicts::default());
    let hub = (0..4).fold(builder, |hub, _| hub.fake(FakeConfig::default())).build()?;
    let topology = hub.topology();
    let lookup = || topology.between(black_box(DeviceIx(0)), black_box(DeviceIx(4))).len();
    let found = solo::measure(bench.effort, |times| Ok::<_, Stop>(solo::timed(times, lookup)))?;
    Ok(found.row(NAME, Unit::Ns).bar(Bar::ValueAtMost(5.0)))
}
