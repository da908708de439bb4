//! Memory of every kind, copies, fills, regions, and exports.

use super::*;
use crate::foreign::{PointerFacts, PointerKind};
use onebuf_hal::{AccessState, RawHandle};

const MEMORY_KINDS: [MemoryKind; 3] =
    [MemoryKind::Device, MemoryKind::MappedDevice, MemoryKind::Exportable];

#[test]
fn what_is_written_is_read() {
    each(|rig| {
        let queue = rig.queue();
        for (memory_kind, bytes) in MEMORY_KINDS
            .into_iter()
            .flat_map(|memory_kind| [(memory_kind, 1), (memory_kind, 4099), (memory_kind, 1 << 20)])
        {
            let memory = rig.memory(memory_kind, bytes).unwrap();
            assert_eq!((memory.bytes(), memory.memory_kind()), (bytes, memory_kind));
            put(&*queue, &*memory, 0, &numbers(bytes));
            assert_eq!(get(&*queue, &*memory, 0, bytes), numbers(bytes));
            if bytes > 100 {
                put(&*queue, &*memory, 33, &[9; 5]);
                assert_eq!(get(&*queue, &*memory, 32, 7)[1..6], [9; 5]);
            }
        }
    });
}

#[test]
fn contents_are_there_from_the_start() {
    each(|rig| {
        let queue = rig.queue();
        for (memory_kind, bytes) in MEMORY_KINDS
            .into_iter()
            .flat_map(|memory_kind| [(memory_kind, 5), (memory_kind, (4 << 20) + 3)])
        {
            let contents = numbers(bytes);
            let memory = rig.device.allocate(&spec(memory_kind, bytes), Some(&contents)).unwrap();
            assert_eq!(get(&*queue, &*memory, 0, bytes), contents);
        }
    });
}

#[test]
fn the_host_sees_pinned_memory_and_no_other() {
    each(|rig| {
        let queue = rig.queue();
        let memory = rig.memory(MemoryKind::MappedDevice, 4096).unwrap();
        put(&*queue, &*memory, 0, &numbers(4096));
        let at = memory.host_pointer().unwrap();
        // SAFETY: pinned memory of that length, and the write is over.
        let seen = unsafe { std::slice::from_raw_parts(at.as_ptr(), 4096) };
        assert_eq!(seen, numbers(4096));
        assert!(!memory.needs_access_state() && memory.access_state() == AccessState::Acquired);
        assert_eq!(queue.reside(&*memory, AccessState::Released), Ok(false));
        let Export::Host(range) = memory.export(&*queue).unwrap() else { panic!("not pages") };
        assert_eq!((range.pointer, range.bytes), (at, 4096));

        let device = rig.memory(MemoryKind::Device, 4096).unwrap();
        assert_eq!(device.host_pointer(), None);
        assert!(matches!(device.export(&*queue), Err(Error::Unsupported { .. })));
        let RawHandle::Address(address) = device.raw() else { panic!("{device:?}") };
        assert!(address >= 1 << 62, "the stub's own pointer is given away");
    });
}

#[test]
fn host_pages_are_registered_once_and_given_up_once() {
    each(|rig| {
        let (queue, range) = (rig.queue(), pages(8192));
        let import =
            |device: &Device| device.import(&Export::Host(range.clone()), Access::ReadWrite);
        let first = import(&rig.device).unwrap();
        // The drivers refuse to pin pages twice; a second view shares the pin, also on another device.
        let (second, elsewhere) = (import(&rig.device).unwrap(), import(&rig.other).unwrap());
        assert_eq!(rig.probe.live()["registration"], 1);
        let part = range.part(4096, 100).unwrap();
        let third = rig.device.import(&Export::Host(part), Access::Read).unwrap();
        put(&*queue, &*first, 0, &numbers(8192));
        assert_eq!(get(&*queue, &*third, 0, 100), numbers(8192)[4096..4196]);
        // SAFETY: the pages of this test; the write is over.
        let seen = unsafe { std::slice::from_raw_parts(range.pointer.as_ptr(), 8192) };
        assert_eq!(seen, numbers(8192));
        assert_eq!(first.host_pointer(), Some(range.pointer));
        drop((first, second, third));
        assert_eq!(rig.probe.live()["registration"], 1);
        drop(elsewhere);
        assert!(!rig.probe.live().contains_key("registration"));
        let owner = Arc::downgrade(&range.owner);
        drop(range);
        assert!(owner.upgrade().is_none(), "nobody keeps the pages");
    });
}

/// Such an address occurs by chance once in thousands of runs; otherwise a larger allocation is needed.
#[test]
fn pinned_memory_is_aligned_whatever_the_driver_does() {
    each(|rig| {
        let queue = rig.queue();
        let align = 16 << 20;
        let wish = AllocSpec { align, ..spec(MemoryKind::MappedDevice, 4099) };
        let memory = rig.device.allocate(&wish, Some(&numbers(4099))).unwrap();
        let Export::Host(range) = memory.export(&*queue).unwrap() else { panic!("not pages") };
        assert!(range.pointer.addr().get().is_multiple_of(align), "{:p}", range.pointer);
        // SAFETY: pinned memory of that length, which nothing writes.
        let seen = unsafe { std::slice::from_raw_parts(range.pointer.as_ptr(), 4099) };
        assert_eq!(seen, numbers(4099), "the device wrote where the host looks");
        put(&*queue, &*memory, 4000, &[7; 99]);
        assert_eq!(get(&*queue, &*memory, 3999, 100), [&numbers(4000)[3999..], &[7; 99]].concat());
        assert_eq!(rig.probe.live()["host"], 1, "what was not aligned is given back");
    });
}

/// Device memory begins at the alignment that a buffer needs, too; its parts and the whole are where the address says.
#[test]
fn device_memory_is_aligned_whatever_the_driver_does() {
    each(|rig| {
        let (queue, align) = (rig.queue(), 16 << 20);
        let wish = AllocSpec { align, ..spec(MemoryKind::Device, 4099) };
        let memory = rig.device.allocate(&wish, Some(&numbers(4099))).unwrap();
        let RawHandle::Address(address) = memory.raw() else { panic!("{memory:?}") };
        assert!(address.is_multiple_of(align), "{address:#x}");
        assert_eq!(get(&*queue, &*memory, 0, 4099), numbers(4099));
        let part = memory.region(4096, 3, Access::ReadWrite).unwrap();
        assert_eq!(part.raw(), RawHandle::Address(address + 4096));
        assert_eq!(rig.probe.live()["mem"], 1, "what was not aligned is given back");
        drop((memory, part));
        assert!(!rig.probe.live().contains_key("mem"), "{:?}", rig.probe.live());
    });
}

#[test]
fn pinned_memory_of_one_device_is_seen_by_the_other() {
    each(|rig| {
        let (queue, there) = (rig.queue(), rig.other.queue(QueueSpec::default()).unwrap());
        let memory = rig.memory(MemoryKind::MappedDevice, 4096).unwrap();
        let export = memory.export(&*queue).unwrap();
        let alias = rig.other.import(&export, Access::ReadWrite).unwrap();
        drop((memory, export));
        put(&*there, &*alias, 0, &numbers(4096));
        assert_eq!(get(&*there, &*alias, 0, 4096), numbers(4096));
        assert_eq!(rig.probe.live()["host"], 1, "its maker's, while it is seen");
    });
}

#[test]
fn pages_that_somebody_else_pinned_are_an_error() {
    each(|rig| {
        let range = pages(8192);
        let half = rig.device.import(&Export::Host(range.part(4096, 4096).unwrap()), Access::Read);
        let whole = rig.device.import(&Export::Host(range), Access::Read).unwrap_err();
        assert!(whole.to_string().contains("ALREADY_REGISTERED"), "{whole}");
        drop(half);
    });
}

#[test]
fn fills_repeat_patterns_of_every_length() {
    each(|rig| {
        let queue = rig.queue();
        for memory_kind in MEMORY_KINDS {
            let memory = rig.memory(memory_kind, 120_000).unwrap();
            for len in [1, 2, 3, 4, 5, 8, 12, 16, 24, 100, 6000] {
                let pattern: Vec<u8> = (0..len).map(|i| (i * 3 + len) as u8).collect();
                queue.fill(&*memory, 0, 120_000, &[0]).unwrap();
                let (from, bytes) = (len, (120_000 / len - 2) * len);
                queue.fill(&*memory, from, bytes, &pattern).unwrap();
                let seen = get(&*queue, &*memory, 0, 120_000);
                assert_eq!(seen[from..from + bytes], pattern.repeat(bytes / len), "{len}");
                assert!(seen[..from].iter().chain(&seen[from + bytes..]).all(|byte| *byte == 0));
            }
            let uneven = queue.fill(&*memory, 0, 10, &[1, 2, 3]).unwrap_err();
            assert!(matches!(uneven, Error::InvalidArgument(_)), "{uneven}");
        }
    });
}

#[test]
fn copies_between_all_memory_kinds() {
    each(|rig| {
        let queue = rig.queue();
        for (a, b) in MEMORY_KINDS.into_iter().flat_map(|a| MEMORY_KINDS.map(|b| (a, b))) {
            let (from, to) = (rig.memory(a, 4096).unwrap(), rig.memory(b, 4096).unwrap());
            put(&*queue, &*from, 0, &numbers(4096));
            queue.fill(&*to, 0, 4096, &[0]).unwrap();
            queue.copy(&*from, 100, &*to, 200, 1000).unwrap();
            assert_eq!(get(&*queue, &*to, 200, 1000), numbers(4096)[100..1100]);
            let overlap = queue.copy(&*from, 0, &*from, 10, 100).unwrap_err();
            assert!(matches!(overlap, Error::InvalidArgument(_)), "{overlap}");
            queue.copy(&*from, 0, &*from, 100, 100).unwrap();
        }
    });
}

#[test]
fn regions_are_parts_of_the_whole() {
    each(|rig| {
        let queue = rig.queue();
        let whole = rig.memory(MemoryKind::MappedDevice, 4096).unwrap();
        put(&*queue, &*whole, 0, &numbers(4096));
        let part = whole.region(1024, 512, Access::Read).unwrap();
        assert_eq!(get(&*queue, &*part, 0, 512), numbers(4096)[1024..1536]);
        let at = whole.host_pointer().unwrap();
        assert_eq!(part.host_pointer().unwrap().as_ptr(), at.as_ptr().wrapping_add(1024));
        for (offset, bytes) in [(100, 512), (1024, 0), (1024, 4096), (usize::MAX, 2)] {
            let wrong = whole.region(offset, bytes, Access::Read).unwrap_err();
            assert!(matches!(wrong, Error::InvalidArgument(_)), "{wrong}");
        }
        assert!(part.region(0, 256, Access::Read).is_err(), "a part has no parts");
        assert!(matches!(part.export(&*queue), Err(Error::Unsupported { .. })));
        drop(whole);
        assert_eq!(get(&*queue, &*part, 0, 512), numbers(4096)[1024..1536]);
    });
}

#[test]
fn wrong_ranges_and_strangers_are_told() {
    each(|rig| {
        let (queue, there) = (rig.queue(), rig.other.queue(QueueSpec::default()).unwrap());
        let memory = rig.memory(MemoryKind::Device, 4096).unwrap();
        let mut room = [0u8; 8];
        for (offset, bytes) in [(4090, 8), (usize::MAX, 8)] {
            // SAFETY: refused.
            let wrong = unsafe { queue.read(&*memory, offset, room.as_mut_ptr(), bytes) };
            assert!(matches!(wrong, Err(Error::InvalidArgument(_))), "{wrong:?}");
        }
        let strange = there.fill(&*memory, 0, 8, &[0]).unwrap_err();
        assert!(matches!(strange, Error::ForeignContext { .. }), "{strange}");
        assert!(matches!(memory.export(&*there), Err(Error::ForeignContext { .. })));
        let fine = rig.memory(MemoryKind::FineSvm, 64).unwrap_err();
        assert!(fine.to_string().contains("one of mapped_device, exportable, device"), "{fine}");
        let much = rig.memory(MemoryKind::Device, 2 << 30).unwrap_err();
        assert!(matches!(much, Error::OutOfMemory { limit: Some(_), .. }), "{much}");
    });
}

#[test]
fn memory_that_waits_to_be_freed_is_not_lacking() {
    each(|rig| {
        let queue = rig.queue();
        let most = 700 << 20;
        let first = rig.memory(MemoryKind::Device, most).unwrap();
        let (hold, _) = Hold::new(rig, &*queue, false);
        queue.fill(&*first, 0, 4, &[1]).unwrap();
        drop(first);
        assert_eq!(rig.probe.live()["mem"], 1, "work still uses it");
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(5));
                hold.let_go();
            });
            rig.memory(MemoryKind::Device, most).unwrap();
        });
    });
}

/// Memory whose work does not end keeps its own bytes, and not those of others.
#[test]
fn one_busy_memory_does_not_keep_the_others() {
    each(|rig| {
        let most = 700 << 20;
        let (stuck, queue) = (rig.queue(), rig.queue());
        let [small, large] =
            [4096, most].map(|bytes| rig.memory(MemoryKind::Device, bytes).unwrap());
        let [(never, _), (hold, _)] = [&stuck, &queue].map(|queue| Hold::new(rig, &**queue, false));
        stuck.fill(&*small, 0, 4, &[1]).unwrap();
        queue.fill(&*large, 0, 4, &[1]).unwrap();
        drop((small, large));
        assert_eq!(rig.probe.live()["mem"], 2, "work still uses them");
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(5));
                hold.let_go();
            });
            rig.memory(MemoryKind::Device, most).unwrap();
        });
        never.let_go();
    });
}

/// Kernels of the primary context cannot use plain memory of a context that the application created.
#[test]
fn memory_of_another_context_is_refused_with_what_works() {
    each(|rig| {
        let context = rig.device.context().unwrap();
        let memory = rig.memory(MemoryKind::Device, 4096).unwrap();
        let RawHandle::Address(at) = memory.raw() else { panic!("an address") };
        let own = rig.device.pointer(at as u64).unwrap();
        context.check_own(&own).unwrap();
        let others = PointerFacts { context: 0x1000, ..own };
        let checked = context.check_own(&others);
        match rig.flavor {
            Flavor::Hip => checked.expect("HIP has no contexts"),
            Flavor::Cuda => {
                let said = checked.unwrap_err().to_string();
                let both =
                    said.contains("cuDevicePrimaryCtxRetain") && said.contains("cuMemCreate");
                assert!(both, "{said}");
            }
        }
        // What belongs to no context, or to all of them.
        context.check_own(&PointerFacts { context: 0, ..own }).unwrap();
        for kind in [PointerKind::Managed, PointerKind::Host] {
            context.check_own(&PointerFacts { kind, ..others }).unwrap();
        }
    });
}
