//! Returned buffers, listed by kind and size, for reuse.

use super::{AllocationRequest, Block, MemoryResource, PoolStatistics};
use crate::buffer::Shape;
use onebuf_hal::{
    Error, Result,
    locks::{Mutex, lock},
};
use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hash, Hasher},
};

/// Keeps returned buffers in one list per kind of memory and size. The newest is reused first, because it is the likeliest to
/// be in a cache.
///
/// Idle memory is bounded: on a miss, buffers that were idle longest are freed if the pool would otherwise exceed the peak of
/// memory in use by more than a sixteenth.
#[derive(Debug, Default)]
pub struct FreeLists<S> {
    below: S,
    lists: Mutex<Lists>,
}

/// The pool may exceed the peak of memory in use by one part in `SLACK`.
const SLACK: u64 = 16;

#[derive(Debug, Default)]
struct Lists {
    shelves: Vec<Shelf>,
    /// The list that was used last.
    last: u32,
    /// Lists by the hash of their key.
    numbers: HashMap<u64, Vec<u32>, BuildHasherDefault<Mix>>,
    /// Counts returns, to order buffers by idle time.
    clock: u64,
    hits: u64,
    misses: u64,
    lost: u64,
    live: Amount,
    idle: Amount,
    /// The size of buffers being created. They are not counted yet, so that a failed request leaves no trace.
    pending_bytes: u64,
    peak_live_bytes: u64,
    peak_held_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    buffers: u64,
    bytes: u64,
}

impl Amount {
    fn add(&mut self, bytes: usize) {
        self.buffers += 1;
        self.bytes += bytes as u64;
    }

    fn remove(&mut self, bytes: usize) {
        self.buffers = self.buffers.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes as u64);
    }
}

/// Idle buffers of one kind and size.
#[derive(Debug)]
struct Shelf {
    shape: Shape,
    capacity: usize,
    /// Idle buffers with the time of their return, oldest first.
    idle: Vec<(u64, Block)>,
}

impl Shelf {
    #[inline]
    fn fits(&self, request: &AllocationRequest<'_>) -> bool {
        self.capacity == request.capacity && self.shape == *request.shape
    }
}

impl<S: MemoryResource> FreeLists<S> {
    /// Creates free lists above another memory resource.
    pub fn new(below: S) -> Self {
        Self { below, lists: Mutex::default() }
    }

    /// Handles a miss: frees the evicted buffers, then takes memory from below.
    fn fetch(
        &self,
        request: &AllocationRequest<'_>,
        shelf: u32,
        victims: Vec<Block>,
    ) -> Result<Block> {
        victims.into_iter().for_each(|block| self.below.give(block));
        let taken = match self.below.take(request) {
            Err(error @ Error::OutOfMemory { .. }) => self.after_all(request, shelf, error),
            taken => taken.map(MissOutcome::New),
        };
        let mut lists = lock(&self.lists);
        lists.pending_bytes -= request.capacity as u64;
        let block = match taken? {
            MissOutcome::Idle(block) => return Ok(block),
            MissOutcome::New(block) => block,
        };
        lists.note_made(block.capacity());
        Ok(Block { shelf, ..block })
    }

    /// The resource below is out of memory. A matching buffer may have been returned meanwhile; otherwise freeing all idle
    /// buffers may help.
    fn after_all(
        &self,
        request: &AllocationRequest<'_>,
        shelf: u32,
        error: Error,
    ) -> Result<MissOutcome> {
        let mut lists = lock(&self.lists);
        if let Some(block) = lists.pop(shelf) {
            return Ok(MissOutcome::Idle(block));
        }
        let victims = lists.evict(0);
        drop(lists);
        let mut freed = !victims.is_empty();
        victims.into_iter().for_each(|block| self.below.give(block));
        freed |= self.below.trim(0) > 0;
        if freed { self.below.take(request).map(MissOutcome::New) } else { Err(error) }
    }
}

/// The result of a miss.
enum MissOutcome {
    Idle(Block),
    New(Block),
}

impl<S: MemoryResource> MemoryResource for FreeLists<S> {
    fn take(&self, request: &AllocationRequest<'_>) -> Result<Block> {
        let mut lists = lock(&self.lists);
        let number = lists.shelf_for(request);
        if let Some(block) = lists.pop(number) {
            return Ok(block);
        }
        let victims = lists.make_room(request.capacity);
        drop(lists);
        self.fetch(request, number, victims)
    }

    fn give(&self, mut block: Block) {
        let reusable = block.is_reusable();
        let mut lists = lock(&self.lists);
        lists.live.remove(block.capacity());
        if reusable && lists.knows(&block) {
            return lists.push(block);
        }
        lists.lost += 1;
        drop(lists);
        self.below.give(block);
    }

    fn trim(&self, keep_bytes: u64) -> u64 {
        let victims = lock(&self.lists).evict(keep_bytes);
        let freed: u64 = victims.iter().map(|block| block.capacity() as u64).sum();
        // Without the lock, because freeing calls the driver.
        victims.into_iter().for_each(|block| self.below.give(block));
        freed + self.below.trim(keep_bytes)
    }

    fn count(&self, statistics: &mut PoolStatistics) {
        lock(&self.lists).count(statistics);
        self.below.count(statistics);
    }
}

impl Lists {
    #[inline]
    fn shelf_for(&mut self, request: &AllocationRequest<'_>) -> u32 {
        // Most programs request the same kind again.
        if self.shelves.get(self.last as usize).is_some_and(|shelf| shelf.fits(request)) {
            return self.last;
        }
        self.last = self.find_or_add(request);
        self.last
    }

    fn find_or_add(&mut self, request: &AllocationRequest<'_>) -> u32 {
        let mut hasher = Mix::default();
        (request.capacity, request.shape).hash(&mut hasher);
        let numbers = self.numbers.entry(hasher.finish()).or_default();
        let fits = |number: &&u32| self.shelves[**number as usize].fits(request);
        if let Some(number) = numbers.iter().find(fits) {
            return *number;
        }
        let number = self.shelves.len() as u32;
        numbers.push(number);
        let (shape, capacity) = (request.shape.clone(), request.capacity);
        self.shelves.push(Shelf { shape, capacity, idle: Vec::new() });
        number
    }

    #[inline]
    fn pop(&mut self, shelf: u32) -> Option<Block> {
        let (_, block) = self.shelves[shelf as usize].idle.pop()?;
        self.hits += 1;
        self.idle.remove(block.capacity());
        self.take_up(block.capacity());
        Some(block)
    }

    /// Whether the block came from these lists. Another stack has its own list numbers.
    #[inline]
    fn knows(&self, block: &Block) -> bool {
        let shelf = self.shelves.get(block.shelf as usize);
        shelf.is_some_and(|shelf| shelf.capacity <= block.capacity())
    }

    #[inline]
    fn push(&mut self, block: Block) {
        self.clock += 1;
        self.idle.add(block.capacity());
        self.shelves[block.shelf as usize].idle.push((self.clock, block));
    }

    fn take_up(&mut self, capacity: usize) {
        self.live.add(capacity);
        self.peak_live_bytes = self.peak_live_bytes.max(self.live.bytes);
    }

    /// Counts a buffer that is about to be created, and returns the idle buffers to free for it.
    fn make_room(&mut self, capacity: usize) -> Vec<Block> {
        self.pending_bytes = self.pending_bytes.saturating_add(capacity as u64);
        let needed = self.live.bytes.saturating_add(self.pending_bytes);
        let peak = self.peak_live_bytes.max(needed);
        self.evict((peak - needed).saturating_add(peak / SLACK))
    }

    /// Counts a created buffer. Its capacity may exceed the request.
    fn note_made(&mut self, capacity: usize) {
        self.misses += 1;
        self.take_up(capacity);
        self.peak_held_bytes = self.peak_held_bytes.max(self.live.bytes + self.idle.bytes);
    }

    /// Removes the buffers that were idle longest, until at most `keep_bytes` are idle.
    fn evict(&mut self, keep_bytes: u64) -> Vec<Block> {
        let mut victims = Vec::new();
        while self.idle.bytes > keep_bytes {
            let oldest = |shelf: &&mut Shelf| shelf.idle.first().map_or(u64::MAX, |(at, _)| *at);
            let shelves = self.shelves.iter_mut().filter(|shelf| !shelf.idle.is_empty());
            let Some(shelf) = shelves.min_by_key(oldest) else { break };
            let (_, block) = shelf.idle.remove(0);
            self.idle.remove(block.capacity());
            victims.push(block);
        }
        victims
    }

    fn count(&self, statistics: &mut PoolStatistics) {
        statistics.hits += self.hits;
        statistics.misses += self.misses;
        statistics.lost += self.lost;
        statistics.live_buffers += self.live.buffers;
        statistics.live_bytes += self.live.bytes;
        statistics.idle_buffers += self.idle.buffers;
        statistics.idle_bytes += self.idle.bytes;
        statistics.peak_live_bytes += self.peak_live_bytes;
        statistics.peak_held_bytes += self.peak_held_bytes;
        for (_, block) in self.shelves.iter().flat_map(|shelf| &shelf.idle) {
            *statistics.idle_by_memory_kind.entry(block.memory_kind()).or_default() +=
                block.capacity() as u64;
        }
    }
}

/// A fast hash for a few small numbers. Its weak distribution is harmless, because keys are compared afterwards.
#[derive(Clone, Copy, Debug, Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(n.into());
    }

    fn write_u16(&mut self, n: u16) {
        self.write_u64(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    fn write_isize(&mut self, n: isize) {
        self.write_u64(n as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}
