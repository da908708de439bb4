//! Foreign objects: "class A" has its own context, queues and buffers and passes them to onebuf; both must
//! see the same bytes in the right order. clFFT and CLBlast work for class A.

mod contents;
mod errors;
mod faults;
mod libraries;
mod many_devices;
mod order;
mod query;
mod raw;
mod reference;
mod relay;
mod svm;
mod turner;
mod wrap;

use onebuf::{Buffer, Device, ForeignContext, Hub, Queue, WrapBuilder, prelude::*};
use onebuf_conformance::{
    Watchdog, absent,
    class_a::{ClassA, Own},
    missing, required_platforms,
};
use onebuf_sys::opencl::{ClMem, ClQueue};
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

const SECONDS: Duration = Duration::from_secs(30);

/// One test at a time, with a time limit: drivers in one process are not all thread-safe at start-up, and
/// reference counts must not include other tests' work.
pub struct Alone(
    #[allow(dead_code, reason = "held until the end")] MutexGuard<'static, ()>,
    #[allow(dead_code, reason = "held until the end")] Watchdog,
);

/// Waits until no other test runs.
pub fn alone(what: &'static str) -> Alone {
    static ONE: Mutex<()> = Mutex::new(());
    let turn = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    Alone(turn, Watchdog::new(what, Duration::from_secs(300)))
}

/// Class A on every platform. Without any, a skip; a platform that this machine must have is a failure in strict mode.
pub fn owners() -> Vec<ClassA> {
    let owners = ClassA::all();
    if owners.is_empty() {
        absent("OpenCL", "no device of any platform");
        return owners;
    }
    let is_there = |platform: &str| owners.iter().any(|owner| owner.platform == platform);
    for platform in required_platforms().iter().filter(|platform| !is_there(platform)) {
        missing(platform, "no device of this platform");
    }
    owners
}

/// A new hub for each test, without verdicts.
pub fn hub() -> Hub {
    onebuf::builder()
        .without(["vulkan", "gl"])
        .verdicts(Default::default())
        .timeout(SECONDS)
        .build()
        .expect("the host")
}

/// The device of class A's platform in the hub's own context.
pub fn twin(hub: &Hub, a: &ClassA) -> Device {
    hub.device(&a.platform).unwrap_or_else(|e| panic!("{}: {e}", a.platform))
}

/// Registers class A's context.
pub fn context(hub: &Hub, a: &ClassA) -> ForeignContext {
    // SAFETY: class A holds a reference.
    unsafe { hub.foreign_context(a.context.raw()) }
        .unwrap_or_else(|e| panic!("{}: {e}", a.platform))
}

/// Wraps class A's memory as words.
pub fn wrap<'h>(hub: &'h Hub, mem: &Own<ClMem>) -> WrapBuilder<'h, u32> {
    // SAFETY: class A holds a reference, and these tests use the memory only as guards and fences allow.
    unsafe { hub.wrap_buffer(mem.raw()) }
}

/// As `wrap`, and builds the buffer.
#[track_caller]
pub fn wrapped(hub: &Hub, mem: &Own<ClMem>) -> Buffer<u32> {
    wrap(hub, mem).build().expect("a live buffer that nobody has mapped")
}

/// Wraps class A's queue.
#[track_caller]
pub fn queue(hub: &Hub, queue: &Own<ClQueue>) -> Queue {
    // SAFETY: class A holds a reference.
    unsafe { hub.wrap_queue(queue.raw()) }.expect("a live queue")
}
