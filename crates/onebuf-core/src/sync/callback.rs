//! `callback`: the receiver's queue waits for a host signal, which the completion callback of the sender's event opens.
//!
//! The thread that opens host signals is in [`super::callback_thread`].

use super::{Join, Method, Pair, host_wait};
use crate::route::is_host;
use onebuf_hal::{Event, Result, SyncMethod, locks::Arc};

pub(super) struct Callback;

impl Method for Callback {
    fn word(&self) -> SyncMethod {
        SyncMethod::Callback
    }

    fn can(&self, pair: &Pair<'_>) -> bool {
        pair.infos().is_some_and(|[sender, receiver]| {
            let apart = !is_host(sender) && !is_host(receiver);
            apart && sender.caps.callbacks && receiver.caps.host_signals
        })
    }

    fn join(&self, join: &mut Join<'_>, event: &Arc<dyn Event>) -> Result<Option<SyncMethod>> {
        join.queue.watch_with(join.point, event);
        let place = join.tables.callback_thread.place();
        let kept = place.and_then(|place| Ok(place.keep(join.queue.hal.host_signal()?)));
        let kept = match kept {
            Ok(kept) => kept,
            Err(error) => return host_wait::instead(join, event, &error),
        };
        let Err((error, callback)) = event.on_complete(Box::new(move |outcome| kept.open(outcome)))
        else {
            return Ok(Some(SyncMethod::Callback));
        };
        tracing::warn!(%error, "no callback from this event: the thread waits instead");
        let outcome = join.point.wait_by(&**event, join.timeout());
        callback(outcome.clone());
        outcome.map(|()| Some(SyncMethod::HostWait))
    }
}
