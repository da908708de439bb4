//! Buffers that never return, requests that a limit refuses, and that nothing leaks in any order of drops.

use crate::{host, hub};
use onebuf::{
    Access, Buffer, Error, Hub, Pool, Probe, Signature, Source, args, fake::FakeConfig,
    pool::PoolStatistics,
};
use onebuf_conformance::{Side, Step, machine};
use std::{
    mem::forget,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

const N: usize = 1024;
const BYTES: u64 = 4096;
const SOON: Duration = Duration::from_secs(20);

/// Numbers of live, idle and lost buffers.
fn held(statistics: &PoolStatistics) -> [u64; 3] {
    [statistics.live_buffers, statistics.idle_buffers, statistics.lost]
}

/// A gate that kernels wait at.
#[derive(Clone, Default)]
struct Door(Arc<(Mutex<bool>, Condvar)>);

impl Door {
    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let shut = |open: &mut bool| !*open;
        drop(self.0.1.wait_while(self.0.0.lock().unwrap(), shut).unwrap());
    }
}

/// Work that does not end: the first wait for it times out, and the memory is then never reused.
#[test]
fn a_buffer_whose_wait_ran_out_never_returns() {
    let hub = hub(FakeConfig::default(), Duration::from_millis(50));
    let device = hub.device("fake:0").unwrap();
    let door = Door::default();
    let kernels_door = door.clone();
    let source = Source::default().with_native("stuck", move |args| {
        kernels_door.pass();
        args.slice_mut::<u32>(0)?.fill(13);
        Ok(())
    });
    let program = device.program(&source).unwrap();
    let signature = Signature::new().buffer::<u32>(Access::ReadWrite);
    // SAFETY: `NativeArgs` keeps the function in bounds and to its declared access.
    let stuck = unsafe { program.kernel("stuck", signature) }.unwrap();
    let (queue, pool) = (device.queue().unwrap(), Pool::new(&hub));
    let request = hub.buffer::<u32>(N).shared_with([&device]);

    let first = pool.get(&request).unwrap();
    queue.launch(&stuck, [1], args![first.write_on(&queue).unwrap()]).unwrap();
    drop(first); // immediately: nothing waits here
    assert_eq!(held(&pool.statistics()), [0, 1, 0]);
    let second = pool.get(&request).unwrap();
    let late = second.to_vec().unwrap_err();
    assert!(matches!(late, Error::Timeout { .. }), "{late}");
    drop(second);
    assert_eq!(held(&pool.statistics()), [0, 0, 1]);

    let third = pool.get_cleared(&request).unwrap();
    assert_eq!((pool.statistics().made, pool.statistics().hits), (2, 1));
    door.open();
    queue.finish().unwrap();
    assert_eq!(third.to_vec().unwrap(), [0; N], "other memory than what the kernel wrote");
}

/// Takes a guard and never drops it.
type Forget = fn(&Side, &Buffer<u32>);

#[test]
fn forgotten_guards_on_every_device() {
    let machine = machine();
    for side in &machine.sides {
        let request = machine.hub.buffer::<u32>(N).shared_with([&side.device]);
        let forgets: [(&str, Forget); 4] = [
            ("a read view", |side, buffer| forget(buffer.read_on(&side.queue).unwrap())),
            ("a view on a lease", |side, buffer| {
                drop(buffer.write_on(&side.queue).unwrap());
                forget(buffer.write_on(&side.queue).unwrap());
            }),
            ("a map", |_, buffer| forget(buffer.map_mut().unwrap())),
            ("a view of a region", |side, buffer| {
                let region = buffer.sub_buffer(..64, Access::ReadWrite).unwrap();
                forget(region.write_on(&side.queue).unwrap());
            }),
        ];
        let pool = Pool::new(&machine.hub);
        for (lost, (what, forgets)) in (1..).zip(forgets) {
            let buffer = pool.get(&request).unwrap();
            forgets(side, &buffer);
            drop(buffer);
            let what = format!("{} {what}", side.device);
            assert_eq!(held(&pool.statistics()), [0, 0, lost], "{what}");
            // The next buffer has other memory, and works.
            let next = pool.get(&request.clone().init(vec![5; N])).unwrap();
            side.step(&next, Step { mul: 1, add: 0 }).unwrap();
            assert_eq!(next.to_vec().unwrap()[..3], [5, 6, 7], "{what}");
            drop(next);
            pool.trim(0);
        }
    }
}

#[test]
fn a_detached_buffer_never_returns() {
    let machine = machine();
    for side in &machine.sides {
        let pool = Pool::new(&machine.hub);
        let request = machine.hub.buffer::<u32>(N).shared_with([&side.device]);
        let buffer = pool.get(&request.clone().init(vec![1; N])).unwrap();
        buffer.detach();
        side.step(&buffer, Step { mul: 1, add: 0 }).unwrap();
        assert_eq!(buffer.to_vec().unwrap()[..3], [1, 2, 3], "{}", side.device);
        assert_eq!(held(&pool.statistics()), [1, 0, 0], "{}", side.device);
        drop(buffer);
        assert_eq!(held(&pool.statistics()), [0, 0, 1], "{}", side.device);
        assert_eq!(pool.statistics().freed, 1, "{}", side.device);
    }
}

#[test]
fn the_limit_is_told_and_counts_what_is_idle() {
    let hub = host();
    let pool = Pool::with_limit(&hub, 4 * BYTES);
    let request = |n: usize| hub.buffer::<u32>(n);
    let all: Vec<_> = (0..4).map(|_| pool.get(&request(N)).unwrap()).collect();
    let full = pool.get(&request(N)).unwrap_err();
    assert!(matches!(full, Error::OutOfMemory { limit: Some(16_384), asked: BYTES, .. }), "{full}");
    for part in ["the pool", "4096", "16384"] {
        assert!(full.to_string().contains(part), "{full}");
    }
    assert_eq!(pool.statistics().limit_bytes, Some(4 * BYTES));
    drop(all);
    assert_eq!(held(&pool.statistics()), [0, 4, 0]);
    // Another size: idle buffers are freed to make room.
    let large = pool.get(&request(4 * N)).unwrap();
    assert_eq!(held(&pool.statistics()), [1, 0, 0]);
    let full = pool.get_within(&request(N), Duration::ZERO).unwrap_err();
    assert!(matches!(full, Error::OutOfMemory { .. }), "{full}");
    // More than the limit: it is refused without waiting.
    let never = pool.get_within(&request(5 * N), Duration::MAX).unwrap_err();
    assert!(matches!(never, Error::OutOfMemory { limit: Some(16_384), .. }), "{never}");
    drop(large);
    drop(pool.get_within(&request(4 * N), Duration::ZERO).unwrap());
}

/// A request of the largest size is refused like any other, whatever it is rounded up to.
#[test]
fn sizes_that_nobody_has() {
    let machine = machine();
    let pool = Pool::new(&machine.hub);
    for side in &machine.sides {
        for bytes in [isize::MAX as usize, 1 << 50] {
            let request = machine.hub.buffer::<u8>(bytes).shared_with([&side.device]);
            let refused = pool.get(&request).unwrap_err();
            let clear = matches!(refused, Error::OutOfMemory { .. } | Error::InvalidArgument(_));
            assert!(clear, "{}: {refused:?}", side.device);
        }
    }
    assert_eq!(pool.statistics().peak_live_bytes, 0);
}

#[test]
fn requests_that_are_not_for_this_pool() {
    let (hub, other) = (host(), host());
    let pool = Pool::new(&hub);
    assert!(matches!(pool.get(&other.buffer::<u32>(N)), Err(Error::InvalidArgument(_))));
    assert!(matches!(pool.get(&hub.buffer::<u32>(0)), Err(Error::InvalidArgument(_))));
    let mut memory = vec![0_u64; 64];
    let pointer = std::ptr::NonNull::new(memory.as_mut_ptr()).unwrap();
    // SAFETY: the request is refused, so nothing uses the memory.
    let own = unsafe { hub.buffer::<u64>(64).host_memory(pointer, Arc::new(())) };
    assert!(matches!(pool.get(&own), Err(Error::InvalidArgument(_))));
    assert_eq!(pool.statistics(), PoolStatistics::default());
}

#[test]
fn alignment_to_lines_and_pages() {
    let machine = machine();
    let pool = Pool::new(&machine.hub);
    for side in &machine.sides {
        for align in [64, 4096, 2 << 20] {
            let request = machine.hub.buffer::<u8>(100).shared_with([&side.device]);
            let request =
                request.allocate_on(&machine.hub.host()).trust_declared(true).align(align);
            for life in 0..2 {
                let buffer = pool.get(&request).unwrap();
                side.queue.finish().unwrap();
                let at = buffer.map().unwrap().as_ptr().addr();
                assert_eq!(at % align, 0, "{} {align}, life {life}", side.device);
            }
        }
    }
    assert!(pool.statistics().hits >= 3 * machine.sides.len() as u64);
}

/// Pool, hub and buffers are dropped in every order, with one buffer idle and one in use; nothing is left.
#[test]
fn nothing_is_left_in_whatever_order() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let probe = Probe::new();
        let fake = FakeConfig { probe: Some(probe.clone()), ..FakeConfig::default() };
        let hub: Hub = hub(fake, SOON);
        let device = hub.device("fake:0").unwrap();
        let request = hub.buffer::<u32>(N).shared_with([&device]);
        let pool = Pool::new(&hub);
        pool.prepare(&request, 2).unwrap();
        let (buffer, queue) = (pool.get(&request).unwrap(), device.queue().unwrap());
        drop(buffer.write_on(&queue).unwrap());
        drop((request, device, queue));
        let mut parts: [Option<Box<dyn std::any::Any>>; 3] =
            [Some(Box::new(pool)), Some(Box::new(hub)), Some(Box::new(buffer))];
        assert!(!probe.live().is_empty());
        order.into_iter().for_each(|part| drop(parts[part].take()));
        assert!(probe.live().is_empty(), "{order:?}: {:?}", probe.live());
    }
}
