//! Gates that callbacks open are opened on a thread of onebuf's own.
//!
//! A callback runs on a thread of the driver whose work has ended. To open a gate is to call the driver that waits, and that may
//! run the commands behind the gate in the call itself: work of one driver inside another's callback, which both may
//! hang on. So a callback only hands the gate over, and a thread that is no driver's opens it.

use crate::{
    Error, Result, hal,
    sync::{Arc, Condvar, Mutex, lock, thread},
};
use std::{
    collections::VecDeque,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

/// So many gates wait for callbacks at once; beyond that the calling thread waits.
const MOST: usize = 1024;

/// How long the thread stays when no gate is left: hand-overs come in rows.
const LINGER: Duration = if cfg!(onebuf_shuttle) { Duration::ZERO } else { Duration::from_secs(2) };

/// The gates of one hub that callbacks open, and the thread that opens them while there are any.
#[derive(Default)]
pub(crate) struct Courier {
    desk: Mutex<Desk>,
    changed: Condvar,
}

#[derive(Default)]
struct Desk {
    /// Gates whose callbacks have come.
    parcels: VecDeque<Parcel>,
    /// Gates that are shut and have a place here.
    places: usize,
    /// Whether the thread runs.
    staffed: bool,
}

/// A gate, and how the work ended that it waited for; dropped unopened where nobody said.
struct Parcel {
    gate: Box<dyn hal::Gate>,
    outcome: Option<Result<()>>,
}

impl Courier {
    /// A place for one gate. The thread that will open it runs when this returns.
    ///
    /// # Errors
    /// [`Error::Busy`] when all places are taken; [`Error::Unsupported`] when there is no thread to be had.
    pub fn place(self: &Arc<Self>) -> Result<Place> {
        let mut desk = lock(&self.desk);
        if desk.places >= MOST {
            return Err(Error::Busy { what: format!("{MOST} gates wait for callbacks") });
        }
        if !desk.staffed {
            let (courier, named) =
                (self.clone(), thread::Builder::new().name("onebuf-gates".into()));
            let started = named.spawn(move || while courier.deliver() {});
            started.map_err(|why| {
                Error::unsupported(format!("a gate that a callback opens ({why})"), "a thread")
            })?;
            desk.staffed = true;
        }
        desk.places += 1;
        Ok(Place(self.clone()))
    }

    /// Opens the next gate. False when the thread has nothing more to do.
    fn deliver(&self) -> bool {
        let Some(Parcel { gate, outcome }) = self.next() else { return false };
        let open = move || match outcome {
            Some(outcome) => gate.open(outcome),
            None => drop(gate),
        };
        if catch_unwind(AssertUnwindSafe(open)).is_err() {
            tracing::error!("a gate panicked while it was opened");
        }
        true
    }

    /// The next gate to be opened; `None` when there are none and none can come.
    fn next(&self) -> Option<Parcel> {
        let (mut desk, mut lingered) = (lock(&self.desk), LINGER.is_zero());
        loop {
            if let Some(parcel) = desk.parcels.pop_front() {
                return Some(parcel);
            }
            if desk.places > 0 {
                lingered = LINGER.is_zero();
                desk = self.changed.wait(desk).unwrap_or_else(|poisoned| poisoned.into_inner());
            } else if lingered {
                desk.staffed = false;
                return None;
            } else {
                let waited = self.changed.wait_timeout(desk, LINGER);
                let (woken, late) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
                (desk, lingered) = (woken, late.timed_out());
            }
        }
    }

    /// A gate is to be opened. Its place keeps the thread until it is left.
    fn post(&self, parcel: Parcel) {
        lock(&self.desk).parcels.push_back(parcel);
        self.changed.notify_one();
    }

    /// A place is free again.
    fn leave(&self) {
        lock(&self.desk).places -= 1;
        self.changed.notify_one();
    }
}

impl fmt::Debug for Courier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Courier({} places taken)", lock(&self.desk).places)
    }
}

/// A place for one gate, until it is used or dropped.
pub(crate) struct Place(Arc<Courier>);

impl Place {
    /// The gate that has this place, for the callback that will open it.
    pub fn keep(self, gate: Box<dyn hal::Gate>) -> Kept {
        Kept { gate: Some(gate), place: self }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// A shut gate in the hands of a callback. Opened or dropped there, it is opened or fails on the courier's thread.
pub(crate) struct Kept {
    gate: Option<Box<dyn hal::Gate>>,
    place: Place,
}

impl Kept {
    /// Has the gate opened. May be called on a driver's thread: no driver is called here.
    pub fn open(mut self, outcome: Result<()>) {
        self.hand_over(Some(outcome));
    }

    fn hand_over(&mut self, outcome: Option<Result<()>>) {
        if let Some(gate) = self.gate.take() {
            self.place.0.post(Parcel { gate, outcome });
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

    /// The name of the thread that settled a gate, and how.
    type Settled = (Option<String>, Result<(), &'static str>);

    /// A gate that tells.
    struct Told(Option<mpsc::Sender<Settled>>);

    impl Told {
        fn tell(&mut self, how: Result<(), &'static str>) {
            let name = thread::current().name().map(str::to_owned);
            if let Some(to) = self.0.take() {
                to.send((name, how)).unwrap();
            }
        }
    }

    impl hal::Gate for Told {
        fn open(mut self: Box<Self>, outcome: Result<()>) {
            self.tell(outcome.map_err(|_| "with an error"));
        }
    }

    impl Drop for Told {
        fn drop(&mut self) {
            self.tell(Err("unopened"));
        }
    }

    fn is_empty(courier: &Courier) -> bool {
        let desk = lock(&courier.desk);
        desk.places == 0 && desk.parcels.is_empty()
    }

    #[test]
    fn gates_are_opened_and_fail_on_its_own_thread() {
        let courier = Arc::new(Courier::default());
        let (to, told) = mpsc::channel();
        let kept = || courier.place().unwrap().keep(Box::new(Told(Some(to.clone()))));
        kept().open(Ok(()));
        kept().open(Err(Error::invalid("the work failed")));
        drop(kept());
        let all = [Ok(()), Err("with an error"), Err("unopened")];
        for expected in all {
            let (name, how) = told.recv_timeout(SOON).unwrap();
            assert_eq!((name.as_deref(), how), (Some("onebuf-gates"), expected));
        }
        let start = Instant::now();
        while !is_empty(&courier) {
            assert!(start.elapsed() < SOON, "{courier:?}");
        }
    }

    #[test]
    fn a_gate_that_panics_keeps_no_other_shut() {
        struct Bad;
        impl hal::Gate for Bad {
            fn open(self: Box<Self>, _: Result<()>) {
                panic!("of the test's own");
            }
        }
        let courier = Arc::new(Courier::default());
        let (to, told) = mpsc::channel();
        courier.place().unwrap().keep(Box::new(Bad)).open(Ok(()));
        courier.place().unwrap().keep(Box::new(Told(Some(to)))).open(Ok(()));
        assert_eq!(told.recv_timeout(SOON).unwrap().1, Ok(()));
    }

    #[test]
    fn its_places_are_counted_and_come_back() {
        let courier = Arc::new(Courier::default());
        let mut places: Vec<_> = (0..MOST).map(|_| courier.place().unwrap()).collect();
        assert!(matches!(courier.place(), Err(Error::Busy { .. })));
        places.pop();
        let last = courier.place().unwrap();
        assert!(courier.place().is_err());
        drop((places, last));
        assert!(is_empty(&courier));
    }

    #[test]
    fn its_thread_ends_when_nothing_is_left() {
        let courier = Arc::new(Courier::default());
        drop(courier.place().unwrap());
        let start = Instant::now();
        while Arc::strong_count(&courier) > 1 {
            assert!(start.elapsed() < LINGER + SOON);
            thread::sleep(Duration::from_millis(10));
        }
        drop(courier.place().unwrap());
        assert!(lock(&courier.desk).staffed, "and another begins");
    }
}
