//! Memory that another API allocated, imported by address: which source must confirm it, what is refused, and how long
//! its owner is kept. The stub's second device acts as the other API, whose memory ROCr knows too.

use super::*;
use onebuf_hal::{AddressFrom, AddressRange, AddressSpace, FdKind, RawHandle};

/// HIP over the stub's own HSA.
fn over_rocr(test: impl Fn(&Rig)) {
    let _alone = alone();
    let (probe, Some(library)) = (Probe::new(), stub()) else { return };
    let Some(rig) = found_over(Flavor::Hip, &probe, library) else { return };
    test(&rig);
    drop(rig);
    settle(&probe);
}

fn at(memory: &Arc<dyn hal::Memory>) -> u64 {
    let RawHandle::Address(at) = memory.raw() else { panic!("{memory:?}") };
    at as u64
}

fn range(of: &Arc<dyn hal::Memory>, from: AddressFrom) -> AddressRange {
    let owner = Arc::new(of.clone());
    AddressRange { address: at(of), bytes: of.bytes(), from, owner }
}

impl Rig {
    fn at_address(&self, range: AddressRange) -> Result<Arc<dyn hal::Memory>> {
        self.device.import(&Export::Address(range), Access::ReadWrite)
    }

    #[track_caller]
    fn refuses(&self, range: AddressRange, why: &str) {
        let refused = self.at_address(range).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        assert!(refused.to_string().contains(why), "`{why}` is not in: {refused}");
    }
}

#[test]
fn what_a_kernel_said_is_held_against_rocr() {
    over_rocr(|rig| {
        let space = rig.device.info().caps.address_space;
        assert_eq!(space, Some(AddressSpace::Runtime("ROCr")));
        let own = rig.memory(MemoryKind::Device, 8192).unwrap();
        let raw = range(&own, AddressFrom::Kernel);
        let seen = rig.at_address(raw.clone()).unwrap();
        assert_eq!((at(&seen), seen.bytes()), (at(&own), 8192));
        let inside = AddressRange { address: raw.address + 256, bytes: 100, ..raw.clone() };
        rig.at_address(inside).unwrap();
        let with = |address, bytes| AddressRange { address, bytes, ..raw.clone() };
        rig.refuses(with(0, 8), "null");
        rig.refuses(with(4096, 8), "ROCr did not allocate it (its type there is 0, not 1)");
        rig.refuses(with(raw.address, 8193), "ROCr knows 8192 bytes from");
        rig.refuses(with(raw.address + 8191, 2), "ROCr knows 8192 bytes from");
        let theirs = rig.other.allocate(&spec(MemoryKind::Device, 64), None).unwrap();
        rig.refuses(
            range(&theirs, AddressFrom::Kernel),
            "its owner is agent 0x2, the device is 0x1",
        );
        let pinned = rig.memory(MemoryKind::MappedDevice, 64).unwrap();
        rig.refuses(range(&pinned, AddressFrom::Kernel), "its owner is agent");
        // An address from the allocator needs no confirmation.
        rig.at_address(range(&theirs, AddressFrom::Allocator)).unwrap();
    });
}

#[test]
fn without_rocr_nobody_confirms() {
    each(|rig| {
        let own = rig.memory(MemoryKind::Device, 64).unwrap();
        let raw = range(&own, AddressFrom::Kernel);
        match rig.flavor {
            Flavor::Cuda => rig.refuses(raw, "it shares no addresses"),
            Flavor::Hip => {
                rig.refuses(raw, "ROCr cannot confirm the address");
                rig.at_address(range(&own, AddressFrom::Allocator)).unwrap();
            }
        }
        let refused = own.export_fd(FdKind::DmaBuf).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    });
}

/// Only kernels may use it. The stub would accept it in API calls, so the refusal is the backend's.
#[test]
fn it_is_for_kernels_only() {
    over_rocr(|rig| {
        let (own, queue) = (rig.memory(MemoryKind::Device, 4096).unwrap(), rig.queue());
        queue.fill(&*own, 0, 4096, &[0]).unwrap();
        let seen = rig.at_address(range(&own, AddressFrom::Allocator)).unwrap();
        assert!(own.takes_transfers() && !seen.takes_transfers());
        let add = rig.kernel("add", 2).unwrap();
        let grid = Grid { dims: 1, global: [1024, 1, 1], local: None, offset: [0; 3] };
        let args = [Arg::Memory(&*seen, Access::ReadWrite, 4096), Arg::Bytes(&[5, 0, 0, 0])];
        // SAFETY: the stub's kernel adds to one word for each work-item.
        unsafe { queue.launch(&*add, &grid, &args, &[], false) }.unwrap();
        rig.probe.reset();
        let mut word = [0u8; 4];
        // SAFETY: the word outlives the calls, which are refused.
        let refused = unsafe {
            [
                queue.read(&*seen, 0, word.as_mut_ptr(), 4).map(drop),
                queue.write(&*seen, 0, word.as_ptr(), 4).map(drop),
            ]
        };
        let copies = [queue.copy(&*seen, 0, &*own, 0, 4), queue.copy(&*own, 0, &*seen, 0, 4)];
        let more = [queue.fill(&*seen, 0, 4, &[1]), queue.wait_value(&*seen, 0, 1)];
        for refused in refused.into_iter().chain(copies).chain(more) {
            let refused = refused.unwrap_err();
            assert!(refused.to_string().contains("that another API allocated"), "{refused}");
        }
        let trace = rig.probe.trace();
        assert!(
            !trace.iter().any(|call| call.contains("Mem") || call.contains("Wait")),
            "{trace:?}"
        );
        // SAFETY: the word outlives the wait.
        let read = unsafe { queue.read(&*own, 4092, word.as_mut_ptr(), 4) }.unwrap();
        read.wait(SECONDS).unwrap();
        assert_eq!(word, [5, 0, 0, 0]);
    });
}

/// The owner is kept until HIP's work is over, and nothing is freed here.
#[test]
fn its_owner_is_kept_until_the_work_is_over() {
    over_rocr(|rig| {
        let own = rig.memory(MemoryKind::Device, 4096).unwrap();
        let owner = Arc::new(());
        let kept = AddressRange { owner: owner.clone(), ..range(&own, AddressFrom::Allocator) };
        let seen = rig.at_address(kept).unwrap();
        let (queue, nap) = (rig.queue(), rig.kernel("nap", 1).unwrap());
        let grid = Grid { dims: 1, global: [1, 1, 1], local: None, offset: [0; 3] };
        // SAFETY: the kernel accesses no memory.
        unsafe { queue.launch(&*nap, &grid, &[Arg::Bytes(&[100, 0, 0, 0])], &[], false) }.unwrap();
        queue.note_use(&*seen).unwrap();
        drop(seen);
        assert_eq!(Arc::strong_count(&owner), 2, "the stream is still at work");
        queue.mark().unwrap().wait(SECONDS).unwrap();
        drop(rig.memory(MemoryKind::Device, 64).unwrap());
        assert_eq!(Arc::strong_count(&owner), 1);
        drop(own);
    });
}

#[test]
fn plain_memory_is_exported_with_its_offset() {
    over_rocr(|rig| {
        assert_eq!(rig.device.info().caps.exports, [FdKind::DmaBuf]);
        let own = rig.memory(MemoryKind::Device, 5000).unwrap();
        let exported = own.export_fd(FdKind::DmaBuf).unwrap();
        assert_eq!((exported.kind, exported.bytes), (FdKind::DmaBuf, 5000));
        assert!(exported.offset > 0, "{exported:?}");
        assert!(exported.allocation_bytes >= exported.offset + 5000, "{exported:?}");
        let import = rig.device.import(&Export::Fd(exported), Access::ReadWrite).unwrap();
        assert!(import.takes_transfers() && at(&import) != at(&own), "an address of its own");
        let refused = own.export_fd(FdKind::OpaqueFd).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        let part = own.region(256, 64, Access::Read).unwrap();
        assert!(part.export_fd(FdKind::DmaBuf).is_err(), "others would see what lies beside");
        rig.probe.fail_always("hsa_amd_portable_export_dmabuf", 0x1008);
        let refused = own.export_fd(FdKind::DmaBuf).unwrap_err();
        assert!(matches!(refused, Error::Driver { api: "hsa", code: 0x1008, .. }), "{refused}");
        rig.probe.reset();
    });
}
