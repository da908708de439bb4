//! The staged route: copies chunks through host memory, several in flight.
//!
//! # Safety
//! Drivers get pointers into chunks that this module owns, or into pages of a buffer whose state keeps them until the work is
//! over. A chunk whose transfer does not end in time is leaked, not freed while the driver may use it.

#![allow(unsafe_code)]

use super::staging_pool::{self, CHUNK_BYTES, StagingPool};
use onebuf_hal::{Device, Event, Memory, PeerStretch, Queue, Result, locks::Arc};
use std::{mem, ptr::NonNull, time::Duration};

/// The device that provides the chunks of a copy, with its queue and staging pool.
pub(crate) struct Means<'a> {
    pub device: &'a dyn Device,
    /// The hub's queue on that device.
    pub queue: Arc<dyn Queue>,
    pub staging_pool: &'a StagingPool,
    pub timeout: Duration,
}

impl Means<'_> {
    /// Whether the device accesses host pages in place. A chunk in between would only add a copy.
    fn is_unified(&self) -> bool {
        self.device.info().caps.unified_memory
    }
}

/// One end of a copy, already handed over.
#[derive(Clone, Copy)]
pub(crate) enum End<'a> {
    /// Bytes that the calling thread can access, from the first one on.
    Host(NonNull<u8>),
    /// Memory that a queue can access, from an offset on.
    Device(&'a dyn Queue, &'a dyn Memory, usize),
}

/// Copies `bytes` bytes from one end to the other, and waits until both are done. Returns the number of chunks that went through
/// intermediate host memory; zero for a single copy. After an error either queue may still be using either end.
pub(crate) fn copy(from: &End<'_>, to: &End<'_>, bytes: usize, means: Means<'_>) -> Result<usize> {
    match (*from, *to) {
        (End::Host(from), End::Host(to)) => {
            // SAFETY: both ends were handed over and have `bytes` bytes from there on; they are different
            // replicas or different buffers, hence different allocations.
            unsafe { to.copy_from_nonoverlapping(from, bytes) };
            Ok(0)
        }
        (End::Host(from), End::Device(queue, memory, at)) if means.is_unified() => {
            // SAFETY: pages of onebuf, which the caller keeps until the work on both queues is over.
            let written = unsafe { queue.write(memory, at, from.as_ptr(), bytes)? };
            written.wait(means.timeout).map(|()| 0)
        }
        (End::Device(queue, memory, at), End::Host(to)) if means.is_unified() => {
            // SAFETY: as above, and the pages have no other user now.
            let read = unsafe { queue.read(memory, at, to.as_ptr(), bytes)? };
            read.wait(means.timeout).map(|()| 0)
        }
        (End::Host(from), End::Device(queue, memory, at)) => {
            let to = Stretch(queue, memory, at);
            // SAFETY: the pages belong to the source, which is held during the call.
            unsafe { upload_from(from.as_ptr(), bytes, to, means) }.map(|()| chunks(bytes))
        }
        (End::Device(queue, memory, at), End::Host(to)) => {
            let from = Stretch(queue, memory, at);
            // SAFETY: the pages belong to the target, which is held during the call.
            unsafe { download_to(from, to.as_ptr(), bytes, means) }.map(|()| chunks(bytes))
        }
        (End::Device(a, from, from_at), End::Device(b, to, to_at)) => {
            let peer = PeerStretch { queue: a, memory: from, offset: from_at };
            if let Some(copied) = b.copy_from_peer(peer, to, to_at, bytes)? {
                b.flush()?;
                return copied.wait(means.timeout).map(|()| 0);
            }
            let (from, to) = (Stretch(a, from, from_at), Stretch(b, to, to_at));
            relay(from, to, bytes, Order::Up, means)
        }
    }
}

/// The number of chunks in a copy of `bytes` bytes.
pub(crate) fn chunks(bytes: usize) -> usize {
    bytes.div_ceil(CHUNK_BYTES)
}

/// A queue, the memory that it accesses, and the offset in it.
#[derive(Clone, Copy)]
pub(crate) struct Stretch<'a>(pub &'a dyn Queue, pub &'a dyn Memory, pub usize);

/// The order of the chunks of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// The first chunk first.
    Up,
    /// The last chunk first: for a copy to a higher offset in the same memory.
    Down,
}

/// Copies from device to device, and returns the number of chunks. There is always a read queued behind the one that is being
/// waited for, so that the source does not idle while this thread wakes up.
///
/// Source and target may overlap in one memory on one in-order queue, if the order leads away from the target.
pub(crate) fn relay(
    Stretch(from_queue, from, from_at): Stretch<'_>,
    Stretch(to_queue, to, to_at): Stretch<'_>,
    bytes: usize,
    order: Order,
    means: Means<'_>,
) -> Result<usize> {
    let (timeout, mut chunks) = (means.timeout, Chunks::new(bytes, 3, means));
    let mut reading = None;
    let pass_on = |chunks: &mut Chunks<'_>, (index, at, len): (usize, usize, usize)| {
        let chunk = &mut chunks.slots[index];
        chunk.wait(timeout)?;
        chunk.write(to_queue, to, to_at + at, len)?;
        to_queue.flush()
    };
    let mut parts: Vec<(usize, usize)> = ranges(bytes).collect();
    if order == Order::Down {
        parts.reverse();
    }
    for &(at, len) in &parts {
        let index = chunks.advance()?;
        chunks.slots[index].read(from_queue, from, from_at + at, len)?;
        from_queue.flush()?;
        if let Some(before) = reading.replace((index, at, len)) {
            pass_on(&mut chunks, before)?;
        }
    }
    if let Some(last) = reading {
        pass_on(&mut chunks, last)?;
    }
    chunks.finish().map(|()| parts.len())
}

/// Copies a slice to device memory. The slice is not accessed after the call, even after an error.
pub(crate) fn upload(
    from: &[u8],
    queue: &dyn Queue,
    to: &dyn Memory,
    offset: usize,
    means: Means<'_>,
) -> Result<()> {
    // SAFETY: the slice has `from.len()` bytes.
    unsafe { upload_from(from.as_ptr(), from.len(), Stretch(queue, to, offset), means) }
}

/// Copies bytes to device memory. They may change meanwhile, so no reference to them is created.
///
/// # Safety
/// `bytes` bytes are mapped at `from`.
unsafe fn upload_from(
    from: *const u8,
    bytes: usize,
    Stretch(queue, to, offset): Stretch<'_>,
    means: Means<'_>,
) -> Result<()> {
    let mut chunks = Chunks::new(bytes, 2, means);
    for (at, len) in ranges(bytes) {
        let chunk = chunks.next()?;
        let into = &mut chunk.bytes_mut()[..len];
        // SAFETY: inside of both; the chunk is a separate allocation.
        unsafe { from.add(at).copy_to_nonoverlapping(into.as_mut_ptr(), len) };
        chunk.write(queue, to, offset + at, len)?;
        queue.flush()?;
    }
    chunks.finish()
}

/// Copies device memory to a slice. The driver never accesses the slice.
pub(crate) fn download(
    queue: &dyn Queue,
    from: &dyn Memory,
    offset: usize,
    to: &mut [u8],
    means: Means<'_>,
) -> Result<()> {
    // SAFETY: the slice has `to.len()` bytes.
    unsafe { download_to(Stretch(queue, from, offset), to.as_mut_ptr(), to.len(), means) }
}

/// Copies device memory to bytes that others may be reading, so no reference to them is created.
///
/// # Safety
/// `bytes` bytes are mapped at `to`.
unsafe fn download_to(
    Stretch(queue, from, offset): Stretch<'_>,
    to: *mut u8,
    bytes: usize,
    means: Means<'_>,
) -> Result<()> {
    let (timeout, mut chunks) = (means.timeout, Chunks::new(bytes, 2, means));
    let take = |chunks: &mut Chunks<'_>, (slot, at, len): (usize, usize, usize)| {
        let chunk = &mut chunks.slots[slot];
        chunk.wait(timeout)?;
        let read = &chunk.bytes_mut()[..len];
        // SAFETY: inside of both; the chunk is a separate allocation.
        unsafe { to.add(at).copy_from_nonoverlapping(read.as_ptr(), len) };
        Ok::<_, onebuf_hal::Error>(())
    };
    let mut waiting = None;
    for (at, len) in ranges(bytes) {
        let index = chunks.advance()?;
        chunks.slots[index].read(queue, from, offset + at, len)?;
        queue.flush()?;
        if let Some(before) = waiting.replace((index, at, len)) {
            take(&mut chunks, before)?;
        }
    }
    if let Some(last) = waiting {
        take(&mut chunks, last)?;
    }
    chunks.finish()
}

pub(crate) fn ranges(bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..bytes).step_by(CHUNK_BYTES).map(move |at| (at, CHUNK_BYTES.min(bytes - at)))
}

/// A few chunks, used in rotation.
struct Chunks<'a> {
    slots: Vec<Chunk>,
    turn: usize,
    means: Means<'a>,
}

impl<'a> Chunks<'a> {
    /// Takes at most `most` chunks, and no more than the copy has parts.
    fn new(bytes: usize, most: usize, means: Means<'a>) -> Self {
        let (size, parts) = (bytes.min(CHUNK_BYTES), bytes.div_ceil(CHUNK_BYTES).max(1));
        let chunk = |_| Chunk::new(means.staging_pool.chunk(means.device, &*means.queue, size));
        Self { slots: (0..parts.min(most)).map(chunk).collect(), turn: 0, means }
    }

    /// Returns the next chunk in rotation, after its last transfer has completed.
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
                self.means.staging_pool.keep(memory);
            }
        }
    }
}

/// Host memory that a driver may be using. `Chunks` leaks it if the transfer does not end.
struct Chunk {
    memory: staging_pool::StagingChunk,
    busy: Option<Arc<dyn Event>>,
}

impl Chunk {
    fn new(memory: staging_pool::StagingChunk) -> Self {
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
        // SAFETY: the chunk is accessed again only after its event has completed, and is leaked otherwise.
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

    /// Waits for the transfer. Only success shows that the driver no longer uses the memory; an error does not.
    fn wait(&mut self, timeout: Duration) -> Result<()> {
        if let Some(event) = &self.busy {
            event.wait(timeout)?;
            self.busy = None;
        }
        Ok(())
    }

    /// Takes the memory for another copy. After an error a transfer may still be running; if it does not end within a second, the
    /// memory is leaked.
    fn take_memory(&mut self) -> Option<staging_pool::StagingChunk> {
        let memory = mem::replace(&mut self.memory, staging_pool::StagingChunk::Plain(Vec::new()));
        match self.wait(Duration::from_secs(1)) {
            Ok(()) => Some(memory),
            // A failed transfer is over, too.
            Err(_) if self.busy.as_ref().is_some_and(|event| event.is_over()) => Some(memory),
            Err(_) => {
                mem::forget(memory);
                None
            }
        }
    }
}
