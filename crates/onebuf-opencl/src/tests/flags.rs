//! Allocation requests: the host's access, initial contents, placement.

use super::*;
use onebuf_hal::AccessState;

const BYTES: usize = 8192;

fn has_host_flags(rig: &Rig) -> bool {
    !["OpenCL 1.0", "OpenCL 1.1"].iter().any(|old| rig.device.info().version.starts_with(old))
}

#[test]
fn memory_holds_what_it_was_made_with() {
    each(|rig| {
        let queue = rig.queue();
        for memory_kind in rig.memory_kinds() {
            let mut contents = numbers(BYTES);
            let made = rig.device.allocate(&spec(memory_kind, BYTES), Some(&contents));
            if matches!(memory_kind, MemoryKind::FineSvm | MemoryKind::CoarseSvm) {
                assert!(invalid(made).contains("shared virtual memory"), "{memory_kind}");
                continue;
            }
            let memory = made.unwrap();
            contents.fill(0xEE);
            assert_eq!(get(&*queue, &*memory, 0, BYTES), numbers(BYTES), "{memory_kind}");
            let short = rig.device.allocate(&spec(memory_kind, BYTES), Some(&contents[1..]));
            assert!(invalid(short).contains("8191 bytes of contents for a memory of 8192"));
            let remark = memory.remark().unwrap();
            assert!(remark.contains("CL_MEM_COPY_HOST_PTR"), "{remark}");
        }
    });
}

#[test]
fn the_hosts_access_is_told_to_drivers_that_know_it() {
    each(|rig| {
        let queue = rig.queue();
        let cases = [
            (HostAccess::Read, "CL_MEM_HOST_READ_ONLY"),
            (HostAccess::Write, "CL_MEM_HOST_WRITE_ONLY"),
            (HostAccess::None, "CL_MEM_HOST_NO_ACCESS"),
        ];
        for (host, flag) in cases {
            let spec = AllocSpec { host, ..spec(MemoryKind::Device, BYTES) };
            let memory = rig.device.allocate(&spec, Some(&numbers(BYTES))).unwrap();
            let remark = memory.remark().unwrap();
            println!("  {remark}");
            assert_eq!(remark.contains(flag), has_host_flags(rig), "{remark}");
            // Kernels and copies inside the device do not count as host access.
            let copy = rig.memory(MemoryKind::Device, BYTES).unwrap();
            queue.copy(&*memory, 0, &*copy, 0, BYTES).unwrap();
            assert_eq!(get(&*queue, &*copy, 0, BYTES), numbers(BYTES));
            for pattern in [&[4u8][..], &[1, 2, 3, 4, 5, 6]] {
                let whole = BYTES / 6 * 6;
                queue.fill(&*memory, 0, whole, pattern).unwrap();
                queue.copy(&*memory, 0, &*copy, 0, whole).unwrap();
                let back = get(&*queue, &*copy, 0, whole);
                assert_eq!(back, pattern.repeat(whole / pattern.len()), "{host}");
            }
        }
    });
}

#[test]
fn maps_go_as_far_as_the_host_may() {
    each(|rig| {
        let queue = rig.queue();
        let made = |host| {
            let spec = AllocSpec { host, ..spec(MemoryKind::MappedDevice, BYTES) };
            rig.device.allocate(&spec, Some(&numbers(BYTES))).unwrap()
        };
        let read = made(HostAccess::Read);
        for to in [AccessState::SharedRead, AccessState::Released] {
            assert!(queue.reside(&*read, to).unwrap());
            queue.mark().unwrap().wait(SECONDS).unwrap();
            let at = read.host_pointer().unwrap();
            // SAFETY: mapped for reading.
            let seen = unsafe { std::slice::from_raw_parts(at.as_ptr(), BYTES) };
            assert_eq!(seen, numbers(BYTES));
        }
        let write = made(HostAccess::Write);
        let why = invalid(queue.reside(&*write, AccessState::SharedRead));
        assert!(why.contains("allocated for host access `write`"), "{why}");
        assert_eq!(write.access_state(), AccessState::Acquired);
        assert!(queue.reside(&*write, AccessState::Released).unwrap());
        let none = made(HostAccess::None);
        for to in [AccessState::SharedRead, AccessState::Released] {
            invalid(queue.reside(&*none, to));
        }
    });
}

#[test]
fn memory_on_the_chip_is_refused_where_the_platform_has_none() {
    each(|rig| {
        assert!(!rig.memory_kinds().contains(&MemoryKind::OnChip));
        let refused = rig.memory(MemoryKind::OnChip, BYTES).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        let text = refused.to_string();
        assert!(text.contains("Texas Instruments") && text.contains("MSMC"), "{text}");
        assert!(text.contains("device"), "{text}");
    });
}

#[test]
fn each_memory_says_how_it_was_made() {
    each(|rig| {
        for memory_kind in rig.memory_kinds() {
            for (access, flag, does) in [
                (Access::Read, "CL_MEM_READ_ONLY", "kernels read "),
                (Access::Write, "CL_MEM_WRITE_ONLY", "kernels write "),
                (Access::ReadWrite, "CL_MEM_READ_WRITE", "kernels read and write "),
            ] {
                let spec = AllocSpec { access, ..spec(memory_kind, BYTES) };
                let memory = rig.device.allocate(&spec, None).unwrap();
                let remark = memory.remark().unwrap();
                assert!(remark.contains(flag) && remark.contains(does), "{remark}");
                assert_eq!(remark.lines().count(), 1);
                let part = memory.region(4096, 4096, access).unwrap().remark().unwrap();
                assert!(part.contains(flag) && part.ends_with("a region from byte 4096"), "{part}");
            }
        }
        let whole = rig.memory(MemoryKind::Device, BYTES).unwrap();
        let part = whole.region(0, 4096, Access::Read).unwrap().remark().unwrap();
        println!("  {part}");
        assert!(part.starts_with("CL_MEM_READ_ONLY: kernels read "), "{part}");
    });
}
