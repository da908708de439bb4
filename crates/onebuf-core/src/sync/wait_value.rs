//! `wait_value`: the sender's queue writes a number behind its work, and the receiver's queue waits for it in memory.
//!
//! The memory and its words are in [`super::wait_value_words`].

use super::{Join, Method, Pair};
use crate::topology::State;
use onebuf_hal::{Event, FdKind, Result, RouteKind, SyncMethod, locks::Arc};

pub(super) struct WaitValue;

impl Method for WaitValue {
    fn word(&self) -> SyncMethod {
        SyncMethod::WaitValue
    }

    fn can(&self, pair: &Pair<'_>) -> bool {
        let waits = pair.infos().is_some_and(|[_, receiver]| receiver.caps.wait_values);
        waits && !pair.is_foreign() && pair.is_by_descriptor() && shared_by(pair).is_some()
    }

    fn join(&self, join: &mut Join<'_>, event: &Arc<dyn Event>) -> Result<Option<SyncMethod>> {
        let (sender, receiver) = (&join.point.queue_state, join.queue);
        if !sender.is_in_order() || sender.is_foreign {
            return Ok(None);
        }
        let words = join.tables.wait_values.between(join.devices, sender.device, receiver.device);
        let joined = receiver.expect(|| {
            let joined = words.and_then(|words| words.join(sender, receiver));
            joined.map(|()| receiver.note_signal(sender, sender.advance(), receiver.next()))
        });
        if let Err(why) = joined {
            tracing::debug!(%why, "no number to wait for");
            return Ok(None);
        }
        receiver.note_joined(join.point, event);
        Ok(Some(SyncMethod::WaitValue))
    }
}

/// By which descriptor the sender can see the receiver's memory, unless that was refuted.
pub(super) fn shared_by(pair: &Pair<'_>) -> Option<FdKind> {
    let routes = pair.topology.between(pair.receiver, pair.sender).iter();
    let usable = routes.filter(|route| route.verdict.state != State::Refuted);
    usable.map(|route| route.kind).find_map(|kind| match kind {
        RouteKind::OpaqueFd => Some(FdKind::OpaqueFd),
        RouteKind::DmaBuf => Some(FdKind::DmaBuf),
        _ => None,
    })
}
