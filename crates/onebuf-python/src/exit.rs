//! What the interpreter calls before it ends.

use crate::{ending, log, ranks, root::Root};
use pyo3::prelude::*;
use std::time::{Duration, Instant};

/// How long it waits for the work that was enqueued: drivers are taken down with the process, whether they still work or not.
const WORK: Duration = Duration::from_secs(10);

/// Ends the use of the library by other threads, leaves the other ranks, and waits for work that was enqueued.
#[pyfunction]
pub(crate) fn _end(py: Python<'_>) {
    ending::begin(py);
    log::end(py);
    py.detach(|| {
        ranks::end();
        let start = Instant::now();
        for root in Root::all() {
            root.awake();
            if let Some(fence) = root.buffer.uses() {
                // Work that failed, or takes longer, is left to the driver.
                let _ = fence.wait(WORK.saturating_sub(start.elapsed()));
            }
        }
    });
}
