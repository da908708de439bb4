//! Calls that are on their way, and the buffers that they hold.
//!
//! # Safety
//! A call in flight holds the guards of its memory. It drops them when the transfers have ended, and forgets them otherwise, so
//! that the memory is never freed: see [`crate::memory`].

#![allow(unsafe_code)]

use crate::{
    board::Progress,
    deadline::Deadline,
    engine::{Call, Posted},
    memory::Held,
    world::World,
};
use bytemuck::Pod;
use onebuf_hal::Result;
use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

/// How long a wait takes at most before its caller is asked whether to go on.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// A message, or the messages of a call of all ranks, on their way. Wait for it, or `.await` it.
///
/// The buffers are held until then: a receive excludes all other users, a send all writers. Dropping it gives up receives for
/// which no message has come, and waits for the rest, at most for the world's timeout (two seconds if a wait has failed). Memory that
/// MPI may still use after that is never freed, and its buffer stays [`Busy`](onebuf::Error::Busy).
#[must_use = "the buffers are held until it is waited for"]
pub struct InFlight<'b, T: Pod> {
    world: World,
    call: Arc<dyn Call>,
    posted: Posted,
    held: Vec<Held<'b, T>>,
}

impl<'b, T: Pod> InFlight<'b, T> {
    /// Begins a call.
    ///
    /// # Safety
    /// `held` guards the memory that the call uses.
    pub(crate) unsafe fn begin(world: &World, call: Arc<dyn Call>, held: Vec<Held<'b, T>>) -> Self {
        let posted = world.link().post(Arc::clone(&call) as _);
        world.note_device_bytes(held.iter().map(Held::device_bytes).sum());
        Self { world: world.clone(), call, posted, held }
    }

    /// Whether it is done.
    ///
    /// # Errors
    /// Why it failed.
    pub fn is_done(&self) -> Result<bool> {
        let outcome = self.call.progress().lock().outcome.clone();
        match outcome {
            None => Ok(false),
            Some(outcome) => self.world.watch(outcome).map(|()| true),
        }
    }

    /// Waits for at most this long, and says whether it is done. A rank that has not come by then does not count as late, as it does
    /// for [`InFlight::wait`]: for callers that do something else in between.
    ///
    /// # Errors
    /// As for [`InFlight::wait`], without the timeout.
    pub fn is_done_within(&self, limit: Duration) -> Result<bool> {
        let outcome = |progress: &mut Progress| progress.outcome.is_some().then_some(());
        let _ = self.call.progress().wait(Deadline::after(limit), outcome);
        self.is_done()
    }

    /// Waits until the bytes were sent or received, and gives the buffers back.
    ///
    /// # Errors
    /// [`Error::Timeout`](onebuf::Error::Timeout) with the ranks that are late; the wait may be repeated.
    /// [`Error::PeerLost`](onebuf::Error::PeerLost) with the rank that is gone.
    /// [`Error::InvalidArgument`](onebuf::Error::InvalidArgument) if another rank sent another number of bytes,
    /// [`Error::PeerRefused`](onebuf::Error::PeerRefused) if it sent something else.
    pub fn wait(&mut self, timeout: Duration) -> Result<()> {
        wait(&self.world, &*self.call, timeout)?;
        self.release()
    }

    /// Waits, for at most the world's timeout.
    ///
    /// # Errors
    /// As for [`InFlight::wait`].
    pub fn wait_default(&mut self) -> Result<()> {
        self.wait(self.world.timeout())
    }

    /// Gives the buffers back.
    fn release(&mut self) -> Result<()> {
        mem::take(&mut self.held).into_iter().try_for_each(Held::release)
    }

    /// Lets the communication thread give up what has not come, and waits until the memory is free.
    fn settle(&self) -> bool {
        let progress = self.call.progress();
        progress.lock().given_up = true;
        self.posted.wake();
        let over = |progress: &mut Progress| progress.over.then_some(());
        progress.wait(Deadline::after(self.world.last_wait()), over).is_some()
    }
}

/// Waits for the outcome of a call.
pub(crate) fn wait(world: &World, call: &dyn Call, timeout: Duration) -> Result<()> {
    wait_while(world, call, timeout, || Ok(()))
}

/// Waits for the outcome of a call, and asks again and again whether to go on. An error of `go_on` ends the wait: the call is still under
/// way then, so the other ranks may not come together with this one any more.
pub(crate) fn wait_while(
    world: &World,
    call: &dyn Call,
    timeout: Duration,
    mut go_on: impl FnMut() -> Result<()>,
) -> Result<()> {
    let until = Deadline::after(timeout);
    loop {
        let slice = Deadline::after(until.left().min(SLICE));
        let outcome = call.progress().wait(slice, |progress| progress.outcome.clone());
        match outcome {
            Some(outcome) => return world.watch(outcome),
            None if until.is_over() => return world.watch(Err(until.error(call.late()))),
            None => go_on().inspect_err(|_| world.doubt())?,
        }
    }
}

impl<T: Pod> Future for InFlight<'_, T> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.call.progress().set_waker(cx.waker());
        match self.is_done() {
            Ok(false) => Poll::Pending,
            Ok(true) => Poll::Ready(self.release()),
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

// The guards are not pinned: MPI uses the memory that they guard.
impl<T: Pod> Unpin for InFlight<'_, T> {}

impl<T: Pod> Drop for InFlight<'_, T> {
    fn drop(&mut self) {
        let over = self.call.progress().lock().over;
        if !over && !self.settle() {
            tracing::warn!("a message did not end: its memory is kept");
            mem::forget(mem::take(&mut self.held));
        } else if let Err(error) = self.release() {
            tracing::error!(%error, "received elements could not be written back");
        }
    }
}

impl<T: Pod> fmt::Debug for InFlight<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = self.call.progress().lock().outcome.clone();
        f.debug_struct("InFlight").field("outcome", &outcome).finish_non_exhaustive()
    }
}
