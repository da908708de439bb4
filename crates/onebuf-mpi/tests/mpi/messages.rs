//! Messages between ranks: every element, both directions, and what must not pass unnoticed.

use crate::ranks::{SOON, everywhere, hub, join, value};
use onebuf::{Access, Buffer, Error, Hub};
use onebuf_mpi::{Join, MOST_TAG, World};
use std::time::Duration;

/// Elements of one rank and round.
fn filled(hub: &Hub, rank: usize, round: usize, len: usize) -> Buffer<u32> {
    let values: Vec<u32> = (0..len).map(|at| value(rank, round, at)).collect();
    hub.buffer_from(&values).build().unwrap()
}

/// The first element that is not the one of that rank and round.
fn wrong(buffer: &Buffer<u32>, rank: usize, round: usize) -> Option<usize> {
    let got = buffer.map().unwrap();
    (0..got.len()).find(|&at| got[at] != value(rank, round, at))
}

fn neighbours(world: &World) -> (usize, usize) {
    let (rank, size) = (world.rank(), world.size());
    ((rank + 1) % size, (rank + size - 1) % size)
}

#[test]
fn messages_arrive_whole_in_both_directions() {
    everywhere(&[1, 2, 4], "messages::rank_ring");
}

/// Every rank sends to the next one and receives from the previous one, in all sizes.
#[test]
#[ignore = "a rank"]
fn rank_ring() {
    let (hub, world) = (hub(), join());
    let (next, previous) = neighbours(&world);
    for (round, len) in [1, 1023, 1024, 100_000, 3 << 20].into_iter().enumerate() {
        let from = filled(&hub, world.rank(), round, len);
        let to = hub.buffer::<u32>(len).build().unwrap();
        let mut came = world.receive(&to, previous, 7).unwrap();
        let mut sent = world.send(&from, next, 7).unwrap();
        assert!(matches!(to.map(), Err(Error::Busy { .. })), "the receive holds it");
        assert_eq!(from.map().unwrap().len(), len, "a send lets others read");
        assert!(matches!(from.map_mut(), Err(Error::Busy { .. })), "and not write");
        came.wait(SOON).unwrap();
        sent.wait(SOON).unwrap();
        assert_eq!(wrong(&to, previous, round), None, "of {len} elements");
        assert_ne!(wrong(&to, previous + 1, round), None, "the control: another rank's");
        assert_ne!(wrong(&to, previous, round + 1), None, "the control: another round's");
    }
    assert_eq!(hub.ledger().implied_bytes(), 0, "all in place");
}

#[test]
fn ranges_regions_tags_and_order() {
    everywhere(&[2], "messages::rank_parts");
}

/// Several messages at once: told apart by tags, in order within one, into parts of one buffer.
#[test]
#[ignore = "a rank"]
fn rank_parts() {
    const N: usize = 64 << 10;
    let (hub, world) = (hub(), join());
    let (next, previous) = neighbours(&world);
    let from: Vec<_> = (0..4).map(|round| filled(&hub, world.rank(), round, N)).collect();
    let into = hub.buffer::<u32>(4 * N).build().unwrap();
    let regions: Vec<_> = (0..4)
        .map(|part| into.sub_buffer(part * N..(part + 1) * N, Access::ReadWrite).unwrap())
        .collect();
    // The first two by tags, in the other order; the others by their order.
    let tags = [3, 9, 5, 5];
    let mut came: Vec<_> = [1, 0, 2, 3]
        .map(|part| world.receive(&regions[part], previous, tags[part]).unwrap())
        .into();
    let mut sent: Vec<_> =
        (0..4).map(|part| world.send(&from[part], next, tags[part]).unwrap()).collect();
    came.iter_mut().chain(&mut sent).for_each(|one| one.wait(SOON).unwrap());
    drop((came, sent));
    let got = into.map().unwrap();
    for part in 0..4 {
        let wrong = (0..N).find(|&at| got[part * N + at] != value(previous, part, at));
        assert_eq!(wrong, None, "part {part}");
    }
    drop(got);
    // A range leaves the elements around it alone.
    into.fill(9).unwrap();
    let mut came = world.receive((&into, 100..300), previous, 1).unwrap();
    world.send((&from[0], 1000..1200), next, 1).unwrap().wait(SOON).unwrap();
    came.wait(SOON).unwrap();
    let got = into.map().unwrap();
    assert!((0..200).all(|at| got[100 + at] == value(previous, 0, 1000 + at)));
    assert!(got[..100].iter().chain(&got[300..]).all(|&x| x == 9));
    drop(got);
    for (outcome, says) in [
        (world.send((&into, 5..5), next, 1).err(), "non-empty"),
        (world.send((&into, 0..4 * N + 1), next, 1).err(), "inside"),
        (world.send(&into, 7, 1).err(), "rank 7 in a world of 2"),
        (world.send(&into, next, MOST_TAG + 1).err(), "tags are 0 to"),
    ] {
        let refused = outcome.unwrap().to_string();
        assert!(refused.contains(says), "{refused}");
    }
}

#[test]
fn other_lengths_are_errors_with_both_lengths() {
    everywhere(&[1, 2], "messages::rank_lengths");
}

#[test]
#[ignore = "a rank"]
fn rank_lengths() {
    let (hub, world) = (hub(), join());
    let (next, previous) = neighbours(&world);
    for (sent, expected) in
        [(1000, 1001), (1001, 1000), (1 << 20, 10), (10, 1 << 20), (3 << 20, 2 << 20)]
    {
        let from = filled(&hub, world.rank(), 0, sent);
        let into = hub.buffer::<u32>(expected + 2048).build().unwrap();
        into.fill(7).unwrap();
        let mut came = world.receive((&into, ..expected), previous, 2).unwrap();
        let mut gone = world.send(&from, next, 2).unwrap();
        let refused = came.wait(SOON).unwrap_err();
        let Error::InvalidArgument(said) = &refused else { panic!("{refused}") };
        let (sent, expected) = (4 * sent, 4 * expected);
        assert!(said.contains(&format!("rank {previous} sent {sent} bytes")), "{said}");
        assert!(said.contains(&format!("{expected} were expected")), "{said}");
        gone.wait(SOON).unwrap();
        drop(came);
        assert!(into.map().unwrap()[expected / 4..].iter().all(|&x| x == 7), "nothing beyond");
    }
    // The next message is whole again.
    let (from, into) =
        (filled(&hub, world.rank(), 1, 5000), hub.buffer::<u32>(5000).build().unwrap());
    let mut came = world.receive(&into, previous, 2).unwrap();
    world.send(&from, next, 2).unwrap().wait(SOON).unwrap();
    came.wait(SOON).unwrap();
    assert_eq!(wrong(&into, previous, 1), None);
    assert!(!world.has_failed());
}

#[test]
fn a_receive_that_is_given_up_takes_no_message() {
    everywhere(&[1, 2], "messages::rank_given_up");
}

/// Receives are dropped before their messages come, and while they come. A message is taken whole by the one that is dropped, or
/// whole by the next one.
#[test]
#[ignore = "a rank"]
fn rank_given_up() {
    const ROUNDS: usize = 40;
    let (hub, world) = (hub(), join());
    let (next, previous) = neighbours(&world);
    let [into, over] = [100_000, 1].map(|len| hub.buffer::<u32>(len).build().unwrap());
    drop(world.receive(&into, previous, 4).unwrap());
    world.barrier(SOON).unwrap();
    let from: Vec<_> =
        (0..ROUNDS).map(|round| filled(&hub, world.rank(), round, 100_000)).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            from.iter().for_each(|from| world.send(from, next, 4).unwrap().wait(SOON).unwrap());
            world.send((&from[0], ..1), next, 8).unwrap().wait(SOON).unwrap();
        });
        let mut end = world.receive(&over, previous, 8).unwrap();
        let (mut last, mut taken) = (None, 0);
        for turn in 0.. {
            let mut came = world.receive(&into, previous, 4).unwrap();
            if turn % 3 == 1 {
                continue; // dropped at once
            }
            while !came.is_done().unwrap() && !end.is_done().unwrap() {
                std::thread::yield_now();
            }
            if !came.is_done().unwrap() {
                break;
            }
            came.wait(SOON).unwrap();
            let first = into.map().unwrap()[0];
            let round = (0..ROUNDS).find(|&round| first == value(previous, round, 0)).unwrap();
            assert_eq!(wrong(&into, previous, round), None, "round {round}");
            assert!(last < Some(round), "{round} after {last:?}");
            (last, taken) = (Some(round), taken + 1);
        }
        end.wait(SOON).unwrap();
        assert!(taken > ROUNDS / 4, "{taken}");
    });
    world.barrier(SOON).unwrap();
    assert!(!world.has_failed());
}

#[test]
fn large_messages_are_divided() {
    everywhere(&[2], "messages::rank_divided");
}

/// Counts as small as can be tested: a type of several parts describes each message.
#[test]
#[ignore = "a rank"]
fn rank_divided() {
    let hub = hub();
    let world = Join::new().timeout(SOON).most_count(1000).start().unwrap();
    let (next, previous) = neighbours(&world);
    for (round, len) in [1, 250, 251, 300_001].into_iter().enumerate() {
        let (from, into) =
            (filled(&hub, world.rank(), round, len), hub.buffer::<u32>(len).build().unwrap());
        let mut came = world.receive(&into, previous, 0).unwrap();
        world.send(&from, next, 0).unwrap().wait(SOON).unwrap();
        came.wait(SOON).unwrap();
        assert_eq!(wrong(&into, previous, round), None, "{len}");
        let root = world.broadcast(&from, 1).map(|mut all| all.wait(SOON));
        root.unwrap().unwrap();
        assert_eq!(wrong(&from, 1, round), None, "broadcast of {len}");
    }
}

#[test]
fn a_message_that_never_comes_is_a_timeout_with_its_rank() {
    everywhere(&[2], "messages::rank_silence");
}

#[test]
#[ignore = "a rank"]
fn rank_silence() {
    let (hub, world) = (hub(), join());
    let into = hub.buffer::<u32>(100).build().unwrap();
    if world.rank() == 0 {
        let mut came = world.receive(&into, 1, 6).unwrap();
        let late = came.wait(Duration::from_millis(200)).unwrap_err();
        let Error::Timeout { what, .. } = &late else { panic!("{late}") };
        assert!(what.contains("400 bytes from rank 1 (process "), "{what}");
        assert!(what.contains("running") && what.contains("tag 6"), "{what}");
        assert!(!came.is_done().unwrap(), "the wait can be repeated");
        drop(came);
        assert!(into.map().is_ok(), "given up, and free again");
    }
    // The one that was late is no reason to fail: the ranks still talk.
    world.barrier(SOON).unwrap();
}

#[test]
fn futures_are_woken() {
    everywhere(&[2], "messages::rank_future");
}

#[test]
#[ignore = "a rank"]
fn rank_future() {
    use std::{
        future::Future,
        pin::pin,
        sync::Arc,
        task::{Context, Poll, Wake},
        thread::{self, Thread},
    };
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let (hub, world) = (hub(), join());
    let (next, previous) = neighbours(&world);
    let (from, into) =
        (filled(&hub, world.rank(), 3, 50_000), hub.buffer::<u32>(50_000).build().unwrap());
    let came = world.receive(&into, previous, 1).unwrap();
    if world.rank() == 1 {
        thread::sleep(Duration::from_millis(50)); // so that the other one really waits
    }
    let sent = world.send(&from, next, 1).unwrap();
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut both = pin!(async {
        came.await?;
        sent.await
    });
    while both.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Pending {
        thread::park_timeout(SOON);
    }
    assert_eq!(wrong(&into, previous, 3), None);
}
