//! Arm's import, on the stub driver: no driver of the machines at hand declares it. The mode of the stub is chosen when it is loaded,
//! so each test is a process of its own.

use super::{
    imported::{BYTES, STEP, Theirs, on_importer, sync},
    *,
};
use onebuf_hal::{AccessState, Export, FdKind, HostRange};
use std::{alloc, os::unix::fs::FileExt, process::Command, ptr::NonNull};

const IMPORT: &str = "clImportMemoryARM";
const PAGE: usize = 4096;

/// Runs an ignored test of this module in a process of its own, with these modes of the stub.
#[track_caller]
fn play(test: &str, modes: &str, version: &str) {
    let program = std::env::current_exe().unwrap();
    let name = format!("tests::arm::{test}");
    let environment = [("ONEBUF_STUB", modes), ("ONEBUF_STUB_ARM", version)];
    let mut command = Command::new(program);
    let ran = command.args(["--ignored", "--exact", "--nocapture", &name]).envs(environment);
    let ran = ran.output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
}

macro_rules! plays {
    ($($test:ident: $inner:ident($modes:expr, $version:expr);)*) => {$(
        #[test]
        fn $test() {
            play(stringify!($inner), $modes, $version);
        }
    )*};
}

plays! {
    dma_bufs_are_used_in_place: dma_bufs("arm", "1.1");
    host_pages_are_used_in_place: host_pages("arm", "1.1");
    pages_are_copied_without_it: host_pages_by_copies("arm", "1.0");
    an_old_version_is_not_used: nothing_is_imported("arm", "1.0");
    the_khronos_extension_comes_first: only_host_pages("arm,imports", "1.1");
    a_refusal_is_an_error: refused("arm,refuses", "1.1");
    each_of_its_calls_fails: swept("arm", "1.1");
}

/// Changes every word of a memory by a kernel; returns what the words are then.
fn stepped(rig: &Rig, queue: &dyn hal::Queue, memory: &dyn hal::Memory, before: &[u8]) -> Vec<u8> {
    let n = before.len() / 4;
    let step = rig.program(STEP).unwrap().kernel("onebuf_step", 5).unwrap();
    let values = [0, n, 3, 1].map(|value| (value as u32).to_ne_bytes());
    let mut args = vec![Arg::Memory(memory, Access::ReadWrite, memory.bytes())];
    args.extend(values.iter().map(|value| Arg::Bytes(value)));
    // SAFETY: the kernel touches `n` words.
    unsafe { launch(queue, &*step, &line(n, None), &args) }.unwrap();
    let after = words(before).into_iter().zip(0u32..);
    let after = after.map(|(x, i)| x.wrapping_mul(3).wrapping_add(1).wrapping_add(i));
    let mut bytes = bytes_of(&after.collect::<Vec<u32>>());
    bytes.extend_from_slice(&before[n * 4..]);
    bytes
}

#[test]
#[ignore = "run by `dma_bufs_are_used_in_place`"]
fn dma_bufs() {
    on_importer(|rig| {
        let caps = &rig.device.info().caps;
        assert_eq!(
            (&caps.imports[..], caps.imports_without_acquire),
            (&[FdKind::DmaBuf][..], true)
        );
        let (queue, theirs) = (rig.queue(), Theirs::new("arm", &numbers(BYTES)));
        rig.probe.reset();
        let export = Export::Fd(theirs.range(FdKind::DmaBuf, 0, BYTES));
        let memory = rig.device.import(&export, Access::ReadWrite).unwrap();
        drop(export);
        assert!(rig.probe.trace().contains(&IMPORT), "{:?}", rig.probe.trace());
        assert_eq!(theirs.open(), 2, "the descriptor is kept, because the driver took none");
        assert!(invalid(queue.fill(&*memory, 0, 8, &[1])).contains("released"));
        queue.reside(&*memory, AccessState::Acquired).unwrap();
        let expected = stepped(rig, &*queue, &*memory, &numbers(BYTES));
        queue.reside(&*memory, AccessState::Released).unwrap();
        sync(&*queue);
        assert_eq!(theirs.bytes(0, BYTES), expected, "every page, from the other side");

        // The other side writes every page, and the device reads them.
        let mut theirs_now = expected;
        theirs_now.iter_mut().for_each(|byte| *byte = byte.wrapping_add(7));
        theirs.file.write_all_at(&theirs_now, 0).unwrap();
        queue.reside(&*memory, AccessState::Acquired).unwrap();
        assert_eq!(get(&*queue, &*memory, 0, BYTES), theirs_now);

        // Memory that begins inside the dma-buf.
        let export = Export::Fd(theirs.range(FdKind::DmaBuf, 2 * PAGE, 5000));
        let part = rig.device.import(&export, Access::ReadWrite).unwrap();
        drop(export);
        queue.reside(&*part, AccessState::Acquired).unwrap();
        put(&*queue, &*part, 4999, &[1]);
        queue.reside(&*part, AccessState::Released).unwrap();
        sync(&*queue);
        assert_eq!(theirs.bytes(2 * PAGE + 4999, 1), [1]);
        let external = |call: &&str| call.contains("External");
        assert!(!rig.probe.trace().iter().any(external), "{:?}", rig.probe.trace());
        drop((part, memory));
        theirs.only_ours_is_open();
    });
}

/// Pages of the host, freed with their last owner.
struct Pages(NonNull<u8>);

// SAFETY: an address; what is there is plain bytes.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    const BYTES: usize = 5 * PAGE;
    const LAYOUT: alloc::Layout = match alloc::Layout::from_size_align(Self::BYTES, PAGE) {
        Ok(layout) => layout,
        Err(_) => panic!("five pages"),
    };

    fn new(contents: &[u8]) -> Arc<Pages> {
        // SAFETY: the layout has a size.
        let pages = Pages(NonNull::new(unsafe { alloc::alloc(Self::LAYOUT) }).unwrap());
        // SAFETY: as many bytes as were allocated.
        unsafe { pages.0.as_ptr().copy_from(contents.as_ptr(), Self::BYTES) };
        Arc::new(pages)
    }

    fn range(self: &Arc<Self>) -> HostRange {
        HostRange { pointer: self.0, bytes: Self::BYTES, owner: self.clone() }
    }

    /// What the host sees. The device's work has ended.
    fn bytes(&self) -> Vec<u8> {
        // SAFETY: these bytes were written when they were allocated.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), Self::BYTES) }.to_vec()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { alloc::dealloc(self.0.as_ptr(), Self::LAYOUT) };
    }
}

/// A kernel on pages of the host: what they contained, what they should contain, and what the host sees without a map.
fn worked_on(rig: &Rig) -> [Vec<u8>; 2] {
    let (queue, pages) = (rig.queue(), Pages::new(&numbers(Pages::BYTES)));
    let memory = rig.device.import(&Export::Host(pages.range()), Access::ReadWrite).unwrap();
    queue.reside(&*memory, AccessState::Acquired).unwrap();
    let expected = stepped(rig, &*queue, &*memory, &numbers(Pages::BYTES));
    sync(&*queue);
    let seen = pages.bytes();
    queue.reside(&*memory, AccessState::Released).unwrap();
    sync(&*queue);
    assert_eq!(pages.bytes(), expected, "after the hand-over");
    drop(memory);
    sync(&*queue);
    [expected, seen]
}

#[test]
#[ignore = "run by `host_pages_are_used_in_place`"]
fn host_pages() {
    on_importer(|rig| {
        rig.probe.reset();
        let [expected, seen] = worked_on(rig);
        assert!(rig.probe.trace().contains(&IMPORT), "{:?}", rig.probe.trace());
        assert_eq!(seen, expected, "in place, so that nothing is left to copy at the hand-over");
    });
}

/// The control: the same driver copies, if the extension is too old.
#[test]
#[ignore = "run by `pages_are_copied_without_it`"]
fn host_pages_by_copies() {
    on_importer(|rig| {
        let [expected, seen] = worked_on(rig);
        assert_eq!(seen, numbers(Pages::BYTES), "nothing has arrived yet");
        assert!(seen.chunks(PAGE).zip(expected.chunks(PAGE)).all(|(a, b)| a != b));
        assert!(!rig.probe.trace().contains(&IMPORT), "{:?}", rig.probe.trace());
    });
}

#[test]
#[ignore = "run by `an_old_version_is_not_used`"]
fn nothing_is_imported() {
    on_importer(|rig| {
        let info = rig.device.info();
        assert!(info.declares("cl_arm_import_memory_dma_buf") && info.caps.imports.is_empty());
        let theirs = Theirs::new("old", &[0; BYTES]);
        let export = Export::Fd(theirs.range(FdKind::DmaBuf, 0, BYTES));
        let refused = rig.device.import(&export, Access::Read).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        drop(export);
        theirs.only_ours_is_open();
    });
}

#[test]
#[ignore = "run by `the_khronos_extension_comes_first`"]
fn only_host_pages() {
    on_importer(|rig| {
        let caps = &rig.device.info().caps;
        assert_eq!(
            (&caps.imports[..], caps.imports_without_acquire),
            (&[FdKind::OpaqueFd][..], false)
        );
        let [expected, seen] = worked_on(rig);
        assert_eq!(seen, expected);
    });
}

#[test]
#[ignore = "run by `a_refusal_is_an_error`"]
fn refused() {
    on_importer(|rig| {
        let theirs = Theirs::new("refused", &numbers(BYTES));
        let pages = Pages::new(&numbers(Pages::BYTES));
        let exports =
            [Export::Fd(theirs.range(FdKind::DmaBuf, 0, BYTES)), Export::Host(pages.range())];
        for export in exports {
            let refused = rig.device.import(&export, Access::Read).unwrap_err();
            assert!(matches!(refused, Error::Driver { call: IMPORT, .. }), "{refused}");
            assert!(!rig.probe.live().contains_key("mem"), "{refused}");
        }
        theirs.only_ours_is_open();
        assert_eq!(Arc::strong_count(&pages), 1);
    });
}

/// Imports of both kinds, up to the first error.
fn turns(rig: &Rig, theirs: &Theirs) -> Result<()> {
    let queue = rig.device.queue(QueueSpec::default())?;
    let pages = Pages::new(&numbers(Pages::BYTES));
    for offset in [0, PAGE] {
        let fd = Export::Fd(theirs.range(FdKind::DmaBuf, offset, PAGE));
        for export in [fd, Export::Host(pages.range())] {
            let memory = rig.device.import(&export, Access::ReadWrite)?;
            queue.reside(&*memory, AccessState::Acquired)?;
            queue.fill(&*memory, 0, 1024, &[3])?;
            queue.reside(&*memory, AccessState::Released)?;
        }
    }
    Ok(())
}

#[test]
#[ignore = "run by `each_of_its_calls_fails`"]
fn swept() {
    let _alone = alone();
    let Some((_table, path)) = super::stub::library() else { return };
    let theirs = Theirs::new("faults", &numbers(BYTES));
    for call in [IMPORT, "clSetMemObjectDestructorCallback", "clCreateSubBuffer"] {
        let [_ordinary, rig] = super::stub::platforms(&path);
        rig.probe.fail_always(call, -30);
        let failed = turns(&rig, &theirs).unwrap_err();
        assert!(failed.to_string().contains(call), "{call}: {failed}");
        let probe = rig.probe.clone();
        drop(rig);
        settled(&probe);
        theirs.only_ours_is_open();
    }
    let [_ordinary, rig] = super::stub::platforms(&path);
    turns(&rig, &theirs).unwrap();
}
