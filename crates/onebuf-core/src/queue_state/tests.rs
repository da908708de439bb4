//! Tests which callers get a failure of a queue that another waits for. A host signal that is never opened stands for a signal
//! that never comes.

use super::{
    joined::MOST,
    watch::{WATCH, Watch},
    *,
};
use crate::fence::Fence;
use onebuf_hal::fake::{FakeConfig, FakeDevice};
use onebuf_hal::{
    Callback, Device as _, Domain, Event, HostSignal, Profile,
    locks::{lock, thread},
};
use std::{
    pin::pin,
    sync::{Weak, mpsc},
    task::{Context, Poll, Wake},
    time::Instant,
};

const LONG: Duration = Duration::from_secs(20);

fn queue_state() -> Arc<QueueState> {
    let device = FakeDevice::new(FakeConfig::default());
    let native = device.queue(QueueSpec::default()).unwrap();
    Arc::new(QueueState::of(DeviceIx(0), native, QueueSpec::default(), None))
}

/// A queue whose first piece of work succeeded and whose later work has failed.
pub(crate) fn failed() -> Arc<QueueState> {
    let queue_state = queue_state();
    queue_state.note().wait(LONG).unwrap();
    drop(queue_state.hal.host_signal().unwrap());
    queue_state
}

/// A queue that waits for a host signal, recorded as a wait for a signal of `sender`.
pub(crate) fn behind(sender: &Arc<QueueState>) -> (Arc<QueueState>, Box<dyn HostSignal>) {
    let queue_state = queue_state();
    let host_signal = queue_state.hal.host_signal().unwrap();
    let until = queue_state.advance();
    queue_state.note_signal(sender, sender.advance(), until);
    (queue_state, host_signal)
}

/// Waits until a check is due, and makes it.
fn look(watch: &mut Watch, queue_state: &QueueState) -> Result<()> {
    thread::sleep(WATCH);
    watch.look(queue_state)
}

/// A watch that has seen a failure and not returned it yet.
fn heard(queue_state: &QueueState) -> Watch {
    let (mut watch, start) = (Watch::new(), Instant::now());
    while !watch.heard {
        look(&mut watch, queue_state).unwrap();
        assert!(start.elapsed() < LONG, "nothing has failed");
    }
    watch
}

#[track_caller]
fn assert_told(outcome: Result<()>) {
    let error = outcome.unwrap_err();
    assert!(!matches!(error, Error::Timeout { .. }), "{error}");
}

#[test]
fn a_failed_sender_is_told_to_whoever_waits() {
    let (queue_state, _host_signal) = behind(&failed());
    assert_told(queue_state.note().wait(LONG));
    // The queue stays blocked, so the error is returned again.
    assert_told(queue_state.note().wait(LONG));
}

#[test]
fn and_to_whoever_asks_again_and_again() {
    let (queue_state, _host_signal) = behind(&failed());
    let (fence, start) = (Fence::new(queue_state.note(), LONG), Instant::now());
    let mut answer = fence.is_done();
    assert_eq!(answer, Ok(false), "nobody is asked at once");
    while answer == Ok(false) && start.elapsed() < LONG {
        thread::sleep(WATCH / 4);
        answer = fence.is_done();
    }
    assert_told(answer.map(drop));
}

struct Bell(mpsc::SyncSender<()>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let _ = self.0.try_send(());
    }
}

#[test]
fn and_to_a_future() {
    let (queue_state, _host_signal) = behind(&failed());
    let mut future = pin!(Fence::new(queue_state.note(), LONG));
    let (ring, sync_method) = mpsc::sync_channel(1);
    let waker = Arc::new(Bell(ring)).into();
    let outcome = loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(outcome) => break outcome,
            Poll::Pending => sync_method.recv_timeout(LONG).expect("it is never woken"),
        }
    };
    assert_told(outcome);
}

/// The error of a late mark may be that of later work: a queue that gets past the wait in time returns no error.
#[test]
fn who_comes_past_is_not_blamed() {
    let (queue_state, host_signal) = behind(&failed());
    let mut watch = heard(&queue_state);
    host_signal.open(Ok(()));
    queue_state.note().wait(LONG).unwrap();
    look(&mut watch, &queue_state).unwrap();
    // The control: a queue that does not get past the wait returns the error.
    let (queue_state, _host_signal) = behind(&failed());
    assert_told(look(&mut heard(&queue_state), &queue_state));
}

/// The signal is behind all work of its queue, not only behind the work that is waited for.
#[test]
fn work_between_what_is_taken_and_its_signal_is_watched() {
    let (sender, receiver) = (queue_state(), queue_state());
    let work = sender.note();
    let event = work.event().unwrap().unwrap().clone();
    event.wait(LONG).unwrap();
    drop(sender.hal.host_signal().unwrap());
    let _host_signal = receiver.hal.host_signal().unwrap();
    receiver.note_joined(&work, &event);
    receiver.note_signal(&sender, sender.advance(), receiver.advance());
    assert_told(receiver.note().wait(LONG));
}

#[test]
fn those_that_the_sender_waits_for_are_watched_too() {
    let (middle, _first) = behind(&failed());
    let (last, _second) = behind(&middle);
    // Queues that wait for each other are checked once.
    middle.note_signal(&last, last.advance(), middle.advance());
    assert_told(last.note().wait(LONG));
    // The control: what the sender waits for after its signal does not block the receiver.
    let middle = queue_state();
    let (last, _second) = behind(&middle);
    middle.note_signal(&failed(), 2, middle.advance());
    let _third = middle.hal.host_signal().unwrap();
    let mut watch = Watch::new();
    look(&mut watch, &last).unwrap();
    look(&mut watch, &last).unwrap();
}

#[test]
fn signals_that_have_come_keep_no_queue() {
    let (receiver, senders) = (queue_state(), [(); 3 * MOST].map(|()| queue_state()));
    for sender in &senders {
        receiver.note_signal(sender, sender.advance(), receiver.advance());
    }
    let kept = |queue_state: &Arc<QueueState>| Arc::strong_count(&queue_state.hal) > 1;
    assert!(senders.iter().all(kept));
    receiver.pass(MOST as u64);
    assert_eq!(senders.iter().filter(|queue_state| kept(queue_state)).count(), 2 * MOST);
    receiver.note().wait(LONG).unwrap();
    assert!(!senders.iter().any(kept) && !receiver.waits_for_others());
}

#[test]
fn of_much_that_is_over_little_is_kept() {
    let (receiver, sender) = (queue_state(), queue_state());
    for _ in 0..3 * MOST {
        let work = sender.note();
        let event = work.event().unwrap().unwrap().clone();
        event.wait(LONG).unwrap();
        receiver.note_joined(&work, &event);
    }
    assert!(receiver.joined.count() <= MOST, "{}", receiver.joined.count());
    // The control: incomplete work is kept.
    let _host_signal = sender.hal.host_signal().unwrap();
    let work = sender.note();
    let event = work.event().unwrap().unwrap().clone();
    (0..2 * MOST).for_each(|_| receiver.note_joined(&work, &event));
    assert_eq!(receiver.joined.count(), 2 * MOST);
}

#[test]
fn each_failure_is_told_once() {
    let receiver = queue_state();
    for sender in [failed(), failed()] {
        let work = sender.note();
        let event = work.event().unwrap().unwrap().clone();
        event.wait(LONG).unwrap_err();
        receiver.note_joined(&work, &event);
    }
    *lock(&receiver.untold) = Some(Error::invalid("met by a question"));
    let told = [(); 4].map(|()| receiver.note().wait(LONG));
    assert_eq!(told.each_ref().map(Result::is_err), [true, true, true, false], "{told:?}");
    assert!(told[0].as_ref().is_err_and(|why| why.to_string().contains("met by a question")));
}

#[test]
fn a_wait_that_is_being_enqueued_is_watched() {
    let queue_state = queue_state();
    assert!(queue_state.joined.expect(|| queue_state.waits_for_others()));
    assert!(!queue_state.waits_for_others());
}

#[test]
fn the_queues_met_last_are_remembered() {
    let (receiver, senders) = (queue_state(), [(); 9].map(|()| queue_state()));
    let works = senders.each_ref().map(QueueState::note);
    works[..8].iter().for_each(|work| receiver.joined.put_behind(work.queue_state.number, work.at));
    receiver.joined.put_behind(senders[0].number, 0);
    receiver.joined.put_behind(senders[8].number, 1);
    let known = works.each_ref().map(|work| receiver.joined.is_behind(work));
    assert_eq!(known, [true, false, true, true, true, true, true, true, true]);
}

/// An event whose `poll` makes another thread record a wait on the polling queue.
#[derive(Debug)]
struct Nosy(Weak<QueueState>);

// SAFETY: it never completes.
#[allow(unsafe_code)]
unsafe impl Event for Nosy {
    fn domain(&self) -> Domain {
        Domain(1)
    }

    fn poll(&self) -> Result<bool> {
        let (tell, told) = mpsc::channel();
        let queue_state = self.0.upgrade().unwrap();
        thread::spawn(move || {
            queue_state.note_signal(&queue_state, 1, u64::MAX);
            let _ = tell.send(());
        });
        let locked = |_| Error::invalid("a lock is held while a driver is asked");
        told.recv_timeout(LONG).map(|()| false).map_err(locked)
    }

    fn is_over(&self) -> bool {
        false
    }

    fn wait(&self, _timeout: Duration) -> Result<()> {
        Ok(())
    }

    fn profile(&self) -> Result<Profile> {
        Err(Error::unsupported("times", "another event"))
    }

    fn on_complete(&self, callback: Callback) -> Result<(), (Error, Callback)> {
        Err((Error::unsupported("a callback", "another event"), callback))
    }
}

#[test]
fn no_driver_is_asked_under_a_lock() {
    let (receiver, work) = (queue_state(), queue_state().note());
    let nosy: Arc<dyn Event> = Arc::new(Nosy(Arc::downgrade(&receiver)));
    (0..=MOST).for_each(|_| receiver.note_joined(&work, &nosy));
    receiver.joined.check(u64::MAX, &mut Vec::new()).unwrap();
    receiver.joined.tell(0).unwrap();
}
