//! Queues that wait for others: who is told of what. Instead of a signal that never comes, a gate that stays shut.

use super::{
    joined::MOST,
    watch::{WATCH, Watch},
    *,
};
use crate::{
    fake::{FakeConfig, FakeDevice},
    hal::{Callback, Device as _, Domain, Event, Gate, Profile},
    sync::{lock, thread},
};
use std::{
    pin::pin,
    sync::{Weak, mpsc},
    task::{Context, Poll, Wake},
};

const LONG: Duration = Duration::from_secs(20);

fn line() -> Arc<Line> {
    let device = FakeDevice::new(FakeConfig::default());
    let native = device.queue(QueueSpec::default()).unwrap();
    Arc::new(Line::of(DeviceIx(0), native, &device, QueueSpec::default(), None))
}

/// A queue whose work has failed, behind its first piece, which has not.
pub(crate) fn failed() -> Arc<Line> {
    let line = line();
    line.note().wait(LONG).unwrap();
    drop(line.hal.gate().unwrap());
    line
}

/// A queue that waits at a gate for a signal of the other's.
pub(crate) fn behind(sender: &Arc<Line>) -> (Arc<Line>, Box<dyn Gate>) {
    let line = line();
    let gate = line.hal.gate().unwrap();
    let until = line.advance();
    line.note_signal(sender, sender.advance(), until);
    (line, gate)
}

/// A look when it is time for one.
fn look(watch: &mut Watch, line: &Line) -> Result<()> {
    thread::sleep(WATCH);
    watch.look(line)
}

/// One that has met a failure, and tells nobody yet.
fn heard(line: &Line) -> Watch {
    let (mut watch, start) = (Watch::new(), Instant::now());
    while !watch.heard {
        look(&mut watch, line).unwrap();
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
    let (line, _gate) = behind(&failed());
    assert_told(line.note().wait(LONG));
    // It stays stuck, and so does the answer.
    assert_told(line.note().wait(LONG));
}

#[test]
fn and_to_whoever_asks_again_and_again() {
    let (line, _gate) = behind(&failed());
    let (fence, start) = (Fence::new(line.note(), LONG), Instant::now());
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
    let (line, _gate) = behind(&failed());
    let mut future = pin!(Fence::new(line.note(), LONG));
    let (ring, rung) = mpsc::sync_channel(1);
    let waker = Arc::new(Bell(ring)).into();
    let outcome = loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(outcome) => break outcome,
            Poll::Pending => rung.recv_timeout(LONG).expect("it is never woken"),
        }
    };
    assert_told(outcome);
}

/// The error of a mark that is made late may be that of later work: who comes past in time is told nothing.
#[test]
fn who_comes_past_is_not_blamed() {
    let (line, gate) = behind(&failed());
    let mut watch = heard(&line);
    gate.open(Ok(()));
    line.note().wait(LONG).unwrap();
    look(&mut watch, &line).unwrap();
    // The control: one that does not is.
    let (line, _gate) = behind(&failed());
    assert_told(look(&mut heard(&line), &line));
}

/// The signal is behind all work of its queue, and not only behind what is taken.
#[test]
fn work_between_what_is_taken_and_its_signal_is_watched() {
    let (sender, receiver) = (line(), line());
    let work = sender.note();
    let event = work.event().unwrap().unwrap().clone();
    event.wait(LONG).unwrap();
    drop(sender.hal.gate().unwrap());
    let _gate = receiver.hal.gate().unwrap();
    receiver.note_joined(&work, &event);
    receiver.note_signal(&sender, sender.advance(), receiver.advance());
    assert_told(receiver.note().wait(LONG));
}

#[test]
fn those_that_the_sender_waits_for_are_watched_too() {
    let (middle, _first) = behind(&failed());
    let (last, _second) = behind(&middle);
    // Who waits for each other asks nobody twice.
    middle.note_signal(&last, last.advance(), middle.advance());
    assert_told(last.note().wait(LONG));
    // The control: what the sender waits for behind its signal keeps nobody.
    let middle = line();
    let (last, _second) = behind(&middle);
    middle.note_signal(&failed(), 2, middle.advance());
    let _third = middle.hal.gate().unwrap();
    let mut watch = Watch::new();
    look(&mut watch, &last).unwrap();
    look(&mut watch, &last).unwrap();
}

#[test]
fn signals_that_have_come_keep_no_queue() {
    let (receiver, senders) = (line(), [(); 3 * MOST].map(|()| line()));
    for sender in &senders {
        receiver.note_signal(sender, sender.advance(), receiver.advance());
    }
    let kept = |line: &Arc<Line>| Arc::strong_count(&line.hal) > 1;
    assert!(senders.iter().all(kept));
    receiver.pass(MOST as u64);
    assert_eq!(senders.iter().filter(|line| kept(line)).count(), 2 * MOST);
    receiver.note().wait(LONG).unwrap();
    assert!(!senders.iter().any(kept) && !receiver.waits_for_others());
}

#[test]
fn of_much_that_is_over_little_is_kept() {
    let (receiver, sender) = (line(), line());
    for _ in 0..3 * MOST {
        let work = sender.note();
        let event = work.event().unwrap().unwrap().clone();
        event.wait(LONG).unwrap();
        receiver.note_joined(&work, &event);
    }
    assert!(receiver.joined.count() <= MOST, "{}", receiver.joined.count());
    // The control: what is not over stays.
    let _gate = sender.hal.gate().unwrap();
    let work = sender.note();
    let event = work.event().unwrap().unwrap().clone();
    (0..2 * MOST).for_each(|_| receiver.note_joined(&work, &event));
    assert_eq!(receiver.joined.count(), 2 * MOST);
}

#[test]
fn each_failure_is_told_once() {
    let receiver = line();
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
    let line = line();
    assert!(line.joined.expect(|| line.waits_for_others()));
    assert!(!line.waits_for_others());
}

#[test]
fn the_queues_met_last_are_remembered() {
    let (receiver, senders) = (line(), [(); 9].map(|()| line()));
    let works = senders.each_ref().map(Line::note);
    works[..8].iter().for_each(|work| receiver.joined.put_behind(work.line.number, work.at));
    receiver.joined.put_behind(senders[0].number, 0);
    receiver.joined.put_behind(senders[8].number, 1);
    let known = works.each_ref().map(|work| receiver.joined.is_behind(work));
    assert_eq!(known, [true, false, true, true, true, true, true, true, true]);
}

/// An event whose question has another thread hand over to the queue that asks.
#[derive(Debug)]
struct Nosy(Weak<Line>);

impl Event for Nosy {
    fn domain(&self) -> Domain {
        Domain(1)
    }

    fn poll(&self) -> Result<bool> {
        let (tell, told) = mpsc::channel();
        let line = self.0.upgrade().unwrap();
        thread::spawn(move || {
            line.note_signal(&line, 1, u64::MAX);
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
    let (receiver, work) = (line(), line().note());
    let nosy: Arc<dyn Event> = Arc::new(Nosy(Arc::downgrade(&receiver)));
    (0..=MOST).for_each(|_| receiver.note_joined(&work, &nosy));
    receiver.joined.check(u64::MAX, &mut Vec::new()).unwrap();
    receiver.joined.tell(0).unwrap();
}

/// Two devices of two domains, and a queue of each.
fn two_apis() -> (Hub, [Queue; 2]) {
    let builder = Hub::builder().without_graphics().without_opencl().without_cuda().without_hip();
    let builder = builder.fake(FakeConfig::default()).fake(FakeConfig::default());
    let hub = builder.verdicts(Default::default()).timeout(LONG).build().unwrap();
    let queues = ["fake:0", "fake:1"].map(|id| hub.device(id).unwrap().queue().unwrap());
    (hub, queues)
}

/// Work of the first queue that ends when the gate is opened, some time after the second was made to wait for it.
fn joined_by(limit: Limit, ends: Result<()>) -> (Result<Rung>, Result<()>) {
    let (hub, [a, b]) = two_apis();
    let gate = a.line.hal.gate().unwrap();
    let position = a.line.note();
    let opens = thread::spawn(move || {
        thread::sleep(WATCH / 4);
        gate.open(ends);
    });
    let rung = b.line.after(&hub, &position, limit);
    let outcome = b.finish();
    opens.join().unwrap();
    (rung, outcome)
}

#[test]
fn callbacks_join_queues_only_where_they_are_proven_or_trusted() {
    let by = |trusts| joined_by(Limit { best: Rung::Callback, trusts }, Ok(()));
    assert_eq!(by(false), (Ok(Rung::HostWait), Ok(())));
    assert_eq!(by(true), (Ok(Rung::Callback), Ok(())));
    // Nor where the limit allows more than is there.
    assert_eq!(joined_by(Limit::new(Rung::SameQueue), Ok(())).0, Ok(Rung::HostWait));
    let (hub, [a, b]) = two_apis();
    assert!(!Limit::new(Rung::Callback).allows_callbacks(&hub, [a.line.device, b.line.device]));
}

/// By way of the courier, as without.
#[test]
fn failed_work_is_told_behind_a_callback_too() {
    let (rung, outcome) =
        joined_by(Limit { best: Rung::Callback, trusts: true }, Err(Error::invalid("failed")));
    assert_eq!(rung, Ok(Rung::Callback));
    assert_told(outcome);
}
