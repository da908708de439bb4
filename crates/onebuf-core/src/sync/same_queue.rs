//! `same_queue`: an in-order queue runs after its own earlier work.

use super::{Join, Method, Pair};
use onebuf_hal::{Event, Result, SyncMethod, locks::Arc};

pub(super) struct SameQueue;

impl Method for SameQueue {
    fn word(&self) -> SyncMethod {
        SyncMethod::SameQueue
    }

    fn can(&self, pair: &Pair<'_>) -> bool {
        pair.one_queue
    }

    fn is_limited(&self, _: &Pair<'_>) -> bool {
        false
    }

    fn join(&self, _: &mut Join<'_>, _: &Arc<dyn Event>) -> Result<Option<SyncMethod>> {
        Ok(Some(SyncMethod::SameQueue))
    }
}
