//! Tests of the backend on the installed OpenGL.

use super::{
    device::{Device, Driver},
    discover,
    habits::{Coherence, Habits},
};
use onebuf_hal::{
    self as hal, Access, AccessState, AllocSpec, Arg, Device as _, Domain, Error, Export, FdKind,
    FdRange, Grid, HostAccess, HostRange, MemoryKind, QueueSpec, Result, Shader, Source,
    locks::Arc,
};
use onebuf_sys::Probe;
use std::{
    ptr::NonNull,
    time::{Duration, Instant},
};

mod faults;
mod launches;
mod memories;

const SECONDS: Duration = Duration::from_secs(20);
const PAGE: usize = 4096;

/// The first device. Without OpenGL it prints a skip and returns `None`.
fn device(probe: Option<std::sync::Arc<Probe>>) -> Option<Arc<Device>> {
    let mut number = 0;
    let mut next = || {
        number += 1;
        Domain(number)
    };
    match discover(None, probe, &mut next, &|_, _| None) {
        Ok(found) => found.devices.into_iter().next(),
        Err(missing) => {
            println!("skip: {missing}");
            None
        }
    }
}

/// The same device with another mapping preference.
fn with_habits(device: &Device, coherence: Coherence) -> Device {
    let driver = device.driver();
    Device::new(Driver {
        post: onebuf_hal::watchdog::Post::new("gl", "a test"),
        table: driver.table.clone(),
        display: driver.display,
        domain: driver.domain,
        info: driver.info.clone(),
        limits: driver.limits,
        habits: Habits { uploads: coherence, others: coherence, forced: true },
    })
}

/// A spec for memory that host and kernels read and write.
fn spec(memory_kind: MemoryKind, bytes: usize) -> AllocSpec {
    let (access, host) = (Access::ReadWrite, HostAccess::ReadWrite);
    AllocSpec { bytes, align: 64, memory_kind, access, host, hint: None }
}

/// `x[i] = x[i] * mul + i` over words, in groups of 32.
const STEP: &str = "#version 450
layout(local_size_x = 32) in;
layout(std430, binding = 0) buffer Data { uint x[]; };
layout(std140, binding = 1) uniform Values { uint mul; uint n; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) x[i] = x[i] * mul + i;
}";

fn step_model(words: &mut [u32], mul: u32) {
    (0..).zip(words).for_each(|(i, x)| *x = x.wrapping_mul(mul).wrapping_add(i));
}

fn source(name: &'static str, text: &'static str) -> Source {
    let shaders = vec![Shader { name: name.into(), text: text.into() }];
    Source { shaders, ..Source::default() }
}

fn line(n: usize) -> Grid {
    Grid { dims: 1, global: [n, 1, 1], local: None, offset: [0; 3] }
}

/// One step over all words of a memory.
fn step(
    queue: &dyn hal::Queue,
    kernel: &dyn hal::Kernel,
    memory: &dyn hal::Memory,
    mul: u32,
) -> Result<Arc<dyn hal::Event>> {
    let words = memory.bytes() / 4;
    let (mul, n) = (mul.to_ne_bytes(), (words as u32).to_ne_bytes());
    let memory = Arg::Memory(memory, Access::ReadWrite, memory.bytes());
    let args = [memory, Arg::Bytes(&mul), Arg::Bytes(&n)];
    // SAFETY: the kernel accesses only the memory's words.
    let event =
        unsafe { queue.launch(kernel, &line(words.next_multiple_of(32)), &args, &[], true)? };
    event.ok_or_else(|| Error::invalid("no event"))
}

/// Reads the whole memory through the queue.
fn contents(queue: &dyn hal::Queue, memory: &dyn hal::Memory) -> Result<Vec<u8>> {
    let mut bytes = vec![0; memory.bytes()];
    // SAFETY: as many bytes as the memory has, kept until the read is over.
    unsafe { queue.read(memory, 0, bytes.as_mut_ptr(), bytes.len())?.wait(SECONDS)? };
    Ok(bytes)
}

fn words_of(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect()
}

fn numbers(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| i.wrapping_mul(2_654_435_761) ^ 0x1234).collect()
}

/// Host pages.
fn pages(bytes: usize) -> HostRange {
    let words: Box<[u64]> = vec![0; bytes.next_multiple_of(PAGE) / 8 + PAGE / 8].into();
    let owner = std::sync::Arc::new(words);
    let start = owner.as_ptr().addr().next_multiple_of(PAGE) - owner.as_ptr().addr();
    let pointer = owner.as_ptr().cast_mut().cast::<u8>();
    let pointer = NonNull::new(pointer.wrapping_add(start)).unwrap();
    HostRange { pointer, bytes, owner }
}

/// The text of a refusal.
fn refusal<T>(result: Result<T>) -> String {
    result.err().expect("a refusal").to_string()
}

/// Serialises the tests.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    onebuf_hal::testing::drivers_alone(&[])
}

#[test]
fn wrong_arguments_are_refused_as_by_every_backend() {
    let _alone = alone();
    let Some(device) = device(None) else { return };
    let text = "#version 450
        layout(local_size_x = 1) in;
        layout(std430, binding = 0) buffer Data { uint x[]; };
        void main() { x[0] = 1; }";
    let source = source("touch", text);
    onebuf_hal::testing::misuse::beside_a_fake(&*device, None, source, "touch");
}
