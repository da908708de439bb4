//! Pools: successive uses of the same memory, on every pair (on every device: `src/cases/lives.rs`); buffers that never return;
//! limits, waiting, statistics; custom stacks; and how much memory pools waste.

mod account;
mod order;
mod rules;
mod shared;
mod stacks;
mod threads;
mod trace;

use onebuf::{Hub, fake::FakeConfig};
use std::time::Duration;

/// A hub with the host and one fake device.
fn hub(fake: FakeConfig, timeout: Duration) -> Hub {
    let builder =
        onebuf::builder().without(["opencl", "vulkan", "gl"]).verdicts(Default::default());
    builder.fake(fake).timeout(timeout).build().unwrap()
}

/// A hub with the host alone.
fn host() -> Hub {
    onebuf::builder()
        .without(["opencl", "vulkan", "gl"])
        .verdicts(Default::default())
        .build()
        .unwrap()
}
