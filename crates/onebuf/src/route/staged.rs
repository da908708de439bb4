//! The staged route's engine: chunks through host memory, two in flight.
//!
//! # Safety
//! Drivers are given pointers into chunks that this module owns. A chunk whose transfer did not end in
//! time is leaked, never freed under the driver's hands.

#![allow(unsafe_code)]

use crate::{
    Result,
    hal::{Event, Memory, Queue},
    sync::Arc,
};
use std::{ptr::NonNull, time::Duration};

/// Bytes of one chunk: large enough that per-call costs vanish, small enough to overlap.
const CHUNK_BYTES: usize = 4 << 20;

/// One end of a copy, already handed over to it.
pub(crate) enum End {
    /// Bytes that the calling thread can touch.
    Host(NonNull<u8>),
    /// Memory that a queue can touch.
    Device(Arc<dyn Queue>, Arc<dyn Memory>),
}

/// Copies the first `bytes` from one end to the other, and waits until both are done.
pub(crate) fn copy(from: &End, to: &End, bytes: usize, timeout: Duration) -> Result<()> {
    match (from, to) {
        (End::Host(from), End::Host(to)) => {
            // SAFETY: both ends were handed over and have `bytes` bytes; they are different groups,
            // hence different allocations.
            unsafe { to.copy_from_nonoverlapping(*from, bytes) };
            Ok(())
        }
        (End::Host(from), End::Device(queue, memory)) => {
            // SAFETY: the pages are the source's for as long as we hold it.
            let from = unsafe { std::slice::from_raw_parts(from.as_ptr(), bytes) };
            upload(from, &**queue, &**memory, 0, timeout)
        }
        (End::Device(queue, memory), End::Host(to)) => {
            // SAFETY: the pages are the target's, and nobody else uses them now.
            let to = unsafe { std::slice::from_raw_parts_mut(to.as_ptr(), bytes) };
            download(&**queue, &**memory, 0, to, timeout)
        }
        (End::Device(from_queue, from), End::Device(to_queue, to)) => {
            let mut chunks = Chunks::new(bytes, timeout);
            for (at, len) in ranges(bytes) {
                let chunk = chunks.next()?;
                chunk.read(&**from_queue, &**from, at, len)?;
                chunk.wait(timeout)?;
                chunk.write(&**to_queue, &**to, at, len)?;
            }
            chunks.finish()
        }
    }
}

/// Copies a slice to device memory. The slice is not touched after the call, whatever happens.
pub(crate) fn upload(
    from: &[u8],
    queue: &dyn Queue,
    to: &dyn Memory,
    offset: usize,
    timeout: Duration,
) -> Result<()> {
    let mut chunks = Chunks::new(from.len(), timeout);
    for (at, len) in ranges(from.len()) {
        let chunk = chunks.next()?;
        chunk.bytes_mut()[..len].copy_from_slice(&from[at..at + len]);
        chunk.write(queue, to, offset + at, len)?;
        queue.flush()?;
    }
    chunks.finish()
}

/// Copies device memory to a slice. The driver never sees the slice.
pub(crate) fn download(
    queue: &dyn Queue,
    from: &dyn Memory,
    offset: usize,
    to: &mut [u8],
    timeout: Duration,
) -> Result<()> {
    let mut chunks = Chunks::new(to.len(), timeout);
    let mut waiting: Option<(usize, usize, usize)> = None;
    for (at, len) in ranges(to.len()) {
        let index = chunks.advance()?;
        chunks.slots[index].read(queue, from, offset + at, len)?;
        queue.flush()?;
        if let Some((slot, at, len)) = waiting.replace((index, at, len)) {
            chunks.slots[slot].take(&mut to[at..at + len], timeout)?;
        }
    }
    if let Some((slot, at, len)) = waiting {
        chunks.slots[slot].take(&mut to[at..at + len], timeout)?;
    }
    chunks.finish()
}

fn ranges(bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..bytes).step_by(CHUNK_BYTES).map(move |at| (at, CHUNK_BYTES.min(bytes - at)))
}

/// Two chunks, used in turn.
struct Chunks {
    slots: [Chunk; 2],
    turn: usize,
    timeout: Duration,
}

impl Chunks {
    fn new(bytes: usize, timeout: Duration) -> Self {
        let size = bytes.min(CHUNK_BYTES);
        let second = if bytes > CHUNK_BYTES { size } else { 0 };
        Self { slots: [Chunk::new(size), Chunk::new(second)], turn: 0, timeout }
    }

    /// The chunk whose turn it is, its last transfer done.
    fn advance(&mut self) -> Result<usize> {
        let index = self.turn;
        self.turn = 1 - index;
        self.slots[index].wait(self.timeout)?;
        Ok(index)
    }

    fn next(&mut self) -> Result<&mut Chunk> {
        let index = self.advance()?;
        Ok(&mut self.slots[index])
    }

    fn finish(mut self) -> Result<()> {
        self.slots.iter_mut().try_for_each(|chunk| chunk.wait(self.timeout))
    }
}

/// Host memory that a driver may be using. Leaked when dropped while that is so.
struct Chunk {
    memory: Vec<u8>,
    busy: Option<Arc<dyn Event>>,
}

impl Chunk {
    fn new(bytes: usize) -> Self {
        Self { memory: vec![0; bytes], busy: None }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    fn read(
        &mut self,
        queue: &dyn Queue,
        from: &dyn Memory,
        offset: usize,
        len: usize,
    ) -> Result<()> {
        debug_assert!(self.busy.is_none() && len <= self.memory.len());
        // SAFETY: the chunk is touched again only after its event completed, and is leaked otherwise.
        self.busy = Some(unsafe { queue.read(from, offset, self.memory.as_mut_ptr(), len)? });
        Ok(())
    }

    fn write(
        &mut self,
        queue: &dyn Queue,
        to: &dyn Memory,
        offset: usize,
        len: usize,
    ) -> Result<()> {
        debug_assert!(self.busy.is_none() && len <= self.memory.len());
        // SAFETY: as for `read`.
        self.busy = Some(unsafe { queue.write(to, offset, self.memory.as_ptr(), len)? });
        Ok(())
    }

    /// An error does not say that the driver has let go of the memory: only success does.
    fn wait(&mut self, timeout: Duration) -> Result<()> {
        if let Some(event) = &self.busy {
            event.wait(timeout)?;
            self.busy = None;
        }
        Ok(())
    }

    fn take(&mut self, into: &mut [u8], timeout: Duration) -> Result<()> {
        self.wait(timeout)?;
        into.copy_from_slice(&self.memory[..into.len()]);
        Ok(())
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // An error path may leave a transfer under way; give it a moment, then leak.
        if self.wait(Duration::from_secs(1)).is_err() {
            std::mem::forget(std::mem::take(&mut self.memory));
        }
    }
}
