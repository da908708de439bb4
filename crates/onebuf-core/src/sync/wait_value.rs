//! `wait_value`: the sender's queue writes a value to memory after its work, and the receiver's queue waits for it.
//!
//! The memory and its words are in [`super::wait_value_words`].

use super::{Join, Method, Pair, wait_value_words::shared_by};
use onebuf_hal::{Event, Result, SyncMethod, locks::Arc};

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
            tracing::debug!(%why, "the wait_value method failed");
            return Ok(None);
        }
        receiver.note_joined(join.point, event);
        Ok(Some(SyncMethod::WaitValue))
    }
}
