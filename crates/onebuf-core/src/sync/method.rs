//! What every sync method implements.

use super::{Join, Pair};
use onebuf_hal::{Event, Result, SyncMethod, locks::Arc};

/// One way to make a queue wait for another queue's work.
pub(super) trait Method: Sync {
    /// Its name; [`SyncMethod::is_guaranteed`] tells whether it needs proof.
    fn word(&self) -> SyncMethod;

    /// Whether it can join such queues, according to their devices' capabilities. Calls no driver.
    fn can(&self, pair: &Pair<'_>) -> bool;

    /// Whether the caller's limit and the route's verdict apply to it. They concern queues of different contexts.
    fn is_limited(&self, pair: &Pair<'_>) -> bool {
        let _ = pair;
        true
    }

    /// Joins the queues now, without an event for the sender's work, which would cost driver calls. `None` if the method needs
    /// an event; false if it failed and the next method must be tried.
    fn join_unmarked(&self, join: &Join<'_>) -> Option<bool> {
        let _ = join;
        None
    }

    /// Joins the queues now, after the work that the event covers. Returns the method that was used, which is `HostWait` if a
    /// driver call failed, or `None` if the next method must be tried.
    fn join(&self, join: &mut Join<'_>, event: &Arc<dyn Event>) -> Result<Option<SyncMethod>>;
}
