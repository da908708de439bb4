//! Fences: points that work reaches.

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

/// A point in a queue's work, or in that of several: regions of one buffer may have been written by
/// different queues. Ask it, wait for it with a timeout, or `.await` it.
///
/// A fence holds no driver object until the first question.
pub struct Fence {
    /// At least one.
    points: Vec<QueuePoint>,
    timeout: Duration,
    sync_method: SyncMethod,
    alarm: Alarm,
    /// The event that the alarm is set at.
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

    /// The sync method by which this fence orders (or ordered) what comes after it: that of
    /// the hand-over it stands for, or `HostWait` for one that only the CPU waits on.
    pub fn sync_method(&self) -> SyncMethod {
        self.sync_method
    }

    /// When the work ran, on a queue opened for profiling. Only for the fence of one launch, once it is
    /// done: see [`crate::Queue::launch_fenced`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] for any other fence or queue; [`Error::Busy`] before the work is done.
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
    /// When the work failed, what the driver said.
    pub fn is_done(&self) -> Result<bool> {
        self.unreached().map(|point| point.is_none())
    }

    /// The first position that was not reached yet.
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
    /// [`Error::Timeout`] when it takes longer; the work goes on.
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        let start = Instant::now();
        let left = || timeout.saturating_sub(start.elapsed());
        self.points.iter().try_for_each(|point| point.wait(left()))
    }

    /// Waits for the hub's timeout at most.
    pub fn wait_default(&self) -> Result<()> {
        self.wait(self.timeout)
    }

    /// Has the waker called when the first position that was not reached yet is; false when all were.
    fn register(&mut self, waker: &Waker) -> Result<bool> {
        while let Some(point) = self.unreached()? {
            let Some(event) = point.event()? else { continue };
            let (event, queue_state) = (event.clone(), point.queue_state.clone());
            if !self.awaited.as_ref().is_some_and(|awaited| Arc::ptr_eq(awaited, &event)) {
                self.alarm = Alarm::default();
                self.awaited = Some(event.clone());
            }
            self.alarm.set(&event, Some(&queue_state), waker)?;
            // The work may have ended between the question and the registration.
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

/// What a timed-out or failed wait means for whoever tracks fences.
pub(crate) fn is_timeout(error: &Error) -> bool {
    matches!(error, Error::Timeout { .. })
}

/// Wakes whoever polled a future last, once its event is reached. One callback for a future's life.
#[derive(Default)]
pub(crate) struct Alarm(Option<Arc<Mutex<Option<Waker>>>>);

impl Alarm {
    /// The line is that of the event.
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
        // What waits for others may never call back: then the future asks after them, now and then.
        let watches = queue_state.is_some_and(QueueState::waits_for_others);
        if refused.is_some() || watches {
            let (event, future) = (event.clone(), Arc::downgrade(&slot));
            let wait = move || {
                // The first error may be that of the question; the work's own comes again.
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
            // Without callbacks a thread waits instead, while the future lives.
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

/// How long a thread that stands in for a callback waits before it looks whether it is still wanted.
const ASK_AGAIN: Duration = Duration::from_millis(100);
