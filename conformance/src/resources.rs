//! What this process uses, to compare before and after.

use std::{fmt, fs};

/// Descriptors, threads and memory of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
    /// Resident memory.
    pub resident_mib: usize,
}

impl Resources {
    /// What this process uses now.
    pub fn now() -> Self {
        let entries = |folder| fs::read_dir(folder).map_or(0, Iterator::count);
        let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let pages = statm.split(' ').nth(1).and_then(|n| n.parse::<usize>().ok()).unwrap_or(0);
        Self {
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            resident_mib: pages >> 8,
        }
    }

    /// Checks that the process uses no more than before, but for what drivers keep: two descriptors, four threads, 64 MiB.
    ///
    /// # Panics
    /// If it uses more.
    #[track_caller]
    pub fn assert_not_above(self, before: Self) {
        let fits = self.descriptors <= before.descriptors + 2
            && self.threads <= before.threads + 4
            && self.resident_mib <= before.resident_mib + 64;
        assert!(fits, "before: {before}; now: {self}");
    }
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { descriptors, threads, resident_mib } = self;
        write!(f, "{descriptors} descriptors, {threads} threads, {resident_mib} MiB")
    }
}
