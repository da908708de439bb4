//! Who took and gave what.

use super::{Block, PoolStatistics, Supply, Wish};
use crate::Result;

/// Logs every take and give at debug level, with the place in the program that asked.
#[derive(Debug, Default)]
pub struct Log<S>(pub S);

impl<S: Supply> Supply for Log<S> {
    fn take(&self, wish: &Wish<'_>) -> Result<Block> {
        let taken = self.0.take(wish);
        let (bytes, place) = (wish.bytes, wish.place);
        match &taken {
            Ok(block) => {
                let (number, capacity) = (block.number, block.capacity());
                tracing::debug!(number, bytes, capacity, %place, "pool: taken");
            }
            Err(error) => tracing::debug!(bytes, %place, %error, "pool: not to be had"),
        }
        taken
    }

    fn give(&self, block: Block) {
        let (number, capacity) = (block.number, block.capacity());
        tracing::debug!(number, capacity, "pool: given back");
        self.0.give(block);
    }

    fn trim(&self, keep_bytes: u64) -> u64 {
        let freed = self.0.trim(keep_bytes);
        tracing::debug!(keep_bytes, freed, "pool: trimmed");
        freed
    }

    fn count(&self, statistics: &mut PoolStatistics) {
        self.0.count(statistics);
    }
}
