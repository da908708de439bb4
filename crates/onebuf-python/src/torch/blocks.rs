//! Blocks of segments: which bytes are in use, and which may be used again.
//!
//! Data alone: no driver, no lock, no time. A segment is one allocation and belongs to one stream of one device. Its blocks follow each
//! other without gaps. A free block is used again by its own stream, split if it is too large, and joined with free neighbours.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{BuildHasherDefault, Hasher},
};

/// Blocks begin at multiples of this: what kernels of all APIs accept, and PyTorch's own unit.
pub const UNIT: usize = 512;
/// Requests up to this size share segments of [`SMALL_SEGMENT`] bytes.
const SMALL: usize = 1 << 20;
const SMALL_SEGMENT: usize = 2 << 20;
/// Requests below this size share segments of [`LARGE_SEGMENT`] bytes; others have segments of their own.
const LARGE: usize = 10 << 20;
const LARGE_SEGMENT: usize = 20 << 20;
/// The sizes of segments are multiples of this, which is the page size of exportable memory.
const PAGE: usize = 2 << 20;
/// The largest request: what is rounded up from it still is a size.
const MOST: usize = isize::MAX as usize - (64 << 20);

/// A stream of a device: device number, and the stream's handle.
pub type Key = (i32, usize);

type Ix = u32;
const NONE: Ix = Ix::MAX;

/// Hashes addresses of blocks, which differ above their lowest nine bits.
#[derive(Default)]
pub struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

type ByAddress<T> = HashMap<usize, T, BuildHasherDefault<AddressHasher>>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    Free,
    Taken,
    /// Given back, and other streams may still use it.
    Held,
}

struct Block {
    at: usize,
    bytes: usize,
    /// The neighbours in the segment.
    before: Ix,
    after: Ix,
    arena: Ix,
    /// In a segment for small requests.
    small: bool,
    state: Use,
}

/// One stream's free blocks, by size, for small and for large requests.
struct Arena {
    key: Key,
    free: [BTreeSet<(usize, usize, Ix)>; 2],
}

struct Segment<S> {
    bytes: usize,
    first: Ix,
    owner: S,
}

/// Counters, in bytes except for the last three.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Bytes of blocks in use, rounded up to whole units.
    pub allocated: usize,
    pub allocated_peak: usize,
    /// Bytes of all segments.
    pub reserved: usize,
    pub reserved_peak: usize,
    pub segments: usize,
    pub blocks: usize,
    /// Requests so far.
    pub requests: u64,
}

/// All segments. `S` is what keeps a segment's memory.
pub struct Blocks<S> {
    arenas: Vec<Arena>,
    blocks: Vec<Block>,
    unused: Vec<Ix>,
    in_use: ByAddress<Ix>,
    segments: BTreeMap<usize, Segment<S>>,
    stats: Stats,
}

impl<S> Default for Blocks<S> {
    fn default() -> Self {
        Self {
            arenas: Vec::new(),
            blocks: Vec::new(),
            unused: Vec::new(),
            in_use: HashMap::default(),
            segments: BTreeMap::new(),
            stats: Stats::default(),
        }
    }
}

/// The size of the block for a request; `None` if there can be none.
fn rounded(bytes: usize) -> Option<usize> {
    (1..=MOST).contains(&bytes).then(|| bytes.next_multiple_of(UNIT))
}

/// The size of the segment that a request needs if no free block serves it.
pub fn segment_bytes(bytes: usize) -> Option<usize> {
    let bytes = rounded(bytes)?;
    Some(match bytes {
        bytes if bytes <= SMALL => SMALL_SEGMENT,
        bytes if bytes < LARGE => LARGE_SEGMENT,
        _ => bytes.next_multiple_of(PAGE),
    })
}

impl<S> Blocks<S> {
    pub fn stats(&self) -> Stats {
        Stats { segments: self.segments.len(), blocks: self.in_use.len(), ..self.stats }
    }

    /// Takes a block that was free on this stream.
    pub fn take(&mut self, key: Key, bytes: usize) -> Option<usize> {
        let bytes = rounded(bytes)?;
        let arena = self.arenas.iter().position(|arena| arena.key == key)?;
        let small = bytes <= SMALL;
        let free = &mut self.arenas[arena].free[usize::from(small)];
        // The smallest that is large enough, and of these the lowest.
        let found = *free.range((bytes, 0, 0)..).next()?;
        free.remove(&found);
        let (have, at, ix) = found;
        let rest = have - bytes;
        if rest >= if small { UNIT } else { SMALL + UNIT } {
            self.split(ix, bytes);
        }
        let block = &mut self.blocks[ix as usize];
        block.state = Use::Taken;
        self.stats.allocated += block.bytes;
        self.stats.allocated_peak = self.stats.allocated_peak.max(self.stats.allocated);
        self.stats.requests += 1;
        self.in_use.insert(at, ix);
        Some(at)
    }

    /// Divides a block that is in no list; the rest becomes free.
    fn split(&mut self, ix: Ix, bytes: usize) {
        let Block { at, bytes: have, after, arena, small, .. } = self.blocks[ix as usize];
        let rest = self.put(Block {
            at: at + bytes,
            bytes: have - bytes,
            before: ix,
            after,
            arena,
            small,
            state: Use::Free,
        });
        if after != NONE {
            self.blocks[after as usize].before = rest;
        }
        let first = &mut self.blocks[ix as usize];
        (first.bytes, first.after) = (bytes, rest);
        self.list(rest);
    }

    fn put(&mut self, block: Block) -> Ix {
        if let Some(ix) = self.unused.pop() {
            self.blocks[ix as usize] = block;
            return ix;
        }
        self.blocks.push(block);
        (self.blocks.len() - 1) as Ix
    }

    /// Enters a free block into its stream's list.
    fn list(&mut self, ix: Ix) {
        let Block { at, bytes, arena, small, .. } = self.blocks[ix as usize];
        self.arenas[arena as usize].free[usize::from(small)].insert((bytes, at, ix));
    }

    fn unlist(&mut self, ix: Ix) {
        let Block { at, bytes, arena, small, .. } = self.blocks[ix as usize];
        self.arenas[arena as usize].free[usize::from(small)].remove(&(bytes, at, ix));
    }

    /// Adds a new segment for a stream. It was made for a request of `bytes`.
    pub fn add(&mut self, key: Key, at: usize, bytes: usize, owner: S) {
        let arena = self.arenas.iter().position(|arena| arena.key == key).unwrap_or_else(|| {
            self.arenas.push(Arena { key, free: Default::default() });
            self.arenas.len() - 1
        });
        let (before, after, arena, small) = (NONE, NONE, arena as Ix, bytes == SMALL_SEGMENT);
        let first = self.put(Block { at, bytes, before, after, arena, small, state: Use::Free });
        self.segments.insert(at, Segment { bytes, first, owner });
        self.stats.reserved += bytes;
        self.stats.reserved_peak = self.stats.reserved_peak.max(self.stats.reserved);
        self.list(first);
    }

    /// Gives a block back; whether it was in use. Its own stream may use it again.
    pub fn give(&mut self, at: usize) -> bool {
        let Some(ix) = self.leave(at, Use::Free) else { return false };
        self.join(ix);
        true
    }

    /// Gives a block back that is not reused before [`Blocks::release`].
    pub fn hold(&mut self, at: usize) -> bool {
        self.leave(at, Use::Held).is_some()
    }

    fn leave(&mut self, at: usize, state: Use) -> Option<Ix> {
        let ix = self.in_use.remove(&at)?;
        let block = &mut self.blocks[ix as usize];
        block.state = state;
        self.stats.allocated -= block.bytes;
        Some(ix)
    }

    /// Frees a block that was held.
    pub fn release(&mut self, at: usize) -> bool {
        let Some((_, segment)) = self.segments.range(..=at).next_back() else { return false };
        let mut ix = segment.first;
        while ix != NONE && self.blocks[ix as usize].at != at {
            ix = self.blocks[ix as usize].after;
        }
        if ix == NONE || self.blocks[ix as usize].state != Use::Held {
            return false;
        }
        self.blocks[ix as usize].state = Use::Free;
        self.join(ix);
        true
    }

    /// Joins a free block, which is in no list, with free neighbours, and enters the result into the list.
    fn join(&mut self, mut ix: Ix) {
        let is_free = |all: &[Block], ix: Ix| ix != NONE && all[ix as usize].state == Use::Free;
        let after = self.blocks[ix as usize].after;
        if is_free(&self.blocks, after) {
            self.unlist(after);
            self.swallow(ix, after);
        }
        let before = self.blocks[ix as usize].before;
        if is_free(&self.blocks, before) {
            self.unlist(before);
            self.swallow(before, ix);
            ix = before;
        }
        self.list(ix);
    }

    /// Makes the second block, which follows the first, a part of it.
    fn swallow(&mut self, ix: Ix, second: Ix) {
        let Block { bytes, after, .. } = self.blocks[second as usize];
        if after != NONE {
            self.blocks[after as usize].before = ix;
        }
        let first = &mut self.blocks[ix as usize];
        first.bytes += bytes;
        first.after = after;
        self.unused.push(second);
    }

    /// The segment that an address lies in: its owner, its first address and its size.
    pub fn segment(&self, at: usize) -> Option<(&S, usize, usize)> {
        let (first, segment) = self.segments.range(..=at).next_back()?;
        (at - first < segment.bytes).then_some((&segment.owner, *first, segment.bytes))
    }

    /// Whether these bytes lie inside of one block that is in use, and where that begins.
    pub fn block(&self, at: usize, bytes: usize) -> Option<usize> {
        let (_, first, _) = self.segment(at)?;
        let mut ix = self.segments.get(&first)?.first;
        while ix != NONE {
            let block = &self.blocks[ix as usize];
            if at >= block.at && at - block.at < block.bytes {
                let fits = bytes <= block.bytes - (at - block.at);
                return (block.state == Use::Taken && fits).then_some(block.at);
            }
            ix = block.after;
        }
        None
    }

    /// All segments: their streams, owners and sizes.
    pub fn segments(&self) -> impl Iterator<Item = (Key, &S, usize)> {
        self.segments.values().map(|segment| {
            let arena = self.blocks[segment.first as usize].arena;
            (self.arenas[arena as usize].key, &segment.owner, segment.bytes)
        })
    }

    /// Takes all of a segment that was just added.
    pub fn take_whole(&mut self, at: usize) -> bool {
        let Some(first) = self.segments.get(&at).map(|segment| segment.first) else { return false };
        self.unlist(first);
        let block = &mut self.blocks[first as usize];
        block.state = Use::Taken;
        self.stats.allocated += block.bytes;
        self.stats.allocated_peak = self.stats.allocated_peak.max(self.stats.allocated);
        self.stats.requests += 1;
        self.in_use.insert(at, first);
        true
    }

    /// The stream that the segment of an address belongs to.
    pub fn key_of(&self, at: usize) -> Option<Key> {
        let (_, first, _) = self.segment(at)?;
        let block = &self.blocks[self.segments.get(&first)?.first as usize];
        Some(self.arenas[block.arena as usize].key)
    }

    /// The segments that have no block in use: where they begin, and the streams that used them.
    pub fn idle(&self) -> Vec<(usize, Key)> {
        let idle = |(at, segment): (&usize, &Segment<S>)| {
            let first = &self.blocks[segment.first as usize];
            let is_idle = first.state == Use::Free && first.after == NONE;
            is_idle.then(|| (*at, self.arenas[first.arena as usize].key))
        };
        self.segments.iter().filter_map(idle).collect()
    }

    /// Takes a segment out that has one block, in use or free.
    pub fn remove(&mut self, at: usize) -> Option<(Key, S)> {
        let first = self.segments.get(&at)?.first;
        if self.blocks[first as usize].after != NONE {
            return None;
        }
        match self.blocks[first as usize].state {
            Use::Free => self.unlist(first),
            Use::Taken => drop(self.leave(at, Use::Free)),
            Use::Held => return None,
        }
        let segment = self.segments.remove(&at)?;
        let arena = self.blocks[first as usize].arena;
        self.stats.reserved -= segment.bytes;
        self.unused.push(first);
        Some((self.arenas[arena as usize].key, segment.owner))
    }
}
