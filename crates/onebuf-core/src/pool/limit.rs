//! Limits the total size.

use super::{AllocationRequest, Block, MemoryResource, PoolStatistics};
use onebuf_hal::{
    Error, Result,
    locks::{Mutex, lock},
};

/// Refuses requests that would exceed a limit on everything allocated through it.
#[derive(Debug)]
pub struct Limit<S> {
    below: S,
    limit_bytes: u64,
    used_bytes: Mutex<u64>,
}

impl<S: MemoryResource> Limit<S> {
    /// Creates a limit above another memory resource.
    pub fn new(below: S, limit_bytes: u64) -> Self {
        Self { below, limit_bytes, used_bytes: Mutex::new(0) }
    }

    /// Reserves bytes for a buffer of `asked` bytes.
    fn reserve(&self, bytes: u64, asked: u64) -> Result<()> {
        let mut used = lock(&self.used_bytes);
        match used.checked_add(bytes).filter(|&sum| sum <= self.limit_bytes) {
            Some(sum) => *used = sum,
            None => {
                let (device, limit) = ("the pool".to_owned(), Some(self.limit_bytes));
                return Err(Error::OutOfMemory { device, asked, limit });
            }
        }
        Ok(())
    }

    /// Corrects the reservation, because a resource below may have rounded up. The actual capacity counts, since that is what
    /// is returned.
    fn correct(&self, block: Block, reserved: u64) -> Result<Block> {
        let made = block.capacity() as u64;
        if let Err(error) = self.reserve(made.saturating_sub(reserved), made) {
            self.below.give(block);
            self.release(reserved);
            return Err(error);
        }
        self.release(reserved.saturating_sub(made));
        Ok(block)
    }

    fn release(&self, bytes: u64) {
        *lock(&self.used_bytes) -= bytes;
    }
}

impl<S: MemoryResource> MemoryResource for Limit<S> {
    fn take(&self, request: &AllocationRequest<'_>) -> Result<Block> {
        let bytes = request.capacity as u64;
        // Reserves first, so that two threads cannot exceed the limit together.
        self.reserve(bytes, bytes)?;
        let block = self.below.take(request).inspect_err(|_| self.release(bytes))?;
        self.correct(block, bytes)
    }

    fn give(&self, block: Block) {
        let bytes = block.capacity() as u64;
        self.below.give(block);
        self.release(bytes);
    }

    fn trim(&self, keep_bytes: u64) -> u64 {
        self.below.trim(keep_bytes)
    }

    fn count(&self, statistics: &mut PoolStatistics) {
        statistics.limit_bytes = Some(self.limit_bytes);
        self.below.count(statistics);
    }
}
