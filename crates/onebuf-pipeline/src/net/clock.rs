//! A coarse monotonic clock: very cheap to read, accurate to a few milliseconds.
//!
//! # Safety
//! The kernel writes to a local variable whose address it is given.

#![allow(unsafe_code)]

use std::time::Duration;

/// Time since an arbitrary start. For code that checks the time at every packet and needs tenths of a second.
pub(crate) fn coarse() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is live and has the type that the kernel writes. Linux always has this clock, so the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
    // Neither field is negative. Their widths depend on the target.
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on() {
        let start = coarse();
        std::thread::sleep(Duration::from_millis(50));
        assert!(coarse() - start >= Duration::from_millis(30));
    }
}
