//! Synchronisation: which method makes one queue wait for another's work, and the methods themselves.
//!
//! Each method is one file with one [`Method`]: it says whether it can join two queues, and joins them. [`METHODS`] is the
//! ordered table of all methods, and [`methods`] is the one policy: the planner, hand-overs, [`Queue::wait_for`](crate::Queue::wait_for), asynchronous
//! copies and the doctor all ask it.
//!
//! | method | basis |
//! |---|---|
//! | `same_queue`, `event`, `host_wait` | an API's contract |
//! | `semaphore`, `wait_value`, `callback` | an experiment of the doctor, or the caller's word |
//!
//! A new method is one file here, one row of [`METHODS`], and its word in [`SyncMethod`].

mod callback;
mod callback_thread;
mod event;
mod host_wait;
mod joiner;
mod policy;
mod same_queue;
mod semaphore;
mod semaphores;
#[cfg(all(test, not(onebuf_shuttle)))]
mod tests;
mod wait_value;
mod wait_value_words;

use joiner::Join;
pub(crate) use joiner::{Joiner, SyncTables};
pub use policy::declared;
use policy::{Events, Pair, methods};
pub(crate) use policy::{Terms, planned};

use onebuf_hal::{Event, Result, SyncMethod, locks::Arc};

/// One way to make a queue wait for another queue's work.
trait Method: Sync {
    /// Its name; [`SyncMethod::is_guaranteed`] says whether it needs proof.
    fn word(&self) -> SyncMethod;

    /// Whether it can join such queues, as far as their devices say. Asks no driver.
    fn can(&self, pair: &Pair<'_>) -> bool;

    /// Whether the caller's limit and the route's verdict apply to it. They are about queues of different contexts.
    fn is_limited(&self, pair: &Pair<'_>) -> bool {
        let _ = pair;
        true
    }

    /// Joins the queues now, though the sender's work has no event yet, which would cost driver calls. `None` for a method that
    /// needs one; false where it failed, so that the next method is asked.
    fn join_unmarked(&self, join: &Join<'_>) -> Option<bool> {
        let _ = join;
        None
    }

    /// Joins the queues now, behind the work that the event covers. Returns the method that did it, which is the host's wait
    /// where a driver's call failed, or `None` where the next method must be asked.
    fn join(&self, join: &mut Join<'_>, event: &Arc<dyn Event>) -> Result<Option<SyncMethod>>;
}

/// Every method, in the order of [`SyncMethod`], best first.
static METHODS: [&dyn Method; 6] = [
    &same_queue::SameQueue,
    &semaphore::Semaphore,
    &event::SharedEvent,
    &wait_value::WaitValue,
    &callback::Callback,
    &host_wait::HostWait,
];
