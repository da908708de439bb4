//! A copy of host memory that several threads make together, piece by piece, as its chunks become available.
//!
//! The calling thread opens chunks; all threads take pieces of open chunks, and count them when they are copied. Only the
//! calling thread calls drivers.
//!
//! # Safety
//! Threads access the memory between [`CopyPool::help`](super::copy_pool::CopyPool::help) and the end of its guard. The code
//! that creates a feed keeps the memory valid for that time, and gives a chunk to no driver between [`Feed::open`] and
//! [`Feed::is_copied`].

#![allow(unsafe_code)]

use super::streaming;
use onebuf_hal::locks::{AtomicBool, AtomicU64, Ordering, thread};
use std::hint;

/// How many times a thread looks for a piece before it lets others run.
const LOOKS: u32 = if cfg!(onebuf_shuttle) { 0 } else { 500 };

/// Chunks at the ends of a copy have at least this many pieces.
const LEAST_PIECES: usize = 4;

/// How a copy is divided into chunks, and these into pieces.
#[derive(Clone, Debug)]
pub(crate) struct Division {
    bytes: usize,
    piece_bytes: usize,
    /// The offsets of the chunks. All are multiples of a piece.
    starts: Vec<usize>,
}

impl Division {
    /// One chunk.
    pub fn whole(bytes: usize, piece_bytes: usize) -> Self {
        Self { bytes, piece_bytes, starts: vec![0] }
    }

    /// Chunks of at most `chunk_bytes` bytes, which are whole pieces. Where chunks have many pieces, the first two and the last two
    /// are smaller: a device waits for the first chunk of an upload, and the threads for that of a download; at the end the
    /// threads wait for the device, or the device for them.
    pub fn new(bytes: usize, chunk_bytes: usize, piece_bytes: usize) -> Self {
        let [quarter, half] = [4, 2].map(|part| chunk_bytes / part / piece_bytes * piece_bytes);
        let eases = quarter >= LEAST_PIECES * piece_bytes && bytes >= 4 * chunk_bytes;
        let (mut starts, mut end) = (vec![0], 0);
        let mut push = |len| {
            end += len;
            if end < bytes {
                starts.push(end);
            }
            bytes.saturating_sub(end)
        };
        let mut left = bytes;
        if eases {
            push(quarter);
            left = push(half);
        }
        let tail = if eases { quarter + half } else { 0 };
        while left > tail + chunk_bytes {
            left = push(chunk_bytes);
        }
        if eases {
            // What is left over comes before the small chunks at the end.
            let over = (left - tail) / piece_bytes * piece_bytes;
            if over > 0 {
                push(over);
            }
            push(half);
        }
        Self { bytes, piece_bytes, starts }
    }

    pub fn chunks(&self) -> usize {
        self.starts.len()
    }

    /// The offset and the length of a chunk.
    pub fn chunk(&self, chunk: usize) -> (usize, usize) {
        let at = self.starts[chunk];
        (at, self.starts.get(chunk + 1).unwrap_or(&self.bytes) - at)
    }

    fn pieces_of(&self, chunk: usize) -> usize {
        self.chunk(chunk).1.div_ceil(self.piece_bytes)
    }

    /// The number of pieces in the first `chunks` chunks.
    fn pieces(&self, chunks: usize) -> usize {
        self.starts.get(chunks).unwrap_or(&self.bytes).div_ceil(self.piece_bytes)
    }

    /// The chunk of a piece, its offset in the chunk, and its length.
    fn piece(&self, piece: usize) -> (usize, usize, usize) {
        let at = piece * self.piece_bytes;
        let chunk = self.starts.partition_point(|start| *start <= at) - 1;
        (chunk, at - self.starts[chunk], self.piece_bytes.min(self.bytes - at))
    }
}

/// One side of the copy.
#[derive(Debug)]
pub(crate) enum CopySide {
    /// All bytes, one after the other.
    Whole(*mut u8),
    /// The addresses of the ring's chunks, used in rotation.
    Ring(Vec<*mut u8>),
}

impl CopySide {
    fn address(&self, division: &Division, chunk: usize, at: usize) -> *mut u8 {
        match self {
            // In range, but computed without that promise.
            CopySide::Whole(base) => base.wrapping_add(division.chunk(chunk).0 + at),
            CopySide::Ring(chunks) => chunks[chunk % chunks.len()].wrapping_add(at),
        }
    }
}

/// The progress of a copy.
#[derive(Debug)]
pub(crate) struct Feed {
    from: CopySide,
    to: CopySide,
    division: Division,
    streaming: bool,
    /// The next piece that no thread has taken.
    next: AtomicU64,
    /// Pieces below this one may be taken.
    limit: AtomicU64,
    /// The number of pieces of each chunk that are not copied.
    left: Vec<AtomicU64>,
    closed: AtomicBool,
    /// The number of helping threads.
    pub(super) helpers: AtomicU64,
}

// SAFETY: the addresses are used as the head of this file says, whichever thread does it.
unsafe impl Send for Feed {}
// SAFETY: as above; no two threads take the same piece.
unsafe impl Sync for Feed {}

impl Feed {
    /// # Safety
    /// Both sides have the bytes of the division (a ring's chunks those of a chunk), do not overlap, and stay valid as the head
    /// of this file says.
    pub unsafe fn new(from: CopySide, to: CopySide, division: Division, streaming: bool) -> Self {
        let left = |chunk| AtomicU64::new(division.pieces_of(chunk) as u64);
        let left = (0..division.chunks()).map(left).collect();
        let (next, limit, helpers) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let closed = AtomicBool::new(false);
        Self { from, to, division, streaming, next, limit, left, closed, helpers }
    }

    /// The size of the whole copy.
    pub fn bytes(&self) -> usize {
        self.division.bytes
    }

    /// Lets threads copy the first `chunks` chunks.
    pub fn open(&self, chunks: usize) {
        self.limit.store(self.division.pieces(chunks) as u64, Ordering::Release);
    }

    /// Whether a chunk is copied.
    pub fn is_copied(&self, chunk: usize) -> bool {
        self.left[chunk].load(Ordering::Acquire) == 0
    }

    /// Copies one piece; false if none can be taken now.
    pub fn copy_one(&self) -> bool {
        let Some(piece) = self.take() else { return false };
        let (chunk, at, len) = self.division.piece(piece);
        let from = self.from.address(&self.division, chunk, at);
        let to = self.to.address(&self.division, chunk, at);
        // SAFETY: inside both sides, by `new`'s contract; the chunk is open, and no other thread has this piece.
        unsafe { streaming::copy(from, to, len, self.streaming) };
        self.left[chunk].fetch_sub(1, Ordering::Release);
        true
    }

    fn take(&self) -> Option<usize> {
        let mut next = self.next.load(Ordering::Relaxed);
        while next < self.limit.load(Ordering::Acquire) {
            match self.next.compare_exchange(next, next + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(taken) => return Some(taken as usize),
                Err(newer) => next = newer,
            }
        }
        None
    }

    /// Copies pieces until all are taken, or the copy is given up.
    pub(super) fn help(&self) {
        let all = self.division.pieces(self.division.chunks()) as u64;
        let mut looks = 0;
        while self.next.load(Ordering::Relaxed) < all && !self.closed.load(Ordering::Acquire) {
            looks = if self.copy_one() { 0 } else { pause(looks) };
        }
    }

    /// Keeps threads from taking further pieces.
    pub(super) fn close(&self) {
        // Threads that see a piece to take, take it; so none is left to see.
        self.limit.store(0, Ordering::Release);
        self.closed.store(true, Ordering::Release);
    }
}

/// Waits a moment for another thread: at first without letting others run. Returns the number of looks so far.
pub(crate) fn pause(looks: u32) -> u32 {
    if looks < LOOKS {
        hint::spin_loop();
        return looks + 1;
    }
    thread::yield_now();
    looks
}

#[cfg(test)]
mod tests {
    use super::Division;

    #[test]
    fn chunks_and_pieces_cover_every_byte_once() {
        for (chunk_bytes, piece_bytes) in [(16, 4), (16, 16), (64, 4), (68, 4), (256, 1)] {
            for bytes in (1..1500).chain([4096, 4099, 10_000]) {
                let division = Division::new(bytes, chunk_bytes, piece_bytes);
                let what = format!(
                    "{bytes} in chunks of {chunk_bytes}, pieces of {piece_bytes}: {division:?}"
                );
                let (mut end, mut piece) = (0, 0);
                for chunk in 0..division.chunks() {
                    let (at, len) = division.chunk(chunk);
                    assert_eq!(at, end, "{what}");
                    assert!((1..=chunk_bytes).contains(&len), "{what}");
                    assert_eq!(division.pieces(chunk), piece, "{what}");
                    let mut copied = 0;
                    for _ in 0..division.pieces_of(chunk) {
                        let (of, offset, len) = division.piece(piece);
                        assert_eq!((of, offset), (chunk, copied), "{what}");
                        (copied, piece) = (copied + len, piece + 1);
                    }
                    assert_eq!(copied, len, "{what}");
                    end += len;
                }
                assert_eq!((end, division.pieces(division.chunks())), (bytes, piece), "{what}");
            }
        }
    }

    #[test]
    fn the_ends_of_a_large_copy_are_small() {
        let division = Division::new(20 << 20, 2 << 20, 64 << 10);
        let sizes: Vec<_> = (0..division.chunks()).map(|n| division.chunk(n).1 >> 10).collect();
        assert_eq!(
            sizes,
            [512, 1024, 2048, 2048, 2048, 2048, 2048, 2048, 2048, 2048, 1024, 1024, 512]
        );
        assert_eq!(Division::new(2 << 20, 256 << 10, 64 << 10).chunks(), 8);
    }
}
