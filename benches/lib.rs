//! What the benchmarks have in common; see the files beside this one.
//!
//! `cargo bench -p onebuf-benches`, or `./dev bench`. What needs OpenCL is skipped, with a line that
//! says so, where there is none. The workloads are those of [`onebuf_bench`].

use onebuf::{Device, Hub, Result, doctor::Verdicts, fake::FakeConfig};
use std::io::Write;

/// A hub with so many fake devices. Nothing is remembered, so that every run measures the same.
pub fn hub(fakes: usize) -> Result<Hub> {
    let builder = onebuf::builder().without(["vulkan", "gl"]).verdicts(Verdicts::default());
    (0..fakes).fold(builder, |builder, _| builder.fake(FakeConfig::default())).build()
}

/// One device of each OpenCL platform; none, and a line that says so, when there are too few.
pub fn platforms(hub: &Hub, wanted: usize, bench: &str) -> Vec<Device> {
    let mut found = onebuf_bench::platforms(hub);
    if found.len() < wanted {
        skip(bench, &onebuf_bench::too_few_platforms(hub, wanted));
        return Vec::new();
    }
    found.truncate(wanted);
    found
}

/// Says that a benchmark is left out.
pub fn skip(bench: &str, why: &str) {
    // Where standard error is closed, nobody is there to be told.
    let _ = writeln!(std::io::stderr(), "skip: {bench}: {why}");
}
