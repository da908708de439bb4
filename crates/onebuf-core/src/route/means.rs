//! What a copy through chunks works with: the device, its queue, its staging pool, and the threads that copy.

use super::{
    copy_pool::CopyPool,
    feed::Division,
    staging_pool::{CHUNK_BYTES, RELAY_PARTS, StagingPool},
};
use onebuf_hal::{Device, Memory, Queue, locks::Arc};
use std::time::Duration;

/// Chunks do not become smaller than this part of the largest.
const SMALLEST: usize = 16;

/// The device that provides the chunks of a copy, with its queue and staging pool.
pub(crate) struct Means<'a> {
    pub device: &'a dyn Device,
    /// The hub's queue on that device.
    pub queue: Arc<dyn Queue>,
    pub staging_pool: &'a StagingPool,
    pub copy_pool: &'a CopyPool,
    pub timeout: Duration,
    /// What the source of a copy between two devices works with, if it has chunks of its own.
    pub source: Option<Box<Means<'a>>>,
}

impl Means<'_> {
    /// The size of a chunk.
    pub fn chunk_bytes(&self) -> usize {
        if self.is_unified() { CHUNK_BYTES } else { self.copy_pool.tuning.chunk_bytes }
    }

    /// The number of chunks in a copy of `bytes` bytes between device and host.
    pub fn chunks(&self, bytes: usize) -> usize {
        if self.takes_many(bytes) {
            return self.division(bytes).chunks();
        }
        bytes.div_ceil(self.chunk_bytes())
    }

    /// Whether several threads copy this many bytes to or from chunks. Where memory is the host's, the device's own threads copy,
    /// on the same cores.
    pub fn takes_many(&self, bytes: usize) -> bool {
        !self.is_unified() && bytes >= self.copy_pool.tuning.many_from_bytes
    }

    /// Whether the device accesses host pages in place. A chunk in between would only add a copy.
    pub fn is_unified(&self) -> bool {
        self.device.info().caps.unified_memory && !self.copy_pool.tuning.as_discrete
    }

    /// How a copy between a device and the host is divided.
    pub fn division(&self, bytes: usize) -> Division {
        self.divide(bytes, self.chunk_bytes())
    }

    /// How a copy between two devices is divided: in larger chunks, since no thread has to fill the first one.
    pub fn relay_division(&self, bytes: usize) -> Division {
        self.divide(bytes, RELAY_PARTS * self.chunk_bytes())
    }

    fn divide(&self, bytes: usize, most: usize) -> Division {
        let (tuning, least) = (&self.copy_pool.tuning, self.chunk_bytes() / SMALLEST);
        let piece_bytes = tuning.piece_bytes;
        let part = bytes.div_ceil(tuning.parts).next_multiple_of(piece_bytes);
        let chunk_bytes = part.max(least).min(most);
        let piece_bytes = piece_bytes.min(chunk_bytes);
        Division::new(bytes, chunk_bytes / piece_bytes * piece_bytes, piece_bytes)
    }
}

/// A queue, the memory that it accesses, and the offset in it.
#[derive(Clone, Copy)]
pub(crate) struct Stretch<'a>(pub &'a dyn Queue, pub &'a dyn Memory, pub usize);
