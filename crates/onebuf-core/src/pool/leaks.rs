//! Tracks buffers that have not been returned.

use super::{AllocationRequest, Block, MemoryResource, Outstanding, PoolStatistics};
use onebuf_hal::{
    Result,
    locks::{Mutex, lock},
};
use std::collections::HashMap;

/// Records every buffer in use and the source location that requested it.
#[derive(Debug, Default)]
pub struct Leaks<S> {
    below: S,
    /// Keyed by the block's address: numbers are unique within one `Fresh` only, and a stack may have several.
    out: Mutex<HashMap<usize, Outstanding>>,
}

impl<S: MemoryResource> Leaks<S> {
    /// Creates a tracker above another memory resource.
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
