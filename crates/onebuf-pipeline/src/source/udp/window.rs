//! Reassembly of frames: which packets have arrived, and where they are stored.

use crate::net::packet::Cut;
use std::{collections::VecDeque, ops::Range};

/// One open frame.
struct Open {
    /// One bit per packet that has arrived.
    arrived: Vec<u64>,
    missing: u32,
    /// The payloads of a frame that has no slot yet.
    aside: Vec<u8>,
}

impl Open {
    fn new(cut: Cut) -> Self {
        let words = cut.packets().div_ceil(64) as usize;
        // Zeroed by the allocator: no page is touched before it is used.
        Self { arrived: vec![0; words], missing: cut.packets(), aside: vec![0; cut.frame_bytes()] }
    }

    fn has(&self, packet: u32) -> bool {
        self.arrived[(packet / 64) as usize] >> (packet % 64) & 1 == 1
    }

    fn mark(&mut self, packet: u32) {
        self.arrived[(packet / 64) as usize] |= 1 << (packet % 64);
        self.missing -= 1;
    }

    fn clear(&mut self, cut: Cut) {
        self.arrived.fill(0);
        self.missing = cut.packets();
    }
}

/// Where a packet belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// To a frame that is closed.
    Late,
    /// To a position whose packet has already arrived.
    Twice,
    /// To this position.
    At(Spot),
    /// To a frame so far ahead that the first frame would have to be given up.
    Ahead,
}

/// A packet of the frame `behind` places after the first open one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub behind: usize,
    pub packet: u32,
}

/// The open frames, oldest first. The first frame's payloads are in memory that the caller passes with each call.
pub(super) struct Window {
    pub cut: Cut,
    /// The first frame's number.
    pub first: u64,
    /// How many frames may be open before the first is given up.
    patience: u64,
    frames: VecDeque<Open>,
}

/// The number of packets that makes a system call worthwhile. For smaller frames, the next frames are received in the same
/// call.
const WORTH_A_CALL: u32 = 32;

impl Window {
    pub fn new(cut: Cut, first: u64, patience: usize) -> Self {
        let open = patience.max(WORTH_A_CALL.div_ceil(cut.packets()) as usize).max(1);
        let frames = (0..open).map(|_| Open::new(cut)).collect();
        Self { cut, first, patience: patience.max(1) as u64, frames }
    }

    pub fn is_whole(&self) -> bool {
        self.missing() == 0
    }

    /// How many packets of the first frame are missing.
    pub fn missing(&self) -> u32 {
        self.frames[0].missing
    }

    /// Whether no packet of any open frame has arrived.
    pub fn is_empty(&self) -> bool {
        self.frames.iter().all(|frame| frame.missing == self.cut.packets())
    }

    /// Whether packets of frames after the first have arrived.
    pub fn has_more(&self) -> bool {
        self.frames.iter().skip(1).any(|frame| frame.missing < self.cut.packets())
    }

    /// How many frames there are from the first to the last one with a packet.
    pub fn begun(&self) -> u64 {
        let begun = self.frames.iter().rposition(|frame| frame.missing < self.cut.packets());
        begun.map_or(0, |last| last as u64 + 1)
    }

    /// Whether the first frame must be given up because packets arrived too far ahead. This happens with small frames only.
    pub fn is_pressed(&self) -> bool {
        let mut behind = self.frames.iter().skip(self.patience as usize);
        !self.is_whole() && behind.any(|frame| frame.missing < self.cut.packets())
    }

    pub fn place(&self, frame: u64, packet: u32) -> Place {
        let Some(behind) = frame.checked_sub(self.first) else { return Place::Late };
        if behind >= self.frames.len() as u64 || behind >= self.patience && !self.is_whole() {
            return Place::Ahead;
        }
        let behind = behind as usize;
        match self.frames[behind].has(packet) {
            true => Place::Twice,
            false => Place::At(Spot { behind, packet }),
        }
    }

    /// Marks a packet as arrived.
    pub fn mark(&mut self, at: Spot) {
        self.frames[at.behind].mark(at.packet);
    }

    /// Copies a packet to its position.
    pub fn store(&mut self, at: Spot, payload: &[u8], first: &mut [u8]) {
        self.memory(at, first).copy_from_slice(payload);
        self.mark(at);
    }

    /// A packet's position in memory.
    pub fn memory<'m>(&'m mut self, at: Spot, first: &'m mut [u8]) -> &'m mut [u8] {
        let range = self.cut.range(at.packet);
        let memory = if at.behind == 0 { first } else { &mut self.frames[at.behind].aside };
        &mut memory[range]
    }

    /// The positions of the next packets if they arrive in order from `from` on. Positions whose packet has arrived are
    /// skipped. They belong to one frame, or to as many small frames as make a system call worthwhile.
    pub fn places<'m>(
        &'m mut self,
        from: Spot,
        first: &'m mut [u8],
    ) -> impl Iterator<Item = (Spot, &'m mut [u8])> {
        let (stride, small) = (self.cut.stride(), self.cut.packets() < WORTH_A_CALL);
        let frames = if small { usize::MAX } else { 1 };
        let mut first = Some(first);
        let open = self.frames.iter_mut().enumerate().skip(from.behind).take(frames);
        open.flat_map(move |(behind, Open { arrived, aside, .. })| {
            let memory = first.take().filter(|_| behind == 0).unwrap_or(aside);
            let skipped = if behind == from.behind { from.packet as usize } else { 0 };
            let arrived: &[u64] = arrived;
            let missing =
                move |(packet, _): &(usize, _)| arrived[packet / 64] >> (packet % 64) & 1 == 0;
            let chunks = memory.chunks_mut(stride).enumerate().skip(skipped).filter(missing);
            chunks.map(move |(packet, chunk)| (Spot { behind, packet: packet as u32 }, chunk))
        })
    }

    /// Copies the payloads that have arrived into the frame's new slot. Returns how many packets that were.
    pub fn restore(&mut self, first: &mut [u8]) -> u64 {
        let open = &self.frames[0];
        let packets =
            self.runs(true, |range| first[range.clone()].copy_from_slice(&open.aside[range]));
        packets.into()
    }

    /// Copies the payloads aside, because the caller takes the slot back before the frame is complete.
    pub fn park(&mut self, first: &[u8]) {
        let mut aside = std::mem::take(&mut self.frames[0].aside);
        self.runs(true, |range| aside[range.clone()].copy_from_slice(&first[range]));
        self.frames[0].aside = aside;
    }

    /// Zeroes the missing parts.
    pub fn silence_holes(&self, first: &mut [u8]) {
        self.runs(false, |range| first[range].fill(0));
    }

    /// Calls `each` with the byte range of every packet of the first frame that has arrived, or of every missing one. Returns
    /// how many.
    fn runs(&self, came: bool, mut each: impl FnMut(Range<usize>)) -> u32 {
        let open = &self.frames[0];
        let many = if came { self.cut.packets() - open.missing } else { open.missing };
        if many > 0 {
            let packets = (0..self.cut.packets()).filter(|&packet| open.has(packet) == came);
            packets.for_each(|packet| each(self.cut.range(packet)));
        }
        many
    }

    /// Closes the first frame.
    pub fn advance(&mut self) {
        self.frames[0].clear(self.cut);
        self.frames.rotate_left(1);
        self.first += 1;
    }

    /// Skips frames of which no packet has arrived.
    pub fn skip(&mut self, frames: u64) {
        self.first += frames;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(patience: usize) -> Window {
        Window::new(Cut::new(64 * 10 - 3, 10).unwrap(), 5, patience)
    }

    #[test]
    fn packets_have_their_place() {
        let mut window = window(2);
        let mut first = vec![0xee; 637];
        assert_eq!(window.place(4, 0), Place::Late);
        assert_eq!(window.place(7, 0), Place::Ahead);
        for (frame, behind) in [(5, 0), (6, 1)] {
            let spot = Spot { behind, packet: 63 };
            assert_eq!(window.place(frame, 63), Place::At(spot));
            window.store(spot, &[1; 7], &mut first);
            assert_eq!(window.place(frame, 63), Place::Twice);
        }
        assert_eq!((window.missing(), window.is_empty(), window.has_more()), (63, false, true));
        assert_eq!(window.begun(), 2);
        assert_eq!(first[629..], [0xee, 1, 1, 1, 1, 1, 1, 1]);
        window.silence_holes(&mut first);
        assert!(first[..630].iter().all(|&byte| byte == 0) && first[630..] == [1; 7]);
        window.advance();
        first.fill(0);
        assert_eq!((window.restore(&mut first), window.missing()), (1, 63));
        assert_eq!(first[629..], [0, 1, 1, 1, 1, 1, 1, 1]);
        window.park(&first);
        first.fill(0);
        assert_eq!((window.restore(&mut first), first[636]), (1, 1));
        window.advance();
        assert!(window.is_empty() && window.first == 7 && window.begun() == 0);
    }

    #[test]
    fn patience_has_an_end_for_small_frames_too() {
        let mut window = Window::new(Cut::new(20, 10).unwrap(), 0, 2);
        for (behind, pressed) in [(0, false), (1, false), (2, true)] {
            window.mark(Spot { behind, packet: 0 });
            assert_eq!(window.is_pressed(), pressed, "{behind}");
        }
        window.mark(Spot { behind: 0, packet: 1 });
        assert!(window.is_whole() && !window.is_pressed());
    }

    #[test]
    fn places_are_those_of_packets_that_have_not_come() {
        let mut window = window(2);
        let mut first = vec![0; 637];
        for packet in [3, 5] {
            window.mark(Spot { behind: 0, packet });
        }
        let packets = |window: &mut Window, behind, packet| -> Vec<(usize, u32)> {
            let mut first = vec![0; window.cut.frame_bytes()];
            let places = window.places(Spot { behind, packet }, &mut first);
            places.map(|(spot, _)| (spot.behind, spot.packet)).collect()
        };
        assert_eq!(packets(&mut window, 0, 2)[..3], [(0, 2), (0, 4), (0, 6)]);
        assert_eq!(
            packets(&mut window, 0, 60),
            [(0, 60), (0, 61), (0, 62), (0, 63)],
            "this frame only"
        );
        assert_eq!(packets(&mut window, 1, 62), [(1, 62), (1, 63)]);
        assert_eq!(packets(&mut window, 2, 0), []);
        let last = window.places(Spot { behind: 0, packet: 63 }, &mut first).next().unwrap();
        assert_eq!(last.1.len(), 7);
        let mut small = Window::new(Cut::new(20, 10).unwrap(), 0, 2);
        assert_eq!(packets(&mut small, 0, 1)[..3], [(0, 1), (1, 0), (1, 1)], "frames are small");
    }
}
