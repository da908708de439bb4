//! Explores thread schedules around a host signal, an event and the end of a queue.

use super::{FakeConfig, FakeDevice};
use crate::{AllocSpec, Device, Error, MemoryKind, QueueSpec, locks::thread};
use std::time::Duration;

const ROUNDS: usize = 2000;

/// Two queues joined by a callback that opens a host signal, dropped while work is pending.
fn hand_over() {
    let device = FakeDevice::new(FakeConfig::default());
    let (access, host) = Default::default();
    let spec =
        AllocSpec { bytes: 8, align: 8, memory_kind: MemoryKind::Device, access, host, hint: None };
    let memory = device.allocate(&spec, None).unwrap();
    let first = device.queue(QueueSpec::default()).unwrap();
    let second = device.queue(QueueSpec::default()).unwrap();
    first.fill(&*memory, 0, 8, &[1]).unwrap();
    let host_signal = second.host_signal().unwrap();
    let marked = first.mark().unwrap();
    assert!(marked.on_complete(Box::new(move |outcome| host_signal.open(outcome))).is_ok());
    second.fill(&*memory, 0, 8, &[2]).unwrap();
    let done = second.mark().unwrap();
    drop((second, first, memory));
    assert_eq!(done.wait(Duration::from_secs(1)), Ok(()));
}

/// One thread waits while another drops the host signal unopened.
fn abandoned_host_signal() {
    let queue = FakeDevice::new(FakeConfig::default()).queue(QueueSpec::default()).unwrap();
    let host_signal = queue.host_signal().unwrap();
    let event = queue.mark().unwrap();
    let dropper = thread::spawn(move || drop(host_signal));
    let outcome = event.wait(Duration::from_secs(1));
    assert!(matches!(outcome, Err(Error::Driver { .. })), "{outcome:?}");
    assert_eq!(queue.mark().unwrap().wait(Duration::from_secs(1)), Ok(()), "told, so over");
    dropper.join().unwrap();
}

#[test]
fn a_hand_over_ends_well_in_every_schedule() {
    shuttle::check_random(hand_over, ROUNDS);
}

#[test]
fn an_abandoned_host_signal_fails_once_in_every_schedule() {
    shuttle::check_random(abandoned_host_signal, ROUNDS);
}
