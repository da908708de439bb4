//! The ordered table of all sync methods.

use super::{Method, callback, event, host_wait, same_queue, semaphore, wait_value};
use onebuf_hal::SyncMethod;

/// Every method, in the order of [`SyncMethod`], best first.
pub(super) static METHODS: [&dyn Method; SyncMethod::ALL.len()] = [
    &same_queue::SameQueue,
    &semaphore::Semaphore,
    &event::SharedEvent,
    &wait_value::WaitValue,
    &callback::Callback,
    &host_wait::HostWait,
];
