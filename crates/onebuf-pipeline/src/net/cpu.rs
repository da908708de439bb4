//! Which processor a thread runs on.
//!
//! # Safety
//! The kernel gets a set of processors together with its length.

#![allow(unsafe_code)]

use std::io;

/// Keeps the calling thread on one processor.
pub(crate) fn pin(processor: usize) -> io::Result<()> {
    if processor >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the set is an array of integers, for which zero is valid. `CPU_SET` stays inside of it, as checked above. The
    // kernel reads the set for the length that is its size; thread 0 is the caller.
    let answer = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set)
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::*;

    /// On a thread of its own, which the test does not need afterwards.
    #[test]
    fn a_thread_stays_where_it_was_put() {
        let allowed = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            line.unwrap().trim().to_owned()
        };
        let first = allowed().split(['-', ',']).next().unwrap().parse().unwrap();
        let stays = std::thread::spawn(move || {
            pin(first).unwrap();
            allowed()
        });
        assert_eq!(stays.join().unwrap(), first.to_string());
        assert!(pin(usize::MAX).is_err());
    }
}
