//! `host_wait`: the calling thread waits. It always works, so it is the last method and the fallback of others.

use super::{Join, Method, Pair};
use onebuf_hal::{Error, Event, Result, SyncMethod, locks::Arc};

pub(super) struct HostWait;

impl Method for HostWait {
    fn word(&self) -> SyncMethod {
        SyncMethod::HostWait
    }

    fn can(&self, _: &Pair<'_>) -> bool {
        true
    }

    fn join(&self, join: &mut Join<'_>, event: &Arc<dyn Event>) -> Result<Option<SyncMethod>> {
        join.point.wait_by(&**event, join.timeout())?;
        Ok(Some(SyncMethod::HostWait))
    }
}

/// Waits on the calling thread because a driver could not make the queue wait. Also reports failed work.
pub(super) fn instead(
    join: &mut Join<'_>,
    event: &Arc<dyn Event>,
    error: &Error,
) -> Result<Option<SyncMethod>> {
    tracing::warn!(%error, "a queue could not be made to wait: the thread waits instead");
    HostWait.join(join, event)
}
