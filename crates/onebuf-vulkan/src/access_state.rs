//! Queue family ownership of memory that others access by a descriptor.
//!
//! Between two uses such memory belongs to `VK_QUEUE_FAMILY_EXTERNAL`. A batch that uses it acquires it first and releases it at
//! its end. If the application submits to a queue of the device, too, its own commands need the ownership as well, and are in no
//! batch of onebuf: then the memory has an access state, which the hand-over changes.

use super::{device::Context, memory::Inner, queue::RawQueue};
use onebuf_hal::{
    AccessState, Result,
    locks::{Arc, Mutex, lock},
};

/// How a memory's ownership is transferred.
#[derive(Debug)]
pub(super) enum Ownership {
    /// Only this device uses the memory.
    Fixed,
    /// Each batch acquires and releases it.
    ByBatch,
    /// The hand-over acquires and releases it.
    ByState(Mutex<AccessState>),
}

impl Ownership {
    /// The ownership of memory that others access. Memory that others created belongs to them at first.
    pub fn external(context: &Context, is_theirs: bool) -> Ownership {
        let first = if is_theirs { AccessState::Released } else { AccessState::Acquired };
        match context.shared_lane() {
            Some(_) => Ownership::ByState(Mutex::new(first)),
            None => Ownership::ByBatch,
        }
    }

    pub fn state(&self) -> Option<AccessState> {
        match self {
            Ownership::ByState(state) => Some(*lock(state)),
            Ownership::Fixed | Ownership::ByBatch => None,
        }
    }

    pub fn is_by_batch(&self) -> bool {
        matches!(self, Ownership::ByBatch)
    }
}

/// Enqueues the transfers that change the access state. Returns whether there were any. `SharedRead` is a release, which makes
/// writes visible, and an acquire.
pub(super) fn reside(inner: &Arc<Inner>, queue: &RawQueue, to: AccessState) -> Result<bool> {
    let Ownership::ByState(state) = &inner.ownership else { return Ok(false) };
    let mut now = lock(state);
    if *now == to {
        return Ok(false);
    }
    let releases = *now == AccessState::Acquired || to == AccessState::Released;
    let acquires = to != AccessState::Released && (releases || *now == AccessState::Released);
    let steps: Vec<bool> = [(releases, false), (acquires, true)]
        .into_iter()
        .filter_map(|(needed, take)| needed.then_some(take))
        .collect();
    if !steps.is_empty() {
        queue.transfer_ownership(inner, &steps)?;
    }
    *now = to;
    Ok(!steps.is_empty())
}
