//! Every memory kind: what is written is read back in every way; what is impossible is refused.

use super::*;
use onebuf_hal::{AccessState, FdKind};

const BYTES: usize = 3 * 4096 + 1000;

#[test]
fn every_memory_kind_keeps_what_was_written() {
    each(|rig| {
        let queue = rig.queue();
        for memory_kind in rig.memory_kinds() {
            let contents = numbers(BYTES);
            let memory = rig.memory(memory_kind, &contents);
            assert_eq!(look(&*queue, &*memory), contents, "{memory_kind}");
            let more = vec![0x5a; 4001];
            // SAFETY: kept until the wait is over.
            let wrote = unsafe { queue.write(&*memory, 777, more.as_ptr(), more.len()) }.unwrap();
            wrote.wait(SECONDS).unwrap();
            let mut model = contents;
            model[777..777 + 4001].fill(0x5a);
            assert_eq!(look(&*queue, &*memory), model, "{memory_kind}");
        }
    });
}

#[test]
fn copies_larger_than_the_staging_memory_go_in_pieces() {
    each(|rig| {
        let queue = rig.queue();
        let contents = numbers((33 << 20) + 12);
        let memory = rig.memory(MemoryKind::Device, &contents);
        assert!(look(&*queue, &*memory) == contents);
    });
}

#[test]
fn fills_with_any_pattern() {
    each(|rig| {
        let queue = rig.queue();
        let patterns: [&[u8]; 6] =
            [&[9], &[1, 2], &[1, 2, 3], &[1, 2, 3, 4], &[5; 12], &[1, 2, 3, 4, 5, 6, 7, 8]];
        for pattern in patterns {
            let memory = rig.memory(MemoryKind::Device, &[0xee; 24_000]);
            let (at, bytes) = (48 * pattern.len(), 900 * pattern.len());
            queue.fill(&*memory, at, bytes, pattern).unwrap();
            let mut model = vec![0xee; 24_000];
            model[at..at + bytes].copy_from_slice(&pattern.repeat(900));
            assert_eq!(look(&*queue, &*memory), model, "{pattern:?}");
        }
        let memory = rig.memory(MemoryKind::Device, &[0; 64]);
        let odd = queue.fill(&*memory, 0, 10, &[1, 2, 3]).unwrap_err();
        assert!(odd.to_string().contains("multiples of a pattern"), "{odd}");
    });
}

#[test]
fn copies_stay_in_order() {
    each(|rig| {
        let queue = rig.queue();
        let (a, b) = (
            rig.memory(MemoryKind::Device, &numbers(8192)),
            rig.memory(MemoryKind::MappedDevice, &[0; 8192]),
        );
        queue.copy(&*a, 100, &*b, 50, 4000).unwrap();
        queue.fill(&*a, 0, 8192, &[0]).unwrap();
        queue.copy(&*b, 0, &*a, 4096, 4096).unwrap();
        let model: Vec<u8> =
            [vec![0; 4146], numbers(8192)[100..4100].to_vec(), vec![0; 46]].concat();
        assert_eq!(look(&*queue, &*a), model);
        let overlap = queue.copy(&*a, 0, &*a, 100, 200).unwrap_err();
        assert!(overlap.to_string().contains("overlap"), "{overlap}");
    });
}

/// The host and the shader take turns on every page of mapped memory and imported pages, without copies. The control: after
/// the shader has run, the bytes differ from what the host wrote.
#[test]
fn host_and_shader_see_every_page() {
    each(|rig| {
        let (queue, kernel) = (rig.queue(), rig.step());
        let mut seen = vec![rig.memory(MemoryKind::MappedDevice, &[0; BYTES])];
        if rig.device.info().caps.imports_host_pages {
            seen.push(rig.device.import(&Export::Host(pages(BYTES)), Access::ReadWrite).unwrap());
        }
        for memory in seen {
            let at = memory.host_pointer().unwrap();
            // SAFETY: mapped for as long as the memory lives, and no work uses it meanwhile.
            let host =
                || unsafe { std::slice::from_raw_parts_mut(at.cast::<u32>().as_ptr(), BYTES / 4) };
            let mut model: Vec<u32> = (0..BYTES as u32 / 4).map(|i| i * 3 + 1).collect();
            for round in 1..4 {
                host().copy_from_slice(&model);
                let control = step(&*queue, &*kernel, &*memory, BYTES as u32 / 4, 2 * round + 1);
                control.unwrap();
                queue.mark().unwrap().wait(SECONDS).unwrap();
                assert_ne!(host(), model, "the shader has not run");
                step_model(&mut model, 2 * round + 1);
                assert_eq!(host(), model);
                model.iter_mut().for_each(|word| *word ^= round);
            }
        }
    });
}

/// The device itself transfers to imported pages: the bytes arrive although no thread asks. The control: ordinary memory gets them when a
/// thread asks whether the work is over.
#[test]
fn imported_pages_are_transferred_directly() {
    each(|rig| {
        if !rig.device.info().caps.imports_host_pages {
            return println!("skip: {} imports no pages", rig.device.info().name);
        }
        let (queue, contents) = (rig.queue(), numbers(BYTES));
        let memory = rig.memory(MemoryKind::Device, &contents);
        let (pinned, ordinary) = (pages(BYTES), pages(BYTES));
        let import = rig.device.import(&Export::Host(pinned.clone()), Access::ReadWrite).unwrap();
        assert!(import.pins_pages() && !memory.pins_pages());
        let arrived = |range: &HostRange| {
            // SAFETY: alive; only looked at, and compared after the work is over.
            let last = || unsafe { range.pointer.add(BYTES - 1).read_volatile() };
            let start = Instant::now();
            while last() == 0 && start.elapsed() < Duration::from_secs(1) {
                std::thread::yield_now();
            }
            last() != 0
        };
        assert_ne!(contents[BYTES - 1], 0);
        for (range, directly) in [(&ordinary, false), (&pinned, true)] {
            // SAFETY: kept until the wait is over.
            let read = unsafe { queue.read(&*memory, 0, range.pointer.as_ptr(), BYTES) }.unwrap();
            queue.flush().unwrap();
            let came = directly && (0..20).any(|_| arrived(range)) || arrived(range);
            read.wait(SECONDS).unwrap();
            // SAFETY: alive, and no work uses it any longer.
            let seen = unsafe { std::slice::from_raw_parts(range.pointer.as_ptr(), BYTES) };
            assert!(seen == contents, "directly: {directly}");
            assert_eq!(came, directly, "on {}", rig.device.info().name);
        }
        drop(import);
    });
}

/// Bytes that begin inside a page are imported with the page, and no other byte changes.
#[test]
fn pages_are_imported_from_where_the_bytes_begin() {
    each(|rig| {
        if !rig.device.info().caps.imports_host_pages {
            return println!("skip: {} imports no pages", rig.device.info().name);
        }
        let (queue, range, align) =
            (rig.queue(), pages(3 * 4096), rig.device.info().caps.align_bytes);
        let part = range.part(4096 - align, 4096 + 12).unwrap();
        let memory = rig.device.import(&Export::Host(part), Access::ReadWrite).unwrap();
        queue.fill(&*memory, 0, 4096 + 12, &[7]).unwrap();
        queue.mark().unwrap().wait(SECONDS).unwrap();
        // SAFETY: alive, and no work uses it any longer.
        let all = unsafe { std::slice::from_raw_parts(range.pointer.as_ptr(), 3 * 4096) };
        let model = [vec![0; 4096 - align], vec![7; 4108], vec![0; 4096 + align - 12]].concat();
        assert!(all == model);
        let odd = range.part(4, 4096).unwrap();
        let refused = rig.device.import(&Export::Host(odd), Access::Read).unwrap_err();
        assert!(refused.to_string().contains("aligned"), "{refused}");
    });
}

/// A descriptor refers to the memory itself: both sides write, both see every page.
#[test]
fn what_is_exported_is_imported() {
    each(|rig| {
        if !rig.has(MemoryKind::Exportable) {
            return println!("skip: {} exports nothing", rig.device.info().name);
        }
        let (queue, kernel, other) = (rig.queue(), rig.step(), rig.queue());
        let mut model = words(&numbers(BYTES));
        let memory = rig.memory(MemoryKind::Exportable, &numbers(BYTES));
        let range = memory.export_fd(FdKind::OpaqueFd).unwrap();
        assert!(range.allocation_bytes >= BYTES && range.offset == 0, "{range:?}");
        let alias = rig.device.import(&Export::Fd(range), Access::ReadWrite).unwrap();
        for round in 1..4 {
            step(&*queue, &*kernel, &*memory, model.len() as u32, 2 * round + 1).unwrap();
            other.wait_for(&[queue.mark().unwrap()]).unwrap();
            step(&*other, &*kernel, &*alias, model.len() as u32, 2 * round + 7).unwrap();
            step_model(&mut model, 2 * round + 1);
            step_model(&mut model, 2 * round + 7);
            assert_eq!(words(&look(&*other, &*alias)), model);
            assert_eq!(words(&look(&*queue, &*memory)), model);
        }
        drop(memory);
        assert_eq!(words(&look(&*other, &*alias)), model, "the memory stays with who imported it");
    });
}

#[test]
fn what_cannot_be_exported_or_imported_is_refused() {
    each(|rig| {
        let plain = rig.memory(MemoryKind::Device, &[0; 4096]);
        let refused = plain.export_fd(FdKind::OpaqueFd).unwrap_err();
        assert!(refused.to_string().contains("exportable"), "{refused}");
        assert!(plain.export(&*rig.queue()).unwrap_err().to_string().contains("mapped_device"));
        let fd =
            rustix::fs::memfd_create("not a driver's", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 1 << 20).unwrap();
        let (kind, bytes, allocation_bytes) = (FdKind::OpaqueFd, 4096, 1 << 20);
        let theirs = hal::FdRange {
            fd: Arc::new(fd),
            kind,
            offset: 0,
            bytes,
            allocation_bytes,
            memory_type: None,
        };
        let refused = rig.device.import(&Export::Fd(theirs.clone()), Access::Read);
        assert!(refused.is_err(), "{refused:?}");
        assert_eq!(descriptors("not a driver's"), 1, "the duplicate was closed");
        let beyond = hal::FdRange { offset: 1 << 20, ..theirs };
        assert!(rig.device.import(&Export::Fd(beyond), Access::Read).is_err());
    });
}

#[test]
fn regions_are_parts_of_the_same_bytes() {
    each(|rig| {
        let (queue, kernel) = (rig.queue(), rig.step());
        let align = rig.device.info().caps.align_bytes;
        let memory = rig.memory(MemoryKind::Device, &numbers(8 * align));
        let part = memory.region(2 * align, 3 * align, Access::ReadWrite).unwrap();
        assert_eq!((part.raw(), part.raw_offset()), (memory.raw(), 2 * align));
        step(&*queue, &*kernel, &*part, 3 * align as u32 / 4, 5).unwrap();
        let mut model = words(&numbers(8 * align));
        step_model(&mut model[2 * align / 4..5 * align / 4], 5);
        assert_eq!(words(&look(&*queue, &*memory)), model);
        for (offset, bytes) in [(1, 4), (8 * align, 4), (0, 0)] {
            assert!(memory.region(offset, bytes, Access::Read).is_err(), "{bytes} at {offset}");
        }
        assert!(part.region(0, 4, Access::Read).is_err(), "regions have none");
    });
}

#[test]
fn sizes_that_cannot_be_are_refused_before_the_driver() {
    each(|rig| {
        let most = rig.device.info().caps.max_alloc_bytes as usize;
        let large = rig.device.allocate(&spec(MemoryKind::Device, most + 1), None);
        assert!(matches!(large, Err(Error::OutOfMemory { limit: Some(_), .. })), "{large:?}");
        assert!(rig.device.allocate(&spec(MemoryKind::Device, 0), None).is_err());
        assert!(rig.device.allocate(&spec(MemoryKind::FineSvm, 64), None).is_err());
        let (queue, memory) = (rig.queue(), rig.memory(MemoryKind::Device, &[0; 64]));
        assert!(queue.fill(&*memory, 60, 8, &[0]).is_err());
        assert!(queue.copy(&*memory, 0, &*memory, 60, 8).is_err());
        assert!(!queue.reside(&*memory, AccessState::Released).unwrap());
    });
}

#[test]
fn no_memory_says_how_much_there_may_be() {
    each(|rig| {
        rig.probe.fail_always("vkAllocateMemory", -2);
        let memory = rig.device.allocate(&spec(MemoryKind::Device, 4096), None);
        rig.probe.reset();
        let Err(Error::OutOfMemory { asked: 4096, limit: Some(_), .. }) = memory else {
            panic!("{memory:?}")
        };
    });
}

/// Work keeps the memory that it uses: the memory is freed when the work is done, not before.
#[test]
fn memory_may_go_while_work_uses_it() {
    each(|rig| {
        let (queue, kernel) = (rig.queue(), rig.step());
        let live = || rig.probe.live().get("memory").copied().unwrap_or(0);
        let keep = rig.memory(MemoryKind::Device, &[0; 4096]);
        let host_signal = queue.host_signal().unwrap();
        let memory = rig.memory(MemoryKind::Device, &numbers(4096));
        queue.copy(&*memory, 0, &*keep, 0, 4096).unwrap();
        step(&*queue, &*kernel, &*memory, 1024, 3).unwrap();
        let with = live();
        drop((memory, kernel));
        assert_eq!(live(), with, "held back, and so still needed");
        host_signal.open(Ok(()));
        queue.mark().unwrap().wait(SECONDS).unwrap();
        assert_eq!(live(), with - 1);
        assert_eq!(look(&*queue, &*keep), numbers(4096));
    });
}
