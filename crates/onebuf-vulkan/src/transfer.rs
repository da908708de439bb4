//! Requested copies: reads, writes, fills, and copies between two memories of one device.
//!
//! The driver never accesses the caller's memory: bytes go through onebuf's mapped staging memory. For a write they are copied
//! there right before the batch is submitted, which may be long after the call if it waits for a host signal. For a read
//! they are copied from there when a thread finds that the batch is done. Memory that is itself mapped by this device is copied
//! directly. Ranges have been checked and are not empty.

use super::{
    batch::{Carry, Keep},
    block::{Block, HostAddress},
    event::Event,
    memory::{Inner, Memory},
    queue::{Queue, RawQueue, State},
};
use onebuf_hal::{self as hal, Error, Result, locks::Arc};
use onebuf_sys::vulkan::vk;

/// The size of one piece of a copy through staging memory, and how many pieces may be pending at once.
const PIECE_BYTES: usize = 16 << 20;
const PIECES: usize = 2;
/// Patterns that the driver cannot fill are written up to this size, then copied repeatedly.
const SEED_BYTES: usize = 4096;

/// # Safety
/// `into` is valid for writes of `bytes`, and not otherwise used, until the event completes.
pub(super) unsafe fn read(
    queue: &Arc<RawQueue>,
    from: &Memory,
    offset: usize,
    into: *mut u8,
    bytes: usize,
) -> Result<Event> {
    if let Some((mapped, start)) = queue.context().mapped.find(into, bytes) {
        let (source, target) = (from.byte(offset), mapped.byte(start));
        return directly(queue, from, &mapped, |recording| {
            copy_now(recording, (from.inner.buffer, source), (mapped.buffer, target), bytes);
        });
    }
    in_pieces(queue, bytes, |at, len| {
        let source = from.byte(offset + at);
        through_staging(queue, from, len, |block, staged, context| {
            let Block { buffer, .. } = *block;
            copy_now(context, (from.inner.buffer, source), (buffer, 0), len);
            // SAFETY: inside the caller's memory.
            (None, Some(Carry { from: staged, to: unsafe { into.add(at) }, bytes: len }))
        })
    })
}

/// # Safety
/// `from` is valid for reads of `bytes`, and not written, until the event completes.
pub(super) unsafe fn write(
    queue: &Arc<RawQueue>,
    to: &Memory,
    offset: usize,
    from: *const u8,
    bytes: usize,
) -> Result<Event> {
    let_land(queue)?;
    if let Some((mapped, start)) = queue.context().mapped.find(from, bytes) {
        let (source, target) = (mapped.byte(start), to.byte(offset));
        return directly(queue, to, &mapped, |recording| {
            copy_now(recording, (mapped.buffer, source), (to.inner.buffer, target), bytes);
        });
    }
    in_pieces(queue, bytes, |at, len| {
        let target = to.byte(offset + at);
        through_staging(queue, to, len, |block, staged, context| {
            let Block { buffer, .. } = *block;
            copy_now(context, (buffer, 0), (to.inner.buffer, target), len);
            // SAFETY: inside the caller's memory.
            (Some(Carry { from: unsafe { from.add(at) }, to: staged, bytes: len }), None)
        })
    })
}

/// Writes new memory and waits for it. Nothing holds a new queue back, so the contents have been read when the call
/// returns, even if the wait fails.
pub(super) fn write_now(to: &Memory, contents: &[u8]) -> Result<()> {
    let queue = Queue::new(to.context().clone(), false)?;
    let bytes = contents.len().min(hal::Memory::bytes(to));
    // SAFETY: the contents are read before the submission, which is part of the call.
    let event = unsafe { write(&queue.raw, to, 0, contents.as_ptr(), bytes)? };
    hal::Event::wait(&event, to.context().driver.post.limit())
}

/// Waits until other queues' reads that this queue waits for have reached the caller's memory, which a write may read.
fn let_land(queue: &RawQueue) -> Result<()> {
    let unlanded = std::mem::take(&mut queue.lock().unlanded);
    for (other, value) in unlanded {
        if let Some(other) = other.upgrade()
            && !other.wait(value, other.context().driver.post.limit())?
        {
            return Err(Error::timeout(
                "a read that this write waits for",
                other.context().driver.post.limit(),
            ));
        }
    }
    Ok(())
}

/// Copies in pieces. The event of the last piece is after all of them.
fn in_pieces(
    queue: &Arc<RawQueue>,
    bytes: usize,
    mut copy: impl FnMut(usize, usize) -> Result<Event>,
) -> Result<Event> {
    let limit = queue.context().driver.post.limit();
    let mut events: Vec<Event> = Vec::new();
    for at in (0..bytes).step_by(PIECE_BYTES) {
        let before = events.len().checked_sub(PIECES).map(|n| &events[n]);
        let turn = before.map_or(Ok(()), |event| hal::Event::wait(event, limit));
        match turn.and_then(|()| copy(at, PIECE_BYTES.min(bytes - at))) {
            Ok(event) => events.push(event),
            Err(why) => {
                // The caller gets no event, so its memory may be freed now.
                queue.forget_callers(events.first().map_or(u64::MAX, |event| event.value));
                return Err(why);
            }
        }
    }
    events.pop().map_or_else(|| queue.mark(), Ok)
}

/// The queue and command buffer that a copy is recorded into.
struct Recording<'a> {
    queue: &'a RawQueue,
    commands: vk::CommandBuffer,
}

/// Submits a batch of one copy between memory and staging memory, with the copy between that and the caller's memory.
fn through_staging(
    queue: &Arc<RawQueue>,
    memory: &Memory,
    bytes: usize,
    record: impl FnOnce(&Block, *mut u8, &Recording<'_>) -> (Option<Carry>, Option<Carry>),
) -> Result<Event> {
    let mut state = queue.lock();
    queue.flush(&mut state)?;
    let (block, staged) = stage(queue, &mut state, bytes)?;
    let context = queue.context().clone();
    let batch = match queue.open(&mut state) {
        Ok(batch) => batch,
        Err(why) => {
            block.free(&context.table);
            return Err(why);
        }
    };
    let commands = batch.use_in_order(&context, &[memory]);
    let (load, landing) = record(&block, staged, &Recording { queue, commands });
    batch.loads.extend(load);
    batch.landings.extend(landing);
    batch.staging.push(block);
    queue.flush_own(&mut state)
}

/// Submits a batch of one copy between memory and mapped memory, which the batch keeps.
fn directly(
    queue: &Arc<RawQueue>,
    memory: &Memory,
    mapped: &Arc<Inner>,
    record: impl FnOnce(&Recording<'_>),
) -> Result<Event> {
    let (mut state, context) = (queue.lock(), queue.context().clone());
    queue.flush(&mut state)?;
    let batch = queue.open(&mut state)?;
    let commands = batch.use_in_order(&context, &[memory]);
    batch.keep(Keep::Memory(mapped.clone()));
    record(&Recording { queue, commands });
    queue.flush_own(&mut state)
}

/// Staging memory, and its host address.
fn stage(queue: &RawQueue, state: &mut State, bytes: usize) -> Result<(Block, *mut u8)> {
    let block = queue.stage(state, bytes)?;
    match block.host {
        Some(HostAddress(at)) => Ok((block, at.as_ptr())),
        None => {
            block.free(&queue.context().table);
            Err(Error::unsupported("staging memory", "a driver that maps host-visible memory"))
        }
    }
}

fn copy_now(
    Recording { queue, commands }: &Recording<'_>,
    (from, from_at): (vk::Buffer, u64),
    (to, to_at): (vk::Buffer, u64),
    bytes: usize,
) {
    let regions =
        [vk::BufferCopy::default().src_offset(from_at).dst_offset(to_at).size(bytes as u64)];
    // SAFETY: being recorded; live buffers that the batch keeps, and ranges that were checked.
    unsafe { queue.context().table.raw().cmd_copy_buffer(*commands, from, to, &regions) };
}

/// Fills with a pattern: by the driver's fill if it is one repeated word, otherwise by writing one piece and doubling
/// it.
pub(super) fn fill(
    queue: &Arc<RawQueue>,
    memory: &Memory,
    offset: usize,
    bytes: usize,
    pattern: &[u8],
) -> Result<()> {
    let at = memory.byte(offset);
    match as_word(pattern).filter(|_| at.is_multiple_of(4) && bytes.is_multiple_of(4)) {
        Some(word) => record(queue, &[memory], |recording| {
            let (table, buffer) = (&queue.context().table, memory.inner.buffer);
            // SAFETY: being recorded; a live buffer that the batch keeps, and a range of whole words.
            unsafe {
                table.raw().cmd_fill_buffer(recording.commands, buffer, at, bytes as u64, word);
            }
        }),
        None => fill_by_doubling(queue, memory, (offset, bytes), pattern),
    }
}

/// The word whose repetition equals the repeated pattern, if there is one.
fn as_word(pattern: &[u8]) -> Option<u32> {
    let word = [0, 1, 2, 3].map(|i| pattern[i % pattern.len()]);
    let same = (0..4 * pattern.len()).all(|i| pattern[i % pattern.len()] == word[i % 4]);
    same.then(|| u32::from_ne_bytes(word))
}

fn fill_by_doubling(
    queue: &Arc<RawQueue>,
    memory: &Memory,
    (offset, bytes): (usize, usize),
    pattern: &[u8],
) -> Result<()> {
    let seed = pattern.repeat((SEED_BYTES / pattern.len()).max(1));
    let mut filled = seed.len().min(bytes);
    seeded(queue, memory, offset, &seed[..filled])?;
    while filled < bytes {
        let more = filled.min(bytes - filled);
        copy(queue, (memory, offset), (memory, offset + filled), more)?;
        filled += more;
    }
    Ok(())
}

/// Writes bytes, which are copied to staging memory at once.
fn seeded(queue: &Arc<RawQueue>, memory: &Memory, offset: usize, seed: &[u8]) -> Result<()> {
    let target = memory.byte(offset);
    let event = through_staging(queue, memory, seed.len(), |block, staged, recording| {
        // SAFETY: staging memory of at least this many bytes, which no batch uses yet.
        unsafe { staged.copy_from_nonoverlapping(seed.as_ptr(), seed.len()) };
        copy_now(recording, (block.buffer, 0), (memory.inner.buffer, target), seed.len());
        (None, None)
    });
    event.map(drop)
}

/// Copies between two memories of the device.
pub(super) fn copy(
    queue: &Arc<RawQueue>,
    (from, from_offset): (&Memory, usize),
    (to, to_offset): (&Memory, usize),
    bytes: usize,
) -> Result<()> {
    let (source, target) = (from.byte(from_offset), to.byte(to_offset));
    record(queue, &[from, to], |recording| {
        let (from, to) = (from.inner.buffer, to.inner.buffer);
        copy_now(recording, (from, source), (to, target), bytes);
    })
}

/// Adds a command to the batch being recorded.
fn record(
    queue: &Arc<RawQueue>,
    uses: &[&Memory],
    record: impl FnOnce(&Recording<'_>),
) -> Result<()> {
    let (mut state, context) = (queue.lock(), queue.context().clone());
    let batch = queue.open(&mut state)?;
    let commands = batch.use_in_order(&context, uses);
    record(&Recording { queue, commands });
    batch.commands += 1;
    queue.flush_if_full(&mut state)
}

#[cfg(test)]
mod tests {
    use super::as_word;

    #[test]
    fn a_pattern_is_a_word_where_it_looks_like_one() {
        assert_eq!(as_word(&[7]), Some(0x0707_0707));
        assert_eq!(as_word(&[0; 24]), Some(0));
        assert_eq!(as_word(&[1, 2]), Some(u32::from_ne_bytes([1, 2, 1, 2])));
        assert_eq!(as_word(&[1, 2, 3, 4, 1, 2, 3, 4]), Some(u32::from_ne_bytes([1, 2, 3, 4])));
        assert_eq!(as_word(&[1, 2, 3]), None);
        assert_eq!(as_word(&[1, 2, 3, 4, 5, 6, 7, 8]), None);
    }
}
