//! Leases: a queue that takes the same buffer again needs no lock.
//!
//! Most buffers are used by one queue many times. Once that queue has taken and given back the whole
//! buffer, and no other guard is held, it gets a *lease*: each further guard costs one compare-exchange
//! when taken and one when dropped. Code that needs the buffer's state locks it and *recalls* the lease first:
//! the uses made on the lease are added to the state, and a guard that is held gets a guard entry. When that
//! guard is dropped it finds the word changed, and takes the path with the lock.
//!
//! The word is the queue's key (`QueueState::lease_key`) with three flag bits. The key is mostly the address of the queue
//! state, which [`Settled`](super::state::Settled) keeps alive. All queues of the host share one key, because their work is
//! complete when the call returns: they share a lease, and a use recorded for the wrong one of them is complete anyway.
//! A lease is granted only when no guard entry is left, so a guard whose lease was recalled cannot mistake a later lease
//! for its own.

use super::{guard_entries::GuardEntry, span::Span, state::CoreState};
use crate::queue_state::QueueState;
use onebuf_hal::{
    SyncMethod,
    locks::{Arc, AtomicBool, AtomicU64, Ordering},
};

/// The two low bits: the state of the lease.
const STATE: u64 = 3;
const IDLE: u64 = 1;
const READ: u64 = 2;
const WRITE: u64 = 3;
/// The lease also allows writing.
const MAY_WRITE: u64 = 4;

#[derive(Debug)]
pub(crate) struct Lease {
    /// Zero if there is no lease.
    word: AtomicU64,
    /// The queue point of the last guard that was dropped; zero before the first.
    at: AtomicU64,
    /// Whether a guard on the lease wrote.
    wrote: AtomicBool,
    /// The queue's alias. A guard on the lease may read it, because it changes only with the lease.
    alias: AtomicU64,
}

impl Default for Lease {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self { word: zero(), at: zero(), wrote: AtomicBool::new(false), alias: zero() }
    }
}

fn held(write: bool) -> u64 {
    if write { WRITE } else { READ }
}

impl Lease {
    /// Takes the whole buffer if this queue has a lease that allows it and no guard is held; returns the
    /// alias.
    #[inline]
    pub fn take(&self, queue_state: &Arc<QueueState>, write: bool) -> Option<usize> {
        let word = self.word.load(Ordering::Relaxed);
        let idle = word & !MAY_WRITE == queue_state.lease_key() | IDLE;
        if !idle || (write && word & MAY_WRITE == 0) {
            return None;
        }
        let taken = word & !STATE | held(write);
        self.word.compare_exchange(word, taken, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(self.alias.load(Ordering::Relaxed) as usize)
    }

    /// Gives the buffer back. Returns false if the lease was recalled meanwhile.
    #[inline]
    pub fn give_back(&self, queue_state: &Arc<QueueState>, write: bool) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        if word & !MAY_WRITE != queue_state.lease_key() | held(write) {
            return false;
        }
        self.at.store(queue_state.advance(), Ordering::Relaxed);
        if write {
            self.wrote.store(true, Ordering::Relaxed);
        }
        let idle = word & !STATE | IDLE;
        self.word.compare_exchange(word, idle, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Grants a lease to the queue that took the buffer last, if no guard is held and the buffer is not exposed to another
    /// process. The caller has locked the state and recalled an earlier lease.
    pub fn grant(&self, state: &CoreState) {
        let free = !(state.guard_entries.any() || state.exposed);
        let Some(settled) = state.settled.as_ref().filter(|_| free) else { return };
        self.at.store(0, Ordering::Relaxed);
        self.wrote.store(false, Ordering::Relaxed);
        self.alias.store(settled.alias as u64, Ordering::Relaxed);
        let may_write = if settled.write { MAY_WRITE } else { 0 };
        self.word.store(settled.queue_state.lease_key() | may_write | IDLE, Ordering::Release);
    }

    /// Ends the lease, if there is one, and brings the state up to date. The caller has locked the state.
    pub fn recall(&self, state: &mut CoreState, whole: Span) {
        let word = self.word.load(Ordering::Relaxed);
        if word != 0 {
            self.fold(state, whole);
        }
    }

    #[cold]
    fn fold(&self, state: &mut CoreState, whole: Span) {
        let word = self.word.swap(0, Ordering::AcqRel);
        let Some(settled) = state.settled.take() else { return };
        let at = self.at.load(Ordering::Relaxed);
        if at > 0 {
            let write = self.wrote.load(Ordering::Relaxed);
            let entry = GuardEntry { span: whole, alias: settled.alias, write };
            state.note(&entry, QueueState::point_at(&settled.queue_state, at));
            state.sync_method = SyncMethod::SameQueue;
        }
        if matches!(word & STATE, READ | WRITE) {
            let write = word & STATE == WRITE;
            state.guard_entries.put(GuardEntry { span: whole, alias: settled.alias, write });
        }
        state.settled = Some(settled);
    }
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use onebuf_hal::Error;

    /// The host's queues and maps share a lease, but a guard of one of them still excludes the others.
    #[test]
    fn queues_whose_work_runs_at_once_share_a_lease() {
        let builder = crate::builder().without(["opencl", "cuda", "hip"]);
        let hub = builder.without(["vulkan", "gl"]).build().unwrap();
        let (one, two) = (hub.host().queue().unwrap(), hub.host().queue().unwrap());
        let buffer = hub.buffer::<u32>(1000).build().unwrap();
        drop(buffer.write_on(&one).unwrap());
        let view = buffer.write_on(&two).unwrap();
        let word = buffer.core().lease.word.load(super::Ordering::Relaxed);
        assert_eq!(word & super::STATE, super::WRITE, "on the other's lease");
        drop(view);
        for round in 1..4 {
            let view = buffer.write_on(&two).unwrap();
            assert!(matches!(buffer.write_on(&one), Err(Error::Busy { .. })));
            assert!(matches!(buffer.read_on(&two), Err(Error::Busy { .. })));
            assert!(matches!(buffer.map(), Err(Error::Busy { .. })));
            drop(view);
            let mut map = buffer.map_mut().unwrap();
            assert!(map.iter().all(|x| *x == round - 1));
            map.fill(round);
            assert!(matches!(buffer.read_on(&one), Err(Error::Busy { .. })));
            drop(map);
            let readers = [buffer.read_on(&one).unwrap(), buffer.read_on(&two).unwrap()];
            assert!(matches!(buffer.map_mut(), Err(Error::Busy { .. })));
            drop(readers);
        }
        // There is nothing left to wait for.
        assert!(buffer.uses().is_none_or(|fence| fence.is_done() == Ok(true)));
    }
}
