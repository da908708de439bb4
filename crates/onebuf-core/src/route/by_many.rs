//! Large copies through chunks: several threads copy between the chunks and host memory, while the device transfers other chunks.
//!
//! Only the calling thread calls drivers. When it has no transfer to start, it copies pieces like the others.
//!
//! # Safety
//! A chunk belongs to the copying threads from `Feed::open` until `Feed::is_copied`, and to a driver from the start of a transfer
//! until its event has completed. The guard of the helping threads is dropped before the chunks are, and before the caller's memory
//! is returned.

#![allow(unsafe_code)]

use super::{
    feed::{CopySide, Division, Feed, pause},
    means::{Means, Stretch},
    ring::Chunks,
};
use onebuf_hal::{Result, locks::Arc};

fn ring<'a>(division: &Division, means: &Means<'a>) -> Chunks<'a> {
    let largest = (0..division.chunks()).map(|chunk| division.chunk(chunk).1).max();
    Chunks::new(largest.unwrap_or(1), division.chunks(), means.copy_pool.tuning.ring, means)
}

/// Copies bytes to device memory. They may change meanwhile, so no reference to them is created.
///
/// # Safety
/// `bytes` bytes are mapped at `from`.
pub(super) unsafe fn upload(
    from: *const u8,
    bytes: usize,
    Stretch(queue, to, offset): Stretch<'_>,
    means: &Means<'_>,
) -> Result<()> {
    let division = means.division(bytes);
    let mut ring = ring(&division, means);
    let sides = (CopySide::Whole(from.cast_mut()), CopySide::Ring(ring.addresses()));
    // SAFETY: the caller's bytes, and chunks that are used as the head of this file says.
    let feed = Arc::new(unsafe { Feed::new(sides.0, sides.1, division.clone(), true) });
    let all = division.chunks();
    let (mut opened, mut sent, mut looks) = (ring.len(), 0, 0);
    feed.open(opened);
    let helped = means.copy_pool.help(&feed);
    while sent < all {
        if feed.is_copied(sent) {
            let (at, len) = division.chunk(sent);
            ring.of(sent).write(queue, to, offset + at, len)?;
            queue.flush()?;
            sent += 1;
        } else if opened < all && opened < sent + ring.len() && ring.of(opened).poll()? {
            opened += 1;
            feed.open(opened);
        } else if feed.copy_one() {
            looks = 0;
        } else if sent == opened {
            ring.settle(opened)?;
        } else {
            looks = pause(looks);
        }
    }
    drop(helped);
    ring.finish()
}

/// Copies device memory to bytes that others may be reading, so no reference to them is created.
///
/// # Safety
/// `bytes` bytes are mapped at `to`.
pub(super) unsafe fn download(
    Stretch(queue, from, offset): Stretch<'_>,
    to: *mut u8,
    bytes: usize,
    means: &Means<'_>,
) -> Result<()> {
    let division = means.division(bytes);
    let streams = bytes >= means.copy_pool.tuning.stream_from_bytes;
    let mut ring = ring(&division, means);
    let sides = (CopySide::Ring(ring.addresses()), CopySide::Whole(to));
    // SAFETY: as for `upload`.
    let feed = Arc::new(unsafe { Feed::new(sides.0, sides.1, division.clone(), streams) });
    let all = division.chunks();
    let (mut asked, mut opened, mut done, mut looks, mut helped) = (0, 0, 0, 0, None);
    while done < all {
        if asked > 0 && helped.is_none() {
            // After the first transfer has started: waking threads takes time, and so does starting the other transfers.
            helped = Some(means.copy_pool.help(&feed));
        } else if asked < all && asked < done + ring.len() {
            let (at, len) = division.chunk(asked);
            ring.of(asked).read(queue, from, offset + at, len)?;
            queue.flush()?;
            asked += 1;
        } else if opened < asked && ring.of(opened).poll()? {
            opened += 1;
            feed.open(opened);
        } else if feed.is_copied(done) {
            done += 1;
        } else if feed.copy_one() {
            looks = 0;
        } else if done == opened {
            ring.settle(opened)?;
        } else {
            looks = pause(looks);
        }
    }
    drop(helped);
    ring.finish()
}

/// Copies from device to device, through chunks of both, and returns the number of chunks. A device transfers to and from its own
/// pinned memory alone at full speed, so threads copy from one chunk to the other; both directions of the bus are busy meanwhile.
pub(super) fn relay(
    Stretch(from_queue, from, from_at): Stretch<'_>,
    Stretch(to_queue, to, to_at): Stretch<'_>,
    bytes: usize,
    source: &Means<'_>,
    target: &Means<'_>,
) -> Result<usize> {
    let division = target.division(bytes);
    let mut reads = ring(&division, source);
    let mut writes = ring(&division, target);
    let sides = (CopySide::Ring(reads.addresses()), CopySide::Ring(writes.addresses()));
    // SAFETY: chunks of two rings, used as the head of this file says.
    let feed = Arc::new(unsafe { Feed::new(sides.0, sides.1, division.clone(), false) });
    let all = division.chunks();
    let (mut asked, mut opened, mut sent, mut looks, mut helped) = (0, 0, 0, 0, None);
    while sent < all {
        if asked > 0 && helped.is_none() {
            helped = Some(target.copy_pool.help(&feed));
        } else if feed.is_copied(sent) {
            let (at, len) = division.chunk(sent);
            writes.of(sent).write(to_queue, to, to_at + at, len)?;
            to_queue.flush()?;
            sent += 1;
        } else if asked < all && asked < sent + reads.len() {
            let (at, len) = division.chunk(asked);
            reads.of(asked).read(from_queue, from, from_at + at, len)?;
            from_queue.flush()?;
            asked += 1;
        } else if opened < asked
            && opened < sent + writes.len()
            && reads.of(opened).poll()?
            && writes.of(opened).poll()?
        {
            opened += 1;
            feed.open(opened);
        } else if feed.copy_one() {
            looks = 0;
        } else if sent == opened {
            reads.settle(opened)?;
            writes.settle(opened)?;
        } else {
            looks = pause(looks);
        }
    }
    drop(helped);
    writes.finish().map(|()| all)
}
