//! The first calls to drivers are made by one thread at a time, whatever the number of hubs. Two APIs may share a driver, and
//! processes with a HIP runtime over PoCL 6.0 ended when two threads did so: probably the driver lists no devices while it is initialised.

use std::{
    process,
    sync::atomic::{AtomicU32, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

/// The process whose thread has the turn, or `NONE`. Not a lock: a child that is forked meanwhile would inherit it taken, forever.
static OWNER: AtomicU32 = AtomicU32::new(NONE);
const NONE: u32 = 0;
const PAUSE: Duration = Duration::from_millis(1);

/// The right to call drivers for the first time, until it is dropped.
pub(super) struct DiscoveryTurn {
    is_own: bool,
}

impl DiscoveryTurn {
    /// Waits until no other thread of this process has the turn. After `limit` a driver may hang over there; this thread then goes
    /// on beside it, because its own drivers may be others.
    pub fn wait(limit: Duration) -> Self {
        let start = Instant::now();
        while !take(&OWNER) {
            if start.elapsed() >= limit {
                tracing::warn!("another thread does not end its discovery; going on beside it");
                return Self { is_own: false };
            }
            thread::sleep(PAUSE);
        }
        Self { is_own: true }
    }
}

/// Takes the turn unless a thread of this process has it. That of the process that this one was forked from is not here.
fn take(owner: &AtomicU32) -> bool {
    let (now, own) = (owner.load(SeqCst), process::id());
    now != own && owner.compare_exchange(now, own, SeqCst, SeqCst).is_ok()
}

impl Drop for DiscoveryTurn {
    fn drop(&mut self) {
        if self.is_own {
            OWNER.store(NONE, SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_taken_once_in_each_process() {
        let owner = AtomicU32::new(NONE);
        assert!(take(&owner) && !take(&owner));
        owner.store(process::id() + 1, SeqCst);
        assert!(take(&owner), "what a child inherits is not its own");
        assert_eq!(owner.into_inner(), process::id());
    }
}
