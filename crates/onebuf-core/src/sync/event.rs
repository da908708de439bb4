//! `event`: the queue waits for an event of the sender, which its API's contract allows.

use super::{Events, Join, Method, Pair, host_wait};
use onebuf_hal::{Event, Result, SyncMethod, locks::Arc};

pub(super) struct SharedEvent;

impl Method for SharedEvent {
    fn word(&self) -> SyncMethod {
        SyncMethod::Event
    }

    fn can(&self, pair: &Pair<'_>) -> bool {
        pair.events != Events::Foreign
    }

    fn is_limited(&self, pair: &Pair<'_>) -> bool {
        pair.events != Events::OneContext
    }

    fn join(&self, join: &mut Join<'_>, event: &Arc<dyn Event>) -> Result<Option<SyncMethod>> {
        let is_own = event.domain() == join.queue.hal.domain();
        match !is_own && join.pair().is_layered() {
            true => join.queue.note_joined(join.point, event),
            false => join.queue.watch_with(join.point, event),
        }
        if let Some(collected) = join.collected.as_mut() {
            collected.push(event.clone());
            return Ok(Some(SyncMethod::Event));
        }
        match join.queue.hal.wait_for(std::slice::from_ref(event)) {
            Ok(()) => Ok(Some(SyncMethod::Event)),
            Err(error) => host_wait::instead(join, event, &error),
        }
    }
}
