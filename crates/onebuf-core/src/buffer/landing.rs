//! Asynchronous transfers through pinned chunks: the driver gets no pointer to the caller's vector.
//!
//! A write has copied the vector when it returns. A read copies to the vector when a thread waits for it, or finds that it is done.
//!
//! # Safety
//! Chunks belong to the driver until their transfers are over, as `staging_pool` says.

#![allow(unsafe_code)]

use super::{Hold, Part};
use crate::{
    hub::Hub,
    queue_state::QueueState,
    route::{
        ring::{Chunk, Chunks},
        staged::ranges_of,
    },
    topology::DeviceIx,
};
use onebuf_hal::{Event, Result, locks::Arc};
use std::time::Duration;

/// The chunks of a read that has not reached its vector.
pub(super) struct Landing {
    chunks: Vec<Chunk>,
    chunk_bytes: usize,
    hub: Hub,
    device: DeviceIx,
}

impl Landing {
    /// Copies what was read, after all transfers are over.
    ///
    /// # Safety
    /// `into` is valid for writes of `bytes` bytes, which are those of the read.
    pub unsafe fn land(&mut self, into: *mut u8, bytes: usize, timeout: Duration) -> Result<()> {
        let parts = ranges_of(bytes, self.chunk_bytes);
        for ((at, len), chunk) in parts.zip(&mut self.chunks) {
            // On a queue that keeps its order these have ended before the last one.
            chunk.wait(timeout)?;
            let from = chunk.bytes_mut()[..len].as_ptr();
            // SAFETY: inside both, by the caller's guarantee; the chunk is a separate allocation.
            unsafe { self.hub.copy_pool().copy(from, into.add(at), len) };
        }
        Ok(())
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        let (pool, kept) = (self.hub.staging_pool(self.device), self.hub.copy_pool().tuning.kept);
        self.chunks.drain(..).for_each(|chunk| chunk.give_back(pool, kept));
    }
}

impl Part<'_> {
    /// Enqueues a read to chunks, if there are enough; with the event of the last transfer.
    pub(super) fn read_to_chunks(
        &self,
        queue_state: &Arc<QueueState>,
        hold: &Hold<'_>,
        offset: usize,
        bytes: usize,
    ) -> Result<Option<(Landing, Arc<dyn Event>)>> {
        let (device, hub) = (queue_state.device, Hub::clone(&self.core.hub));
        let means = self.core.means(device)?;
        let Some(mut ring) = Chunks::for_all(bytes, &means) else { return Ok(None) };
        let chunk_bytes = means.chunk_bytes();
        for (number, (at, len)) in ranges_of(bytes, chunk_bytes).enumerate() {
            ring.of(number).read(&*queue_state.hal, hold.memory(), offset + at, len)?;
        }
        let Some(last) = ring.slots.last().and_then(Chunk::event) else { return Ok(None) };
        let chunks = std::mem::take(&mut ring.slots);
        Ok(Some((Landing { chunks, chunk_bytes, hub, device }, last)))
    }

    /// Copies bytes to chunks and enqueues their transfers, if there are enough; returns the event of the last one. The chunks return to
    /// their pool when their transfers are over.
    pub(super) fn write_by_chunks(
        &self,
        queue_state: &Arc<QueueState>,
        hold: &Hold<'_>,
        offset: usize,
        from: &[u8],
    ) -> Result<Option<Arc<dyn Event>>> {
        let means = self.core.means(queue_state.device)?;
        let Some(mut ring) = Chunks::for_all(from.len(), &means) else { return Ok(None) };
        for (number, (at, len)) in ranges_of(from.len(), means.chunk_bytes()).enumerate() {
            let chunk = ring.of(number);
            means.copy_pool.copy_slice(&from[at..at + len], &mut chunk.bytes_mut()[..len]);
            chunk.write(&*queue_state.hal, hold.memory(), offset + at, len)?;
            queue_state.hal.flush()?;
        }
        Ok(ring.slots.last().and_then(Chunk::event))
    }
}
