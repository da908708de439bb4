//! What was taken and has not come back.

use super::{AllocationRequest, Block, MemoryResource, PoolStatistics};
use onebuf_hal::{
    Result,
    locks::{Mutex, lock},
};
use std::{collections::HashMap, fmt, panic::Location};

/// A buffer that has not come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outstanding {
    /// How many bytes were asked for.
    pub bytes: usize,
    /// Where in the program.
    pub place: &'static Location<'static>,
}

impl fmt::Display for Outstanding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes from {}", self.bytes, self.place)
    }
}

/// Remembers each buffer that is out, and where in the program it was asked for.
#[derive(Debug, Default)]
pub struct Leaks<S> {
    below: S,
    /// By the address of the block: numbers are those of one bottom, and a stack may have several.
    out: Mutex<HashMap<usize, Outstanding>>,
}

impl<S: MemoryResource> Leaks<S> {
    /// A memory for what is out, above another memory resource.
    pub fn new(below: S) -> Self {
        Self { below, out: Mutex::default() }
    }
}

impl<S: MemoryResource> MemoryResource for Leaks<S> {
    fn take(&self, request: &AllocationRequest<'_>) -> Result<Block> {
        let block = self.below.take(request)?;
        let out = Outstanding { bytes: request.bytes, place: request.place };
        lock(&self.out).insert(block.address(), out);
        Ok(block)
    }

    fn give(&self, block: Block) {
        lock(&self.out).remove(&block.address());
        self.below.give(block);
    }

    fn trim(&self, keep_bytes: u64) -> u64 {
        self.below.trim(keep_bytes)
    }

    fn count(&self, statistics: &mut PoolStatistics) {
        statistics.outstanding.extend(lock(&self.out).values().copied());
        statistics.outstanding.sort_by_key(|out| (out.place, out.bytes));
        self.below.count(statistics);
    }
}
