//! Requested transfers: reads, writes, fills, and copies between two memories of one device.
//!
//! The drivers copy pinned host memory asynchronously. A copy of ordinary memory may block inside the call until all
//! earlier work is done, without a timeout. So onebuf first waits for that work, with a timeout; the call then takes
//! only as long as the copy. The adapter has checked the ranges; none is empty.

use super::{
    deferred_free::FREE_WAIT,
    device::Context,
    event::Event,
    memory::Memory,
    queue::{Queue, RawQueue},
};
use onebuf_hal::{
    self as hal, Error, Result,
    locks::{Arc, Ordering},
};
use onebuf_sys::{Refused, cuda_like::DevicePtr};

/// The driver buffers writes up to this size and returns without waiting.
const SMALL_BYTES: usize = 64 << 10;
/// Size of each write into new memory.
const CHUNK_BYTES: usize = 4 << 20;
/// Size of the first piece of a fill that the driver has no call for; the rest is copied from it.
const SEED_BYTES: usize = 4096;

/// Enqueues a read into host memory. The context is current.
///
/// # Safety
/// `into` is valid for writes of `bytes`, and not used otherwise, until the event completes.
pub(super) unsafe fn read(
    queue: &Arc<RawQueue>,
    from: &Memory,
    offset: usize,
    into: *mut u8,
    bytes: usize,
) -> Result<Event> {
    let at = from.byte(offset);
    from.note_use(queue);
    if !queue.driver().pins.covers(into, bytes) {
        queue.drain(queue.driver().post.limit())?;
    }
    // SAFETY: a checked range, a live stream of the current context, and the caller's guarantee about `into`.
    start(queue, || unsafe { queue.driver().table.read_async(into.cast(), at, bytes, queue.raw) })
}

/// Enqueues a write from host memory. The context is current.
///
/// # Safety
/// `from` is valid for reads of `bytes`, and not written, until the event completes.
pub(super) unsafe fn write(
    queue: &Arc<RawQueue>,
    to: &Memory,
    offset: usize,
    from: *const u8,
    bytes: usize,
) -> Result<Event> {
    let at = to.byte(offset);
    to.note_use(queue);
    // The driver copies a small range during the call, and would miss what another API has yet to write there.
    let at_once = bytes <= SMALL_BYTES && !queue.may_wait_outside();
    if !at_once && !queue.driver().pins.covers(from, bytes) {
        let outside = queue.waits_outside.swap(false, Ordering::AcqRel);
        let drained = queue.drain(queue.driver().post.limit());
        drained.inspect_err(|_| queue.waits_outside.store(outside, Ordering::Release))?;
    }
    // SAFETY: a checked range, a live stream of the current context, and the caller's guarantee about `from`.
    start(queue, || unsafe { queue.driver().table.write_async(at, from.cast(), bytes, queue.raw) })
}

/// Enqueues a transfer of host memory. If the driver then refuses the event, waits for the transfer: the caller gets no event, and
/// may reuse its memory after an error.
fn start(queue: &Arc<RawQueue>, enqueue: impl FnOnce() -> Result<(), Refused>) -> Result<Event> {
    let mut is_enqueued = false;
    let event = queue.timed(|| enqueue().inspect(|()| is_enqueued = true));
    if event.is_err() && is_enqueued && !queue.context.outlasts(queue) {
        let what = format!("a transfer without an event on {}", queue.driver().info.name);
        return Err(Error::timeout(what, FREE_WAIT));
    }
    event
}

/// Writes new memory and waits. The driver gets copies, not the caller's bytes, because it may still read them after a
/// timeout.
pub(super) fn write_now(context: &Arc<Context>, to: &Memory, contents: &[u8]) -> Result<()> {
    let queue = Queue::new(context.clone(), false)?;
    let _current = context.enter()?;
    for (n, chunk) in contents.chunks(CHUNK_BYTES).enumerate() {
        let chunk = chunk.to_vec();
        // SAFETY: `chunk` is not changed, and kept until the write is over, or leaked.
        let write = unsafe { write(&queue.raw, to, n * CHUNK_BYTES, chunk.as_ptr(), chunk.len()) };
        let written = write.and_then(|event| hal::Event::wait(&event, context.driver.post.limit()));
        if let Err(why) = written {
            context.free_later(std::slice::from_ref(&queue.raw), move |_| drop(chunk));
            return Err(why);
        }
    }
    Ok(())
}

/// Repeats a pattern: by the driver's fill if it supports the pattern; otherwise writes one piece and doubles it by
/// copies. The context is current.
pub(super) fn fill(
    queue: &Arc<RawQueue>,
    memory: &Memory,
    offset: usize,
    bytes: usize,
    pattern: &[u8],
) -> Result<()> {
    let at = memory.byte(offset);
    memory.note_use(queue);
    match set(queue, at, bytes, pattern) {
        Some(filled) => queue.driver().check(filled),
        None => fill_by_doubling(queue, memory, offset, bytes, pattern),
    }
}

/// Enqueues the driver's fill; `None` if it does not support the pattern or the address.
fn set(
    queue: &RawQueue,
    at: DevicePtr,
    bytes: usize,
    pattern: &[u8],
) -> Option<Result<(), Refused>> {
    let (table, stream) = (&queue.driver().table, queue.raw);
    if !at.0.is_multiple_of(pattern.len() as u64) {
        return None;
    }
    // SAFETY: a checked range of whole patterns, aligned to them; a live stream.
    Some(unsafe {
        match *pattern {
            [a] => table.fill_u8_async(at, a, bytes, stream),
            [a, b] => table.fill_u16_async(at, u16::from_ne_bytes([a, b]), bytes / 2, stream),
            [a, b, c, d] => {
                table.fill_u32_async(at, u32::from_ne_bytes([a, b, c, d]), bytes / 4, stream)
            }
            _ => return None,
        }
    })
}

fn fill_by_doubling(
    queue: &Arc<RawQueue>,
    memory: &Memory,
    offset: usize,
    bytes: usize,
    pattern: &[u8],
) -> Result<()> {
    let seed = pattern.repeat((SEED_BYTES / pattern.len()).max(1));
    let mut filled = seed.len().min(bytes);
    // SAFETY: `seed` is not changed, and kept below until the write is over.
    let written = unsafe { write(queue, memory, offset, seed.as_ptr(), filled) };
    let mut outcome = written.map(drop);
    while outcome.is_ok() && filled < bytes {
        let more = filled.min(bytes - filled);
        outcome = copy(queue, (memory, offset), (memory, offset + filled), more);
        filled += more;
    }
    queue.context.free_later(std::slice::from_ref(queue), move |_| drop(seed));
    outcome
}

/// Enqueues a copy inside the device. The context is current.
pub(super) fn copy(
    queue: &Arc<RawQueue>,
    (from, from_offset): (&Memory, usize),
    (to, to_offset): (&Memory, usize),
    bytes: usize,
) -> Result<()> {
    let (source, target) = (from.byte(from_offset), to.byte(to_offset));
    from.note_use(queue);
    to.note_use(queue);
    let driver = queue.driver();
    // SAFETY: checked ranges that do not overlap; a live stream of the current context.
    driver.check(unsafe { driver.table.copy_async(target, source, bytes, queue.raw) })
}
