//! Synchronisation: which method makes one queue wait for another's work, and the methods themselves.
//!
//! Each method is one file with one [`Method`]: it reports whether it can join two queues, and joins them. [`METHODS`] is the
//! ordered table of all methods, and [`methods`] is the one policy function: the planner, hand-overs,
//! [`Queue::wait_for`](crate::Queue::wait_for), asynchronous copies and the doctor all use it.
//!
//! | method | basis |
//! |---|---|
//! | `same_queue`, `event`, `host_wait` | an API's contract |
//! | `semaphore`, `wait_value`, `callback` | an experiment of the doctor, or `trust_declared` |
//!
//! A new method is one file here, one row of [`METHODS`], and one variant of [`SyncMethod`].

mod callback;
mod callback_thread;
mod event;
mod host_wait;
mod join;
mod joiner;
mod method;
mod pair;
mod policy;
mod same_queue;
mod semaphore;
mod semaphores;
mod table;
#[cfg(all(test, not(onebuf_shuttle)))]
mod tests;
mod wait_value;
mod wait_value_words;

use join::Join;
pub(crate) use join::SyncTables;
pub(crate) use joiner::Joiner;
use method::Method;
use pair::{Events, Pair};
pub use policy::declared;
pub(crate) use policy::{Terms, planned};
