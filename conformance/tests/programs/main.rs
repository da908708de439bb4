//! Programs on every OpenCL device: cached in memory and on disk, from binaries, files and SPIR-V, by
//! many threads, and with a driver that fails.

mod disk;
mod faults;
mod forms;
mod reflect;
mod spirv;
mod threads;

use onebuf::{Access, Device, Hub, HubBuilder, Probe, Program, Result, Signature, Source, args};
use onebuf_conformance::absent;
use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard, Once, PoisonError},
    time::Duration,
};

const LIMIT: Duration = Duration::from_secs(240);
/// Elements in a buffer.
const N: usize = 256;

const TEXT: &str = "
kernel void add(global uint *x, uint n) { x[get_global_id(0)] += n; }
kernel void twice(global uint *x, uint n) { x[get_global_id(0)] *= 2 * n; }
";

/// One test at a time, because drivers are not thread-safe at start-up.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    static ENV: Once = Once::new();
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    ENV.call_once(|| {
        for (name, value) in [("RUSTICL_ENABLE", "llvmpipe"), ("LP_CL", "1")] {
            if std::env::var_os(name).is_none() {
                // SAFETY: no driver is loaded yet, and the tests of this file set nothing else.
                unsafe { std::env::set_var(name, value) };
            }
        }
    });
    guard
}

/// A hub as in a new process, with this cache folder.
fn builder(cache: &Path) -> HubBuilder {
    onebuf::builder()
        .without(["vulkan", "gl"])
        .verdicts(Default::default())
        .cache(cache)
        .timeout(Duration::from_secs(60))
}

fn hub(cache: &Path) -> Hub {
    builder(cache).build().expect("the host")
}

fn watched(cache: &Path, probe: &Arc<Probe>) -> Hub {
    builder(cache).probe(probe.clone()).build().expect("the host")
}

/// The OpenCL devices; prints a skip if there are none.
fn devices(hub: &Hub) -> Vec<Device> {
    let all = hub.devices().into_iter();
    let found: Vec<_> = all.filter(|device| device.info().api.0 == "opencl").collect();
    if found.is_empty() {
        absent("OpenCL", "no device");
    }
    found
}

/// Runs a kernel with one buffer and an optional number over 0, 1, 2 …
fn run(program: &Program, kernel: &str, number: Option<u32>) -> Result<Vec<u32>> {
    let device = program.device();
    let signature = Signature::new().each::<u32>(Access::ReadWrite);
    let signature = if number.is_some() { signature.value::<u32>() } else { signature };
    // SAFETY: every kernel of these tests touches only element `get_global_id(0)`.
    let kernel = unsafe { program.kernel(kernel, signature)? };
    let buffer = device.hub().buffer::<u32>(N).shared_with([device]).allocate_on(device).build()?;
    buffer.write(&(0..N as u32).collect::<Vec<_>>())?;
    let queue = device.queue()?;
    match number {
        Some(number) => queue.launch(&kernel, [N], args![buffer.write_on(&queue)?, number])?,
        None => queue.launch(&kernel, [N], args![buffer.write_on(&queue)?])?,
    }
    buffer.to_vec()
}

/// Asserts that the program of [`TEXT`] computes correctly.
#[track_caller]
fn assert_works(program: &Program) {
    let device = program.device();
    for (kernel, expected) in [("add", [3, 4, 5]), ("twice", [0, 6, 12])] {
        let seen = run(program, kernel, Some(3)).unwrap_or_else(|e| panic!("{device}: {e}"));
        assert_eq!(seen[..3], expected, "{device}: {kernel}, {:?}", program.origin());
    }
}

fn text() -> Source {
    Source::opencl_c(TEXT)
}

/// How often the driver compiled or loaded a program, in the latest calls.
fn builds(probe: &Probe) -> usize {
    probe.trace().iter().filter(|call| **call == "clBuildProgram").count()
}

/// Whether the driver returns binaries; prints a skip if not.
fn gives_binaries(program: &Program) -> bool {
    let why = program.binary().err();
    if let Some(why) = &why {
        absent(&format!("{} binary", program.device().info().platform), &why.to_string());
    }
    why.is_none()
}
