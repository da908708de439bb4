//! What ranks of all tests need.

use crate::launch::{self, Mpi};
use onebuf::Hub;
use onebuf_mpi::{Join, World};
use std::{thread, time::Duration};

/// Longer than anything takes that works, on a busy machine.
pub const SOON: Duration = Duration::from_secs(30);

/// A hub of the host alone.
pub fn hub() -> Hub {
    onebuf::builder().only(["host"]).verdicts(Default::default()).build().unwrap()
}

pub fn join() -> World {
    Join::new().timeout(SOON).start().unwrap()
}

/// The value of an element: another one for every rank, round and place.
pub fn value(rank: usize, round: usize, at: usize) -> u32 {
    let mixed =
        (at as u32).wrapping_mul(2_654_435_761) ^ (rank as u32 + 1).wrapping_mul(0x9e37_79b9);
    mixed.wrapping_add((round as u32 + 1).wrapping_mul(0x85eb_ca6b))
}

/// Runs a test of this program as ranks of every MPI.
pub fn everywhere(ranks: &[usize], test: &str) {
    for mpi in launch::all() {
        for &ranks in ranks {
            mpi.run(ranks, test, &[]);
        }
    }
}

/// Runs something with every MPI at the same time: for jobs that wait more than they work.
pub fn on_each(check: impl Fn(&Mpi) + Sync) {
    let all = launch::all();
    thread::scope(|scope| all.iter().for_each(|mpi| drop(scope.spawn(|| check(mpi)))));
}

/// How many frames a long test sends: `ONEBUF_SOAK`, or so many.
pub fn frames(usual: u64) -> u64 {
    std::env::var("ONEBUF_SOAK")
        .ok()
        .and_then(|n| n.parse().ok())
        .map_or(usual, |n: u64| n.clamp(usual, 10_000))
}

/// A sequence of numbers, the same in every run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}
