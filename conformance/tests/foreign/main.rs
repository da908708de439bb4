//! Objects that onebuf did not make: "class A" has a context, queues and buffers of its own, onebuf is handed
//! them, and both must see the same bytes in the right order. clFFT and CLBlast are class A's, too.

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
};
use onebuf_sys::opencl::{ClMem, ClQueue};
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The platforms that `./dev` installs.
const REQUIRED: [&str; 3] = ["Portable Computing Language", "rusticl", "Clover"];
const SECONDS: Duration = Duration::from_secs(30);

/// One test at a time, and an end for each: drivers of one process are not all sound when two of them start
/// in two threads, and counts of references are those of nobody else's work.
pub struct Alone(
    #[allow(dead_code, reason = "held until the end")] MutexGuard<'static, ()>,
    #[allow(dead_code, reason = "held until the end")] Watchdog,
);

/// Waits for its turn.
pub fn alone(what: &'static str) -> Alone {
    static ONE: Mutex<()> = Mutex::new(());
    let turn = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    Alone(turn, Watchdog::new(what, Duration::from_secs(300)))
}

/// Class A on every platform there is; a platform that should be there and is not is a skip.
pub fn owners() -> Vec<ClassA> {
    let owners = ClassA::all();
    for platform in REQUIRED {
        if !owners.iter().any(|owner| owner.platform == platform) {
            absent(platform, "no device of this platform");
        }
    }
    owners
}

/// A hub of its own for each test: it knows no verdicts.
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

/// Class A's context, registered.
pub fn context(hub: &Hub, a: &ClassA) -> ForeignContext {
    // SAFETY: class A has a reference.
    unsafe { hub.foreign_context(a.context.raw()) }
        .unwrap_or_else(|e| panic!("{}: {e}", a.platform))
}

/// Class A's memory as words.
pub fn wrap<'h>(hub: &'h Hub, mem: &Own<ClMem>) -> WrapBuilder<'h, u32> {
    // SAFETY: class A has a reference, and these tests use the memory only as guards and fences allow.
    unsafe { hub.wrap_buffer(mem.raw()) }
}

/// The same, built.
#[track_caller]
pub fn wrapped(hub: &Hub, mem: &Own<ClMem>) -> Buffer<u32> {
    wrap(hub, mem).build().expect("a live buffer that nobody has mapped")
}

/// Class A's queue as one of ours.
#[track_caller]
pub fn queue(hub: &Hub, queue: &Own<ClQueue>) -> Queue {
    // SAFETY: class A has a reference.
    unsafe { hub.wrap_queue(queue.raw()) }.expect("a live queue")
}
