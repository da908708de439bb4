//! Exported and imported memory: every call with its arguments, the owner of each descriptor, and each call failing.

use super::{faults::sweep, *};
use onebuf_hal::{AccessState, FdKind, FdRange, RawHandle, checks};
use std::{
    ffi::{CStr, c_char, c_int, c_void},
    fs::File,
    os::{fd::AsRawFd, unix::fs::FileExt},
};

const PAGE: usize = 2 << 20;
/// The name of the files that hold the stub's memory.
const FILE_NAME: &str = "onebuf-stub";

/// A function of the stub for tests.
pub(super) fn of_stub(name: &CStr) -> *mut c_void {
    let library = std::ffi::CString::new(stub().unwrap()).unwrap();
    // SAFETY: both are strings; the library is loaded and stays loaded.
    let found = unsafe {
        let library = libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        libc::dlsym(library, name.as_ptr())
    };
    assert!(!found.is_null(), "{name:?} is not in the stub");
    found
}

/// The calls that the stub has recorded since the last time: name, arguments, status.
pub(super) fn recorded() -> Vec<String> {
    // SAFETY: the functions' types in the stub.
    unsafe {
        let record: unsafe extern "C" fn(*mut c_char, usize) -> usize =
            std::mem::transmute(of_stub(c"onebuf_stub_record"));
        let forget: unsafe extern "C" fn() = std::mem::transmute(of_stub(c"onebuf_stub_forget"));
        let mut text = vec![0u8; record(std::ptr::null_mut(), 0) + 1];
        record(text.as_mut_ptr().cast(), text.len());
        forget();
        let text = CStr::from_bytes_until_nul(&text).unwrap().to_string_lossy().into_owned();
        text.lines().map(str::to_owned).collect()
    }
}

/// The number of such objects that are alive in the stub.
pub(super) fn live() -> c_int {
    // SAFETY: the function's type in the stub.
    unsafe {
        let live: unsafe extern "C" fn() -> c_int =
            std::mem::transmute(of_stub(c"onebuf_stub_live"));
        live()
    }
}

/// The number of open descriptors of the stub's memory in this process.
fn open() -> usize {
    checks::descriptors(FILE_NAME)
}

/// Like [`each`], and checks that no descriptor leaks.
pub(super) fn each_shared(test: impl Fn(&Rig)) {
    each(|rig| {
        recorded();
        test(rig);
        assert_eq!((live(), open()), (0, 0), "{:?}", rig.probe.trace());
    });
}

/// The value of a named argument in a recorded call.
pub(super) fn argument<'l>(line: &'l str, name: &str) -> &'l str {
    let at = line.find(&format!("{name}=")).unwrap_or_else(|| panic!("no {name} in {line}"));
    line[at + name.len() + 1..].split([',', ')']).next().unwrap()
}

pub(super) fn names(lines: &[String]) -> Vec<&str> {
    lines.iter().map(|line| line.split('(').next().unwrap()).collect()
}

impl Rig {
    fn kind(&self) -> FdKind {
        self.flavor.pick([FdKind::OpaqueFd, FdKind::DmaBuf])
    }

    /// The name of a CUDA call in this API.
    pub(super) fn call(&self, name: &str) -> String {
        format!("{}{name}", self.flavor.pick(["cu", "hip"]))
    }

    fn exported(&self, bytes: usize) -> (Arc<dyn hal::Memory>, FdRange) {
        let memory = self.memory(MemoryKind::Exportable, bytes).unwrap();
        let range = memory.export_fd(self.kind()).unwrap();
        (memory, range)
    }
}

fn address(memory: &dyn hal::Memory) -> String {
    let RawHandle::Address(at) = memory.raw() else { panic!("{memory:?}") };
    format!("{at:#x}")
}

/// Allocates whole pages and maps them for the device; frees them in the opposite order.
#[test]
fn pages_are_made_mapped_and_given_back() {
    each_shared(|rig| {
        for (bytes, whole) in [(1, PAGE), (5000, PAGE), (PAGE, PAGE), (PAGE + 1, 2 * PAGE)] {
            for (number, device) in [&rig.device, &rig.other].into_iter().enumerate() {
                let memory = device.allocate(&spec(MemoryKind::Exportable, bytes), None).unwrap();
                assert_eq!((memory.bytes(), memory.memory_kind()), (bytes, MemoryKind::Exportable));
                let (made, at) = (recorded(), address(&*memory));
                let handle = argument(&made[3], "handle").to_owned();
                let call = |name: &str| rig.call(name);
                let expected = [
                    format!(
                        "{}(device={number}, option=1) = 0",
                        call("MemGetAllocationGranularity")
                    ),
                    format!(
                        "{}(bytes={whole}, device={number}, handles=1, flags=0) = 0",
                        call("MemCreate")
                    ),
                    format!(
                        "{}(bytes={whole}, align=0, hint=0, flags=0) = 0",
                        call("MemAddressReserve")
                    ),
                    format!(
                        "{}(at={at}, bytes={whole}, offset=0, handle={handle}, flags=0) = 0",
                        call("MemMap")
                    ),
                    format!(
                        "{}(at={at}, bytes={whole}, device={number}, access=3, count=1) = 0",
                        call("MemSetAccess")
                    ),
                ];
                assert_eq!(made, expected);
                drop(memory);
                let expected = [
                    format!("{}(at={at}, bytes={whole}) = 0", call("MemUnmap")),
                    format!("{}(at={at}, bytes={whole}) = 0", call("MemAddressFree")),
                    format!("{}(handle={handle}) = 0", call("MemRelease")),
                ];
                assert_eq!(recorded(), expected);
            }
        }
    });
}

#[test]
fn it_is_memory_like_any_other() {
    each_shared(|rig| {
        let queue = rig.queue();
        for bytes in [1, 4099, PAGE - 1, PAGE + 5] {
            let contents = numbers(bytes);
            let memory_kind = spec(MemoryKind::Exportable, bytes);
            let memory = rig.device.allocate(&memory_kind, Some(&contents)).unwrap();
            assert_eq!(get(&*queue, &*memory, 0, bytes), contents);
            put(&*queue, &*memory, bytes / 2, &[9]);
            assert_eq!(get(&*queue, &*memory, bytes / 2, 1), [9]);
            queue.fill(&*memory, 0, bytes, &[3]).unwrap();
            assert_eq!(get(&*queue, &*memory, 0, bytes), vec![3; bytes]);
        }
        let memory = rig.device.allocate(&spec(MemoryKind::Exportable, 4096), Some(&[0; 4096]));
        let memory = memory.unwrap();
        let add = rig.kernel("add", 2).unwrap();
        let args = [Arg::Memory(&*memory, Access::ReadWrite, 4096), Arg::Bytes(&[5, 0, 0, 0])];
        // SAFETY: 1024 words.
        unsafe { queue.launch(&*add, &line(1024), &args, &[], false) }.unwrap();
        assert_eq!(words(&get(&*queue, &*memory, 0, 4096)), [5; 1024]);
        assert!(memory.host_pointer().is_none() && !memory.needs_access_state());
        assert_eq!(queue.reside(&*memory, AccessState::Released), Ok(false));
        let part = memory.region(1024, 512, Access::ReadWrite).unwrap();
        put(&*queue, &*part, 0, &[8; 512]);
        assert_eq!(get(&*queue, &*memory, 1020, 8), [5, 0, 0, 0, 8, 8, 8, 8]);
        let remark = memory.remark().unwrap();
        assert!(remark.contains("shared by descriptors"), "{remark}");
        drop((part, memory));
    });
}

#[test]
fn an_export_is_a_descriptor_of_the_memory_itself() {
    each_shared(|rig| {
        let queue = rig.queue();
        let (memory, range) = rig.exported(5000);
        assert_eq!((range.kind, range.offset, range.bytes), (rig.kind(), 0, 5000));
        assert_eq!(range.allocation_bytes, PAGE);
        let calls = recorded();
        let export = calls.last().unwrap();
        assert!(export.starts_with(&rig.call("MemExportToShareableHandle(")), "{export}");
        assert_eq!(argument(export, "handle"), argument(&calls[3], "handle"));
        assert_eq!((argument(export, "kind"), argument(export, "flags")), ("1", "0"));
        assert_eq!(argument(export, "fd"), range.fd.as_raw_fd().to_string());

        let file = File::from(range.fd.try_clone().unwrap());
        assert_eq!(
            file.metadata().unwrap().len(),
            PAGE as u64,
            "it shows nothing that lies beside"
        );
        put(&*queue, &*memory, 0, &numbers(5000));
        let mut seen = vec![0; 5000];
        file.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!(seen, numbers(5000));
        file.write_all_at(&[1; 100], 4000).unwrap();
        assert_eq!(get(&*queue, &*memory, 4000, 100), [1; 100]);

        // Each export is a separate descriptor, and outlives the memory it was exported from.
        let again = memory.export_fd(rig.kind()).unwrap();
        assert_ne!(again.fd.as_raw_fd(), range.fd.as_raw_fd());
        drop((memory, range));
        file.read_exact_at(&mut seen[..100], 4000).unwrap();
        assert_eq!(seen[..100], [1; 100]);
        assert_eq!((live(), open()), (0, 2));
        drop((again, file));
    });
}

#[test]
fn what_cannot_be_exported_says_why() {
    each_shared(|rig| {
        let plain = rig.memory(MemoryKind::Device, 4096).unwrap();
        let refused = plain.export_fd(rig.kind()).unwrap_err();
        assert!(refused.to_string().contains("allocated as exportable"), "{refused}");
        let memory = rig.memory(MemoryKind::Exportable, 4096).unwrap();
        let part = memory.region(1024, 512, Access::Read).unwrap();
        assert!(matches!(part.export_fd(rig.kind()), Err(Error::Unsupported { .. })));
        let other = rig.flavor.pick([FdKind::DmaBuf, FdKind::OpaqueFd]);
        let refused = memory.export_fd(other).unwrap_err();
        assert!(refused.to_string().contains(&other.to_string()), "{refused}");
        let pages = memory.export(&*rig.queue()).unwrap_err();
        assert!(matches!(pages, Error::Unsupported { .. }), "the host does not see it: {pages}");
        let call =
            rig.flavor.pick(["cuMemExportToShareableHandle", "hipMemExportToShareableHandle"]);
        rig.probe.fail_always(call, 801);
        let failed = memory.export_fd(rig.kind()).unwrap_err();
        rig.probe.reset();
        assert!(matches!(failed, Error::Driver { code: 801, .. }), "{failed}");
        drop((plain, part, memory));
    });
}

#[test]
fn others_memory_is_imported_and_given_back() {
    each_shared(|rig| {
        let (queue, there) = (rig.queue(), rig.other.queue(QueueSpec::default()).unwrap());
        let (memory, range) = rig.exported(5000);
        put(&*queue, &*memory, 0, &numbers(5000));
        recorded();
        let before = open();
        let import = rig.other.import(&Export::Fd(range.clone()), Access::ReadWrite).unwrap();
        assert_eq!((import.bytes(), import.memory_kind()), (5000, MemoryKind::Exportable));
        let calls = recorded();
        let (first, second) =
            (rig.call("ImportExternalMemory"), rig.call("ExternalMemoryGetMappedBuffer"));
        assert_eq!(names(&calls), [&*first, &*second]);
        // The driver gets a duplicate, which is closed by now: by CUDA, or by onebuf for HIP. The stub keeps another
        // one.
        assert_ne!(argument(&calls[0], "fd"), range.fd.as_raw_fd().to_string());
        assert_eq!((argument(&calls[0], "kind"), argument(&calls[0], "flags")), ("1", "0"));
        assert_eq!(
            argument(&calls[0], "bytes"),
            PAGE.to_string(),
            "allocations are imported whole"
        );
        assert_eq!((argument(&calls[1], "offset"), argument(&calls[1], "bytes")), ("0", "5000"));
        assert_eq!(open(), before + 1);
        rustix::fs::fstat(&*range.fd).unwrap();

        assert_eq!(get(&*there, &*import, 0, 5000), numbers(5000));
        put(&*there, &*import, 4999, &[0xEE]);
        assert_eq!(get(&*queue, &*memory, 4999, 1), [0xEE]);
        let part = import.region(1024, 512, Access::ReadWrite).unwrap();
        put(&*there, &*part, 0, &[6; 512]);
        assert_eq!(get(&*queue, &*memory, 1024, 512), [6; 512]);
        let further = import.export_fd(rig.kind()).unwrap_err();
        assert!(matches!(further, Error::Unsupported { .. }), "{further}");

        // The exporter is dropped first: the memory stays.
        drop((memory, range));
        assert_eq!(get(&*there, &*import, 1024, 512), [6; 512]);
        drop(part);
        rig.probe.reset();
        drop(import);
        let ends = rig.flavor.pick([
            ["cuMemFree_v2", "cuDestroyExternalMemory"],
            ["hipFree", "hipDestroyExternalMemory"],
        ]);
        let trace = rig.probe.trace();
        let trace: Vec<_> = trace.into_iter().filter(|call| ends.contains(call)).collect();
        assert_eq!(trace, ends, "the buffer first");
    });
}

#[test]
fn an_offset_is_where_the_memory_begins() {
    each_shared(|rig| {
        let (queue, there) = (rig.queue(), rig.other.queue(QueueSpec::default()).unwrap());
        let (memory, range) = rig.exported(PAGE);
        put(&*queue, &*memory, 0, &numbers(PAGE));
        recorded();
        let inner = FdRange { offset: 8192, bytes: 100, ..range };
        let import = rig.other.import(&Export::Fd(inner), Access::ReadWrite).unwrap();
        let calls = recorded();
        assert_eq!((argument(&calls[1], "offset"), argument(&calls[1], "bytes")), ("8192", "100"));
        assert_eq!(get(&*there, &*import, 0, 100), numbers(PAGE)[8192..8292]);
        put(&*there, &*import, 0, &[4; 100]);
        assert_eq!(get(&*queue, &*memory, 8190, 4), [&numbers(PAGE)[8190..8192], &[4; 2]].concat());
        let outside = there.fill(&*import, 0, 101, &[0]).unwrap_err();
        assert!(matches!(outside, Error::InvalidArgument(_)), "{outside}");
        drop((memory, import));
    });
}

#[test]
fn what_is_no_such_memory_is_refused_and_stays_the_callers() {
    each_shared(|rig| {
        let (memory, range) = rig.exported(5000);
        let before = (live(), open());
        let import = |range: &FdRange| {
            let refused = rig.other.import(&Export::Fd(range.clone()), Access::Read).unwrap_err();
            assert_eq!((live(), open()), before, "{refused}");
            rustix::fs::fstat(&*range.fd).unwrap();
            refused
        };
        for (offset, bytes) in [(0, PAGE + 1), (1, PAGE), (usize::MAX, 2), (0, 0)] {
            let wrong = import(&FdRange { offset, bytes, ..range.clone() });
            assert!(matches!(wrong, Error::InvalidArgument(_)), "{wrong}");
        }
        let is_refusal = |error: &Error| matches!(error, Error::Driver { code: 1, .. });
        let long = import(&FdRange { allocation_bytes: 2 * PAGE, ..range.clone() });
        assert!(is_refusal(&long), "{long}");
        let (pipe, _end) = std::io::pipe().unwrap();
        let pipe = import(&FdRange { fd: Arc::new(pipe.into()), ..range.clone() });
        assert!(is_refusal(&pipe), "{pipe}");
        let kind = rig.flavor.pick([FdKind::DmaBuf, FdKind::OpaqueFd]);
        let other = import(&FdRange { kind, ..range.clone() });
        assert!(matches!(other, Error::Unsupported { .. }), "{other}");
        let much = import(&FdRange { allocation_bytes: 4 << 30, ..range.clone() });
        assert!(matches!(much, Error::OutOfMemory { .. }), "{much}");
        drop((memory, range));
    });
}

/// Makes the next calls of this name fail with this status.
pub(super) fn fail(call: &CStr, status: c_int, times: c_int) {
    // SAFETY: the function's type in the stub.
    unsafe {
        let fail: unsafe extern "C" fn(*const c_char, c_int, c_int) =
            std::mem::transmute(of_stub(c"onebuf_stub_fail"));
        fail(call.as_ptr(), status, times);
    }
}

/// A driver that refuses CUDA's own memory as external memory imports it as its own.
#[test]
fn what_is_not_imported_as_others_is_imported_as_its_own() {
    each_shared(|rig| {
        let (queue, there) = (rig.queue(), rig.other.queue(QueueSpec::default()).unwrap());
        let (memory, range) = rig.exported(PAGE + 1);
        put(&*queue, &*memory, 0, &numbers(PAGE));
        let inner = FdRange { offset: 8192, bytes: 100, ..range.clone() };
        let before = (live(), open());
        for call in ["ImportExternalMemory", "ExternalMemoryGetMappedBuffer"] {
            let call = std::ffi::CString::new(rig.call(call)).unwrap();
            recorded();
            fail(&call, 801, 1);
            let import = rig.other.import(&Export::Fd(inner.clone()), Access::ReadWrite);
            if rig.flavor == Flavor::Hip {
                let refused = import.unwrap_err();
                assert!(refused.to_string().contains("hip"), "{refused}");
                assert_eq!((live(), open()), before);
                continue;
            }
            let (import, calls) = (import.unwrap(), recorded());
            let own = ["cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap"];
            assert!(
                names(&calls).ends_with(&[&own[..], &["cuMemSetAccess"]].concat()),
                "{calls:?}"
            );
            let map = &calls[calls.len() - 2];
            assert_eq!(argument(map, "bytes"), (2 * PAGE).to_string(), "whole");
            assert_eq!(get(&*there, &*import, 0, 100), numbers(PAGE)[8192..8292]);
            put(&*there, &*import, 0, &[4; 100]);
            assert_eq!(get(&*queue, &*memory, 8192, 100), [4; 100]);
            put(&*queue, &*memory, 8192, &numbers(PAGE)[8192..8292]);
            drop(import);
            assert_eq!((live(), open()), before);
        }
        // Both ways are refused: the first error is returned, and nothing leaks.
        if rig.flavor == Flavor::Cuda {
            for own in [c"cuMemImportFromShareableHandle", c"cuMemMap", c"cuMemSetAccess"] {
                fail(c"cuImportExternalMemory", 801, 1);
                fail(own, 1, 1);
                let refused = rig.other.import(&Export::Fd(inner.clone()), Access::Read);
                let refused = refused.unwrap_err().to_string();
                assert!(refused.contains("cuImportExternalMemory"), "{refused}");
                assert_eq!((live(), open()), before, "{own:?}");
            }
        }
        drop((memory, range, inner));
    });
}

/// The stub ends the process if memory in use is unmapped or freed.
#[test]
fn it_is_kept_while_work_uses_it() {
    each_shared(|rig| {
        let (queue, there) = (rig.queue(), rig.other.queue(QueueSpec::default()).unwrap());
        let (memory, range) = rig.exported(4096);
        let import = rig.other.import(&Export::Fd(range), Access::ReadWrite).unwrap();
        let (hold, _) = Hold::new(rig, &*queue, false);
        queue.fill(&*memory, 2048, 2048, &[1]).unwrap();
        there.fill(&*import, 0, 2048, &[2]).unwrap();
        drop(memory);
        assert!(live() > 2, "work still uses it");
        hold.let_go();
        queue.mark().unwrap().wait(SECONDS).unwrap();
        there.mark().unwrap().wait(SECONDS).unwrap();
        assert_eq!(get(&*there, &*import, 2040, 2056), [vec![2; 8], vec![1; 2048]].concat());
        drop((import, hold));
        // Any later call frees what was deferred.
        drop(rig.memory(MemoryKind::Device, 64).unwrap());
        drop(rig.other.allocate(&spec(MemoryKind::Device, 64), None).unwrap());
    });
}

#[test]
fn pages_that_wait_to_be_freed_are_not_lacking() {
    each_shared(|rig| {
        let queue = rig.queue();
        let most = 700 << 20;
        let first = rig.memory(MemoryKind::Exportable, most).unwrap();
        let (hold, _) = Hold::new(rig, &*queue, false);
        queue.fill(&*first, 0, 4, &[1]).unwrap();
        drop(first);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(5));
                hold.let_go();
            });
            drop(rig.memory(MemoryKind::Exportable, most).unwrap());
        });
        let _large = rig.memory(MemoryKind::Exportable, most).unwrap();
        let much = rig.memory(MemoryKind::Exportable, most).unwrap_err();
        assert!(matches!(much, Error::OutOfMemory { limit: Some(_), .. }), "{much}");
    });
}

/// Allocates, exports and imports memory, up to the first error. Waits for nothing, so the number of calls is constant.
fn shares(rig: &Rig) -> Result<()> {
    let memory = rig.device.allocate(&spec(MemoryKind::Exportable, 5000), None)?;
    let range = memory.export_fd(rig.kind())?;
    let import = rig.other.import(&Export::Fd(range.clone()), Access::ReadWrite)?;
    let inner = FdRange { offset: 4096, bytes: 100, ..range };
    let second = rig.other.import(&Export::Fd(inner), Access::Read)?;
    drop((memory, import, second));
    Ok(())
}

/// Shares memory with work on both sides, which still runs when the memory is dropped.
fn shares_work(rig: &Rig) -> Result<()> {
    let memory_kind = spec(MemoryKind::Exportable, 5000);
    let memory = rig.device.allocate(&memory_kind, Some(&numbers(5000)))?;
    let import = rig.other.import(&Export::Fd(memory.export_fd(rig.kind())?), Access::ReadWrite)?;
    let (queue, there) =
        (rig.device.queue(QueueSpec::default())?, rig.other.queue(QueueSpec::default())?);
    queue.fill(&*memory, 0, 5000, &[1])?;
    there.fill(&*import, 0, 100, &[2])?;
    drop((memory, import));
    there.mark()?.wait(SECONDS)
}

#[test]
fn each_call_fails_once_and_no_descriptor_is_lost() {
    let _alone = alone();
    for flavor in [Flavor::Cuda, Flavor::Hip] {
        if stub().is_none() {
            return;
        }
        sweep(flavor, shares_work);
        let seen = sweep(flavor, shares);
        assert_eq!((live(), open()), (0, 0));
        let names = ["MemCreate", "MemAddressReserve", "MemMap", "MemSetAccess", "MemUnmap"];
        let more = ["MemAddressFree", "MemRelease", "MemExportToShareableHandle"];
        let import =
            ["ImportExternalMemory", "ExternalMemoryGetMappedBuffer", "DestroyExternalMemory"];
        let prefix = flavor.pick(["cu", "hip"]);
        for name in names.iter().chain(&more).chain(&import) {
            let name = format!("{prefix}{name}");
            assert!(seen.contains(&&*name), "{name} was not made to fail: {seen:?}");
        }
    }
}
