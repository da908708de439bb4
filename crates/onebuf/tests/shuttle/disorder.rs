//! Out-of-order queues: only the buffers order their launches.

use super::*;
use onebuf::QueueSpec;

/// A side whose queue runs unordered work in random order.
fn shuffled(side: &Side) -> Side {
    let queue = side.device.queue_with(QueueSpec::out_of_order()).unwrap();
    Side { queue, ..side.beside() }
}

/// Each thread takes its own views, on one queue.
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

/// A view that is taken and dropped between two pieces of work keeps both ordered.
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
