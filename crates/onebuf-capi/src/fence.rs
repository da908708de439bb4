//! Fences
//!
//! A fence is a point that work on a queue reaches. Query it, wait for it with a timeout, or let a queue wait for it.

use crate::{
    entry::{entry, free},
    handle::{Noun, noun},
    input::{Slot, out, timeout},
    status::onebuf_status,
    words::{self, onebuf_sync_method},
};
use onebuf::Fence;
use std::time::Duration;

/// A fence. Free it with onebuf_fence_free().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_fence {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_fence, Fence, 9);

/// The times of a launch, in nanoseconds of the device's clock. Only differences are meaningful.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_profile {
    /// When it was enqueued.
    pub queued_ns: u64,
    /// When it was submitted to the device.
    pub submitted_ns: u64,
    /// When it started.
    pub started_ns: u64,
    /// When it ended.
    pub ended_ns: u64,
}

impl crate::input::Blank for onebuf_profile {
    fn blank() -> Self {
        Self { queued_ns: 0, submitted_ns: 0, started_ns: 0, ended_ns: 0 }
    }
}

/// Whether the work is done. If the work failed, the status says how.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_fence_poll(fence: onebuf_fence, done: Slot<'_, bool>) -> onebuf_status {
    entry(|| {
        *out(done, "done")? = fence.get()?.is_done()?;
        Ok(())
    })
}

/// Waits until the work is done. ONEBUF_TIMEOUT if it takes longer; the work continues.
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

/// Waits with a timeout in nanoseconds, for callers that wait for less than a millisecond.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_fence_wait_ns(fence: onebuf_fence, timeout_ns: u64) -> onebuf_status {
    entry(|| Ok(fence.get()?.wait(Duration::from_nanos(timeout_ns))?))
}

/// The sync method by which later work is, or was, ordered after the fence.
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

/// When the work ran. Available for the fence of one launch on a queue with profiling, once the launch is done.
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

/// Frees a fence. The work continues.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_fence_free(fence: onebuf_fence) -> onebuf_status {
    free(fence)
}
