//! The staged route's engine: chunks through host memory, several in flight.
//!
//! # Safety
//! Drivers are given pointers into chunks that this module owns, or into pages of a buffer that its state
//! keeps until the work is over. A chunk whose transfer did not end in time is leaked, never freed under the
//! driver's hands.

#![allow(unsafe_code)]

use super::bay::{self, Bay, CHUNK_BYTES};
use crate::{
    Result,
    hal::{Device, Event, Memory, Queue},
    sync::Arc,
};
use std::{mem, ptr::NonNull, time::Duration};

/// Where a copy gets its chunks: from the device that it is for.
pub(crate) struct Means<'a> {
    pub device: &'a dyn Device,
    /// A queue of ours on that device.
    pub queue: Arc<dyn Queue>,
    pub bay: &'a Bay,
    pub timeout: Duration,
}

impl Means<'_> {
    /// Whether the device reads and writes the host's pages where they are: a chunk in between would only
    /// be one copy more.
    fn is_unified(&self) -> bool {
        self.device.info().caps.unified_memory
    }
}

/// One end of a copy, already handed over to it.
pub(crate) enum End {
    /// Bytes that the calling thread can touch.
    Host(NonNull<u8>),
    /// Memory that a queue can touch.
    Device(Arc<dyn Queue>, Arc<dyn Memory>),
}

/// Copies the first `bytes` from one end to the other, and waits until both are done. After an error either
/// queue may still be at work on either end.
pub(crate) fn copy(from: &End, to: &End, bytes: usize, means: Means<'_>) -> Result<()> {
    match (from, to) {
        (End::Host(from), End::Host(to)) => {
            // SAFETY: both ends were handed over and have `bytes` bytes; they are different groups,
            // hence different allocations.
            unsafe { to.copy_from_nonoverlapping(*from, bytes) };
            Ok(())
        }
        (End::Host(from), End::Device(queue, memory)) if means.is_unified() => {
            // SAFETY: pages of ours, which the caller keeps until the work on both queues is over.
            let written = unsafe { queue.write(&**memory, 0, from.as_ptr(), bytes)? };
            written.wait(means.timeout)
        }
        (End::Device(queue, memory), End::Host(to)) if means.is_unified() => {
            // SAFETY: as above, and nobody else uses them now.
            let read = unsafe { queue.read(&**memory, 0, to.as_ptr(), bytes)? };
            read.wait(means.timeout)
        }
        (End::Host(from), End::Device(queue, memory)) => {
            // SAFETY: the pages are the source's for as long as we hold it.
            let from = unsafe { std::slice::from_raw_parts(from.as_ptr(), bytes) };
            upload(from, &**queue, &**memory, 0, means)
        }
        (End::Device(queue, memory), End::Host(to)) => {
            // SAFETY: the pages are the target's, and nobody else uses them now.
            let to = unsafe { std::slice::from_raw_parts_mut(to.as_ptr(), bytes) };
            download(&**queue, &**memory, 0, to, means)
        }
        (End::Device(from_queue, from), End::Device(to_queue, to)) => {
            relay((&**from_queue, &**from), (&**to_queue, &**to), bytes, means)
        }
    }
}

/// Copies from device to device. A read is always queued behind the one that is waited for, so that the
/// source does not stand still while this thread wakes up.
fn relay(
    (from_queue, from): (&dyn Queue, &dyn Memory),
    (to_queue, to): (&dyn Queue, &dyn Memory),
    bytes: usize,
    means: Means<'_>,
) -> Result<()> {
    let (timeout, mut chunks) = (means.timeout, Chunks::new(bytes, 3, means));
    let mut reading = None;
    let pass_on = |chunks: &mut Chunks<'_>, (index, at, len): (usize, usize, usize)| {
        let chunk = &mut chunks.slots[index];
        chunk.wait(timeout)?;
        chunk.write(to_queue, to, at, len)?;
        to_queue.flush()
    };
    for (at, len) in ranges(bytes) {
        let index = chunks.advance()?;
        chunks.slots[index].read(from_queue, from, at, len)?;
        from_queue.flush()?;
        if let Some(before) = reading.replace((index, at, len)) {
            pass_on(&mut chunks, before)?;
        }
    }
    if let Some(last) = reading {
        pass_on(&mut chunks, last)?;
    }
    chunks.finish()
}

/// Copies a slice to device memory. The slice is not touched after the call, whatever happens.
pub(crate) fn upload(
    from: &[u8],
    queue: &dyn Queue,
    to: &dyn Memory,
    offset: usize,
    means: Means<'_>,
) -> Result<()> {
    let mut chunks = Chunks::new(from.len(), 2, means);
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
    means: Means<'_>,
) -> Result<()> {
    let (timeout, mut chunks) = (means.timeout, Chunks::new(to.len(), 2, means));
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

/// A few chunks, used in turn.
struct Chunks<'a> {
    slots: Vec<Chunk>,
    turn: usize,
    means: Means<'a>,
}

impl<'a> Chunks<'a> {
    /// No more of them than the copy has parts.
    fn new(bytes: usize, most: usize, means: Means<'a>) -> Self {
        let (size, parts) = (bytes.min(CHUNK_BYTES), bytes.div_ceil(CHUNK_BYTES).max(1));
        let chunk = |_| Chunk::new(means.bay.chunk(means.device, &*means.queue, size));
        Self { slots: (0..parts.min(most)).map(chunk).collect(), turn: 0, means }
    }

    /// The chunk whose turn it is, its last transfer done.
    fn advance(&mut self) -> Result<usize> {
        let index = self.turn;
        self.turn = (index + 1) % self.slots.len();
        self.slots[index].wait(self.means.timeout)?;
        Ok(index)
    }

    fn next(&mut self) -> Result<&mut Chunk> {
        let index = self.advance()?;
        Ok(&mut self.slots[index])
    }

    fn finish(mut self) -> Result<()> {
        let timeout = self.means.timeout;
        self.slots.iter_mut().try_for_each(|chunk| chunk.wait(timeout))
    }
}

impl Drop for Chunks<'_> {
    fn drop(&mut self) {
        for chunk in &mut self.slots {
            if let Some(memory) = chunk.take_memory() {
                self.means.bay.keep(memory);
            }
        }
    }
}

/// Host memory that a driver may be using. Leaked when dropped while that is so.
struct Chunk {
    memory: bay::Room,
    busy: Option<Arc<dyn Event>>,
}

impl Chunk {
    fn new(memory: bay::Room) -> Self {
        Self { memory, busy: None }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }

    fn read(
        &mut self,
        queue: &dyn Queue,
        from: &dyn Memory,
        offset: usize,
        len: usize,
    ) -> Result<()> {
        debug_assert!(self.busy.is_none());
        let into = self.bytes_mut()[..len].as_mut_ptr();
        // SAFETY: the chunk is touched again only after its event completed, and is leaked otherwise.
        self.busy = Some(unsafe { queue.read(from, offset, into, len)? });
        Ok(())
    }

    fn write(
        &mut self,
        queue: &dyn Queue,
        to: &dyn Memory,
        offset: usize,
        len: usize,
    ) -> Result<()> {
        debug_assert!(self.busy.is_none());
        let from = self.bytes_mut()[..len].as_ptr();
        // SAFETY: as for `read`.
        self.busy = Some(unsafe { queue.write(to, offset, from, len)? });
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
        into.copy_from_slice(&self.bytes_mut()[..into.len()]);
        Ok(())
    }

    /// The memory, for another copy. An error path may have left a transfer under way; it is given a moment,
    /// and then the memory is leaked.
    fn take_memory(&mut self) -> Option<bay::Room> {
        let memory = mem::replace(&mut self.memory, bay::Room::Plain(Vec::new()));
        match self.wait(Duration::from_secs(1)) {
            Ok(()) => Some(memory),
            // Failed is over, too.
            Err(_) if self.busy.as_ref().is_some_and(|event| event.is_over()) => Some(memory),
            Err(_) => {
                mem::forget(memory);
                None
            }
        }
    }
}
