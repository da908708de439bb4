//! Fences: points that work reaches.

use crate::{
    Error, Result,
    hal::{Event, Profile, Rung},
    queue::Position,
    sync::{Arc, Mutex, lock, thread},
};
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

/// A point in a queue's work. Ask it, wait for it with a timeout, or `.await` it.
///
/// A fence holds no driver object until the first question.
pub struct Fence {
    position: Position,
    timeout: Duration,
    rung: Rung,
    alarm: Alarm,
}

impl Fence {
    pub(crate) fn new(position: Position, timeout: Duration) -> Self {
        Self { position, timeout, rung: Rung::HostWait, alarm: Alarm::default() }
    }

    pub(crate) fn with_rung(mut self, rung: Rung) -> Self {
        self.rung = rung;
        self
    }

    /// The step of the ladder by which this fence orders (or ordered) what comes after it: that of
    /// the hand-over it stands for, or `HostWait` for one that only the CPU waits on.
    pub fn rung(&self) -> Rung {
        self.rung
    }

    /// When the work ran, on a queue opened for profiling. Only for the fence of one launch, once it is
    /// done: see [`crate::Queue::launch_fenced`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] for any other fence or queue; [`Error::Busy`] before the work is done.
    pub fn profile(&self) -> Result<Profile> {
        self.position.profile()
    }

    pub(crate) fn position(&self) -> &Position {
        &self.position
    }

    /// Whether the work is done.
    ///
    /// # Errors
    /// When the work failed, what the driver said.
    pub fn is_done(&self) -> Result<bool> {
        self.position.poll()
    }

    /// Waits until the work is done.
    ///
    /// # Errors
    /// [`Error::Timeout`] when it takes longer; the work goes on.
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        self.position.wait(timeout)
    }

    /// Waits for the hub's timeout at most.
    pub fn wait_default(&self) -> Result<()> {
        self.wait(self.timeout)
    }

    fn register(&mut self, waker: &Waker) -> Result<()> {
        match self.position.event()? {
            Some(event) => self.alarm.set(&event, waker),
            None => Ok(()),
        }
    }
}

impl Future for Fence {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match self.position.poll() {
            Ok(true) => return Poll::Ready(Ok(())),
            Ok(false) => {}
            Err(error) => return Poll::Ready(Err(error)),
        }
        if let Err(error) = self.register(cx.waker()) {
            return Poll::Ready(Err(error));
        }
        // The work may have ended between the question and the registration.
        match self.position.poll() {
            Ok(false) => Poll::Pending,
            done => Poll::Ready(done.map(|_| ())),
        }
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").field("rung", &self.rung).finish_non_exhaustive()
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
    pub fn set(&mut self, event: &Arc<dyn Event>, waker: &Waker) -> Result<()> {
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
        if let Err((error, _)) = event.on_complete(Box::new(wake.clone())) {
            let (event, future) = (event.clone(), Arc::downgrade(&slot));
            let wait = move || {
                // The first error may be that of the question; the work's own comes again.
                let mut errors = 0;
                while future.strong_count() > 0 && errors < 2 {
                    match event.wait(ASK_AGAIN) {
                        Ok(()) => break,
                        Err(error) => errors += u32::from(!is_timeout(&error)),
                    }
                }
                wake(Ok(()));
            };
            // No callbacks from this device: a thread waits instead, while the future lives.
            thread::Builder::new().spawn(wait).map_err(|_| error)?;
        }
        self.0 = Some(slot);
        Ok(())
    }
}

/// How long a thread that stands in for a callback waits before it looks whether it is still wanted.
const ASK_AGAIN: Duration = Duration::from_millis(100);
