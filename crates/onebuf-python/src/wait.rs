//! Waits that release the interpreter, and that Ctrl-C ends.

use crate::{
    ending::{self, detached},
    error::{Fault, Raised, Result},
};
use onebuf::{Error, Fence};
use pyo3::prelude::*;
use std::time::{Duration, Instant};

/// How long a wait takes at most before signals are looked at.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// Repeats a wait, without the interpreter, until it ends or its timeout is over. Raises what a signal handler raises, such as
/// `KeyboardInterrupt`; the work goes on.
pub(crate) fn patient<T: Send>(
    py: Python<'_>,
    timeout: Duration,
    mut once: impl FnMut(Duration) -> onebuf::Result<T> + Send,
) -> Result<T> {
    let start = Instant::now();
    loop {
        let left = timeout.saturating_sub(start.elapsed());
        match detached(py, || once(left.min(SLICE))) {
            Err(Error::Timeout { .. }) if left > SLICE => py.check_signals()?,
            Err(Error::Timeout { what, .. }) => return Err(Error::timeout(what, timeout).into()),
            ended => return ended.map_err(Fault::from),
        }
    }
}

/// Looks at signals, for waits of the library that ask on this thread whether to go on. What a signal handler raises ends them.
pub(crate) fn go_on() -> onebuf::Result<()> {
    match ending::visit(|py| py.check_signals()) {
        Some(Err(raised)) => Err(Error::application(Raised(raised))),
        Some(Ok(())) | None => Ok(()),
    }
}

/// Waits for a fence.
pub(crate) fn for_fence(py: Python<'_>, fence: &Fence, timeout: Duration) -> Result<()> {
    patient(py, timeout, |slice| fence.wait(slice))
}

/// Waits for a fence that may be there, as long as the hub waits. Work that is done costs one query.
pub(crate) fn for_work(py: Python<'_>, fence: Option<Fence>, timeout: Duration) -> Result<()> {
    match fence {
        Some(fence) if !fence.is_done()? => for_fence(py, &fence, timeout),
        _ => Ok(()),
    }
}

/// A timeout in seconds, as Python states it.
pub(crate) fn seconds(given: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(given)
        .map_err(|why| Fault::invalid(format!("a timeout of {given} seconds: {why}")))
}
