//! Helpers shared by the benchmarks in this folder.
//!
//! `cargo bench -p onebuf-benches`, or `./dev bench`. Without OpenCL, benchmarks that need it are
//! skipped with a message. The workloads are those of [`onebuf_bench`].

use onebuf::{Device, Hub, Result, doctor::Verdicts, fake::FakeConfig};
use std::io::Write;

/// Builds a hub with `fakes` fake devices and without stored verdicts, so that every run measures the same.
pub fn hub(fakes: usize) -> Result<Hub> {
    let builder = onebuf::builder().without(["vulkan", "gl"]).verdicts(Verdicts::default());
    (0..fakes).fold(builder, |builder, _| builder.fake(FakeConfig::default())).build()
}

/// Returns one device of each of `wanted` OpenCL platforms; none, after a printed skip, if there are too few.
pub fn platforms(hub: &Hub, wanted: usize, bench: &str) -> Vec<Device> {
    let mut found = onebuf_bench::platforms(hub);
    if found.len() < wanted {
        skip(bench, &onebuf_bench::too_few_platforms(hub, wanted));
        return Vec::new();
    }
    found.truncate(wanted);
    found
}

/// Prints that a benchmark is skipped.
pub fn skip(bench: &str, why: &str) {
    // An error means that standard error is closed, so there is nowhere to report it.
    let _ = writeln!(std::io::stderr(), "skip: {bench}: {why}");
}
