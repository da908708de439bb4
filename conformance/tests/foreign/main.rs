//! Objects that onebuf did not make: "class A" has a context, queues and buffers of its own, onebuf is handed
//! them, and both must see the same bytes in the right order. clFFT and CLBlast are class A's, too.

mod raw;
mod reference;

use onebuf_conformance::{Watchdog, absent, class_a::ClassA};
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The platforms that `./dev` installs.
const REQUIRED: [&str; 3] = ["Portable Computing Language", "rusticl", "Clover"];

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
