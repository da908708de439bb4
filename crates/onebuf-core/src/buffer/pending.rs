//! Asynchronous transfers. They own their host memory until the driver no longer uses it.
//!
//! # Safety
//! Vectors of plain data are filled from chunks of the same size.

#![allow(unsafe_code)]

use super::landing::Landing;
use crate::{fence::Alarm, observe::What, queue_state::QueueState};
use onebuf_hal::{Error, Event, Result, locks::Arc};
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

/// A read or write in progress. Wait for it, or `.await` it, to get the vector back.
///
/// Dropping it waits for the transfer, for at most the hub's timeout. If the wait fails the vector is leaked,
/// because the driver may still use it.
#[must_use = "the data is in the vector that the wait gives back"]
pub struct Pending<T> {
    data: Option<Vec<T>>,
    event: Option<Arc<dyn Event>>,
    /// The queue that performs the transfer.
    queue_state: Option<Arc<QueueState>>,
    timeout: Duration,
    alarm: Alarm,
    /// The chunks that a read is copied from when it is complete.
    landing: Option<Landing>,
}

impl<T> Pending<T> {
    pub(super) fn new(
        data: Vec<T>,
        event: Arc<dyn Event>,
        queue_state: &Arc<QueueState>,
        timeout: Duration,
    ) -> Self {
        let (event, queue_state) = (Some(event), Some(queue_state.clone()));
        let alarm = Alarm::default();
        Self { data: Some(data), event, queue_state, timeout, alarm, landing: None }
    }

    /// A read to chunks, which are copied to the vector afterwards.
    pub(super) fn landing(
        data: Vec<T>,
        event: Arc<dyn Event>,
        queue_state: &Arc<QueueState>,
        timeout: Duration,
        landing: Landing,
    ) -> Self {
        let mut pending = Self::new(data, event, queue_state, timeout);
        pending.landing = Some(landing);
        pending
    }

    pub(super) fn ready(data: Vec<T>, timeout: Duration) -> Self {
        let alarm = Alarm::default();
        Self { data: Some(data), event: None, queue_state: None, timeout, alarm, landing: None }
    }

    /// Whether the transfer is done.
    pub fn is_done(&self) -> Result<bool> {
        let Some(event) = &self.event else { return Ok(true) };
        let done = event.poll()?;
        if let Some(queue_state) = self.queue_state.as_ref().filter(|_| !done) {
            queue_state.look_around()?;
        }
        Ok(done)
    }

    /// Waits for the transfer, and returns the vector.
    ///
    /// # Errors
    /// [`Error::Timeout`], or the driver's error if the transfer failed. The vector stays in the `Pending`, and
    /// the wait may be repeated.
    pub fn wait(&mut self, timeout: Duration) -> Result<Vec<T>> {
        if let Some(event) = &self.event {
            match wait(&**event, self.queue_state.as_deref(), timeout) {
                Err(error @ Error::Timeout { .. }) => return Err(error),
                outcome => self.event = outcome.map(|()| None)?,
            }
        }
        if let (Some(landing), Some(data)) = (&mut self.landing, &mut self.data) {
            // SAFETY: the read has as many bytes as the vector, whose elements are plain data.
            unsafe { landing.land(data.as_mut_ptr().cast(), size_of_val(&data[..]), timeout)? };
            self.landing = None;
        }
        self.data
            .take()
            .ok_or_else(|| Error::invalid("this transfer's vector was given back already"))
    }

    fn register(&mut self, waker: &Waker) -> Result<()> {
        match &self.event {
            Some(event) => self.alarm.set(event, self.queue_state.as_deref(), waker),
            None => Ok(()),
        }
    }
}

/// Waits for a transfer, and records the wait in the trace.
fn wait(event: &dyn Event, queue_state: Option<&QueueState>, timeout: Duration) -> Result<()> {
    let Some(queue_state) = queue_state else { return event.wait(timeout) };
    let began = queue_state.tracer.begin(What::Wait);
    let waited = queue_state.wait_watching(event, timeout);
    began.end(queue_state, |event| event.thread_waited(&waited));
    waited
}

// The vector is never pinned: the driver only uses its heap memory, which does not move.
impl<T> Unpin for Pending<T> {}

impl<T> Future for Pending<T> {
    type Output = Result<Vec<T>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Err(error) = self.register(cx.waker()) {
            return Poll::Ready(Err(error));
        }
        match self.is_done() {
            Ok(false) => Poll::Pending,
            Ok(true) => Poll::Ready(self.wait(Duration::ZERO)),
            // Only the poll may have failed: the vector stays until a wait, by the caller or in `drop`.
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        // No error guarantees that the driver has stopped using the vector.
        let queue_state = self.queue_state.as_deref();
        let in_use = |event: &Arc<dyn Event>| wait(&**event, queue_state, self.timeout).is_err();
        if self.event.as_ref().is_some_and(in_use) && self.landing.is_none() {
            std::mem::forget(self.data.take());
        }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("done", &self.is_done()).finish()
    }
}
