//! The host memory of one copy: a few chunks, used in rotation.
//!
//! # Safety
//! Drivers get pointers into chunks. `staging_pool` says who owns a chunk, and when it may be reused or freed.

#![allow(unsafe_code)]

use super::{
    means::Means,
    staging_pool::{ChunkSpec, StagingChunk, StagingPool, is_over},
};
use onebuf_hal::{Error, Event, Memory, Queue, Result, locks::Arc};
use std::time::Duration;

/// A few chunks, used in rotation.
pub(crate) struct Chunks<'a> {
    pub slots: Vec<Chunk>,
    turn: usize,
    staging_pool: &'a StagingPool,
    kept: usize,
    timeout: Duration,
}

impl<'a> Chunks<'a> {
    /// Takes chunks for a copy that is divided into this many parts, of at most `part_bytes` each. Takes at most `most`, no more
    /// than there are parts, and fewer if other copies have them.
    pub fn new(part_bytes: usize, parts: usize, most: usize, means: &Means<'a>) -> Self {
        let Means { staging_pool, timeout, .. } = means;
        let (kept, most) = (means.copy_pool.tuning.kept, parts.min(most).max(1));
        let spec = ChunkSpec {
            device: means.device,
            queue: &*means.queue,
            pins: !means.is_unified(),
            chunk_bytes: means.chunk_bytes(),
            kept,
        };
        let mut slots = Vec::with_capacity(most);
        while slots.len() < most
            && let Some(memory) = staging_pool.chunk(&spec, part_bytes, slots.len())
        {
            slots.push(Chunk { memory, busy: None, is_lost: false });
        }
        Self { slots, turn: 0, staging_pool, kept, timeout: *timeout }
    }

    /// Lets another device transfer all chunks directly, too; whether it can. A device that uses the host's memory gains nothing by it.
    pub fn share_with(&mut self, means: &Means<'_>) -> bool {
        !means.is_unified()
            && self.slots.iter_mut().all(|chunk| chunk.memory.share(means.device, &*means.queue))
    }

    /// Takes chunks for all bytes of a copy that runs on after the call. `None` if the copy is small, or needs too many, or others have
    /// them.
    pub fn for_all(bytes: usize, means: &Means<'a>) -> Option<Self> {
        let parts = bytes.div_ceil(means.chunk_bytes());
        let kept = means.copy_pool.tuning.kept;
        if !means.takes_many(bytes) || parts > kept / 2 || !means.staging_pool.has_room(parts, kept)
        {
            return None;
        }
        let chunks = Self::whole(bytes, parts, means);
        (chunks.len() == parts).then_some(chunks)
    }

    /// Takes at most `most` chunks for a copy in whole chunks.
    pub fn whole(bytes: usize, most: usize, means: &Means<'a>) -> Self {
        let size = means.chunk_bytes();
        Self::new(bytes.min(size), bytes.div_ceil(size), most, means)
    }

    /// The number of chunks.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// The slot of a chunk of the copy.
    pub fn of(&mut self, chunk: usize) -> &mut Chunk {
        let len = self.slots.len();
        &mut self.slots[chunk % len]
    }

    /// Waits for the last transfer of a chunk's slot.
    pub fn settle(&mut self, chunk: usize) -> Result<()> {
        let timeout = self.timeout;
        self.of(chunk).wait(timeout)
    }

    /// The addresses of the chunks.
    pub fn addresses(&mut self) -> Vec<*mut u8> {
        self.slots.iter_mut().map(|chunk| chunk.bytes_mut().as_mut_ptr()).collect()
    }

    /// Returns the next chunk in rotation, after its last transfer has completed.
    pub fn advance(&mut self) -> Result<usize> {
        let index = self.turn;
        self.turn = (index + 1) % self.slots.len();
        self.slots[index].wait(self.timeout)?;
        Ok(index)
    }

    pub fn next(&mut self) -> Result<&mut Chunk> {
        let index = self.advance()?;
        Ok(&mut self.slots[index])
    }

    pub fn finish(mut self) -> Result<()> {
        let timeout = self.timeout;
        self.slots.iter_mut().try_for_each(|chunk| chunk.wait(timeout))
    }
}

impl Drop for Chunks<'_> {
    fn drop(&mut self) {
        for chunk in self.slots.drain(..) {
            chunk.give_back(self.staging_pool, self.kept);
        }
    }
}

/// A chunk of a copy.
pub(crate) struct Chunk {
    memory: StagingChunk,
    /// The event of the transfer that may be using the chunk.
    busy: Option<Arc<dyn Event>>,
    /// Whether a transfer may be using the chunk without an event.
    is_lost: bool,
}

impl Chunk {
    /// Returns the chunk to its pool, which waits for a transfer that may be using it.
    pub fn give_back(self, staging_pool: &StagingPool, kept: usize) {
        let Self { memory, busy, is_lost } = self;
        match busy {
            _ if is_lost => staging_pool.leak(memory),
            Some(event) if !is_over(&*event) => staging_pool.keep_after(memory, event, kept),
            _ => staging_pool.keep(memory, kept),
        }
    }

    /// The event of the last transfer, if it has not been seen complete.
    pub fn event(&self) -> Option<Arc<dyn Event>> {
        self.busy.clone()
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }

    pub fn read(
        &mut self,
        queue: &dyn Queue,
        from: &dyn Memory,
        offset: usize,
        len: usize,
    ) -> Result<()> {
        debug_assert!(self.busy.is_none());
        let into = self.bytes_mut()[..len].as_mut_ptr();
        // SAFETY: the chunk is accessed again only after its event has completed; see the head of `staging_pool`.
        let started = unsafe { queue.read(from, offset, into, len) };
        self.note(started)
    }

    pub fn write(
        &mut self,
        queue: &dyn Queue,
        to: &dyn Memory,
        offset: usize,
        len: usize,
    ) -> Result<()> {
        debug_assert!(self.busy.is_none());
        let from = self.bytes_mut()[..len].as_ptr();
        // SAFETY: as for `read`.
        let started = unsafe { queue.write(to, offset, from, len) };
        self.note(started)
    }

    /// Records how the start of a transfer ended.
    fn note(&mut self, started: Result<Arc<dyn Event>>) -> Result<()> {
        self.is_lost = matches!(started, Err(Error::Timeout { .. }));
        started.map(|event| self.busy = Some(event))
    }

    /// Whether no transfer uses the chunk.
    pub fn poll(&mut self) -> Result<bool> {
        let free = match &self.busy {
            Some(event) => event.poll()?,
            None => true,
        };
        if free {
            self.busy = None;
        }
        Ok(free)
    }

    /// Waits for the transfer. Only success shows that the driver no longer uses the memory; an error does not.
    pub fn wait(&mut self, timeout: Duration) -> Result<()> {
        if let Some(event) = &self.busy {
            event.wait(timeout)?;
            self.busy = None;
        }
        Ok(())
    }
}
