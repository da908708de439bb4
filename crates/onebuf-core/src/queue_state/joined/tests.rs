//! Tests of `joined.rs`.

use crate::{Probe, Queue, fake::FakeConfig};
use onebuf_hal::{Result, locks::Arc};

/// A queue of each of two devices.
fn queues(probe: &Arc<Probe>) -> [Queue; 2] {
    let builder = crate::builder().without(["opencl", "cuda", "vulkan", "gl"]);
    let fake = FakeConfig { probe: Some(probe.clone()), ..FakeConfig::default() };
    let hub = builder.without(["hip"]).fake(fake.clone()).fake(fake).build().unwrap();
    ["fake:0", "fake:1"].map(|id| hub.device(id).unwrap().queue().unwrap())
}

fn check(queue: &Queue) -> Result<()> {
    queue.queue_state.joined.check(u64::MAX, &mut Vec::new())
}

#[test]
fn a_signal_is_behind_all_that_its_queue_was_given() {
    let [a, b] = queues(&Probe::new());
    let [first, second, third] = [0; 3].map(|_| a.queue_state.note());
    b.queue_state.note();
    let joined = &b.queue_state.joined;
    joined.put_behind(a.queue_state.number, second.at);
    joined.note_signal(&a.queue_state, first.at, 5);
    let behind =
        [&first, &second, &third, &b.queue_state.note()].map(|work| joined.is_behind(work));
    assert_eq!(behind, [true, true, false, false], "the last is of another queue");
    joined.tell(4).unwrap();
    assert!(!joined.is_empty(), "the queue has not come to the wait");
    joined.tell(5).unwrap();
    assert!(joined.is_empty());
    assert!(joined.is_behind(&second) && !joined.is_behind(&third), "that stays so");
}

/// Independent of the number of hand-overs.
#[test]
fn a_sender_is_asked_once_and_late() {
    let probe = Probe::new();
    let [a, b] = queues(&probe);
    probe.reset();
    for _ in 0..40 {
        b.queue_state.joined.note_signal(&a.queue_state, a.queue_state.advance(), 40);
    }
    assert_eq!(probe.calls(), 0);
    check(&b).unwrap();
    let marks = probe.trace().iter().filter(|call| **call == "fake_mark").count();
    assert_eq!(marks, 1, "{:?}", probe.trace());
}

#[test]
fn a_dead_sender_is_told_until_its_signal_has_come() {
    let probe = Probe::new();
    let [a, b] = queues(&probe);
    b.queue_state.joined.note_signal(&a.queue_state, a.queue_state.advance(), 1);
    probe.fail_always("fake_mark", -5);
    assert!(check(&b).is_err() && check(&b).is_err());
    b.queue_state.joined.tell(1).unwrap();
    check(&b).unwrap();
}

#[test]
fn queues_that_wait_for_each_other_do_not_keep_each_other() {
    let [a, b] = queues(&Probe::new());
    a.queue_state.joined.note_signal(&b.queue_state, b.queue_state.advance(), 1);
    b.queue_state.joined.note_signal(&a.queue_state, a.queue_state.advance(), 1);
    let queue_states = [&a, &b].map(|queue| Arc::downgrade(&queue.queue_state));
    drop((a, b));
    assert!(queue_states.iter().all(|queue_state| queue_state.upgrade().is_none()));
}
