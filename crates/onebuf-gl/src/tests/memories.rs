//! Memory of every kind, from host and device.

use super::*;
use onebuf_hal::{Hint, checks};

/// Several pages, and a part of one.
const BYTES: usize = 5 * PAGE + 12;

/// Steps over every word, alternately from the host and from a shader, through one address.
fn both_sides(device: &dyn hal::Device, memory: &dyn hal::Memory) -> Result<()> {
    let queue = device.queue(QueueSpec::default())?;
    let kernel = device.build(&source("step", STEP))?.kernel("step", 3)?;
    let at = memory.host_pointer().expect("a map");
    let words = memory.bytes() / 4;
    let mut model = numbers(words);
    for round in 1..4 {
        queue.reside(memory, AccessState::Released)?;
        // SAFETY: a map of as many words, and no work that uses it.
        let seen = unsafe { std::slice::from_raw_parts_mut(at.as_ptr().cast::<u32>(), words) };
        seen.copy_from_slice(&model);
        queue.reside(memory, AccessState::Acquired)?;
        step(&*queue, &*kernel, memory, 2 * round + 1)?.wait(SECONDS)?;
        step_model(&mut model, 2 * round + 1);
        queue.reside(memory, AccessState::SharedRead)?;
        assert_eq!(seen, model, "through the map, round {round}");
        assert_eq!(words_of(&contents(&*queue, memory)?), model, "by a copy, round {round}");
    }
    Ok(())
}

#[test]
fn every_page_of_a_map_is_seen_from_both_sides() {
    let _alone = alone();
    let Some(device) = device(None) else { return };
    let flushed = with_habits(&device, Coherence::Flushed);
    for device in [&*device, &flushed] {
        let memory = device.allocate(&spec(MemoryKind::MappedDevice, BYTES), None).unwrap();
        both_sides(device, &*memory).unwrap();
        assert!(memory.remark().unwrap().contains("stays mapped"));
    }
    let memory = flushed.allocate(&spec(MemoryKind::MappedDevice, BYTES), None).unwrap();
    assert!(memory.needs_access_state() && memory.access_state() == AccessState::Acquired);
    let queue = flushed.queue(QueueSpec::default()).unwrap();
    assert_eq!(queue.reside(&*memory, AccessState::Released), Ok(false));
    assert_eq!(queue.reside(&*memory, AccessState::Acquired), Ok(true), "flushed");
    assert_eq!(queue.reside(&*memory, AccessState::SharedRead), Ok(false));
}

/// A map that is not coherent is flushed range by range, while the host has it. All other memory needs no call.
#[test]
fn stores_are_flushed_by_range() {
    let _alone = alone();
    let probe = Probe::new();
    let Some(device) = device(Some(probe.clone())) else { return };
    let flushed = with_habits(&device, Coherence::Flushed);
    let coherent = with_habits(&device, Coherence::Coherent);
    let flushes = || probe.trace().iter().filter(|call| call.contains("FlushMappedBuffer")).count();
    for (device, calls) in [(&flushed, 1), (&coherent, 0)] {
        let memory = device.allocate(&spec(MemoryKind::MappedDevice, BYTES), None).unwrap();
        let queue = device.queue(QueueSpec::default()).unwrap();
        assert_eq!(memory.flush_stores(0, 64), Ok(false), "the device has it");
        queue.reside(&*memory, AccessState::Released).unwrap();
        let before = flushes();
        assert_eq!(memory.flush_stores(PAGE, 100), Ok(calls == 1));
        assert_eq!(memory.flush_stores(BYTES, 0), Ok(false), "no bytes");
        assert_eq!(flushes() - before, calls, "the one range");
        let beyond = memory.flush_stores(BYTES - 4, 8);
        assert!(matches!(beyond, Err(Error::InvalidArgument { .. })), "{beyond:?}");
        queue.reside(&*memory, AccessState::Acquired).unwrap();
        both_sides(device, &*memory).unwrap();
    }
    let unmapped = flushed.allocate(&spec(MemoryKind::Device, BYTES), None).unwrap();
    assert_eq!(unmapped.flush_stores(0, BYTES), Ok(false));
}

#[test]
fn host_pages_are_used_in_place() {
    let _alone = alone();
    let Some(device) = device(None) else { return };
    if !device.info().caps.imports_host_pages {
        return println!("skip: no GL_AMD_pinned_memory");
    }
    let range = pages(BYTES);
    let memory = device.import(&Export::Host(range.clone()), Access::ReadWrite).unwrap();
    assert_eq!(memory.host_pointer(), Some(range.pointer));
    both_sides(&*device, &*memory).unwrap();
    // OpenGL's own memory is separate from the host pages.
    let other = device.allocate(&spec(MemoryKind::Device, BYTES), None).unwrap();
    let queue = device.queue(QueueSpec::default()).unwrap();
    queue.fill(&*other, 0, BYTES, &[7]).unwrap();
    queue.mark().unwrap().wait(SECONDS).unwrap();
    // SAFETY: the first of the pages, which no work uses now.
    assert_ne!(unsafe { range.pointer.read() }, 7);
    let owner = std::sync::Arc::downgrade(&range.owner);
    drop((range, memory, other, queue));
    drop(device);
    assert!(owner.upgrade().is_none(), "the pages are let go");
}

#[test]
fn pages_in_the_middle_are_taken_or_refused() {
    let _alone = alone();
    let Some(device) = device(None) else { return };
    let whole = pages(3 * PAGE);
    if let Ok(part) = device.import(&Export::Host(whole.part(64, PAGE).unwrap()), Access::ReadWrite)
    {
        both_sides(&*device, &*part).unwrap();
    }
    let odd = device.import(&Export::Host(whole.part(1, PAGE).unwrap()), Access::Read);
    let said = refusal(odd);
    assert!(said.contains("aligned") || said.contains("pinned_memory"), "{said}");
}

#[test]
fn every_memory_kind_keeps_what_was_written() {
    let _alone = alone();
    let Some(device) = device(None) else { return };
    let queue = device.queue(QueueSpec::default()).unwrap();
    for memory_kind in [MemoryKind::MappedDevice, MemoryKind::Device] {
        let first: Vec<u8> = (0..BYTES as u32 - 3).map(|i| (i * 7) as u8).collect();
        let memory = device.allocate(&spec(memory_kind, first.len()), Some(&first)).unwrap();
        assert_eq!(contents(&*queue, &*memory).unwrap(), first, "{memory_kind}");
        let other = device.allocate(&spec(memory_kind, first.len()), None).unwrap();
        queue.copy(&*memory, 3, &*other, 0, 1001).unwrap();
        for pattern in [&[9u8][..], &[1, 2], &[1, 2, 3], &[1, 2, 3, 4, 5, 6, 7, 8], &[5; 32]] {
            let start = 2000usize.next_multiple_of(pattern.len());
            let bytes = 10_000 / pattern.len() * pattern.len();
            queue.fill(&*other, start, bytes, pattern).unwrap();
            let seen = contents(&*queue, &*other).unwrap();
            assert_eq!(seen[..1001], first[3..1004], "{memory_kind}, {pattern:?}");
            assert!(
                seen[start..start + bytes].chunks(pattern.len()).all(|c| c == pattern),
                "{memory_kind}"
            );
        }
        // SAFETY: the data outlives the wait.
        unsafe { queue.write(&*other, 1, first.as_ptr(), 5000) }.unwrap().wait(SECONDS).unwrap();
        assert_eq!(contents(&*queue, &*other).unwrap()[1..5001], first[..5000], "{memory_kind}");
    }
}

#[test]
fn a_map_for_the_hosts_side_alone() {
    let _alone = alone();
    let Some(device) = device(None) else { return };
    let queue = device.queue(QueueSpec::default()).unwrap();
    for (host, access) in [
        (HostAccess::Write, Access::Read),
        (HostAccess::Read, Access::Write),
        (HostAccess::None, Access::ReadWrite),
    ] {
        let spec = AllocSpec { host, access, ..spec(MemoryKind::MappedDevice, BYTES) };
        let given = vec![3; BYTES];
        let memory = device.allocate(&spec, Some(&given)).unwrap();
        assert_eq!(contents(&*queue, &*memory).unwrap(), given, "{host}");
        let lends = memory.export(&*queue).is_ok();
        assert_eq!(lends, host != HostAccess::Write, "others read what they are lent: {host}");
    }
}

/// With any hint, each side sees what the other wrote; flushed maps report a flush.
#[test]
fn a_map_as_it_was_wished() {
    let _alone = alone();
    let Some(device) = device(None) else { return };
    let queue = device.queue(QueueSpec::default()).unwrap();
    let kernel = device.build(&source("step", STEP)).unwrap().kernel("step", 3).unwrap();
    for hint in [Hint::CpuPreferred, Hint::GpuPreferred, Hint::Coherent, Hint::Streaming] {
        let spec = AllocSpec { hint: Some(hint), ..spec(MemoryKind::MappedDevice, BYTES) };
        let memory = device.allocate(&spec, Some(&vec![0; BYTES])).unwrap();
        let flushes = hint == Hint::Streaming && std::env::var_os("ONEBUF_GL_MAPPING").is_none();
        assert_eq!(memory.needs_access_state(), flushes, "{hint}");
        queue.reside(&*memory, AccessState::Released).unwrap();
        let at = memory.host_pointer().unwrap();
        // SAFETY: mapped as long as the memory exists; no work is running.
        unsafe { at.write_bytes(1, BYTES) };
        assert_eq!(queue.reside(&*memory, AccessState::Acquired).unwrap(), flushes, "{hint}");
        step(&*queue, &*kernel, &*memory, 5).unwrap().wait(SECONDS).unwrap();
        let mut model = words_of(&[1; BYTES]);
        step_model(&mut model, 5);
        assert_eq!(words_of(&contents(&*queue, &*memory).unwrap()), model, "{hint}");
    }
}

#[test]
fn parts_are_bound_where_they_lie() {
    let _alone = alone();
    let Some(device) = device(None) else { return };
    let queue = device.queue(QueueSpec::default()).unwrap();
    let kernel = device.build(&source("step", STEP)).unwrap().kernel("step", 3).unwrap();
    let align = device.info().caps.align_bytes;
    let memory = device.allocate(&spec(MemoryKind::MappedDevice, 8 * align), None).unwrap();
    queue.fill(&*memory, 0, 8 * align, &1u32.to_ne_bytes()).unwrap();
    let part = memory.region(2 * align, 3 * align, Access::ReadWrite).unwrap();
    step(&*queue, &*kernel, &*part, 5).unwrap().wait(SECONDS).unwrap();
    let mut model = vec![1; 2 * align];
    step_model(&mut model[align / 2..align / 2 + 3 * align / 4], 5);
    assert_eq!(words_of(&contents(&*queue, &*memory).unwrap()), model);
    let wrong = [
        (memory.region(1, align, Access::Read), "multiples of"),
        (memory.region(0, 9 * align, Access::Read), "do not lie in a memory"),
        (memory.region(0, 0, Access::Read), "empty"),
        (part.region(0, align, Access::Read), "no regions"),
    ];
    for (region, says) in wrong {
        let said = refusal(region);
        assert!(said.contains(says), "{said}");
    }
    assert!(refusal(part.export(&*queue)).contains("region"));
}

#[test]
fn what_cannot_be_is_refused_before_the_driver() {
    let _alone = alone();
    let probe = Probe::new();
    let Some(device) = device(Some(probe.clone())) else { return };
    let calls = probe.calls();
    let most = device.info().caps.max_alloc_bytes as usize;
    assert!(matches!(
        device.allocate(&spec(MemoryKind::Device, most + 1), None),
        Err(Error::OutOfMemory { limit: Some(_), .. })
    ));
    assert!(refusal(device.allocate(&spec(MemoryKind::Device, 0), None)).contains("zero bytes"));
    let svm = device.allocate(&spec(MemoryKind::FineSvm, 64), None);
    assert!(refusal(svm).contains("mapped_device"));
    let odd = AllocSpec { align: 3, ..spec(MemoryKind::Device, 64) };
    assert!(refusal(device.allocate(&odd, None)).contains("power of two"));
    let short = device.allocate(&spec(MemoryKind::Device, 64), Some(&[0; 4]));
    assert!(refusal(short).contains("4 bytes of contents for"));
    assert!(refusal(device.queue(QueueSpec::out_of_order())).contains("in-order"));
    assert_eq!(probe.calls(), calls, "{:?}", probe.trace());
}

#[test]
fn a_driver_out_of_memory_says_how_much_was_asked_for() {
    let _alone = alone();
    let probe = Probe::new();
    let Some(device) = device(Some(probe.clone())) else { return };
    for call in ["glBufferStorage", "glMapBufferRange"] {
        probe.fail_always(call, 0x0505);
        let refused = device.allocate(&spec(MemoryKind::MappedDevice, 12_345), None);
        assert!(matches!(refused, Err(Error::OutOfMemory { asked: 12_345, .. })), "{call}");
        probe.reset();
    }
    device.allocate(&spec(MemoryKind::MappedDevice, 12_345), None).unwrap();
    drop(device);
    assert!(probe.live().is_empty(), "{:?}", probe.live());
}

#[test]
fn a_descriptor_of_no_driver_is_refused_and_stays_ours() {
    let _alone = alone();
    let probe = Probe::new();
    let Some(device) = device(Some(probe.clone())) else { return };
    if !device.info().caps.imports.contains(&FdKind::OpaqueFd) {
        return println!("skip: no GL_EXT_memory_object_fd");
    }
    let name = "no driver's memory";
    let fd = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let fd = Arc::new(fd);
    let (bytes, kind) = (PAGE, FdKind::OpaqueFd);
    let range =
        FdRange { fd, kind, offset: 0, bytes, allocation_bytes: 2 * bytes, memory_type: None };
    let refused = device.import(&Export::Fd(range.clone()), Access::ReadWrite);
    println!("{}", refusal(refused));
    for call in ["glCreateMemoryObjectsEXT", "glMemoryObjectParameterivEXT", "glImportMemoryFdEXT"]
    {
        probe.fail_always(call, 0x0502);
        assert!(device.import(&Export::Fd(range.clone()), Access::ReadWrite).is_err());
        assert_eq!(probe.failed(), Some(call));
        probe.reset();
    }
    assert_eq!(checks::descriptors(name), 1, "descriptors");
    let said = device.import(&Export::Fd(FdRange { bytes: 4 * bytes, ..range }), Access::Read);
    assert!(refusal(said).contains("of an allocation"));
    drop(device);
    assert!(probe.live().is_empty(), "{:?}", probe.live());
}
