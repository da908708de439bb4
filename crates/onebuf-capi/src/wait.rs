//! Calls that wait until a buffer is free, where others return ONEBUF_BUSY.

use crate::{
    fault::{Fault, Result},
    input,
    kept::Kept,
};
use onebuf::Error;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// A failed attempt, and the buffer whose guard could not be taken, if that was the reason.
pub(crate) struct Blocked {
    pub fault: Fault,
    pub by: Option<Arc<Kept>>,
}

impl Blocked {
    pub fn on(buffer: &Arc<Kept>, fault: Fault) -> Self {
        let busy = matches!(fault, Fault::Library(Error::Busy { .. }));
        Self { fault, by: busy.then(|| buffer.clone()) }
    }
}

impl From<Fault> for Blocked {
    fn from(fault: Fault) -> Self {
        Self { fault, by: None }
    }
}

/// Repeats an attempt until a buffer that it needs is free. Each attempt starts from the beginning and holds nothing while it
/// waits, so that two callers who wait for each other's buffers do not block each other.
pub(crate) fn when_free<R>(
    timeout_ms: u64,
    hub: &onebuf::Hub,
    mut attempt: impl FnMut() -> Result<R, Blocked>,
) -> Result<R> {
    let timeout = input::timeout(timeout_ms).unwrap_or_else(|| hub.timeout());
    let deadline = Instant::now().checked_add(timeout);
    // The buffers that were in the way, and how many of their guards had been dropped before the last attempt.
    let mut seen: Vec<(Arc<Kept>, u64)> = Vec::new();
    loop {
        let Blocked { fault, by } = match attempt() {
            Ok(done) => return Ok(done),
            Err(blocked) => blocked,
        };
        let Some(by) = by else { return Err(fault) };
        let known = seen.iter().position(|(buffer, _)| Arc::ptr_eq(buffer, &by));
        let buffer = by.whole().0;
        match known {
            Some(at) if !buffer.wait_for_drop(seen[at].1, deadline) => {
                return Err(timed_out(fault, timeout));
            }
            Some(at) => seen[at].1 = buffer.drops(),
            None => {
                let drops = buffer.drops();
                seen.push((by, drops));
            }
        }
        if deadline.is_some_and(|at| Instant::now() >= at) && known.is_some() {
            return Err(timed_out(fault, timeout));
        }
    }
}

fn timed_out(fault: Fault, timeout: Duration) -> Fault {
    match fault {
        Fault::Library(Error::Busy { what }) => {
            let after_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
            Error::Timeout { what, after_ms }.into()
        }
        other => other,
    }
}
