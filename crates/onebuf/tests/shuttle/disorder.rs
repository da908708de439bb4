//! Out-of-order queues: nothing orders their launches but what the buffers say.

use super::*;
use onebuf::QueueSpec;

/// A side whose queue shuffles what nothing orders.
fn shuffled(side: &Side) -> Side {
    let queue = side.device.queue_with(QueueSpec::out_of_order()).unwrap();
    Side { queue, ..side.beside() }
}

/// Each thread has views of its own, on one queue.
#[test]
fn dependent_launches_from_two_threads() {
    check(|world| {
        let (side, buffer) = (shuffled(&world.a), Arc::new(world.buffer()));
        let add = || {
            let (side, buffer) = (side.clone(), buffer.clone());
            move || (0..2).for_each(|_| patiently(|| side.add(&buffer)))
        };
        together(add(), add());
        assert_eq!(buffer.to_vec().unwrap(), [4; N]);
        side.queue.finish().unwrap();
    });
}

/// A view that is taken and dropped between two pieces of work hides neither from the other.
#[test]
fn a_view_without_launches() {
    check(|world| {
        let (side, buffer) = (shuffled(&world.a), Arc::new(world.buffer()));
        let (idle, theirs) = (side.clone(), buffer.clone());
        let takes =
            move || (0..2).for_each(|_| patiently(|| theirs.write_on(&idle.queue).map(drop)));
        let (writer, ours) = (world.b.clone(), buffer.clone());
        together(takes, move || (0..2).for_each(|_| patiently(|| writer.add(&ours))));
        side.add(&buffer).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [3; N]);
        side.queue.finish().unwrap();
    });
}
