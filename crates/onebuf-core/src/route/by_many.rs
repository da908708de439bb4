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
use std::hint;

/// How many chunks of an upload the threads may fill before the first of them is transferred.
const AHEAD: usize = 4;

/// How often the state of transfers is looked at before the thread waits for one.
const LOOKS: u32 = if cfg!(onebuf_shuttle) { 0 } else { 2000 };

fn ring<'a>(division: &Division, most: usize, means: &Means<'a>) -> Chunks<'a> {
    let largest = (0..division.chunks()).map(|chunk| division.chunk(chunk).1).max();
    Chunks::new(largest.unwrap_or(1), division.chunks(), most, means)
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
    let mut ring = ring(&division, means.copy_pool.tuning.ring, means);
    let sides = (CopySide::Whole(from.cast_mut()), CopySide::Ring(ring.addresses()));
    let tuning = &means.copy_pool.tuning;
    let streams = bytes < tuning.cache_from_bytes;
    // SAFETY: the caller's bytes, and chunks that are used as the head of this file says.
    let feed = Arc::new(unsafe { Feed::new(sides.0, sides.1, division.clone(), streams) });
    let all = division.chunks();
    // The threads need a few chunks, not all: the others' transfers are over when they are looked at, instead of again and again.
    let ahead = ring.len().min(AHEAD);
    let (mut opened, mut sent, mut looks) = (ahead, 0, 0);
    feed.open(opened);
    let helped = means.copy_pool.help(&feed, tuning.threads_up(bytes));
    while sent < all {
        if feed.is_copied(sent) {
            let (at, len) = division.chunk(sent);
            ring.of(sent).write(queue, to, offset + at, len)?;
            queue.flush()?;
            sent += 1;
        } else if opened < all && opened < sent + ahead && ring.of(opened).poll()? {
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
    let tuning = &means.copy_pool.tuning;
    let (streams, threads) = (bytes >= tuning.stream_from_bytes, tuning.threads_for(bytes));
    let mut ring = ring(&division, means.copy_pool.tuning.ring, means);
    let sides = (CopySide::Ring(ring.addresses()), CopySide::Whole(to));
    // SAFETY: as for `upload`.
    let feed = Arc::new(unsafe { Feed::new(sides.0, sides.1, division.clone(), streams) });
    let all = division.chunks();
    let (mut asked, mut opened, mut done, mut looks, mut helped) = (0, 0, 0, 0, None);
    while done < all {
        if asked > 0 && helped.is_none() {
            // After the first transfer has started: waking threads takes time, and so does starting the other transfers.
            helped = Some(means.copy_pool.help(&feed, threads));
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

/// Copies from device to device, and returns the number of chunks; both directions of the bus are busy. If one device can pin the
/// chunks of the other, there is one ring, which both transfer. Otherwise each has its own, and threads copy between them.
pub(super) fn relay(
    from: Stretch<'_>,
    to: Stretch<'_>,
    bytes: usize,
    source: &Means<'_>,
    target: &Means<'_>,
) -> Result<usize> {
    let division = target.relay_division(bytes);
    // Of large chunks half as many keep both devices busy.
    let most = target.copy_pool.tuning.ring.div_ceil(2);
    let mut writes = ring(&division, most, target);
    if writes.share_with(source) {
        return pass_on(from, to, &division, writes);
    }
    let mut reads = ring(&division, most, source);
    if reads.share_with(target) {
        drop(writes);
        return pass_on(from, to, &division, reads);
    }
    from_ring_to_ring(from, to, &division, (reads, writes), target)
}

/// Copies through chunks that both devices transfer.
fn pass_on(
    Stretch(from_queue, from, from_at): Stretch<'_>,
    Stretch(to_queue, to, to_at): Stretch<'_>,
    division: &Division,
    mut ring: Chunks<'_>,
) -> Result<usize> {
    let all = division.chunks();
    let (mut asked, mut sent, mut looks) = (0, 0, 0);
    while sent < all {
        // A slot is free, being read to, or being written from: one event at a time.
        if sent < asked && ring.of(sent).poll()? {
            let (at, len) = division.chunk(sent);
            ring.of(sent).write(to_queue, to, to_at + at, len)?;
            to_queue.flush()?;
            (sent, looks) = (sent + 1, 0);
        } else if asked < all && asked < sent + ring.len() && ring.of(asked).poll()? {
            let (at, len) = division.chunk(asked);
            ring.of(asked).read(from_queue, from, from_at + at, len)?;
            from_queue.flush()?;
            (asked, looks) = (asked + 1, 0);
        } else if looks < LOOKS {
            looks += 1;
            hint::spin_loop();
        } else {
            // The oldest read, or the oldest write if no read is under way.
            ring.settle(sent)?;
        }
    }
    ring.finish().map(|()| all)
}

/// Copies through chunks of both devices. A device transfers to and from its own pinned memory alone at full speed, so threads copy
/// from one chunk to the other.
fn from_ring_to_ring(
    Stretch(from_queue, from, from_at): Stretch<'_>,
    Stretch(to_queue, to, to_at): Stretch<'_>,
    division: &Division,
    (mut reads, mut writes): (Chunks<'_>, Chunks<'_>),
    means: &Means<'_>,
) -> Result<usize> {
    let sides = (CopySide::Ring(reads.addresses()), CopySide::Ring(writes.addresses()));
    // SAFETY: chunks of two rings, used as the head of this file says.
    let feed = Arc::new(unsafe { Feed::new(sides.0, sides.1, division.clone(), false) });
    let (all, threads) = (division.chunks(), means.copy_pool.tuning.threads_for(feed.bytes()));
    let (mut asked, mut opened, mut sent, mut looks, mut helped) = (0, 0, 0, 0, None);
    while sent < all {
        if asked > 0 && helped.is_none() {
            helped = Some(means.copy_pool.help(&feed, threads));
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
