//! Memory: every memory kind, fills, copies, hand-overs, imports.

use super::*;
use onebuf_hal::{AccessState, Export, HostRange, RawHandle};
use std::{
    ptr::NonNull,
    sync::atomic::{AtomicUsize, Ordering},
};

const BYTES: usize = 96 * 1024;

/// Host pages that count their live instances.
struct Pages {
    memory: Vec<u8>,
    start: usize,
    alive: Arc<AtomicUsize>,
}

impl Pages {
    fn range(bytes: usize, alive: &Arc<AtomicUsize>) -> HostRange {
        let memory = vec![0u8; bytes + 4096];
        let start = memory.as_ptr().align_offset(4096);
        alive.fetch_add(1, Ordering::SeqCst);
        let pages = Arc::new(Pages { memory, start, alive: alive.clone() });
        let pointer = NonNull::from(&pages.memory[pages.start]);
        HostRange { pointer, bytes, owner: pages }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The bytes that the host sees at a pointer.
fn seen(pointer: NonNull<u8>, bytes: usize) -> &'static mut [u8] {
    // SAFETY: only for tests: mapped memory of that length, freed after the slice's last use.
    unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), bytes) }
}

fn sync(queue: &dyn hal::Queue) {
    queue.mark().unwrap().wait(SECONDS).unwrap();
}

#[test]
fn every_memory_kind_keeps_what_was_written() {
    each(|rig| {
        let queue = rig.queue();
        for memory_kind in rig.memory_kinds() {
            let memory = rig.memory(memory_kind, BYTES).unwrap();
            assert_eq!((memory.bytes(), memory.memory_kind()), (BYTES, memory_kind));
            put(&*queue, &*memory, 0, &numbers(BYTES));
            assert_eq!(get(&*queue, &*memory, 0, BYTES), numbers(BYTES), "{memory_kind}");
            put(&*queue, &*memory, 1001, &[0xAA; 333]);
            let back = get(&*queue, &*memory, 1000, 335);
            let all = numbers(BYTES);
            assert_eq!((back[0], back[334]), (all[1000], all[1334]), "{memory_kind}");
            assert!(back[1..334].iter().all(|b| *b == 0xAA), "{memory_kind}");
            assert!(get(&*queue, &*memory, BYTES, 0).is_empty());
            let is_address = matches!(memory.raw(), RawHandle::Address(_));
            assert_eq!(
                is_address,
                matches!(memory_kind, MemoryKind::FineSvm | MemoryKind::CoarseSvm)
            );
        }
    });
}

#[test]
fn a_range_that_is_not_inside_is_refused() {
    each(|rig| {
        let queue = rig.queue();
        let memory = rig.memory(MemoryKind::Device, 64).unwrap();
        let mut host = [0u8; 128];
        for (offset, bytes) in [(0, 65), (64, 1), (usize::MAX, 2), (1, usize::MAX)] {
            // SAFETY: never enqueued.
            let read = unsafe { queue.read(&*memory, offset, host.as_mut_ptr(), bytes) };
            assert!(matches!(read, Err(Error::InvalidArgument(_))), "{offset} {bytes}");
            let filled = queue.fill(&*memory, offset, bytes, &[0]);
            assert!(matches!(filled, Err(Error::InvalidArgument(_))), "{offset} {bytes}");
        }
        let other = rig.memory(MemoryKind::Device, 64).unwrap();
        assert!(queue.copy(&*memory, 32, &*other, 0, 33).is_err());
        assert!(queue.copy(&*memory, 0, &*memory, 16, 32).is_err(), "overlap");
        queue.copy(&*memory, 0, &*memory, 32, 32).unwrap();
    });
}

#[test]
fn sizes_that_cannot_be_are_refused_before_the_driver() {
    each(|rig| {
        let limit = rig.device.info().caps.max_alloc_bytes;
        for memory_kind in rig.memory_kinds() {
            let none = rig.memory(memory_kind, 0);
            assert!(matches!(none, Err(Error::InvalidArgument(_))), "{memory_kind}: {none:?}");
            let huge = rig.memory(memory_kind, usize::MAX);
            let Err(Error::OutOfMemory { asked, limit: said, .. }) = huge else {
                panic!("{memory_kind}: {huge:?}")
            };
            assert_eq!((asked, said), (usize::MAX as u64, Some(limit)));
        }
        let pages = rig.memory(MemoryKind::HostPages, 64);
        assert!(matches!(pages, Err(Error::Unsupported { .. })), "{pages:?}");
    });
}

#[test]
fn alignment_beyond_the_drivers_is_kept_for_svm() {
    each(|rig| {
        for memory_kind in [MemoryKind::FineSvm, MemoryKind::CoarseSvm] {
            if !rig.memory_kinds().contains(&memory_kind) {
                continue;
            }
            let spec = AllocSpec { align: 1 << 16, ..spec(memory_kind, 100) };
            let memory = rig.device.allocate(&spec, None).unwrap();
            let RawHandle::Address(at) = memory.raw() else { panic!() };
            assert!(at.is_multiple_of(1 << 16));
        }
    });
}

#[test]
fn a_map_that_is_not_aligned_as_asked_is_not_exported() {
    each(|rig| {
        let spec = AllocSpec { align: 1 << 30, ..spec(MemoryKind::MappedDevice, 4096) };
        let memory = rig.device.allocate(&spec, None).unwrap();
        let export = memory.export(&*rig.queue());
        let Err(refused @ Error::Unsupported { .. }) = export else { panic!("{export:?}") };
        let said = refused.to_string();
        assert!(said.contains("page-aligned") && said.contains("USE_HOST_PTR"), "{said}");
    });
}

#[test]
fn fills_with_any_pattern() {
    each(|rig| {
        let queue = rig.queue();
        for memory_kind in rig.memory_kinds() {
            for len in [1, 2, 3, 4, 8, 12, 16, 24, 64, 128, 129, 256, 1000] {
                let (count, pattern) = (5000 / len + 3, numbers(len));
                let memory = rig.memory(memory_kind, len * (count + 2)).unwrap();
                queue.fill(&*memory, 0, len * (count + 2), &[0xEE]).unwrap();
                queue.fill(&*memory, len, len * count, &pattern).unwrap();
                let back = get(&*queue, &*memory, 0, len * (count + 2));
                assert_eq!(
                    back[len..len * (count + 1)],
                    pattern.repeat(count),
                    "{memory_kind} {len}"
                );
                let edges = back[..len].iter().chain(&back[len * (count + 1)..]);
                assert!(edges.into_iter().all(|b| *b == 0xEE), "{memory_kind} {len}");
            }
            // More than one chunk.
            let memory = rig.memory(memory_kind, 3 << 20).unwrap();
            queue.fill(&*memory, 0, 3 << 20, &[1, 2, 3]).unwrap();
            assert_eq!(get(&*queue, &*memory, 0, 3 << 20), [1, 2, 3].repeat(1 << 20));
            assert!(queue.fill(&*memory, 0, 16, &[1, 2, 3]).is_err());
            assert!(queue.fill(&*memory, 1, 3, &[1, 2, 3]).is_err());
            assert!(queue.fill(&*memory, 0, 16, &[]).is_err());
        }
    });
}

#[test]
fn copies_between_all_memory_kinds() {
    each(|rig| {
        let queue = rig.queue();
        for a in rig.memory_kinds() {
            for b in rig.memory_kinds() {
                let (from, to) = (rig.memory(a, BYTES).unwrap(), rig.memory(b, BYTES).unwrap());
                put(&*queue, &*from, 0, &numbers(BYTES));
                queue.fill(&*to, 0, BYTES, &[9]).unwrap();
                queue.copy(&*from, 100, &*to, 200, 5000).unwrap();
                drop(from);
                let back = get(&*queue, &*to, 0, BYTES);
                assert_eq!(back[200..5200], numbers(BYTES)[100..5100], "{a} -> {b}");
                assert_eq!((back[199], back[5200]), (9, 9), "{a} -> {b}");
            }
        }
    });
}

#[test]
fn hand_overs_make_data_visible() {
    each(|rig| {
        let queue = rig.queue();
        for memory_kind in rig.memory_kinds() {
            let memory = rig.memory(memory_kind, BYTES).unwrap();
            if !memory.needs_access_state() {
                assert!(!queue.reside(&*memory, AccessState::Released).unwrap());
                assert_eq!(memory.host_pointer().is_some(), memory_kind == MemoryKind::FineSvm);
                continue;
            }
            hand_over_rounds(&*queue, &*memory);
        }
    });
}

/// The device writes and the host reads, then vice versa, through every transition.
fn hand_over_rounds(queue: &dyn hal::Queue, memory: &dyn hal::Memory) {
    for round in 0..3 {
        assert_eq!((memory.access_state(), memory.host_pointer()), (AccessState::Acquired, None));
        put(queue, memory, 0, &[round; BYTES]);
        assert!(queue.reside(memory, AccessState::SharedRead).unwrap());
        assert!(!queue.reside(memory, AccessState::SharedRead).unwrap());
        sync(queue);
        assert!(seen(memory.host_pointer().unwrap(), BYTES).iter().all(|b| *b == round));
        assert_eq!(get(queue, memory, 0, 8), [round; 8], "the device may still read");
        // SAFETY: refused before it is enqueued.
        let write = unsafe { queue.write(memory, 0, [0u8].as_ptr(), 1) };
        assert!(matches!(write, Err(Error::InvalidArgument(_))));

        assert!(queue.reside(memory, AccessState::Released).unwrap());
        sync(queue);
        seen(memory.host_pointer().unwrap(), BYTES).copy_from_slice(&numbers(BYTES));
        assert!(queue.fill(memory, 0, 8, &[0]).is_err());
        assert!(queue.reside(memory, AccessState::SharedRead).unwrap());
        sync(queue);
        assert_eq!(seen(memory.host_pointer().unwrap(), BYTES), numbers(BYTES));
        assert!(queue.reside(memory, AccessState::Acquired).unwrap());
        assert_eq!(get(queue, memory, 0, BYTES), numbers(BYTES));
    }
}

#[test]
fn memory_can_go_while_it_is_mapped() {
    each(|rig| {
        for memory_kind in rig.memory_kinds() {
            for to in [AccessState::SharedRead, AccessState::Released] {
                let queue = rig.queue();
                let memory = rig.memory(memory_kind, BYTES).unwrap();
                queue.reside(&*memory, to).unwrap();
                drop(queue);
                drop(memory);
            }
        }
    });
}

#[test]
fn imported_pages_are_the_hosts() {
    each(|rig| {
        let (queue, alive) = (rig.queue(), Arc::new(AtomicUsize::new(0)));
        let range = Pages::range(BYTES, &alive);
        let at = range.pointer;
        let memory = rig.device.import(&Export::Host(range), Access::ReadWrite).unwrap();
        assert_eq!(memory.memory_kind(), MemoryKind::HostPages);
        queue.reside(&*memory, AccessState::Released).unwrap();
        sync(&*queue);
        assert_eq!(memory.host_pointer(), Some(at));
        seen(at, BYTES).copy_from_slice(&numbers(BYTES));
        queue.reside(&*memory, AccessState::Acquired).unwrap();
        assert_eq!(get(&*queue, &*memory, 0, BYTES), numbers(BYTES));
        hand_over_rounds(&*queue, &*memory);
        queue.fill(&*memory, 0, BYTES, &[5]).unwrap();
        queue.reside(&*memory, AccessState::SharedRead).unwrap();
        sync(&*queue);
        assert!(seen(at, BYTES).iter().all(|b| *b == 5));
        assert_eq!(alive.load(Ordering::SeqCst), 1);
        drop(memory);
        drop(queue);
        gone(&alive);
    });
}

/// Waits until the pages' owner is dropped, possibly by another thread.
fn gone(alive: &AtomicUsize) {
    let start = Instant::now();
    while alive.load(Ordering::SeqCst) != 0 && start.elapsed() < SECONDS {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[test]
fn imported_pages_stay_while_work_is_queued() {
    each_with_host_signals(|rig| {
        let (queue, alive) = (rig.queue(), Arc::new(AtomicUsize::new(0)));
        let range = Pages::range(BYTES, &alive);
        let memory = rig.device.import(&Export::Host(range), Access::ReadWrite).unwrap();
        let host_signal = queue.host_signal().unwrap();
        queue.fill(&*memory, 0, BYTES, &[1]).unwrap();
        queue.flush().unwrap();
        drop(memory);
        thread::sleep(Duration::from_millis(20));
        assert_eq!(alive.load(Ordering::SeqCst), 1, "freed under a queued command");
        host_signal.open(Ok(()));
        sync(&*queue);
        drop(queue);
        gone(&alive);
    });
}

#[test]
fn what_is_exported_can_be_imported_next_door() {
    let _alone = alone();
    let rigs = rigs();
    for a in &rigs {
        for b in &rigs {
            for memory_kind in a.memory_kinds().into_iter().filter(|s| *s != MemoryKind::Device) {
                println!("{} {memory_kind} -> {}", a.name(), b.name());
                next_door(a, b, memory_kind);
            }
        }
    }
    if let Some(probe) = rigs.first().map(|rig| rig.probe.clone()) {
        drop(rigs);
        settled(&probe);
    }
}

fn next_door(a: &Rig, b: &Rig, memory_kind: MemoryKind) {
    let (qa, qb) = (a.queue(), b.queue());
    let memory = a.memory(memory_kind, BYTES).unwrap();
    put(&*qa, &*memory, 0, &numbers(BYTES));
    let export = memory.export(&*qa).unwrap();
    let Export::Host(range) = &export else { panic!("not pages") };
    assert_eq!(Some(range.pointer), memory.host_pointer());
    let view = b.device.import(&export, Access::ReadWrite).unwrap();
    assert_eq!(get(&*qb, &*view, 0, BYTES), numbers(BYTES));
    qb.fill(&*view, 0, BYTES, &[3]).unwrap();
    qb.reside(&*view, AccessState::Released).unwrap();
    sync(&*qb);
    qa.reside(&*memory, AccessState::Acquired).unwrap();
    assert_eq!(get(&*qa, &*memory, 0, BYTES), [3; BYTES]);
    // The view outlives the memory's handle, and keeps its pages.
    drop((export, memory));
    qb.reside(&*view, AccessState::Acquired).unwrap();
    assert_eq!(get(&*qb, &*view, 0, BYTES), [3; BYTES]);
}

#[test]
fn device_memory_has_no_export_and_queues_of_others_are_refused() {
    let _alone = alone();
    let rigs = rigs();
    for rig in &rigs {
        let memory = rig.memory(MemoryKind::Device, 64).unwrap();
        assert!(matches!(memory.export(&*rig.queue()), Err(Error::Unsupported { .. })));
        for other in rigs.iter().filter(|other| !Arc::ptr_eq(&other.device, &rig.device)) {
            let queue = other.queue();
            let foreign = |result: Result<()>| {
                assert!(matches!(result, Err(Error::ForeignContext { .. })), "{result:?}");
            };
            foreign(queue.fill(&*memory, 0, 64, &[0]));
            foreign(queue.reside(&*memory, AccessState::Released).map(drop));
            foreign(queue.wait_for(&[rig.queue().mark().unwrap()]));
            foreign(memory.export(&*queue).map(drop));
        }
    }
}
