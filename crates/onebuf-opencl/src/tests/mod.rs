//! The backend on every OpenCL device of this machine: PoCL, rusticl and clover where installed.

mod arguments;
mod arm;
mod events;
mod faults;
mod flags;
mod graphics;
mod imported;
mod launches;
mod memories;
mod programs;
mod regions;
mod stub;

use super::{OPENCL_C, discover};
use onebuf_hal::{
    self as hal, Access, AllocSpec, Arg, Domain, Error, Grid, HostAccess, MemoryKind, QueueOrder,
    QueueSpec, Result, Source, locks::Arc,
};
use onebuf_sys::Probe;
use std::{
    sync::{Mutex, MutexGuard},
    thread,
    time::{Duration, Instant},
};

const SECONDS: Duration = Duration::from_secs(20);

const PROGRAM: &str = "
kernel void add(global uint *data, uint n) { data[get_global_id(0)] += n; }
kernel void copy(global const uint *from, global uint *to) {
    to[get_global_id(0)] = from[get_global_id(0)];
}
kernel void turn(global uint *data, local uint *group) {
    size_t i = get_local_id(0), n = get_local_size(0);
    group[i] = data[get_global_id(0)];
    barrier(CLK_LOCAL_MEM_FENCE);
    data[get_global_id(0)] = group[n - 1 - i];
}
";

/// One device under test. The probe saw every call since its discovery.
#[derive(Debug)]
struct Rig {
    probe: std::sync::Arc<Probe>,
    device: Arc<dyn hal::Device>,
}

impl Rig {
    fn name(&self) -> String {
        let info = self.device.info();
        format!("{} / {}", info.platform, info.name)
    }

    fn queue(&self) -> Arc<dyn hal::Queue> {
        self.device.queue(QueueSpec::default()).unwrap()
    }

    fn memory(&self, memory_kind: MemoryKind, bytes: usize) -> Result<Arc<dyn hal::Memory>> {
        self.device.allocate(&spec(memory_kind, bytes), None)
    }

    fn program(&self, text: &'static str) -> Result<Arc<dyn hal::Program>> {
        let texts = vec![(OPENCL_C, text.into())];
        self.device.build(&Source { texts, ..Source::default() })
    }

    fn memory_kinds(&self) -> Vec<MemoryKind> {
        self.device.info().caps.memory_kinds.clone()
    }
}

/// Memory that kernels and the host may read and write.
fn spec(memory_kind: MemoryKind, bytes: usize) -> AllocSpec {
    let (access, host) = (Access::ReadWrite, HostAccess::ReadWrite);
    AllocSpec { bytes, align: 8, memory_kind, access, host, hint: None }
}

/// Launches on a queue, without waiting for events.
///
/// # Safety
/// As [`hal::Queue::launch`].
unsafe fn launch(
    queue: &dyn hal::Queue,
    kernel: &dyn hal::Kernel,
    grid: &Grid,
    args: &[Arg<'_>],
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { queue.launch(kernel, grid, args, &[], false) }.map(|event| assert!(event.is_none()))
}

fn line(n: usize, local: Option<usize>) -> Grid {
    Grid { dims: 1, global: [n, 1, 1], local: local.map(|n| [n, 1, 1]), offset: [0; 3] }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect()
}

fn bytes_of(words: &[u32]) -> Vec<u8> {
    bytemuck::cast_slice(words).to_vec()
}

/// The message of an `InvalidArgument` error.
fn invalid<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result {
        Err(Error::InvalidArgument(why)) => why,
        other => panic!("{other:?}"),
    }
}

/// Environment variables for the installed drivers and the stub driver.
const ENVIRONMENT: [(&str, &str); 4] = [
    ("RUSTICL_ENABLE", "llvmpipe"),
    ("LP_CL", "1"),
    ("ONEBUF_STUB", "ti,imports,dma_buf,cached,graphics"),
    ("ONEBUF_STUB_PLATFORMS", "2"),
];

/// Runs one test at a time, with these environment variables.
fn alone() -> MutexGuard<'static, ()> {
    onebuf_hal::testing::drivers_alone(&ENVIRONMENT)
}

/// The devices, each with its own domain; none, after a printed skip, if OpenCL is missing.
fn rigs() -> Vec<Rig> {
    let probe = Probe::new();
    let mut next = 0;
    let mut next_domain = || {
        next += 1;
        Domain(next)
    };
    match discover(None, Some(probe.clone()), &mut next_domain) {
        Ok(found) => {
            assert_eq!(found.problems, Vec::<String>::new());
            let rig = |device: Arc<super::Device>| Rig { probe: probe.clone(), device };
            found.devices.into_iter().map(rig).collect()
        }
        Err(missing) => {
            println!("skip: {missing}");
            Vec::new()
        }
    }
}

/// Runs a test on every device, then looks for objects that were not released.
fn each(test: impl Fn(&Rig)) {
    let _alone = alone();
    for rig in rigs() {
        println!("on {}", rig.name());
        test(&rig);
        let probe = rig.probe.clone();
        drop(rig);
        settled(&probe);
    }
}

/// Runs a test on every device that has host signals.
fn each_with_host_signals(test: impl Fn(&Rig)) {
    each(|rig| match rig.device.info().caps.host_signals {
        true => test(rig),
        false => {
            println!("skip: no host signals on {}", rig.name());
            assert!(matches!(rig.queue().host_signal(), Err(Error::Unsupported { .. })));
        }
    });
}

/// Waits until the driver has no live objects, because a driver's thread may release late.
fn settled(probe: &Probe) {
    let start = Instant::now();
    while !probe.live().is_empty() && start.elapsed() < SECONDS {
        thread::sleep(Duration::from_millis(1));
    }
    assert!(probe.live().is_empty(), "{:?} after {:?}", probe.live(), probe.trace());
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

#[test]
fn devices_say_what_they_are() {
    each(|rig| {
        let info = rig.device.info();
        println!("{info:#?}");
        assert!(!info.name.is_empty() && info.memory_bytes > 0 && info.version.contains("OpenCL"));
        assert!(info.library.starts_with('/'), "{}", info.library);
        assert!(info.caps.align_bytes >= 64 && info.caps.align_bytes.is_power_of_two());
        assert!(info.caps.memory_kinds.ends_with(&[MemoryKind::MappedDevice, MemoryKind::Device]));
        assert!(info.caps.max_group_sizes.iter().all(|n| *n > 0));
        assert!(rig.probe.live().is_empty(), "discovery makes nothing");
    });
}

#[test]
fn no_library_is_a_value() {
    let _alone = alone();
    let missing = discover(Some("none"), None, &mut || Domain(0)).unwrap_err();
    assert!(!missing.loaded, "{missing}");
    let probe = Probe::new();
    probe.fail_nth(1, -1001);
    match discover(None, Some(probe), &mut || Domain(0)) {
        Err(missing) if missing.loaded => {
            assert_eq!(missing.code, Some(-1001));
            assert!(missing.hint.contains("/etc/OpenCL/vendors"), "{missing}");
        }
        other => println!("skip: {other:?}"),
    }
}

#[test]
fn a_device_that_cannot_be_asked_is_left_out() {
    let _alone = alone();
    let calls = rigs().first().map_or(0, |rig| rig.probe.calls());
    for n in 1..=calls {
        let probe = Probe::new();
        probe.fail_nth(n, -6);
        match discover(None, Some(probe.clone()), &mut || Domain(0)) {
            Ok(found) => {
                // Lists end early after a problem; optional properties stay unknown.
                assert!(found.problems.len() <= 1, "{:?}", found.problems);
            }
            Err(missing) => assert!(missing.code.is_some(), "{missing}"),
        }
        assert!(probe.live().is_empty());
    }
}

#[test]
fn an_order_that_the_device_lacks_is_refused() {
    each(|rig| {
        match rig.device.queue(QueueSpec { order: QueueOrder::OutOfOrder, profiling: false }) {
            Ok(queue) => {
                assert!(rig.device.info().caps.out_of_order);
                let memory = rig.memory(MemoryKind::MappedDevice, 4096).unwrap();
                put(&*queue, &*memory, 0, &numbers(4096));
                queue.reside(&*memory, hal::AccessState::SharedRead).unwrap();
                queue.mark().unwrap().wait(SECONDS).unwrap();
                queue.reside(&*memory, hal::AccessState::Acquired).unwrap();
                assert_eq!(get(&*queue, &*memory, 0, 4096), numbers(4096));
            }
            Err(why) => {
                assert!(!rig.device.info().caps.out_of_order);
                assert!(matches!(why, Error::Unsupported { .. }), "{why}");
            }
        }
    });
}

#[test]
fn wrong_arguments_are_refused_as_by_every_backend() {
    let _alone = alone();
    let rigs = rigs();
    for (n, rig) in rigs.iter().enumerate() {
        println!("on {}", rig.name());
        let text = "__kernel void touch(__global uint *a) { a[get_global_id(0)] = 1; }";
        let source = Source::default().with_text(OPENCL_C, text.into());
        let twin = rigs.get((n + 1) % rigs.len()).filter(|_| rigs.len() > 1);
        let twin = twin.map(|twin| &*twin.device);
        onebuf_hal::testing::misuse::beside_a_fake(&*rig.device, twin, source, "touch");
    }
}
