//! Owner and client in one process: after a visit, safe calls of both never access the memory at the same time.
//!
//! # Safety
//! The only kernel stays within its slice.

#![allow(unsafe_code)]

use super::tests::{with_both, with_client_of};
use onebuf_core::{
    Buffer, Fence, Hub, Queue, Signature, Source, args,
    fake::{Delay, FakeConfig, Sharing},
};
use onebuf_hal::{Access, Error};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

const SOON: Duration = Duration::from_secs(20);

fn assert_lost<T: std::fmt::Debug>(outcome: onebuf_hal::Result<T>) {
    assert!(matches!(outcome, Err(Error::PeerLost { .. })), "{outcome:?}");
}

fn assert_busy<T: std::fmt::Debug>(outcome: onebuf_hal::Result<T>, why: &str) {
    let Err(Error::Busy { what }) = &outcome else { panic!("{outcome:?}") };
    assert!(what.contains(why), "no `{why}` in: {what}");
}

/// Every safe way to access the bytes.
fn all_ways(buffer: &Buffer<u32>) -> Vec<onebuf_hal::Result<()>> {
    let queue = buffer.hub().host().queue().unwrap();
    let mut batch = buffer.batch();
    batch.write(3, &[7]).unwrap();
    let mut few = [0; 4];
    let region = buffer.sub_buffer(..64, onebuf_hal::Access::ReadWrite).unwrap();
    let other = buffer.hub().buffer::<u32>(64).build().unwrap();
    vec![
        buffer.fill(7),
        buffer.fill_pattern(.., &[7, 7]),
        buffer.write_range(..4, &[7; 4]),
        buffer.read_range(..4, &mut few),
        buffer.to_vec().map(drop),
        buffer.copy_from(0, buffer, 64..128),
        buffer.copy_from(0, &other, ..),
        other.copy_from(0, buffer, ..64),
        onebuf_core::bridge::copy(buffer, ..64, &other, 0).map(drop),
        onebuf_core::bridge::copy_async(buffer, ..64, &other, 0).map(drop),
        onebuf_core::bridge::from_host(&[7; 4], buffer, 0).map(drop),
        buffer.read_async(..4, vec![0; 4]).and_then(|mut read| read.wait(SOON)).map(drop),
        buffer.write_async(..4, vec![7; 4]).and_then(|mut write| write.wait(SOON)).map(drop),
        batch.flush(),
        region.fill(7),
        region.read_range(..4, &mut [0; 4]),
        buffer.read_on(&queue).map(drop),
        buffer.write_on(&queue).map(drop),
        buffer.release_to(&buffer.hub().host(), onebuf_hal::Access::ReadWrite),
    ]
}

/// The owner ends the visit during the client's turn, and gets the buffer only after the client's guards and work are gone.
#[test]
fn a_client_loses_its_turn_when_the_owner_uses_the_buffer() {
    with_both(|buffer, mut visit, mut attached| {
        visit.hand_over().unwrap();
        attached.wait(SOON).unwrap();
        drop(visit);
        attached.buffer().fill(3).unwrap();
        let queue = attached.buffer().hub().host().queue().unwrap();
        let view = attached.buffer().write_on(&queue).unwrap();
        all_ways(buffer).into_iter().for_each(|way| assert_busy(way, "its client in this process"));
        drop(view);
        attached.buffer().fill(4).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [4; 2048]);
        all_ways(attached.buffer()).into_iter().for_each(assert_lost);
        all_ways(buffer).into_iter().for_each(|way| way.unwrap());
        assert_lost(attached.wait(SOON));
        assert_lost(attached.hand_over());
        assert_lost(attached.buffer().to_vec());
        assert_eq!(buffer.to_vec().unwrap()[..4], [7; 4]);
    });
}

/// A turn that the client has not received yet is void once the owner has used the buffer.
#[test]
fn a_turn_that_was_not_heard_in_time_is_lost() {
    with_both(|buffer, mut visit, mut attached| {
        visit.hand_over().unwrap();
        drop(visit);
        buffer.fill(8).unwrap();
        assert_lost(attached.wait(SOON));
        assert!(!attached.is_our_turn());
        assert_lost(attached.buffer().fill(9));
        assert_eq!(buffer.to_vec().unwrap(), [8; 2048]);
    });
    with_both(|buffer, mut visit, mut attached| {
        visit.hand_over().unwrap();
        drop(visit);
        // The end that uses the buffer first gets it.
        attached.wait(SOON).unwrap();
        attached.buffer().fill(9).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [9; 2048]);
        assert_lost(attached.buffer().fill(10));
    });
}

/// A guard that outlives its connection blocks the owner and every other use.
#[test]
fn a_guard_that_is_held_at_the_end_keeps_the_owner_away() {
    with_both(|buffer, mut visit, mut attached| {
        visit.hand_over().unwrap();
        attached.wait(SOON).unwrap();
        let shared = attached.shared_buffer();
        let queue = shared.hub().host().queue().unwrap();
        let view = shared.write_on(&queue).unwrap();
        drop(attached);
        assert_lost(shared.fill(1));
        assert_lost(visit.wait(SOON));
        all_ways(buffer).into_iter().for_each(|way| assert_busy(way, "drop the guard first"));
        drop(view);
        buffer.fill(2).unwrap();
        assert_lost(shared.to_vec());
        drop(shared);
        assert_eq!(buffer.to_vec().unwrap(), [2; 2048]);
    });
}

/// The connection is lost first, then the client is dropped: its shared buffer is lost too.
#[test]
fn what_was_shared_is_lost_with_its_client() {
    with_both(|buffer, mut visit, mut attached| {
        visit.hand_over().unwrap();
        attached.wait(SOON).unwrap();
        drop(visit);
        assert_lost(attached.check());
        let shared = attached.shared_buffer();
        shared.fill(5).unwrap();
        drop(attached);
        assert_lost(shared.fill(6));
        assert_eq!(buffer.to_vec().unwrap(), [5; 2048]);
    });
}

/// Both ends race: from the owner's first success on, nothing that it wrote changes.
#[test]
fn what_the_owner_has_taken_back_stays_as_it_wrote_it() {
    for round in 0..20 {
        with_both(|buffer, mut visit, mut attached| {
            visit.hand_over().unwrap();
            attached.wait(SOON).unwrap();
            let (start, stop) = (AtomicBool::new(false), AtomicBool::new(false));
            thread::scope(|scope| {
                let client = scope.spawn(|| {
                    let mut done = 0;
                    while attached.buffer().fill(1).is_ok() && !stop.load(Ordering::Relaxed) {
                        done += 1;
                        start.store(true, Ordering::Relaxed);
                    }
                    done
                });
                while !start.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
                drop(visit);
                let mine = 100 + round;
                while let Err(error) = buffer.fill(mine) {
                    assert!(matches!(error, Error::Busy { .. }), "{error}");
                    thread::yield_now();
                }
                // The client must stop before the result is checked.
                let kept = (0..50).all(|_| buffer.to_vec().is_ok_and(|all| all == [mine; 2048]));
                stop.store(true, Ordering::Relaxed);
                assert!(client.join().unwrap() > 0 && kept, "the client wrote after the owner");
            });
        });
    }
}

/// A hub whose device delays its work, and a queue of it.
fn late_hub(delay: Duration, timeout: Duration) -> (Hub, Queue) {
    let late = FakeConfig {
        shares_host_pages: Sharing::Alias,
        delay: Delay::Fixed(delay),
        ..FakeConfig::default()
    };
    let hub = onebuf::builder().only(["host"]);
    let hub = hub.fake(late).timeout(timeout).verdicts(Default::default()).build().unwrap();
    let queue = hub.device("fake").unwrap().queue().unwrap();
    (hub, queue)
}

/// Enqueues work that takes the device's delay, and returns its fence.
fn work(hub: &Hub, queue: &Queue) -> Fence {
    let device = hub.device("fake").unwrap();
    let other = hub.buffer::<u32>(64).shared_with([&device]).build().unwrap();
    let source = Source::opencl_c("");
    let source = source.with_native("touch", |args| args.slice_mut::<u32>(0).map(|all| all[0] = 9));
    let signature = Signature::new().buffer::<u32>(Access::ReadWrite);
    // SAFETY: the kernel stays within its slice.
    let kernel = unsafe { device.program(&source).unwrap().kernel("touch", signature).unwrap() };
    queue.launch(&kernel, [1], args![other.write_on(queue).unwrap()]).unwrap();
    queue.fence()
}

/// Work that a client launched through a view that outlived its connection finishes before the owner gets the buffer, even if
/// the client's buffer is gone.
#[test]
fn work_of_a_client_that_is_gone_is_waited_for() {
    let (hub, queue) = late_hub(Duration::from_secs(1), SOON);
    with_client_of(&hub, |buffer, mut visit, mut attached| {
        visit.hand_over().unwrap();
        attached.wait(SOON).unwrap();
        let shared = attached.shared_buffer();
        let view = shared.write_on(&queue).unwrap();
        drop(attached);
        let fence = work(&hub, &queue);
        drop(view);
        drop(shared);
        assert_lost(visit.wait(SOON));
        buffer.fill(2).unwrap();
        assert_eq!(
            fence.is_done(),
            Ok(true),
            "the owner has the buffer while the client's work runs"
        );
    });
}

/// If the client's work exceeds the client's timeout, the owner gets a timeout, too, until the work has finished.
#[test]
fn work_that_outlasts_the_timeout_keeps_the_owner_away() {
    let (hub, queue) = late_hub(Duration::from_secs(3), Duration::from_millis(200));
    with_client_of(&hub, |buffer, mut visit, mut attached| {
        visit.hand_over().unwrap();
        attached.wait(SOON).unwrap();
        let view = attached.buffer().write_on(&queue).unwrap();
        let fence = work(&hub, &queue);
        drop(view);
        drop(attached);
        assert_lost(visit.wait(SOON));
        while let Err(error) = buffer.fill(2) {
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
        }
        assert_eq!(
            fence.is_done(),
            Ok(true),
            "the owner has the buffer while the client's work runs"
        );
    });
}

/// `release_to` is a use like any other, also as the first one after a visit.
#[test]
fn a_release_after_a_visit_takes_the_buffer_back() {
    with_both(|buffer, mut visit, mut attached| {
        visit.hand_over().unwrap();
        attached.wait(SOON).unwrap();
        drop(visit);
        buffer.release_to(&buffer.hub().host(), Access::ReadWrite).unwrap();
        assert_lost(attached.buffer().fill(1));
    });
}

/// A buffer that is lost while it is being exposed or lent stays lost.
#[test]
fn what_is_lost_in_the_middle_of_something_stays_lost() {
    let (hub, _) = late_hub(Duration::ZERO, SOON);
    for round in 0..200 {
        let buffer = hub.buffer::<u32>(64).build().unwrap();
        let core = super::inside::core(&buffer);
        let (begun, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let goes_on = || {
            begun.store(true, Ordering::Relaxed);
            match round % 2 {
                0 => core.expose().is_ok(),
                _ => core.lend().and_then(|()| core.take_back()).is_ok(),
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                while goes_on() && !stop.load(Ordering::Relaxed) {
                    thread::yield_now()
                }
            });
            while !begun.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            core.orphan();
            stop.store(true, Ordering::Relaxed);
        });
        assert_lost(buffer.fill(2));
    }
}
