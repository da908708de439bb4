//! `semaphore`: the sender's queue signals a semaphore that the receiver's queue waits on, both on the device.
//!
//! The semaphores themselves are in [`super::semaphores`].

use super::{Events, Join, Method, Pair, semaphores::maker};
use onebuf_hal::{Event, Result, SyncMethod, locks::Arc};

pub(super) struct Semaphore;

impl Method for Semaphore {
    fn word(&self) -> SyncMethod {
        SyncMethod::Semaphore
    }

    /// Not needed if the receiver can wait for the sender's events.
    fn can(&self, pair: &Pair<'_>) -> bool {
        let apart = pair.events == Events::Foreign && !pair.is_foreign();
        apart && pair.is_by_descriptor() && maker(pair).is_some()
    }

    /// Saves an event, which would cost three driver calls and is unlikely to be complete already. Behind a host signal an
    /// event is needed, because only an event reports how the work ended.
    fn join_unmarked(&self, join: &Join<'_>) -> Option<bool> {
        let sender = &join.point.queue_state;
        if sender.hal.has_host_signals() {
            return None;
        }
        if join.queue.is_in_order() && join.queue.is_behind(join.point) {
            return Some(true);
        }
        // Read before the signal: the signal is behind all work noted by now.
        let covered = sender.noted();
        let joined = signal(join);
        if joined {
            join.queue.put_behind(sender.number, covered);
        }
        Some(joined)
    }

    fn join(&self, join: &mut Join<'_>, event: &Arc<dyn Event>) -> Result<Option<SyncMethod>> {
        if !signal(join) {
            return Ok(None);
        }
        join.queue.note_joined(join.point, event);
        Ok(Some(SyncMethod::Semaphore))
    }
}

/// Makes later work wait for a semaphore that the sender signals after all its work so far. Returns false if that is not
/// possible.
fn signal(join: &Join<'_>) -> bool {
    let (sender, receiver) = (&join.point.queue_state, join.queue);
    if !sender.is_in_order() || sender.is_foreign || receiver.is_foreign {
        return false;
    }
    receiver.expect(|| {
        let joined = join.tables.semaphores.join(join.devices, sender, receiver);
        let joined = joined.map(|[sent, taken]| receiver.note_signal(sender, sent, taken));
        joined.inspect_err(|why| tracing::debug!(%why, "no semaphore to wait on")).is_ok()
    })
}
