//! Pools: lives one after the other in the same memory, on every pair (on every device: `src/cases/lives.rs`); the rules about what
//! never comes back; limits, waiting, statistics; stacks of anybody's; and how much memory is lost to them.

mod account;
mod order;
mod rules;
mod shared;
mod stacks;
mod threads;
mod trace;

use onebuf::{Hub, fake::FakeConfig};
use std::time::Duration;

/// A hub of the host and one fake device.
fn hub(fake: FakeConfig, timeout: Duration) -> Hub {
    let builder =
        onebuf::builder().without(["opencl", "vulkan", "gl"]).verdicts(Default::default());
    builder.fake(fake).timeout(timeout).build().unwrap()
}

/// The host alone.
fn host() -> Hub {
    onebuf::builder()
        .without(["opencl", "vulkan", "gl"])
        .verdicts(Default::default())
        .build()
        .unwrap()
}
