//! `host_wait`: the calling thread waits. It always works, so it is the last method, and what others fall back to.

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

/// A driver could not make the queue wait: the thread does. Work that failed is reported here as well.
pub(super) fn instead(
    join: &mut Join<'_>,
    event: &Arc<dyn Event>,
    error: &Error,
) -> Result<Option<SyncMethod>> {
    tracing::warn!(%error, "a queue could not be made to wait: the thread waits instead");
    HostWait.join(join, event)
}
