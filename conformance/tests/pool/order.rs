//! What is waited for: work of earlier uses, and work before a guard that launched nothing.

use crate::hub;
use onebuf::{
    Access, Hub, Kernel, MemoryKind, Pool, Queue, QueueOrder, QueueSpec, Signature, Source, args,
    fake::{Delay, FakeConfig},
};
use std::time::Duration;

const LATE: Duration = Duration::from_millis(20);
const SOON: Duration = Duration::from_secs(20);

/// A hub whose fake device delays every command.
fn late() -> Hub {
    hub(FakeConfig { delay: Delay::Fixed(LATE), ..FakeConfig::default() }, SOON)
}

/// Sets every element to one more than the first.
fn bump(hub: &Hub) -> Kernel {
    let source = Source::default().with_native("bump", |args| {
        let elements = args.slice_mut::<u32>(0)?;
        elements.fill(elements[0] + 1);
        Ok(())
    });
    let program = hub.device("fake:0").unwrap().program(&source).unwrap();
    let signature = Signature::new().buffer::<u32>(Access::ReadWrite);
    // SAFETY: `NativeArgs` keeps the function in bounds and to its declared access.
    unsafe { program.kernel("bump", signature) }.unwrap()
}

fn queue(hub: &Hub, order: QueueOrder) -> Queue {
    let spec = QueueSpec { order, ..QueueSpec::default() };
    hub.device("fake:0").unwrap().queue_with(spec).unwrap()
}

/// A view on an out-of-order queue without launches waited for nothing: the next user must still wait for earlier work.
#[test]
fn a_guard_without_launches_hides_no_work() {
    let hub = late();
    let (kernel, device) = (bump(&hub), hub.device("fake:0").unwrap());
    let (ordered, free) = (queue(&hub, QueueOrder::InOrder), queue(&hub, QueueOrder::OutOfOrder));
    for writes in [true, false] {
        let buffer = hub.buffer::<u32>(64).shared_with([&device]).build().unwrap();
        for _ in 0..3 {
            let view = buffer.write_on(&ordered).unwrap();
            ordered.launch(&kernel, [1], args![view]).unwrap();
        }
        match writes {
            true => drop(buffer.write_on(&free).unwrap()),
            false => drop(buffer.read_on(&free).unwrap()),
        }
        let view = buffer.write_on(&free).unwrap();
        free.launch(&kernel, [1], args![view]).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [4; 64], "after a view that writes: {writes}");
        ordered.finish().unwrap();
        free.finish().unwrap();
    }
}

/// A longer use left work behind the end of the next one. The next hand-over covers the whole memory and
/// must wait for that work; otherwise the fake device reports `RACE` or `PROTOCOL`.
#[test]
fn hand_overs_wait_for_work_behind_the_end() {
    let hub = late();
    let (kernel, device) = (bump(&hub), hub.device("fake:0").unwrap());
    let (first, second) = (queue(&hub, QueueOrder::InOrder), queue(&hub, QueueOrder::InOrder));
    let pool = Pool::new(&hub);
    let mapped = MemoryKind::MappedDevice;
    let request = |n: usize| {
        hub.buffer::<u32>(n).shared_with([&device]).allocate_on(&device).memory_kind(mapped)
    };
    let long = pool.get_cleared(&request(16_384)).unwrap(); // 64 KiB
    first.launch(&kernel, [1], args![long.write_on(&first).unwrap()]).unwrap();
    first.finish().unwrap();
    let tail = long.sub_buffer(15_360.., Access::ReadWrite).unwrap();
    for _ in 0..5 {
        second.launch(&kernel, [1], args![tail.write_on(&second).unwrap()]).unwrap();
    }
    drop(tail);
    drop(long);
    let short = pool.get(&request(15_000)).unwrap(); // ends before that tail
    assert_eq!(pool.statistics().made, 1);
    first.launch(&kernel, [1], args![short.write_on(&first).unwrap()]).unwrap();
    short.map_mut().unwrap().fill(7);
    second.finish().unwrap();
    first.finish().unwrap();
    assert_eq!(short.to_vec().unwrap(), [7; 15_000]);
    drop(short);
    let long = pool.get(&request(16_384)).unwrap().to_vec().unwrap();
    assert!(long[..15_000].iter().all(|&x| x == 7), "the short life");
    assert!(long[15_360..].iter().all(|&x| x == 6), "the first life's tail: {}", long[15_360]);
}

/// Returning a buffer waits for nothing; the next user is ordered after pending work.
#[test]
fn the_next_user_is_behind_the_last() {
    let hub = late();
    let (kernel, device) = (bump(&hub), hub.device("fake:0").unwrap());
    let pool = Pool::new(&hub);
    let request = hub.buffer::<u32>(64).shared_with([&device]);
    drop(pool.get_cleared(&request).unwrap());
    for life in 1..=6 {
        let queue = queue(&hub, QueueOrder::InOrder);
        let buffer = pool.get(&request).unwrap();
        queue.launch(&kernel, [1], args![buffer.write_on(&queue).unwrap()]).unwrap();
        if life % 3 == 0 {
            assert_eq!(buffer.to_vec().unwrap(), [life; 64]);
        }
    }
    assert_eq!(pool.statistics().made, 1);
}
