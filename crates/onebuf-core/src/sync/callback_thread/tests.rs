//! Tests of `callback_thread.rs`.

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
    let kept = || callback_thread.place().unwrap().keep(Box::new(Told(Some(to.clone()), false)));
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
