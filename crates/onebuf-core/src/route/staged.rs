//! The staged route: copies chunks through host memory, several in flight.
//!
//! # Safety
//! Drivers get pointers into chunks that this module owns, or into pages of a buffer whose state keeps them until the work is
//! over. A chunk whose transfer does not end in time is leaked, not freed while the driver may use it.

#![allow(unsafe_code)]

use super::{
    by_many,
    means::{Means, Stretch},
    ring::Chunks,
    staging_pool::CHUNK_BYTES,
};
use onebuf_hal::{Memory, PeerStretch, Queue, Result};
use std::ptr::NonNull;

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
            unsafe { means.copy_pool.copy(from.as_ptr(), to.as_ptr(), bytes) };
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
            unsafe { upload_from(from.as_ptr(), bytes, to, &means) }.map(|()| means.chunks(bytes))
        }
        (End::Device(queue, memory, at), End::Host(to)) => {
            let from = Stretch(queue, memory, at);
            // SAFETY: the pages belong to the target, which is held during the call.
            unsafe { download_to(from, to.as_ptr(), bytes, &means) }.map(|()| means.chunks(bytes))
        }
        (End::Device(a, from, from_at), End::Device(b, to, to_at)) => {
            let peer = PeerStretch { queue: a, memory: from, offset: from_at };
            if let Some(copied) = b.copy_from_peer(peer, to, to_at, bytes)? {
                b.flush()?;
                return copied.wait(means.timeout).map(|()| 0);
            }
            let (from, to) = (Stretch(a, from, from_at), Stretch(b, to, to_at));
            if let Some(source) = means.source.as_deref().filter(|_| means.takes_many(bytes)) {
                return by_many::relay(from, to, bytes, source, &means);
            }
            relay(from, to, bytes, Order::Up, means)
        }
    }
}

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
    let most = if means.is_unified() { 3 } else { means.copy_pool.tuning.ring };
    let (timeout, mut chunks) = (means.timeout, Chunks::whole(bytes, most, &means));
    let mut reading = None;
    let pass_on = |chunks: &mut Chunks<'_>, (index, at, len): (usize, usize, usize)| {
        let chunk = &mut chunks.slots[index];
        chunk.wait(timeout)?;
        chunk.write(to_queue, to, to_at + at, len)?;
        to_queue.flush()
    };
    let mut parts: Vec<(usize, usize)> = ranges_of(bytes, means.chunk_bytes()).collect();
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
    unsafe { upload_from(from.as_ptr(), from.len(), Stretch(queue, to, offset), &means) }
}

/// Copies bytes to device memory. They may change meanwhile, so no reference to them is created.
///
/// # Safety
/// `bytes` bytes are mapped at `from`.
unsafe fn upload_from(
    from: *const u8,
    bytes: usize,
    Stretch(queue, to, offset): Stretch<'_>,
    means: &Means<'_>,
) -> Result<()> {
    if means.takes_many(bytes) {
        // SAFETY: the caller guarantees this.
        return unsafe { by_many::upload(from, bytes, Stretch(queue, to, offset), means) };
    }
    let mut chunks = Chunks::whole(bytes, 2, means);
    for (at, len) in ranges_of(bytes, means.chunk_bytes()) {
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
    unsafe { download_to(Stretch(queue, from, offset), to.as_mut_ptr(), to.len(), &means) }
}

/// Copies device memory to bytes that others may be reading, so no reference to them is created.
///
/// # Safety
/// `bytes` bytes are mapped at `to`.
unsafe fn download_to(
    Stretch(queue, from, offset): Stretch<'_>,
    to: *mut u8,
    bytes: usize,
    means: &Means<'_>,
) -> Result<()> {
    if means.takes_many(bytes) {
        // SAFETY: the caller guarantees this.
        return unsafe { by_many::download(Stretch(queue, from, offset), to, bytes, means) };
    }
    let (timeout, mut chunks) = (means.timeout, Chunks::whole(bytes, 2, means));
    let take = |chunks: &mut Chunks<'_>, (slot, at, len): (usize, usize, usize)| {
        let chunk = &mut chunks.slots[slot];
        chunk.wait(timeout)?;
        let read = &chunk.bytes_mut()[..len];
        // SAFETY: inside of both; the chunk is a separate allocation.
        unsafe { to.add(at).copy_from_nonoverlapping(read.as_ptr(), len) };
        Ok::<_, onebuf_hal::Error>(())
    };
    let mut waiting = None;
    for (at, len) in ranges_of(bytes, means.chunk_bytes()) {
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
    ranges_of(bytes, CHUNK_BYTES)
}

pub(crate) fn ranges_of(bytes: usize, chunk_bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..bytes).step_by(chunk_bytes).map(move |at| (at, chunk_bytes.min(bytes - at)))
}
