//! Tests of the backend with the stub library, as CUDA and as HIP, without a GPU.

mod addresses;
mod faults;
mod graphics;
mod host_signals;
mod launches;
mod managed;
mod memories;
mod packed;
mod real;
mod sharing;
mod streams;

use super::{
    CUDA_C, Flavor, HIP_C, Libraries, PTX,
    device::Device,
    discover,
    testing::{alone, stub},
};
use onebuf_hal::{
    self as hal, Access, AllocSpec, Arg, Device as _, Domain, Error, Export, Grid, HostAccess,
    HostRange, Language, MemoryKind, QueueSpec, Result, Source,
};
use onebuf_sys::Probe;
use std::{
    ptr::NonNull,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

/// A source in one language.
fn written(language: Language, text: impl Into<std::borrow::Cow<'static, str>>) -> Source {
    Source::default().with_text(language, text.into())
}

const SECONDS: Duration = Duration::from_secs(20);
/// A program for the stub: the names of its kernels.
const PROGRAM: &str = "add onebuf_step shape nap hold boom";

/// The stub's two devices.
struct Rig {
    flavor: Flavor,
    probe: Arc<Probe>,
    device: Arc<Device>,
    other: Arc<Device>,
}

fn found(flavor: Flavor, probe: &Arc<Probe>) -> Option<Rig> {
    found_over(flavor, probe, "none")
}

/// Opens the stub's devices with this HSA library.
fn found_over(flavor: Flavor, probe: &Arc<Probe>, hsa: &str) -> Option<Rig> {
    let (library, hsa) = (stub(), Some(hsa));
    let libraries = Libraries { driver: library, compiler: library, hsa, managed: false };
    found_with(flavor, probe, libraries)
}

/// Opens the stub's devices with these libraries.
fn found_with(flavor: Flavor, probe: &Arc<Probe>, libraries: Libraries<'_>) -> Option<Rig> {
    stub()?;
    let mut next = 0;
    let mut next_domain = || {
        next += 1;
        Domain(next)
    };
    let found =
        discover(flavor, libraries, Some(probe.clone()), &mut next_domain, &|_| None).unwrap();
    let [device, other] = found.devices.try_into().unwrap();
    Some(Rig { flavor, probe: probe.clone(), device, other })
}

/// Runs a test on both APIs, and checks that nothing leaks.
fn each(test: impl Fn(&Rig)) {
    let _alone = alone();
    for flavor in [Flavor::Cuda, Flavor::Hip] {
        let probe = Probe::new();
        let Some(rig) = found(flavor, &probe) else { return };
        test(&rig);
        drop(rig);
        settle(&probe);
    }
}

/// Checks that no object is left, and waits for the thread that delivers callbacks.
fn settle(probe: &Probe) {
    let start = std::time::Instant::now();
    while !probe.live().is_empty() && start.elapsed() < SECONDS {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(probe.live().is_empty(), "{:?} after {:?}", probe.live(), probe.trace());
}

fn spec(memory_kind: MemoryKind, bytes: usize) -> AllocSpec {
    let (access, host) = (Access::ReadWrite, HostAccess::ReadWrite);
    AllocSpec { bytes, align: 64, memory_kind, access, host, hint: None }
}

impl Rig {
    fn memory(&self, memory_kind: MemoryKind, bytes: usize) -> Result<Arc<dyn hal::Memory>> {
        self.device.allocate(&spec(memory_kind, bytes), None)
    }

    fn queue(&self) -> Arc<dyn hal::Queue> {
        self.device.queue(QueueSpec::default()).unwrap()
    }

    fn source(&self, text: &str) -> Source {
        let text = text.to_owned();
        match self.flavor {
            Flavor::Cuda => written(CUDA_C, text),
            Flavor::Hip => written(HIP_C, text),
        }
    }

    fn kernel(&self, name: &str, parameters: usize) -> Result<Arc<dyn hal::Kernel>> {
        self.device.build(&self.source(PROGRAM))?.kernel(name, parameters)
    }
}

/// Host pages that the test owns.
fn pages(bytes: usize) -> HostRange {
    let memory = Arc::new(vec![0u64; bytes / 8 + 512]);
    let start = memory.as_ptr().cast::<u8>();
    let pointer = start.wrapping_add(start.align_offset(4096)).cast_mut();
    HostRange { pointer: NonNull::new(pointer).unwrap(), bytes, owner: memory }
}

fn put(queue: &dyn hal::Queue, memory: &dyn hal::Memory, offset: usize, bytes: &[u8]) {
    // SAFETY: `bytes` outlives the wait.
    let event = unsafe { queue.write(memory, offset, bytes.as_ptr(), bytes.len()) }.unwrap();
    event.wait(SECONDS).unwrap();
}

fn get(queue: &dyn hal::Queue, memory: &dyn hal::Memory, offset: usize, bytes: usize) -> Vec<u8> {
    let mut back = vec![0; bytes];
    // SAFETY: `back` outlives the wait.
    let event = unsafe { queue.read(memory, offset, back.as_mut_ptr(), bytes) }.unwrap();
    event.wait(SECONDS).unwrap();
    back
}

fn numbers(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 7 + i / 256) as u8).collect()
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
}

fn line(n: usize) -> Grid {
    Grid { dims: 1, global: [n, 1, 1], local: None, offset: [0; 3] }
}

/// Keeps a queue busy for `ms` milliseconds.
fn nap(rig: &Rig, queue: &dyn hal::Queue, ms: u32) {
    let kernel = rig.kernel("nap", 1).unwrap();
    // SAFETY: the kernel accesses no memory.
    unsafe { queue.launch(&*kernel, &line(1), &[Arg::Bytes(&ms.to_ne_bytes())], &[], false) }
        .unwrap();
}

/// Keeps a queue busy until `let_go`.
struct Hold(Arc<dyn hal::Memory>);

impl Hold {
    fn new(
        rig: &Rig,
        queue: &dyn hal::Queue,
        wants_event: bool,
    ) -> (Hold, Option<Arc<dyn hal::Event>>) {
        let flag = rig.device.allocate(&spec(MemoryKind::MappedDevice, 4), Some(&[0; 4])).unwrap();
        let kernel = rig.kernel("hold", 1).unwrap();
        let args = [Arg::Memory(&*flag, Access::ReadWrite, 4)];
        // SAFETY: one word.
        let event = unsafe { queue.launch(&*kernel, &line(1), &args, &[], wants_event) };
        (Hold(flag), event.unwrap())
    }

    fn let_go(&self) {
        let at = self.0.host_pointer().unwrap().cast::<AtomicU32>();
        // SAFETY: a word of pinned memory, which the stub's kernel reads as an atomic too.
        unsafe { at.as_ref() }.store(1, Ordering::SeqCst);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.let_go();
    }
}

#[test]
fn devices_say_what_they_are() {
    each(|rig| {
        let info = rig.device.info();
        assert_eq!((info.api.0, info.name.as_str()), (rig.flavor.api(), "stub GPU 0"));
        assert_eq!(info.physical.pci.unwrap().to_string(), "0000:c1:00.0");
        assert_eq!(info.physical.uuid.unwrap()[..2], [1, 17]);
        assert!(!info.physical.same_chip(&rig.other.info().physical));
        assert_eq!(info.memory_bytes, 1 << 30);
        let memory_kinds = [MemoryKind::MappedDevice, MemoryKind::Exportable, MemoryKind::Device];
        assert_eq!(info.caps.memory_kinds, memory_kinds);
        let fd = rig.flavor.pick([hal::FdKind::OpaqueFd, hal::FdKind::DmaBuf]);
        assert_eq!((&info.caps.exports[..], &info.caps.imports[..]), (&[fd][..], &[fd][..]));
        assert!(info.caps.imports_host_pages && info.caps.callbacks);
        assert!(info.caps.host_signals && info.caps.wait_values);
        assert_eq!((info.caps.max_group_sizes, info.caps.compute_units), ([1024, 1024, 64], 4));
        assert_eq!(info.caps.local_memory_bytes, 96 << 10);
        assert!(info.library.contains("libcuda_stub"), "{}", info.library);
        assert!(rig.probe.live().is_empty(), "discovery makes nothing");
    });
}

#[test]
fn what_is_missing_is_a_value() {
    let _alone = alone();
    for flavor in [Flavor::Cuda, Flavor::Hip] {
        let none =
            Libraries { driver: Some("none"), compiler: None, hsa: Some("none"), managed: false };
        let missing = discover(flavor, none, None, &mut || Domain(0), &|_| None).unwrap_err();
        assert!(!missing.loaded && missing.api == flavor.api(), "{missing}");
        let Some(library) = stub() else { return };
        let libraries =
            Libraries { driver: Some(library), compiler: None, hsa: Some("none"), managed: false };
        let probe = Probe::new();
        probe.fail_nth(1, 100);
        let missing =
            discover(flavor, libraries, Some(probe), &mut || Domain(0), &|_| None).unwrap_err();
        assert_eq!((missing.loaded, missing.code), (true, Some(100)));
        let call = flavor.pick(["cuInit", "hipInit"]);
        assert_eq!(missing.reason, format!("{call} says STUB_NO_DEVICE"));
        assert!(missing.hint.contains("GPU") && missing.tried[0].contains("stub"), "{missing}");
    }
}

#[test]
fn a_device_that_cannot_be_asked_is_left_out() {
    let _alone = alone();
    for flavor in [Flavor::Cuda, Flavor::Hip] {
        for n in 1.. {
            let probe = Probe::new();
            probe.fail_nth(n, 1);
            let Some(library) = stub() else { return };
            let libraries = Libraries {
                driver: Some(library),
                compiler: None,
                hsa: Some("none"),
                managed: false,
            };
            match discover(flavor, libraries, Some(probe.clone()), &mut || Domain(0), &|_| None) {
                Ok(found) => assert_eq!(found.devices.len() + found.problems.len(), 2),
                Err(missing) => assert_eq!(missing.code, Some(1), "{missing}"),
            }
            assert!(probe.live().is_empty());
            if probe.failed().is_none() {
                break;
            }
        }
    }
}

#[test]
fn wrong_arguments_are_refused_as_by_every_backend() {
    each(|rig| {
        let (twin, source) = (Some(&*rig.other as _), rig.source(PROGRAM));
        onebuf_hal::testing::misuse::beside_a_fake(&*rig.device, twin, source, "hold");
    });
}
