//! Memory behind descriptors, on the stub driver. The stub aborts on a use without acquire, and has a cache, so writes are
//! visible only after a hand-over.

use super::{
    stub::{library, platforms},
    *,
};
use onebuf_hal::{AccessState, Export, FdKind, FdRange, checks};
use std::{
    fs::File,
    os::{fd::OwnedFd, unix::fs::FileExt},
};

const ACQUIRE: &str = "clEnqueueAcquireExternalMemObjectsKHR";
const RELEASE: &str = "clEnqueueReleaseExternalMemObjectsKHR";
/// Four pages and 129 bytes.
pub(super) const BYTES: usize = 4 * 4096 + 129;
const KINDS: [FdKind; 2] = [FdKind::OpaqueFd, FdKind::DmaBuf];
pub(super) const STEP: &str = "
kernel void onebuf_step(global uint *p, uint first, uint n, uint mul, uint add) {
    uint i = (uint)get_global_id(0);
    if (i < n) p[first + i] = p[first + i] * mul + add + i;
}
";

/// Foreign memory: an anonymous file.
pub(super) struct Theirs {
    pub(super) file: File,
    name: String,
}

impl Theirs {
    pub(super) fn new(name: &str, contents: &[u8]) -> Theirs {
        let name = format!("onebuf-{name}");
        let fd = rustix::fs::memfd_create(&name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = File::from(fd);
        file.write_all_at(contents, 0).unwrap();
        Theirs { file, name }
    }

    /// A range with its own descriptor, so that the driver may close it.
    pub(super) fn range(&self, kind: FdKind, offset: usize, bytes: usize) -> FdRange {
        let fd = OwnedFd::from(self.file.try_clone().unwrap());
        let allocation_bytes = self.file.metadata().unwrap().len() as usize;
        FdRange { fd: Arc::new(fd), kind, offset, bytes, allocation_bytes, memory_type: None }
    }

    fn all(&self) -> Export {
        Export::Fd(self.range(FdKind::OpaqueFd, 0, BYTES))
    }

    pub(super) fn bytes(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let mut back = vec![0; bytes];
        self.file.read_exact_at(&mut back, offset as u64).unwrap();
        back
    }

    /// The number of open descriptors of it in this process.
    pub(super) fn open(&self) -> usize {
        checks::descriptors(&self.name)
    }

    /// Waits until the test has the only descriptor, because a driver's thread may close late.
    #[track_caller]
    pub(super) fn only_ours_is_open(&self) {
        let start = Instant::now();
        while self.open() > 1 && start.elapsed() < SECONDS {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(self.open(), 1);
    }
}

/// Runs a test on the platform that imports; no object may be left.
pub(super) fn on_importer(test: impl Fn(&Rig)) {
    let _alone = alone();
    let Some((_table, path)) = library() else { return };
    let [_ordinary, rig] = platforms(&path);
    test(&rig);
    let probe = rig.probe.clone();
    drop(rig);
    settled(&probe);
}

pub(super) fn sync(queue: &dyn hal::Queue) {
    queue.mark().unwrap().wait(SECONDS).unwrap();
}

/// Changes the access state, and returns the driver's acquire and release calls.
fn reside(
    rig: &Rig,
    queue: &dyn hal::Queue,
    memory: &dyn hal::Memory,
    to: AccessState,
) -> Vec<&'static str> {
    rig.probe.reset();
    let changed = queue.reside(memory, to).unwrap();
    let calls: Vec<_> =
        rig.probe.trace().into_iter().filter(|call| [ACQUIRE, RELEASE].contains(call)).collect();
    assert_eq!(changed, !calls.is_empty(), "{calls:?}");
    assert_eq!(memory.access_state(), to);
    sync(queue);
    calls
}

#[test]
fn the_platform_says_what_it_imports() {
    let _alone = alone();
    let Some((_table, path)) = library() else { return };
    let [ordinary, importer] = platforms(&path);
    let info = importer.device.info();
    assert_eq!((&info.caps.imports[..], &info.caps.exports[..]), (&KINDS[..], &[][..]));
    assert_eq!(info.physical.uuid.unwrap()[..3], [1, 17, 33]);
    assert!(!info.caps.memory_kinds.contains(&MemoryKind::Exportable), "it exports nothing");
    assert!(ordinary.device.info().caps.imports.is_empty());
    let theirs = Theirs::new("ordinary", &[0; BYTES]);
    let refused = ordinary.device.import(&theirs.all(), Access::Read).unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    assert!(refused.to_string().contains("a driver that imports such descriptors"), "{refused}");
}

#[test]
fn each_turn_is_acquired_and_released() {
    on_importer(|rig| {
        let (queue, theirs) = (rig.queue(), Theirs::new("turns", &numbers(BYTES)));
        let memory = rig.device.import(&theirs.all(), Access::ReadWrite).unwrap();
        assert_eq!((memory.bytes(), memory.memory_kind()), (BYTES, MemoryKind::Exportable));
        assert!(memory.needs_access_state() && memory.host_pointer().is_none());
        // Others own it until it is acquired.
        assert_eq!(memory.access_state(), AccessState::Released);
        let early = invalid(queue.fill(&*memory, 0, 8, &[1]));
        assert!(early.contains("released"), "{early}");

        assert_eq!(reside(rig, &*queue, &*memory, AccessState::Acquired), [ACQUIRE]);
        assert_eq!(get(&*queue, &*memory, 0, BYTES), numbers(BYTES));
        put(&*queue, &*memory, 4096, &[7; 100]);
        assert_eq!(theirs.bytes(4096, 100), numbers(BYTES)[4096..4196], "the stub has a cache");
        assert_eq!(reside(rig, &*queue, &*memory, AccessState::SharedRead), [RELEASE, ACQUIRE]);
        assert_eq!(theirs.bytes(4096, 100), [7; 100]);
        assert_eq!(get(&*queue, &*memory, 4096, 100), [7; 100], "both read");
        let late = invalid(queue.fill(&*memory, 0, 8, &[1]));
        assert!(late.contains("shared_read"), "{late}");

        assert!(reside(rig, &*queue, &*memory, AccessState::Acquired).is_empty());
        put(&*queue, &*memory, BYTES - 1, &[9]);
        assert_eq!(reside(rig, &*queue, &*memory, AccessState::Released), [RELEASE]);
        assert_eq!(theirs.bytes(BYTES - 1, 1), [9]);
        theirs.file.write_all_at(&[3; 50], 200).unwrap();
        assert_eq!(reside(rig, &*queue, &*memory, AccessState::SharedRead), [ACQUIRE]);
        assert_eq!(get(&*queue, &*memory, 200, 50), [3; 50]);
        assert_eq!(reside(rig, &*queue, &*memory, AccessState::Released), [RELEASE]);
        assert!(reside(rig, &*queue, &*memory, AccessState::Released).is_empty());

        rig.probe.reset();
        drop(memory);
        assert!(!rig.probe.trace().contains(&RELEASE), "it was released: {:?}", rig.probe.trace());
        theirs.only_ours_is_open();
    });
}

#[test]
fn kernels_and_copies_use_it_in_place() {
    on_importer(|rig| {
        let n = BYTES / 4;
        let (queue, theirs) = (rig.queue(), Theirs::new("kernels", &numbers(BYTES)));
        let memory = rig.device.import(&theirs.all(), Access::ReadWrite).unwrap();
        let own = rig.memory(MemoryKind::Device, BYTES).unwrap();
        let step = rig.program(STEP).unwrap().kernel("onebuf_step", 5).unwrap();
        let word = |value: usize| (value as u32).to_ne_bytes();
        let values = [word(0), word(n), word(3), word(1)];
        queue.reside(&*memory, AccessState::Acquired).unwrap();
        let mut args = vec![Arg::Memory(&*memory, Access::ReadWrite, BYTES)];
        args.extend(values.iter().map(|value| Arg::Bytes(value)));
        // SAFETY: `n` words.
        unsafe { launch(&*queue, &*step, &line(n, None), &args) }.unwrap();
        queue.copy(&*memory, 0, &*own, 0, BYTES).unwrap();
        let expected = words(&numbers(BYTES)).into_iter().zip(0u32..);
        let expected: Vec<u32> =
            expected.map(|(x, i)| x.wrapping_mul(3).wrapping_add(1).wrapping_add(i)).collect();
        assert_eq!(words(&get(&*queue, &*own, 0, n * 4)), expected);
        queue.fill(&*own, 0, BYTES, &[5]).unwrap();
        queue.copy(&*own, 0, &*memory, 8192, 4096).unwrap();
        queue.reside(&*memory, AccessState::Released).unwrap();
        sync(&*queue);
        assert_eq!(words(&theirs.bytes(0, 8192)), expected[..2048]);
        assert_eq!(theirs.bytes(8192, 4096), [5; 4096]);
    });
}

#[test]
fn what_was_written_arrives_when_it_is_dropped() {
    on_importer(|rig| {
        let (queue, theirs) = (rig.queue(), Theirs::new("dropped", &numbers(BYTES)));
        let memory = rig.device.import(&theirs.all(), Access::ReadWrite).unwrap();
        queue.reside(&*memory, AccessState::Acquired).unwrap();
        queue.fill(&*memory, 0, BYTES, &[1]).unwrap();
        rig.probe.reset();
        drop(memory);
        let ends: Vec<_> =
            rig.probe.trace().into_iter().filter(|call| *call != "clFlush").collect();
        assert_eq!(ends, [RELEASE, "clReleaseMemObject"]);
        sync(&*queue);
        assert_eq!(theirs.bytes(0, BYTES), [1; BYTES]);
        theirs.only_ours_is_open();
    });
}

/// The final release comes after the work of every queue, not only of the one that acquired.
#[test]
fn it_is_not_released_under_another_queues_work() {
    on_importer(|rig| {
        let (first, second) = (rig.queue(), rig.queue());
        let theirs = Theirs::new("two-queues", &numbers(BYTES));
        let memory = rig.device.import(&theirs.all(), Access::ReadWrite).unwrap();
        first.reside(&*memory, AccessState::Acquired).unwrap();
        second.wait_for(&[first.mark().unwrap()]).unwrap();
        let host_signal = second.host_signal().unwrap();
        second.fill(&*memory, 0, BYTES, &[8]).unwrap();
        drop(memory);
        first.flush().unwrap();
        assert_eq!(theirs.bytes(0, BYTES), numbers(BYTES), "its work has not run");
        host_signal.open(Ok(()));
        sync(&*second);
        sync(&*first);
        assert_eq!(theirs.bytes(0, BYTES), [8; BYTES]);
        theirs.only_ours_is_open();
    });
}

#[test]
fn regions_follow_the_whole() {
    on_importer(|rig| {
        let (queue, theirs) = (rig.queue(), Theirs::new("regions", &numbers(BYTES)));
        let memory = rig.device.import(&theirs.all(), Access::ReadWrite).unwrap();
        let part = memory.region(4096, 1000, Access::ReadWrite).unwrap();
        assert!(invalid(queue.fill(&*part, 0, 8, &[1])).contains("released"));
        assert_eq!(reside(rig, &*queue, &*part, AccessState::Acquired), [ACQUIRE]);
        assert_eq!(memory.access_state(), AccessState::Acquired);
        assert_eq!(get(&*queue, &*part, 0, 1000), numbers(BYTES)[4096..5096]);
        put(&*queue, &*part, 0, &[6; 1000]);
        drop(memory);
        assert_eq!(reside(rig, &*queue, &*part, AccessState::Released), [RELEASE]);
        assert_eq!(theirs.bytes(4096, 1000), [6; 1000]);
        assert_eq!(theirs.open(), 2, "the part keeps it");
        drop(part);
        theirs.only_ours_is_open();
    });
}

/// Memory that begins inside an allocation: the driver imports and acquires the whole allocation.
#[test]
fn an_offset_is_where_the_memory_begins() {
    on_importer(|rig| {
        for kind in KINDS {
            let (queue, theirs) = (rig.queue(), Theirs::new("offset", &numbers(BYTES)));
            let export = Export::Fd(theirs.range(kind, 8192, 5000));
            let memory = rig.device.import(&export, Access::ReadWrite).unwrap();
            drop(export);
            assert_eq!(memory.bytes(), 5000);
            assert_eq!(reside(rig, &*queue, &*memory, AccessState::Acquired), [ACQUIRE]);
            assert_eq!(get(&*queue, &*memory, 0, 5000), numbers(BYTES)[8192..13192]);
            put(&*queue, &*memory, 4999, &[1]);
            // A region's offset is relative to the memory.
            let part = memory.region(1024, 64, Access::ReadWrite).unwrap();
            assert_eq!(get(&*queue, &*part, 0, 64), numbers(BYTES)[9216..9280]);
            put(&*queue, &*part, 0, &[2; 64]);
            let outside = invalid(memory.region(4992, 64, Access::Read));
            assert!(outside.contains("5000"), "{outside}");
            assert_eq!(reside(rig, &*queue, &*memory, AccessState::SharedRead), [RELEASE, ACQUIRE]);
            let mut expected = numbers(BYTES);
            expected[13191] = 1;
            expected[9216..9280].fill(2);
            assert_eq!(theirs.bytes(0, BYTES), expected);
            drop((part, memory));
            theirs.only_ours_is_open();
        }
    });
}

#[test]
fn what_is_no_such_memory_is_refused_and_stays_theirs() {
    on_importer(|rig| {
        let theirs = Theirs::new("refused", &numbers(BYTES));
        let import = |range: &FdRange| {
            let refused = rig.device.import(&Export::Fd(range.clone()), Access::Read).unwrap_err();
            assert!(!rig.probe.live().contains_key("mem"), "{refused}");
            refused
        };
        let good = theirs.range(FdKind::OpaqueFd, 0, BYTES);
        for (offset, bytes) in [(0, BYTES + 1), (1, BYTES), (usize::MAX, 2), (0, 0)] {
            let wrong = import(&FdRange { offset, bytes, ..good.clone() });
            assert!(matches!(wrong, Error::InvalidArgument(_)), "{wrong}");
        }
        let (bytes, allocation_bytes) = (2 * BYTES, 2 * BYTES);
        let long = import(&FdRange { bytes, allocation_bytes, ..good.clone() });
        let is_refusal = |error: &Error| {
            matches!(error, Error::Driver { call: "clCreateBufferWithProperties", .. })
        };
        assert!(is_refusal(&long), "no memory was lacking: {long}");
        let (pipe, _end) = std::io::pipe().unwrap();
        let pipe = FdRange { fd: Arc::new(pipe.into()), ..good.clone() };
        let wrong = import(&pipe);
        assert!(is_refusal(&wrong), "{wrong}");
        // A sub-buffer must start at the device's alignment.
        let odd = import(&FdRange { offset: 100, bytes: 64, ..good.clone() });
        assert!(odd.to_string().contains("clCreateSubBuffer"), "{odd}");
        drop(good);
        theirs.only_ours_is_open();
    });
}

#[test]
fn it_is_imported_for_what_kernels_do() {
    on_importer(|rig| {
        let (queue, theirs) = (rig.queue(), Theirs::new("access", &numbers(BYTES)));
        let memory = rig.device.import(&theirs.all(), Access::Read).unwrap();
        queue.reside(&*memory, AccessState::Acquired).unwrap();
        assert_eq!(get(&*queue, &*memory, 0, 16), numbers(16));
        let wider = invalid(memory.region(0, 128, Access::ReadWrite));
        assert!(wider.contains("for read"), "{wider}");
        let export = memory.export(&*queue).unwrap_err();
        assert!(matches!(export, Error::Unsupported { .. }), "the host does not see it: {export}");
        let export = memory.export_fd(FdKind::OpaqueFd).unwrap_err();
        assert!(matches!(export, Error::Unsupported { .. }), "{export}");
    });
}

/// Every hand-over, with a region and an offset, up to the first error.
fn turns(rig: &Rig, theirs: &Theirs) -> Result<()> {
    let queue = rig.device.queue(QueueSpec::default())?;
    let other = rig.device.queue(QueueSpec::default())?;
    for offset in [0, 4096] {
        let export = Export::Fd(theirs.range(FdKind::OpaqueFd, offset, 4096));
        let memory = rig.device.import(&export, Access::ReadWrite)?;
        let part = memory.region(1024, 1024, Access::ReadWrite)?;
        for to in [
            AccessState::Acquired,
            AccessState::SharedRead,
            AccessState::Released,
            AccessState::Acquired,
        ] {
            queue.reside(&*memory, to)?;
        }
        queue.fill(&*part, 0, 1024, &[1, 2])?;
        other.wait_for(&[queue.mark()?])?;
        other.fill(&*memory, 0, 1024, &[3])?;
    }
    Ok(())
}

#[test]
fn each_call_fails_once() {
    let _alone = alone();
    let Some((_table, path)) = library() else { return };
    let theirs = Theirs::new("faults", &numbers(BYTES));
    let mut seen = std::collections::BTreeSet::new();
    for n in 1.. {
        let [_ordinary, rig] = platforms(&path);
        rig.probe.fail_nth(n, -5);
        let result = turns(&rig, &theirs);
        let failed = rig.probe.failed();
        if let Some(failed) = failed {
            seen.insert(failed);
            rig.probe.fail_nth(0, 0);
            turns(&rig, &theirs).unwrap_or_else(|why| panic!("again, after {failed}: {why}"));
        }
        let probe = rig.probe.clone();
        drop(rig);
        settled(&probe);
        theirs.only_ours_is_open();
        if failed.is_none() {
            result.unwrap();
            break;
        }
    }
    let must = [ACQUIRE, RELEASE, "clCreateBufferWithProperties", "clCreateSubBuffer"];
    assert!(must.iter().all(|call| seen.contains(call)), "{seen:?}");
}
