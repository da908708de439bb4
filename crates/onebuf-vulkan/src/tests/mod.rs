//! Tests on all Vulkan devices of this machine; `./dev` installs one that needs no GPU.

mod events;
mod faults;
mod launches;
mod memories;
mod programs;

use super::{device::Device, discover};
use onebuf_hal::{
    self as hal, Access, AllocSpec, Arg, Device as _, Domain, Error, Export, Grid, HostAccess,
    HostRange, MemoryKind, QueueSpec, Result, Shader, Source, checks::descriptors,
};
use onebuf_sys::Probe;
use std::{
    ptr::NonNull,
    sync::Arc,
    time::{Duration, Instant},
};

/// Loaded by name, whatever the environment says: other tests run without Vulkan.
const LOADER: &str = "libvulkan.so.1";
const SECONDS: Duration = Duration::from_secs(20);
const MEMORY_KINDS: [MemoryKind; 3] =
    [MemoryKind::Device, MemoryKind::MappedDevice, MemoryKind::Exportable];

/// Every word of a range becomes `x * mul + i`.
const STEP: &str = "#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Data { uint p[]; };
layout(std140, binding = 1) uniform Values { uint n; uint mul; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) p[i] = p[i] * mul + i;
}
";

/// One device, and the probe that records its calls.
struct Rig {
    probe: Arc<Probe>,
    device: Arc<Device>,
}

fn found(probe: &Arc<Probe>) -> Result<Vec<Rig>, onebuf_sys::Missing> {
    let mut next = 0;
    let mut next_domain = || {
        next += 1;
        Domain(next)
    };
    let found = discover(Some(LOADER), Some(probe.clone()), &mut next_domain)?;
    let rig = |device| Rig { probe: probe.clone(), device };
    Ok(found.devices.into_iter().map(rig).collect())
}

/// Runs a test on every device; no object may be left.
fn each(test: impl Fn(&Rig)) {
    let _alone = alone();
    let probe = Probe::new();
    match found(&probe) {
        Ok(rigs) => rigs.iter().for_each(test),
        Err(missing) => println!("skip: {missing}"),
    }
    assert!(probe.live().is_empty(), "{:?} after {:?}", probe.live(), probe.trace());
}

fn spec(memory_kind: MemoryKind, bytes: usize) -> AllocSpec {
    let (access, host) = (Access::ReadWrite, HostAccess::ReadWrite);
    AllocSpec { bytes, align: 64, memory_kind, access, host, hint: None }
}

fn numbers(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn line(items: usize) -> Grid {
    Grid { dims: 1, global: [items, 1, 1], local: None, offset: [0; 3] }
}

fn glsl(name: &'static str, text: impl Into<String>) -> Source {
    let shaders = vec![Shader { name: name.into(), text: text.into().into() }];
    Source { shaders, ..Source::default() }
}

/// Page-aligned memory of this process.
fn pages(bytes: usize) -> HostRange {
    let layout = std::alloc::Layout::from_size_align(bytes.next_multiple_of(4096), 4096).unwrap();
    struct Pages(NonNull<u8>, std::alloc::Layout);
    // SAFETY: an address of memory that only this struct frees.
    unsafe impl Send for Pages {}
    // SAFETY: as above.
    unsafe impl Sync for Pages {}
    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: allocated below with this layout.
            unsafe { std::alloc::dealloc(self.0.as_ptr(), self.1) };
        }
    }
    // SAFETY: not of zero bytes.
    let pointer = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).unwrap();
    HostRange { pointer, bytes, owner: Arc::new(Pages(pointer, layout)) }
}

impl Rig {
    fn memory(&self, memory_kind: MemoryKind, contents: &[u8]) -> Arc<dyn hal::Memory> {
        self.device.allocate(&spec(memory_kind, contents.len()), Some(contents)).unwrap()
    }

    fn queue(&self) -> Arc<dyn hal::Queue> {
        self.device.queue(QueueSpec::default()).unwrap()
    }

    fn has(&self, memory_kind: MemoryKind) -> bool {
        self.device.info().caps.memory_kinds.contains(&memory_kind)
    }

    fn memory_kinds(&self) -> impl Iterator<Item = MemoryKind> {
        MEMORY_KINDS.into_iter().filter(|memory_kind| self.has(*memory_kind))
    }

    fn step(&self) -> Arc<dyn hal::Kernel> {
        self.device.build(&glsl("step", STEP)).unwrap().kernel("step", 3).unwrap()
    }
}

/// Launches a step over the first `n` words.
fn step(
    queue: &dyn hal::Queue,
    kernel: &dyn hal::Kernel,
    memory: &dyn hal::Memory,
    n: u32,
    mul: u32,
) -> Result<()> {
    let (n_bytes, mul) = (n.to_le_bytes(), mul.to_le_bytes());
    let args = [
        Arg::Memory(memory, Access::ReadWrite, memory.bytes()),
        Arg::Bytes(&n_bytes),
        Arg::Bytes(&mul),
    ];
    let grid = line((n as usize).next_multiple_of(64));
    // SAFETY: the shader accesses only the first `n` words, which the callers' memory has.
    unsafe { queue.launch(kernel, &grid, &args, &[], false) }.map(drop)
}

fn step_model(words: &mut [u32], mul: u32) {
    (0..).zip(words).for_each(|(i, x): (u32, _)| *x = x.wrapping_mul(mul).wrapping_add(i));
}

/// The contents of the memory, read by the queue.
fn look(queue: &dyn hal::Queue, memory: &dyn hal::Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.bytes()];
    // SAFETY: kept until the wait is over; a failed wait ends the test.
    let event = unsafe { queue.read(memory, 0, bytes.as_mut_ptr(), bytes.len()) }.unwrap();
    event.wait(SECONDS).unwrap();
    bytes
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn devices_say_what_they_are() {
    each(|rig| {
        let info = rig.device.info();
        println!("{info:#?}");
        assert_eq!(info.api.0, "vulkan");
        assert!(!info.name.is_empty() && info.version.starts_with("Vulkan 1."));
        assert!(info.memory_bytes >= info.caps.max_alloc_bytes && info.caps.max_alloc_bytes > 0);
        assert!(info.physical.uuid.is_some(), "every driver has one");
        assert!(info.caps.max_group_size >= 128, "the specification's least");
    });
}

#[test]
fn no_loader_is_a_value() {
    let mut domain = || Domain(1);
    let missing = discover(Some("/nowhere/libvulkan.so.1"), None, &mut domain).unwrap_err();
    assert_eq!((missing.api, missing.loaded), ("vulkan", false));
    assert_eq!(missing.tried, ["/nowhere/libvulkan.so.1"]);
    assert!(missing.hint.contains("libvulkan1"), "{missing}");
}

#[test]
fn a_loader_that_refuses_is_named() {
    let _alone = alone();
    let probe = Probe::new();
    probe.fail_always("vkCreateInstance", -9);
    let Err(missing) = found(&probe) else { panic!("it was made all the same") };
    if probe.failed().is_some() {
        assert!(missing.loaded && missing.code == Some(-9), "{missing}");
        assert!(missing.reason.contains("vkCreateInstance"), "{missing}");
    }
}

/// One test at a time.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    onebuf_hal::testing::drivers_alone(&[])
}

#[test]
fn wrong_arguments_are_refused_as_by_every_backend() {
    each(|rig| {
        let text = "#version 450
            layout(local_size_x = 1) in;
            layout(std430, binding = 0) buffer Data { uint x[]; };
            void main() { x[0] = 1; }";
        let source = glsl("touch", text);
        onebuf_hal::testing::misuse::beside_a_fake(&*rig.device, None, source, "touch");
    });
}
