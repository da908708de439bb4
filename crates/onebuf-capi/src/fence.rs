//! Fences
//!
//! A fence is a point that work reaches. Ask it, wait for it with a timeout, or let a queue wait for it.

use crate::{
    entry::{entry, free},
    handle::{Noun, noun},
    input::{Slot, out, timeout},
    status::onebuf_status,
    words::{self, onebuf_sync_method},
};
use onebuf::Fence;
use std::time::Duration;

/// A fence. Free it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_fence {
    /// Zero names nothing.
    pub id: u64,
}
noun!(onebuf_fence, Fence, 9);

/// When a launch ran, in nanoseconds of its device's clock. Only differences mean something.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_profile {
    /// It was enqueued.
    pub queued_ns: u64,
    /// It was handed to the device.
    pub submitted_ns: u64,
    /// It began to run.
    pub started_ns: u64,
    /// It ended.
    pub ended_ns: u64,
}

impl crate::input::Blank for onebuf_profile {
    fn blank() -> Self {
        Self { queued_ns: 0, submitted_ns: 0, started_ns: 0, ended_ns: 0 }
    }
}

/// Whether the work is done. When the work failed, the status says how.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_fence_poll(fence: onebuf_fence, done: Slot<'_, bool>) -> onebuf_status {
    entry(|| {
        *out(done, "done")? = fence.get()?.is_done()?;
        Ok(())
    })
}

/// Waits until the work is done. ONEBUF_TIMEOUT when it takes longer; the work goes on.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_fence_wait(fence: onebuf_fence, timeout_ms: u64) -> onebuf_status {
    entry(|| {
        let fence = fence.get()?;
        match timeout(timeout_ms) {
            Some(timeout) => Ok(fence.wait(timeout)?),
            None => Ok(fence.wait_default()?),
        }
    })
}

/// The same, for a timeout in nanoseconds: for callers who wait for less than a millisecond.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_fence_wait_ns(fence: onebuf_fence, timeout_ns: u64) -> onebuf_status {
    entry(|| Ok(fence.get()?.wait(Duration::from_nanos(timeout_ns))?))
}

/// The sync method by which the fence orders, or ordered, what comes after it.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_fence_sync_method(
    fence: onebuf_fence,
    sync_method: Slot<'_, onebuf_sync_method>,
) -> onebuf_status {
    entry(|| {
        *out(sync_method, "sync_method")? = words::sync_method_number(fence.get()?.sync_method());
        Ok(())
    })
}

/// When the work ran: for the fence of one launch, on a queue opened for profiling, once it is done.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_fence_profile(
    fence: onebuf_fence,
    profile: Slot<'_, onebuf_profile>,
) -> onebuf_status {
    entry(|| {
        let profile = out(profile, "profile")?;
        let onebuf::Profile { queued_ns, submitted_ns, started_ns, ended_ns } =
            fence.get()?.profile()?;
        *profile = onebuf_profile { queued_ns, submitted_ns, started_ns, ended_ns };
        Ok(())
    })
}

/// Frees a fence. The work goes on.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_fence_free(fence: onebuf_fence) -> onebuf_status {
    free(fence)
}
