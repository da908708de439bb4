//! Device memory that other libraries may hand back: buffers that are lent to a device, and arrays that were wrapped. Memory has one
//! state, so an array over memory that is known is a part of that buffer.

use crate::{
    error::{Fault, Result},
    root::Root,
};
use onebuf::Hub;
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

/// By the first address: the address after the last, and the buffer.
static KNOWN: Mutex<BTreeMap<usize, (usize, Weak<Root>)>> = Mutex::new(BTreeMap::new());

fn known() -> MutexGuard<'static, BTreeMap<usize, (usize, Weak<Root>)>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes where the memory of a buffer is, while it is wrapped or lent.
pub(crate) fn add(root: &Arc<Root>, start: usize) {
    let mut all = known();
    // Now and then, those that are gone are left out.
    if all.len() >= 64 && all.len().is_power_of_two() {
        all.retain(|_, (_, root)| root.strong_count() > 0);
    }
    all.insert(start, (start + root.buffer.len(), Arc::downgrade(root)));
}

/// The buffer of the hub that has these bytes, and where its memory begins.
///
/// # Errors
/// If only some of the bytes are known: two buffers would share memory without knowing of each other.
pub(crate) fn find(hub: &Hub, bytes: Range<usize>) -> Result<Option<(Arc<Root>, usize)>> {
    while let Some((start, end, root)) = last_before(bytes.end) {
        // Looked at without the lock: it is taken inside of a buffer's own.
        let Some(root) = root.upgrade().filter(|root| root.is_at(start)) else {
            forget(start);
            continue;
        };
        // Ranges do not overlap, so no other one reaches further.
        if end <= bytes.start {
            return Ok(None);
        }
        let inside = start <= bytes.start && bytes.end <= end;
        if inside && root.buffer.hub().is(hub) {
            return Ok(Some((root, start)));
        }
        let what = match inside {
            true => "belongs to a buffer of another hub",
            false => "overlaps with another buffer",
        };
        return Err(Fault::invalid(format!(
            "the array's memory {what}, which begins at {start:#x}: wrap the larger array once"
        )));
    }
    Ok(None)
}

/// Forgets memory that was given back, unless it was lent again meanwhile.
fn forget(start: usize) {
    let gone = known().remove(&start);
    if let Some(root) = gone.and_then(|(_, root)| root.upgrade()).filter(|root| root.is_at(start)) {
        add(&root, start);
    }
}

/// The last range that begins before an address.
fn last_before(address: usize) -> Option<(usize, usize, Weak<Root>)> {
    let all = known();
    all.range(..address).next_back().map(|(start, (end, root))| (*start, *end, root.clone()))
}
