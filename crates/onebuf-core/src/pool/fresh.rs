//! The bottom of every pool: memory from the devices.

use super::{AllocationRequest, Block, MemoryResource, PoolStatistics};
use crate::buffer::make;
use onebuf_hal::{
    Result,
    locks::{AtomicU64, Ordering},
};

/// Allocates every buffer, and frees it when it is returned.
#[derive(Debug, Default)]
pub struct Fresh {
    made: AtomicU64,
    freed: AtomicU64,
}

impl MemoryResource for Fresh {
    fn take(&self, request: &AllocationRequest<'_>) -> Result<Block> {
        let core = Box::new(make(request.hub, request.shape, request.capacity, None, None)?);
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        Ok(Block { core, shelf: 0, number })
    }

    fn give(&self, mut block: Block) {
        block.core.loan = None;
        self.freed.fetch_add(1, Ordering::Relaxed);
    }

    fn trim(&self, _keep_bytes: u64) -> u64 {
        0
    }

    fn count(&self, statistics: &mut PoolStatistics) {
        statistics.made += self.made.load(Ordering::Relaxed);
        statistics.freed += self.freed.load(Ordering::Relaxed);
    }
}
