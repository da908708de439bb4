//! Fences: points in one or more queues that threads, queues and futures can wait for.

use crate::queue_state::{QueuePoint, QueueState};
use onebuf_hal::{
    Error, Event, Profile, Result, SyncMethod,
    locks::{Arc, Mutex, lock, thread},
};
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

/// A point in one or more queues. Poll it, wait for it with a timeout, or `.await` it.
///
/// A fence covers several queues when different queues wrote regions of one buffer.
/// It holds no driver object until it is first polled, waited for or awaited.
pub struct Fence {
    /// Never empty.
    points: Vec<QueuePoint>,
    timeout: Duration,
    sync_method: SyncMethod,
    alarm: Alarm,
    /// The event that the alarm is registered with.
    awaited: Option<Arc<dyn Event>>,
}

impl Fence {
    pub(crate) fn new(point: QueuePoint, timeout: Duration) -> Self {
        Self::of(vec![point], timeout)
    }

    pub(crate) fn of(points: Vec<QueuePoint>, timeout: Duration) -> Self {
        Self {
            points,
            timeout,
            sync_method: SyncMethod::HostWait,
            alarm: Alarm::default(),
            awaited: None,
        }
    }

    pub(crate) fn with_sync_method(mut self, sync_method: SyncMethod) -> Self {
        self.sync_method = sync_method;
        self
    }

    /// Returns the sync method of the hand-over that this fence comes from, or `HostWait` for a fence that only
    /// the CPU waits for.
    pub fn sync_method(&self) -> SyncMethod {
        self.sync_method
    }

    /// Returns when the work ran, on a queue opened for profiling. Available for the fence of a single launch that has
    /// completed: see [`crate::Queue::launch_fenced`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] for any other fence or queue; [`Error::Busy`] before the work has completed.
    pub fn profile(&self) -> Result<Profile> {
        match self.points.as_slice() {
            [only] => only.profile(),
            _ => Err(Error::unsupported(
                "the time of several pieces of work",
                "the fence of one launch",
            )),
        }
    }

    pub(crate) fn points(&self) -> &[QueuePoint] {
        &self.points
    }

    /// Whether the work is done.
    ///
    /// # Errors
    /// The driver's error if the work failed.
    pub fn is_done(&self) -> Result<bool> {
        self.unreached().map(|point| point.is_none())
    }

    /// The first point that is not reached yet.
    fn unreached(&self) -> Result<Option<&QueuePoint>> {
        for point in &self.points {
            if !point.poll()? {
                return Ok(Some(point));
            }
        }
        Ok(None)
    }

    /// Waits until the work is done.
    ///
    /// # Errors
    /// [`Error::Timeout`] when it takes longer; the work continues.
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        let start = Instant::now();
        let left = || timeout.saturating_sub(start.elapsed());
        self.points.iter().try_for_each(|point| point.wait(left()))
    }

    /// Waits until the work is done, for at most the hub's timeout.
    pub fn wait_default(&self) -> Result<()> {
        self.wait(self.timeout)
    }

    /// Registers the waker with the first point that is not reached yet. Returns false when all points are reached.
    fn register(&mut self, waker: &Waker) -> Result<bool> {
        while let Some(point) = self.unreached()? {
            let Some(event) = point.event()? else { continue };
            let (event, queue_state) = (event.clone(), point.queue_state.clone());
            if !self.awaited.as_ref().is_some_and(|awaited| Arc::ptr_eq(awaited, &event)) {
                self.alarm = Alarm::default();
                self.awaited = Some(event.clone());
            }
            self.alarm.set(&event, Some(&queue_state), waker)?;
            // The work may have ended between the poll and the registration.
            if !event.poll()? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Future for Fence {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match self.register(cx.waker()) {
            Ok(true) => Poll::Pending,
            Ok(false) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").field("sync", &self.sync_method).finish_non_exhaustive()
    }
}

/// Whether a wait failed because it timed out, so that the work may still be running.
pub(crate) fn is_timeout(error: &Error) -> bool {
    matches!(error, Error::Timeout { .. })
}

/// Wakes the task that polled a future last, once its event completes. Registers one callback per future.
#[derive(Default)]
pub(crate) struct Alarm(Option<Arc<Mutex<Option<Waker>>>>);

impl Alarm {
    /// Sets the waker to call when `event` completes. `queue_state` is the queue of the event.
    pub fn set(
        &mut self,
        event: &Arc<dyn Event>,
        queue_state: Option<&QueueState>,
        waker: &Waker,
    ) -> Result<()> {
        if let Some(slot) = &self.0 {
            *lock(slot) = Some(waker.clone());
            return Ok(());
        }
        let slot = Arc::new(Mutex::new(Some(waker.clone())));
        let ring = Arc::downgrade(&slot);
        let wake = move |_| {
            if let Some(waker) = ring.upgrade().and_then(|slot| lock(&slot).take()) {
                waker.wake();
            }
        };
        let refused = event.on_complete(Box::new(wake.clone())).err().map(|(error, _)| error);
        // The callback of a queue that waits for another queue may never come: then the future polls that work periodically.
        let watches = queue_state.is_some_and(QueueState::waits_for_others);
        if refused.is_some() || watches {
            let (event, future) = (event.clone(), Arc::downgrade(&slot));
            let wait = move || {
                // The first error may come from the wait call itself; an error of the work is returned again.
                let mut errors = 0;
                while future.strong_count() > 0 && errors < 2 {
                    match event.wait(ASK_AGAIN) {
                        Ok(()) => break,
                        Err(error) if is_timeout(&error) => {
                            if watches {
                                wake(Ok(()));
                            }
                        }
                        Err(_) => errors += 1,
                    }
                }
                wake(Ok(()));
            };
            // This thread waits in place of the callback, as long as the future lives.
            let started = thread::Builder::new().spawn(wait);
            started.map_err(|why| refused.unwrap_or_else(|| no_thread(&why)))?;
        }
        self.0 = Some(slot);
        Ok(())
    }
}

fn no_thread(why: &std::io::Error) -> Error {
    let what = format!("a future of work that waits for another API ({why})");
    Error::unsupported(what, "a thread: wait for it instead")
}

/// How long the thread that replaces a callback waits before it checks whether the future still exists.
const ASK_AGAIN: Duration = Duration::from_millis(100);
