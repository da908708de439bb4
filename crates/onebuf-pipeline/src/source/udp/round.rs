//! What the threads of one stream share while they receive: flags, and the packets that reached another thread's socket.

use super::batch::Part;
use onebuf_hal::locks::{AtomicBool, AtomicU64, Mutex, Ordering, lock};
use std::collections::VecDeque;

/// Handed-over packets that wait for one thread. More are dropped, and missing in their frames.
const MOST: usize = 1 << 10;

/// No end was announced.
const NONE: u64 = u64::MAX;

/// A packet on its way to the thread that its place belongs to.
pub(super) struct Letter {
    pub part: Part,
    pub payload: Vec<u8>,
}

#[derive(Default)]
struct Letterbox {
    waiting: AtomicU64,
    letters: Mutex<VecDeque<Letter>>,
}

/// One stream's threads.
pub(super) struct Round {
    /// How many of them have their part of the first frame, or give it up.
    settled: AtomicU64,
    /// One of them has returned, so the others return as soon as they can.
    is_left: AtomicBool,
    /// The number of frames, once the sender has announced it.
    end: AtomicU64,
    boxes: Vec<Letterbox>,
    may_spin: bool,
}

impl Round {
    pub fn new(shares: usize) -> Self {
        // The sender, the network's soft interrupts and the stages need some, too.
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            may_spin: processors > 2 * shares,
            settled: AtomicU64::new(0),
            is_left: AtomicBool::new(false),
            end: AtomicU64::new(NONE),
            boxes: (0..shares).map(|_| Letterbox::default()).collect(),
        }
    }

    /// Begins another round; no thread may be in one.
    pub fn begin(&self) {
        self.settled.store(0, Ordering::Release);
        self.is_left.store(false, Ordering::Release);
    }

    pub fn shares(&self) -> usize {
        self.boxes.len()
    }

    /// Records that one thread has its part of the frame, or gives it up. Each thread calls it once in a round. Returns true
    /// to the last.
    pub fn note_settled(&self) -> bool {
        self.settled.fetch_add(1, Ordering::AcqRel) + 1 == self.boxes.len() as u64
    }

    /// Whether every thread has a processor of its own, so that looking for the others costs nothing.
    pub fn may_spin(&self) -> bool {
        self.may_spin
    }

    pub fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire) == self.boxes.len() as u64
    }

    /// Makes the other threads return.
    pub fn leave(&self) {
        self.is_left.store(true, Ordering::Release);
    }

    pub fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Acquire)
    }

    /// The number of frames, if it is known.
    pub fn end(&self) -> Option<u64> {
        Some(self.end.load(Ordering::Acquire)).filter(|&end| end != NONE)
    }

    /// Records the number of frames, unless it is known.
    pub fn set_end(&self, end: u64) {
        // A failure means that the end is known, which is what is wanted.
        let _ = self.end.compare_exchange(NONE, end, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Replaces the number of frames.
    pub fn force_end(&self, end: u64) {
        self.end.store(end, Ordering::Release);
    }

    /// Hands a packet to another thread; false if too many wait there.
    pub fn post(&self, share: usize, letter: Letter) -> bool {
        let mut letters = lock(&self.boxes[share].letters);
        let fits = letters.len() < MOST;
        if fits {
            letters.push_back(letter);
            self.boxes[share].waiting.store(letters.len() as u64, Ordering::Release);
        }
        fits
    }

    /// Moves the packets for one thread to the end of its own, unless it has too many that it cannot store.
    pub fn collect(&self, share: usize, into: &mut VecDeque<Letter>) {
        let one = &self.boxes[share];
        if one.waiting.load(Ordering::Acquire) == 0 || into.len() >= MOST {
            return;
        }
        let mut letters = lock(&one.letters);
        one.waiting.store(0, Ordering::Release);
        into.append(&mut letters);
    }

    /// Whether a packet waits for any thread.
    pub fn has_post(&self) -> bool {
        self.boxes.iter().any(|one| one.waiting.load(Ordering::Acquire) > 0)
    }
}

#[cfg(all(test, onebuf_shuttle))]
mod shuttle_tests {
    use super::*;
    use onebuf_hal::locks::{Arc, thread};

    /// Two threads assemble a frame of four packets, of which each receives one that belongs to the other. In every schedule
    /// a thread that has seen the end of the round has all that was handed to it before: all four packets are placed, once
    /// each.
    #[test]
    fn packets_that_reach_the_wrong_socket_are_placed_once() {
        let assemble = |round: &Round, share: usize| {
            let (mut mine, mut letters) = (vec![share as u32 * 2], VecDeque::new());
            let part = Part { frame: 0, packet: (1 - share) as u32 * 2 + 1 };
            assert!(round.post(1 - share, Letter { part, payload: vec![part.packet as u8] }));
            round.collect(share, &mut letters);
            round.note_settled();
            while !round.is_settled() {
                thread::yield_now();
            }
            round.collect(share, &mut letters);
            mine.extend(letters.drain(..).map(|letter| letter.part.packet));
            round.leave();
            mine
        };
        let run = move || {
            let round = Arc::new(Round::new(2));
            round.begin();
            let theirs = round.clone();
            let other = thread::spawn(move || assemble(&theirs, 1));
            let mine = assemble(&round, 0);
            assert_eq!((mine, other.join().unwrap()), (vec![0, 1], vec![2, 3]));
            assert!(round.is_left() && !round.has_post());
        };
        shuttle::check_random(run, 1000);
    }
}
