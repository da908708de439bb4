//! Guards that are never dropped: the buffer stays busy, its memory stays allocated, and nothing else is affected.

use onebuf::{Buffer, Error, HubBuilder, MemoryKind, Probe, Result};
use onebuf_conformance::{Side, Step, fakes};
use std::{
    mem::forget,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

const N: usize = 1000;

struct Bench {
    _alone: MutexGuard<'static, ()>,
    probe: Arc<Probe>,
    sides: Vec<Side>,
}

/// The host, the fake devices and every OpenCL device.
fn bench() -> Bench {
    // Drivers are not thread-safe at start-up.
    static ONE: Mutex<()> = Mutex::new(());
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let probe = Probe::new();
    let builder = onebuf::builder()
        .without(["vulkan", "gl"])
        .verdicts(Default::default())
        .probe(probe.clone());
    let builder = builder.timeout(Duration::from_secs(5));
    let hub = fakes().into_iter().fold(builder, HubBuilder::fake).build().unwrap();
    let sides = hub.devices().iter().map(|device| Side::open(device).unwrap()).collect();
    Bench { _alone, probe, sides }
}

impl Bench {
    fn buffer(&self, side: &Side, memory_kind: MemoryKind) -> Buffer<u32> {
        let builder = side.device.hub().buffer::<u32>(N).shared_with([&side.device]);
        builder.allocate_on(&side.device).memory_kind(memory_kind).init(vec![7; N]).build().unwrap()
    }

    fn each(&self, test: impl Fn(&Side, Buffer<u32>, &str)) {
        for side in &self.sides {
            for &memory_kind in &side.device.info().caps.memory_kinds {
                let bystander = self.buffer(side, memory_kind);
                let what = format!("{} {memory_kind}", side.device);
                test(side, self.buffer(side, memory_kind), &what);
                side.step(&bystander, Step { mul: 1, add: 0 }).unwrap();
                assert_eq!(bystander.to_vec().unwrap()[..3], [7, 8, 9], "{what}");
            }
        }
    }

    /// Allocations that drivers still have for the hub: objects, shared virtual memory, pinned host memory.
    fn memories(&self) -> i64 {
        let live = self.probe.live();
        ["mem", "svm", "host"].iter().filter_map(|kind| live.get(kind)).sum()
    }
}

#[track_caller]
fn busy<T>(outcome: Result<T>, what: &str) {
    match outcome {
        Err(Error::Busy { .. } | Error::Timeout { .. }) => {}
        Err(other) => panic!("{what}: {other}"),
        Ok(_) => panic!("{what}: not busy"),
    }
}

#[track_caller]
fn no_writer(side: &Side, buffer: &Buffer<u32>, what: &str) {
    busy(buffer.write_on(&side.queue), what);
    busy(buffer.write(&[1; N]), what);
    busy(buffer.fill(1), what);
    busy(buffer.map_mut(), what);
    busy(buffer.write_async(.., vec![1; N]), what);
    busy(buffer.copy_from(0, buffer, 5..10), what);
    busy(buffer.batch().write(0, &[1]).and_then(|batch| batch.flush()), what);
}

#[track_caller]
fn no_reader(side: &Side, buffer: &Buffer<u32>, what: &str) {
    no_writer(side, buffer, what);
    busy(buffer.read_on(&side.queue), what);
    busy(buffer.to_vec(), what);
    busy(buffer.map(), what);
    busy(buffer.read_async(.., vec![0; N]), what);
}

#[test]
fn guards_of_every_kind() {
    let bench = bench();
    bench.each(|side, buffer, what| {
        forget(buffer.read_on(&side.queue).unwrap());
        no_writer(side, &buffer, what);
        assert_eq!(buffer.to_vec().unwrap(), [7; N], "{what}: readers share");
    });
    bench.each(|side, buffer, what| {
        forget(buffer.map().unwrap());
        no_writer(side, &buffer, what);
        assert_eq!(buffer.map().unwrap()[0], 7, "{what}: readers share");
    });
    bench.each(|side, buffer, what| {
        forget(buffer.write_on(&side.queue).unwrap());
        no_reader(side, &buffer, what);
    });
    bench.each(|side, buffer, what| {
        forget(buffer.map_mut().unwrap());
        no_reader(side, &buffer, what);
    });
}

#[test]
fn memory_under_a_forgotten_guard_is_kept() {
    let bench = bench();
    let kept = std::cell::Cell::new(0);
    bench.each(|side, buffer, _| {
        forget(buffer.write_on(&side.queue).unwrap());
        drop(buffer);
        kept.set(kept.get() + i64::from(side.device.id() != "host"));
    });
    assert!(kept.get() > 0 && bench.memories() >= kept.get(), "{:?}", bench.probe.live());
}

#[test]
fn what_holds_no_mark_leaves_the_buffer_usable() {
    let bench = bench();
    // A first transfer, after which the hub keeps staging memory for each device.
    bench.each(|_, buffer, _| buffer.write(&[7; N]).unwrap());
    let kept = settled(&bench, 0);
    assert!(kept <= bench.sides.len() as i64, "{:?}", bench.probe.live());
    bench.each(|side, buffer, what| {
        forget(buffer.read_async(.., vec![0; N]).unwrap());
        forget(buffer.write_async(..2, vec![5; 2]).unwrap());
        let mut batch = buffer.batch();
        batch.write(0, &[9]).unwrap();
        forget(batch);
        forget(side.queue.fence());
        forget(buffer.fence());
        side.step(&buffer, Step { mul: 1, add: 0 }).unwrap();
        forget(buffer.fence().map(|fence| fence.wait(Duration::from_secs(5))));
        assert_eq!(buffer.to_vec().unwrap()[..4], [5, 6, 9, 10], "{what}");
        drop(buffer);
    });
    assert!(settled(&bench, kept) <= kept, "{kept} before, {:?}", bench.probe.live());
}

/// Waits until drivers have at most this many allocations; returns how many they have. CUDA and HIP free memory under work later, and
/// a new queue frees what is over.
fn settled(bench: &Bench, most: i64) -> i64 {
    for _ in 0..50 {
        if bench.memories() <= most {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
        bench.sides.iter().for_each(|side| drop(side.device.queue().unwrap()));
    }
    bench.memories()
}
