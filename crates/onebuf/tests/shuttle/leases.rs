//! Leases, which take guards without a lock, and other users that recall them.

use super::*;

/// Clones of one queue share its lease. Only one of them holds it at a time.
#[test]
fn clones_of_one_queue_in_two_threads() {
    check(|world| {
        let buffer = Arc::new(world.buffer());
        world.a.add(&buffer).unwrap(); // grants a lease
        let add = |side: &Side| {
            let (side, buffer) = (side.clone(), buffer.clone());
            move || (0..2).for_each(|_| patiently(|| side.add(&buffer)))
        };
        together(add(&world.a), add(&world.a));
        assert_eq!(buffer.to_vec().unwrap(), [5; N]);
    });
}

/// A queue takes the buffer repeatedly while queues of the same and of another device also take it.
#[test]
fn others_take_what_is_leased() {
    check(|world| {
        let buffer = Arc::new(world.buffer());
        world.a.add(&buffer).unwrap();
        let beside = world.a.beside();
        let threads = [&world.a, &beside, &world.b].map(|side| {
            let (side, buffer) = (side.clone(), buffer.clone());
            thread::spawn(move || {
                (0..2).for_each(|_| patiently(|| side.add(&buffer)));
                patiently(|| side.look(&buffer));
                side.queue.finish().unwrap();
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(buffer.to_vec().unwrap(), [7; N]);
    });
}

/// A thread that recalls a lease while its guard is being dropped learns about all work of that guard, either from
/// the lease or from the guard.
#[test]
fn a_guard_dropped_while_its_lease_is_recalled() {
    check(|world| {
        let buffer = Arc::new(world.buffer());
        world.a.set(&buffer, 0, 1).unwrap();
        let (side, theirs) = (world.a.clone(), buffer.clone());
        let asks = buffer.clone();
        let drops = move || (1..4).for_each(|n| _ = patiently(|| side.set(&theirs, n, n + 1)));
        together(drops, move || (0..3).for_each(|_| drop(asks.fence())));
        world.b.look(&buffer).unwrap();
        world.b.queue.finish().unwrap();
        assert_eq!(world.b.seen(), [4]);
    });
}

/// Completed work before the lease proves nothing about the work on the lease.
#[test]
fn work_on_a_lease_is_waited_for() {
    check(|world| {
        let buffer = world.buffer();
        world.a.set(&buffer, 0, 1).unwrap();
        world.a.queue.finish().unwrap(); // a queue point that was reached
        world.a.set(&buffer, 1, 2).unwrap(); // on the lease
        world.b.set(&buffer, 2, 3).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [3; N]);
        world.a.queue.finish().unwrap();
    });
}

/// A read lease does not allow writing, because another reader may still be active.
#[test]
fn a_lease_to_read_is_not_one_to_write() {
    check(|world| {
        let buffer = world.buffer();
        world.b.look(&buffer).unwrap();
        world.a.look(&buffer).unwrap(); // read leases
        world.a.set(&buffer, 0, 1).unwrap();
        world.b.look(&buffer).unwrap();
        for side in [&world.a, &world.b] {
            side.queue.finish().unwrap();
        }
        assert_eq!((world.a.seen(), world.b.seen()), (vec![0], vec![0, 1]));
    });
}

/// Readers on one queue's lease, and a writer on another device: no reader sees half of a write.
#[test]
fn leased_readers_and_a_writer() {
    check(|world| {
        let buffer = Arc::new(world.buffer());
        world.b.look(&buffer).unwrap(); // read leases
        let (side, theirs) = (world.b.clone(), buffer.clone());
        let looks = move || {
            (0..3).for_each(|_| patiently(|| side.look(&theirs)));
            side.queue.finish().unwrap();
        };
        let (writer, ours) = (world.a.clone(), buffer.clone());
        let sets = move || (0..2).for_each(|n| _ = patiently(|| writer.set(&ours, n, n + 1)));
        together(looks, sets);
        world.a.queue.finish().unwrap();
        assert!(world.b.seen().is_sorted(), "{:?}", world.b.seen());
        assert_eq!(buffer.to_vec().unwrap(), [2; N]);
    });
}

/// A leaked guard on a lease excludes all other users for ever.
#[test]
fn a_guard_forgotten_on_a_lease() {
    check(|world| {
        let buffer = Arc::new(world.buffer());
        world.a.add(&buffer).unwrap();
        let (side, theirs) = (world.a.clone(), buffer.clone());
        let forgets = move || patiently(|| theirs.write_on(&side.queue).map(std::mem::forget));
        let (other, ours) = (world.b.clone(), buffer.clone());
        let tries = move || match other.add(&ours) {
            Ok(()) | Err(Error::Busy { .. }) => {}
            Err(error) => panic!("{error}"),
        };
        together(forgets, tries);
        for side in [&world.a, &world.b] {
            assert!(matches!(side.look(&buffer), Err(Error::Busy { .. })));
        }
        assert!(matches!(buffer.map().map(drop), Err(Error::Busy { .. })));
    });
}

/// A thread that waits for a guard is woken when that is dropped, whether it was taken on a lease or by a hand-over. A missed
/// wake-up would be a deadlock, which shuttle reports.
#[test]
fn a_waiting_thread_is_woken() {
    check(|world| {
        let buffer = Arc::new(world.buffer());
        world.a.add(&buffer).unwrap(); // grants a lease
        let add = |side: &Side| {
            let (side, buffer) = (side.clone(), buffer.clone());
            move || (0..2).for_each(|_| buffer.when_free(SOON, || side.add(&buffer)).unwrap())
        };
        together(add(&world.a), add(&world.b));
        assert_eq!(buffer.to_vec().unwrap(), [5; N]);
    });
}
