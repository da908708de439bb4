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
mod tests {
    use super::*;
    use std::{
        sync::mpsc,
        time::{Duration, Instant},
    };

    const SOON: Duration = Duration::from_secs(10);

    /// The name of the thread that settled a host signal, and how.
    type Settled = (Option<String>, Result<(), &'static str>);

    /// A host signal that reports how it was settled, and whether it calls a driver.
    struct Told(Option<mpsc::Sender<Settled>>, bool);

    impl Told {
        fn tell(&mut self, how: Result<(), &'static str>) {
            let name = thread::current().name().map(str::to_owned);
            if let Some(to) = self.0.take() {
                to.send((name, how)).unwrap();
            }
        }
    }

    impl hal::HostSignal for Told {
        fn open(mut self: Box<Self>, outcome: Result<()>) {
            self.tell(outcome.map_err(|_| "with an error"));
        }

        fn calls_driver(&self) -> bool {
            self.1
        }
    }

    impl Drop for Told {
        fn drop(&mut self) {
            self.tell(Err("unopened"));
        }
    }

    fn is_empty(callback_thread: &CallbackThread) -> bool {
        let callbacks = lock(&callback_thread.callbacks);
        callbacks.places == 0 && callbacks.tasks.is_empty()
    }

    #[test]
    fn host_signals_are_opened_and_fail_on_its_own_thread() {
        let callback_thread = Arc::new(CallbackThread::default());
        let (to, told) = mpsc::channel();
        let kept = || callback_thread.place().unwrap().keep(Box::new(Told(Some(to.clone()), true)));
        kept().open(Ok(()));
        kept().open(Err(Error::invalid("the work failed")));
        drop(kept());
        let all = [Ok(()), Err("with an error"), Err("unopened")];
        for expected in all {
            let (name, how) = told.recv_timeout(SOON).unwrap();
            assert_eq!((name.as_deref(), how), (Some("onebuf-signals"), expected));
        }
        let start = Instant::now();
        while !is_empty(&callback_thread) {
            assert!(start.elapsed() < SOON, "{callback_thread:?}");
        }
    }

    #[test]
    fn a_host_signal_without_driver_calls_is_opened_at_once() {
        let callback_thread = Arc::new(CallbackThread::default());
        let (to, told) = mpsc::channel();
        let kept =
            || callback_thread.place().unwrap().keep(Box::new(Told(Some(to.clone()), false)));
        kept().open(Ok(()));
        kept().open(Err(Error::invalid("the work failed")));
        let name = thread::current().name().map(str::to_owned);
        let opened: Vec<_> = told.try_iter().collect();
        assert_eq!(opened, [(name.clone(), Ok(())), (name, Err("with an error"))]);
        assert!(is_empty(&callback_thread));
    }

    #[test]
    fn a_host_signal_that_panics_keeps_no_other_shut() {
        struct Bad;
        impl hal::HostSignal for Bad {
            fn open(self: Box<Self>, _: Result<()>) {
                panic!("of the test's own");
            }
        }
        let callback_thread = Arc::new(CallbackThread::default());
        let (to, told) = mpsc::channel();
        callback_thread.place().unwrap().keep(Box::new(Bad)).open(Ok(()));
        callback_thread.place().unwrap().keep(Box::new(Told(Some(to), true))).open(Ok(()));
        assert_eq!(told.recv_timeout(SOON).unwrap().1, Ok(()));
    }

    #[test]
    fn its_places_are_counted_and_come_back() {
        let callback_thread = Arc::new(CallbackThread::default());
        let mut places: Vec<_> = (0..MOST).map(|_| callback_thread.place().unwrap()).collect();
        assert!(matches!(callback_thread.place(), Err(Error::Busy { .. })));
        places.pop();
        let last = callback_thread.place().unwrap();
        assert!(callback_thread.place().is_err());
        drop((places, last));
        assert!(is_empty(&callback_thread));
    }

    #[test]
    fn its_thread_ends_when_nothing_is_left() {
        let callback_thread = Arc::new(CallbackThread::default());
        drop(callback_thread.place().unwrap());
        let start = Instant::now();
        while Arc::strong_count(&callback_thread) > 1 {
            assert!(start.elapsed() < LINGER + SOON);
            thread::sleep(Duration::from_millis(10));
        }
        drop(callback_thread.place().unwrap());
        assert!(lock(&callback_thread.callbacks).staffed, "and another begins");
    }
}
