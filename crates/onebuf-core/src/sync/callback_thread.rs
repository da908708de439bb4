//! Opens the host signals of completion callbacks on a thread of onebuf.
//!
//! A callback runs on a thread of the driver whose work has ended. Opening a host signal calls the driver of the waiting queue,
//! which may run the commands behind the host signal inside that call. One driver's work would then run inside another driver's
//! callback, and both may deadlock. So a callback only passes the host signal on, and a thread that belongs to no driver opens
//! it. A host signal that opens without a driver call is opened by the callback itself.

use onebuf_hal::{
    self as hal, Error, Result,
    locks::{Arc, Condvar, Mutex, lock, thread},
};
use std::{
    collections::VecDeque,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

/// Maximum number of host signals that wait for callbacks at once; beyond that the calling thread waits.
const MOST: usize = 1024;

/// How long the thread stays when no host signal is left: hand-overs come in bursts.
const LINGER: Duration = if cfg!(onebuf_shuttle) { Duration::ZERO } else { Duration::from_secs(2) };

/// The host signals of one hub that callbacks open, and the thread that opens them while there are any.
#[derive(Default)]
pub(crate) struct CallbackThread {
    callbacks: Mutex<CallbackQueue>,
    changed: Condvar,
}

#[derive(Default)]
struct CallbackQueue {
    /// Host signals whose callbacks have been called.
    tasks: VecDeque<CallbackTask>,
    /// Number of reserved places.
    places: usize,
    /// Whether the thread runs.
    staffed: bool,
}

/// A host signal, and the outcome of the work that it waited for. `None` if the callback was dropped: the signal is then
/// dropped unopened.
struct CallbackTask {
    host_signal: Box<dyn hal::HostSignal>,
    outcome: Option<Result<()>>,
}

impl CallbackThread {
    /// Reserves a place for one host signal. The thread that will open it is running when this returns.
    ///
    /// # Errors
    /// [`Error::Busy`] if all places are taken; [`Error::Unsupported`] if the thread cannot be started.
    pub fn place(self: &Arc<Self>) -> Result<CallbackPlace> {
        let mut callbacks = lock(&self.callbacks);
        if callbacks.places >= MOST {
            return Err(Error::Busy { what: format!("{MOST} host signals wait for callbacks") });
        }
        if !callbacks.staffed {
            let (callback_thread, named) =
                (self.clone(), thread::Builder::new().name("onebuf-signals".into()));
            let started = named.spawn(move || while callback_thread.deliver() {});
            started.map_err(|why| {
                Error::unsupported(
                    format!("a host signal that a callback opens ({why})"),
                    "a thread",
                )
            })?;
            callbacks.staffed = true;
        }
        callbacks.places += 1;
        Ok(CallbackPlace(self.clone()))
    }

    /// Opens the next host signal. Returns false if the thread should end.
    fn deliver(&self) -> bool {
        let Some(CallbackTask { host_signal, outcome }) = self.next() else { return false };
        let open = move || match outcome {
            Some(outcome) => host_signal.open(outcome),
            None => drop(host_signal),
        };
        if catch_unwind(AssertUnwindSafe(open)).is_err() {
            tracing::error!("a host signal panicked while it was opened");
        }
        true
    }

    /// The next host signal to open; `None` if none is left and no place is reserved.
    fn next(&self) -> Option<CallbackTask> {
        let (mut callbacks, mut lingered) = (lock(&self.callbacks), LINGER.is_zero());
        loop {
            if let Some(task) = callbacks.tasks.pop_front() {
                return Some(task);
            }
            if callbacks.places > 0 {
                lingered = LINGER.is_zero();
                callbacks =
                    self.changed.wait(callbacks).unwrap_or_else(|poisoned| poisoned.into_inner());
            } else if lingered {
                callbacks.staffed = false;
                return None;
            } else {
                let waited = self.changed.wait_timeout(callbacks, LINGER);
                let (woken, late) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
                (callbacks, lingered) = (woken, late.timed_out());
            }
        }
    }

    /// Queues a host signal to be opened. Its place keeps the thread running until it is released.
    fn post(&self, task: CallbackTask) {
        lock(&self.callbacks).tasks.push_back(task);
        self.changed.notify_one();
    }

    /// Releases a place.
    fn leave(&self) {
        lock(&self.callbacks).places -= 1;
        self.changed.notify_one();
    }
}

impl fmt::Debug for CallbackThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallbackThread({} places taken)", lock(&self.callbacks).places)
    }
}

/// A reserved place for one host signal; released when dropped.
pub(crate) struct CallbackPlace(Arc<CallbackThread>);

impl CallbackPlace {
    /// Puts a host signal into this place, for the callback that will open it.
    pub fn keep(self, host_signal: Box<dyn hal::HostSignal>) -> Kept {
        Kept { host_signal: Some(host_signal), place: self }
    }
}

impl Drop for CallbackPlace {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// An unopened host signal that a callback owns. If the callback opens or drops it, the callback thread opens or fails it.
pub(crate) struct Kept {
    host_signal: Option<Box<dyn hal::HostSignal>>,
    place: CallbackPlace,
}

impl Kept {
    /// Opens the host signal, or requests that it is opened. May be called on a driver's thread: it calls no driver.
    pub fn open(mut self, outcome: Result<()>) {
        match self.host_signal.take_if(|host_signal| !host_signal.calls_driver()) {
            Some(host_signal) => host_signal.open(outcome),
            None => self.hand_over(Some(outcome)),
        }
    }

    fn hand_over(&mut self, outcome: Option<Result<()>>) {
        if let Some(host_signal) = self.host_signal.take() {
            self.place.0.post(CallbackTask { host_signal, outcome });
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.hand_over(None);
    }
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests;
