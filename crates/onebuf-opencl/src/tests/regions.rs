//! Regions of memory: their alignment, their access, and that they are the whole's bytes.

use super::*;
use onebuf_hal::{AccessState, RawHandle};

/// One page, the largest usual alignment.
const PAGE: usize = 4096;

#[test]
fn regions_that_cannot_be_are_refused_before_the_driver() {
    each(|rig| {
        let align = rig.device.info().caps.align_bytes;
        for memory_kind in rig.memory_kinds() {
            let whole = rig.memory(memory_kind, 2 * PAGE).unwrap();
            rig.probe.reset();
            let refused = |offset, bytes, access, why: &str| {
                let said = invalid(whole.region(offset, bytes, access));
                assert!(said.contains(why), "{memory_kind}: {said}");
            };
            refused(4, 64, Access::ReadWrite, &format!("multiples of {align}"));
            refused(align / 2, 64, Access::ReadWrite, "multiples of");
            refused(0, 0, Access::ReadWrite, "empty");
            refused(0, 2 * PAGE + 1, Access::ReadWrite, "in a memory of 8192 bytes");
            refused(2 * PAGE, 1, Access::ReadWrite, "in a memory of 8192 bytes");
            refused(PAGE, usize::MAX, Access::ReadWrite, "in a memory of 8192 bytes");
            let part = whole.region(PAGE, PAGE, Access::ReadWrite).unwrap();
            let nested = invalid(part.region(0, 64, Access::ReadWrite));
            assert!(nested.contains("a region has no regions"), "{nested}");
            let export = part.export(&*rig.queue());
            assert!(matches!(export, Err(Error::Unsupported { .. })), "{export:?}");
            let made =
                rig.probe.trace().iter().filter(|call| **call == "clCreateSubBuffer").count();
            assert!(made <= 1, "{:?}", rig.probe.trace());
        }
    });
}

#[test]
fn a_region_narrows_access_and_never_widens_it() {
    each(|rig| {
        let queue = rig.queue();
        let copy = rig.program(PROGRAM).unwrap().kernel("copy", 2).unwrap();
        for memory_kind in rig.memory_kinds() {
            for has in [Access::Read, Access::Write] {
                let spec = AllocSpec { access: has, ..spec(memory_kind, 2 * PAGE) };
                let whole = rig.device.allocate(&spec, None).unwrap();
                let wide = invalid(whole.region(0, PAGE, Access::ReadWrite));
                assert!(wide.contains("where the whole memory is for"), "{wide}");
                whole.region(0, PAGE, has).unwrap();
            }
            // One kernel argument reads one region, the other writes another region of the same memory.
            let whole = rig.memory(memory_kind, 2 * PAGE).unwrap();
            put(&*queue, &*whole, 0, &numbers(PAGE));
            let from = whole.region(0, PAGE, Access::Read).unwrap();
            let to = whole.region(PAGE, PAGE, Access::Write).unwrap();
            let args = [
                Arg::Memory(&*from, Access::Read, usize::MAX),
                Arg::Memory(&*to, Access::Write, usize::MAX),
            ];
            // SAFETY: a page of words each.
            let copied =
                |args: &[Arg<'_>]| unsafe { launch(&*queue, &*copy, &line(PAGE / 4, None), args) };
            copied(&args).unwrap();
            assert_eq!(get(&*queue, &*whole, PAGE, PAGE), numbers(PAGE), "{memory_kind}");
            let why = invalid(copied(&[args[0], Arg::Memory(&*from, Access::Write, usize::MAX)]));
            assert!(why.contains("made for read given to a kernel for write"), "{why}");
            let why = invalid(copied(&[Arg::Memory(&*to, Access::Read, usize::MAX), args[1]]));
            assert!(why.contains("made for write given to a kernel for read"), "{why}");
        }
    });
}

#[test]
fn regions_are_the_wholes_bytes_and_nobody_elses() {
    each(|rig| {
        let queue = rig.queue();
        let add = rig.program(PROGRAM).unwrap().kernel("add", 2).unwrap();
        for memory_kind in rig.memory_kinds() {
            let whole = rig.memory(memory_kind, 4 * PAGE).unwrap();
            queue.fill(&*whole, 0, 4 * PAGE, &100u32.to_ne_bytes()).unwrap();
            let parts = [1, 2].map(|page| {
                let part = whole.region(page * PAGE, PAGE, Access::ReadWrite).unwrap();
                assert_eq!((part.bytes(), part.memory_kind()), (PAGE, memory_kind));
                part
            });
            for (part, n) in parts.iter().zip([1u32, 2]) {
                let n = n.to_ne_bytes();
                let args = [Arg::Memory(&**part, Access::ReadWrite, usize::MAX), Arg::Bytes(&n)];
                // SAFETY: a page of words.
                unsafe { launch(&*queue, &*add, &line(PAGE / 4, None), &args) }.unwrap();
            }
            let back = words(&get(&*queue, &*whole, 0, 4 * PAGE));
            for (page, expected) in back.chunks(PAGE / 4).zip([100, 101, 102, 100]) {
                assert!(page.iter().all(|word| *word == expected), "{memory_kind} {expected}");
            }
            addresses(&*whole, &*parts[0]);
        }
    });
}

fn addresses(whole: &dyn hal::Memory, part: &dyn hal::Memory) {
    match (whole.raw(), part.raw()) {
        (RawHandle::Address(whole), RawHandle::Address(part)) => assert_eq!(part, whole + PAGE),
        (RawHandle::Object(whole), RawHandle::Object(part)) => assert_ne!(part, whole),
        other => panic!("{other:?}"),
    }
}

#[test]
fn copies_into_and_out_of_a_region_are_relative_to_it() {
    each(|rig| {
        let queue = rig.queue();
        for memory_kind in rig.memory_kinds() {
            let whole = rig.memory(memory_kind, 4 * PAGE).unwrap();
            queue.fill(&*whole, 0, 4 * PAGE, &[9]).unwrap();
            let a = whole.region(PAGE, PAGE, Access::ReadWrite).unwrap();
            let b = whole.region(2 * PAGE, PAGE, Access::ReadWrite).unwrap();
            put(&*queue, &*a, 100, &numbers(200));
            assert_eq!(get(&*queue, &*a, 100, 200), numbers(200), "{memory_kind}");
            queue.copy(&*a, 100, &*b, 300, 200).unwrap();
            for pattern in [&[7u8][..], &[1, 2, 3]] {
                queue.fill(&*b, 0, 300, pattern).unwrap();
                let back = get(&*queue, &*whole, 0, 4 * PAGE);
                assert_eq!(back[PAGE + 100..PAGE + 300], numbers(200), "{memory_kind}");
                assert_eq!(back[2 * PAGE..2 * PAGE + 300], pattern.repeat(300 / pattern.len()));
                assert_eq!(back[2 * PAGE + 300..2 * PAGE + 500], numbers(200), "{memory_kind}");
                assert_eq!((back[PAGE - 1], back[3 * PAGE]), (9, 9), "{memory_kind}");
            }
            assert!(invalid(queue.fill(&*b, PAGE - 1, 2, &[0])).contains("in a memory of 4096"));
            let overlapping = whole.region(PAGE, 2 * PAGE, Access::ReadWrite).unwrap();
            let why = invalid(queue.copy(&*overlapping, PAGE, &*b, 10, 64));
            assert!(why.contains("overlap"), "{why}");
            queue.copy(&*overlapping, 0, &*b, 0, PAGE).unwrap();
        }
    });
}

#[test]
fn a_region_is_where_the_whole_is() {
    each(|rig| {
        let queue = rig.queue();
        let add = rig.program(PROGRAM).unwrap().kernel("add", 2).unwrap();
        for memory_kind in rig.memory_kinds() {
            let whole = rig.memory(memory_kind, 2 * PAGE).unwrap();
            let part = whole.region(PAGE, PAGE, Access::ReadWrite).unwrap();
            assert_eq!(part.needs_access_state(), whole.needs_access_state());
            if !part.needs_access_state() {
                continue;
            }
            put(&*queue, &*part, 0, &numbers(PAGE));
            assert!(queue.reside(&*part, AccessState::Released).unwrap());
            assert!(
                !queue.reside(&*whole, AccessState::Released).unwrap(),
                "it is one access state"
            );
            queue.mark().unwrap().wait(SECONDS).unwrap();
            assert_eq!(
                (whole.access_state(), part.access_state()),
                (AccessState::Released, AccessState::Released)
            );
            let (at, seen) = (whole.host_pointer().unwrap(), part.host_pointer().unwrap());
            assert_eq!(at.addr().get() + PAGE, seen.addr().get());
            // SAFETY: mapped, and not used otherwise.
            let bytes = unsafe { std::slice::from_raw_parts(seen.as_ptr(), PAGE) };
            assert_eq!(bytes, numbers(PAGE), "{memory_kind}");
            let args = [Arg::Memory(&*part, Access::ReadWrite, usize::MAX), Arg::Bytes(&[0; 4])];
            // SAFETY: refused.
            let why = invalid(unsafe { launch(&*queue, &*add, &line(1, None), &args) });
            assert!(why.contains("is released"), "{why}");
            queue.reside(&*whole, AccessState::Acquired).unwrap();
            assert_eq!(part.access_state(), AccessState::Acquired);
            // SAFETY: one word.
            unsafe { launch(&*queue, &*add, &line(1, None), &args) }.unwrap();
        }
    });
}

#[test]
fn a_region_keeps_the_whole() {
    each(|rig| {
        let queue = rig.queue();
        let add = rig.program(PROGRAM).unwrap().kernel("add", 2).unwrap();
        for memory_kind in rig.memory_kinds() {
            let whole = rig.memory(memory_kind, 2 * PAGE).unwrap();
            queue.fill(&*whole, 0, 2 * PAGE, &[0]).unwrap();
            let part = whole.region(PAGE, PAGE, Access::ReadWrite).unwrap();
            drop(whole);
            let args =
                [Arg::Memory(&*part, Access::ReadWrite, usize::MAX), Arg::Bytes(&[5, 0, 0, 0])];
            // SAFETY: a page of words.
            unsafe { launch(&*queue, &*add, &line(PAGE / 4, None), &args) }.unwrap();
            assert_eq!(words(&get(&*queue, &*part, 0, PAGE)), [5; PAGE / 4], "{memory_kind}");
            // SAFETY: a page of words. The region is dropped while work is queued.
            unsafe { launch(&*queue, &*add, &line(PAGE / 4, None), &args) }.unwrap();
            drop(part);
        }
        queue.mark().unwrap().wait(SECONDS).unwrap();
    });
}
