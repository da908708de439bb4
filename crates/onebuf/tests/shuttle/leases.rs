//! Guards without a lock, and those who come between.

use super::*;

/// Clones of one queue share its lease; only one of them has it at a time.
#[test]
fn clones_of_one_queue_in_two_threads() {
    check(|world| {
        let buffer = Arc::new(world.buffer());
        world.a.add(&buffer).unwrap(); // from here on there is a lease
        let add = |side: &Side| {
            let (side, buffer) = (side.clone(), buffer.clone());
            move || (0..2).for_each(|_| patiently(|| side.add(&buffer)))
        };
        together(add(&world.a), add(&world.a));
        assert_eq!(buffer.to_vec().unwrap(), [5; N]);
    });
}

/// A queue comes again and again while others take the buffer: of its own device, and of the other.
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

/// Whoever recalls a lease while its guard is being dropped learns of all that guard's work: either from
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

/// What was known to be done before the lease's work says nothing of that work.
#[test]
fn work_on_a_lease_is_waited_for() {
    check(|world| {
        let buffer = world.buffer();
        world.a.set(&buffer, 0, 1).unwrap();
        world.a.queue.finish().unwrap(); // a position that was reached
        world.a.set(&buffer, 1, 2).unwrap(); // on the lease
        world.b.set(&buffer, 2, 3).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [3; N]);
        world.a.queue.finish().unwrap();
    });
}

/// Another reader may still be at it: the queue that reads again without asking asks before it writes.
#[test]
fn a_lease_to_read_is_not_one_to_write() {
    check(|world| {
        let buffer = world.buffer();
        world.b.look(&buffer).unwrap();
        world.a.look(&buffer).unwrap(); // leases to read
        world.a.set(&buffer, 0, 1).unwrap();
        world.b.look(&buffer).unwrap();
        for side in [&world.a, &world.b] {
            side.queue.finish().unwrap();
        }
        assert_eq!((world.a.seen(), world.b.seen()), (vec![0], vec![0, 1]));
    });
}

/// Readers on one queue's lease, and a writer elsewhere: nobody sees half of a write.
#[test]
fn leased_readers_and_a_writer() {
    check(|world| {
        let buffer = Arc::new(world.buffer());
        world.b.look(&buffer).unwrap(); // leases to read
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

/// A guard that is forgotten on a lease keeps everybody away, for ever.
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
