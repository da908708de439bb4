//! One socket's part of a stream: it receives one range of every frame's packets, on one thread.
//!
//! Ranges do not overlap, so threads share neither memory nor positions, and no lock is taken for a packet. A packet that
//! reached another socket than its range's is handed over ([`Round::post`]).

use super::{
    Line,
    batch::{Batch, Part},
    counts::{ReceiveCounters, add},
    joining::Joining,
    round::{Letter, Round},
    window::{Place, Spot, Window},
};
use crate::net::{
    clock::coarse,
    mmsg::{Origin, Wait},
    packet::{self, Cut, Header, Kind, StreamId},
};
use std::{
    collections::VecDeque,
    hint, io,
    ops::Range,
    time::{Duration, Instant},
};

/// How often stop requests are checked, and how long a packet may be delayed behind packets sent after it.
pub(super) const SLICE: Duration = Duration::from_millis(50);

/// One call takes no longer than this even while packets arrive, so that a stop request is noticed.
const LONGEST: Duration = Duration::from_millis(250);

/// Longer gaps are counted at once instead of frame by frame.
pub(super) const LONGEST_GAP: u64 = 4096;

/// How long a thread that has its part of a frame waits for the others before it receives packets of the next one, which
/// are then copied once. The socket holds several times as much.
const PATIENCE: Duration = Duration::from_millis(2);

/// How often it looks for them before it sleeps, where every thread has a processor: some tens of microseconds.
const LOOKS: u32 = 2000;

/// How long it sleeps, unless it is woken before.
const NAP: Duration = Duration::from_millis(1);

/// Why a thread stopped receiving. Of several threads the last of these decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stop {
    /// Every thread has its part of the frame, or must give it up because packets arrived too far ahead.
    Settled,
    /// A pause: stop requests are due, or another thread has stopped.
    Pause,
    /// No useful packet arrived for a while, or none is expected.
    Quiet,
}

/// What all threads of a stream need.
#[derive(Clone, Copy)]
pub(super) struct Common<'c> {
    pub id: StreamId,
    pub cut: Cut,
    pub round: &'c Round,
    pub lines: &'c [Line],
    /// The stream has ended, and nothing has arrived since.
    pub is_over: bool,
}

impl Common<'_> {
    /// Makes all threads return as soon as they can.
    fn leave(&self) {
        self.round.leave();
        self.wake_all();
    }

    fn wake_all(&self) {
        if self.round.shares() > 1 {
            self.lines.iter().for_each(|line| line.bell.ring());
        }
    }

    /// Passes a packet to the thread that its place belongs to. If too many wait there, it is missing in its frame.
    fn hand_over(&self, part: Part, payload: &[u8]) {
        let share = packet::share_of(part.packet, self.cut.packets(), self.round.shares());
        self.round.post(share, Letter { part, payload: payload.to_vec() });
        self.lines[share].bell.ring();
    }
}

/// What one thread needs.
#[derive(Clone, Copy)]
pub(super) struct How<'h> {
    pub line: &'h Line,
    pub counters: &'h ReceiveCounters,
    pub common: Common<'h>,
}

pub(super) struct Share {
    number: usize,
    /// The packets that belong here.
    range: Range<u32>,
    pub window: Window,
    batch: Batch,
    /// The packet expected next if none is lost or reordered.
    next: Part,
    /// Packets that arrived elsewhere.
    letters: VecDeque<Letter>,
    /// How many packets have been stored.
    pub placed: u64,
}

impl Share {
    pub fn new(
        number: usize,
        shares: usize,
        cut: Cut,
        frame: u64,
        patience: usize,
        joining: Joining,
    ) -> Option<Self> {
        let range = packet::share(number, cut.packets(), shares);
        let last = cut.range(range.end.checked_sub(1)?).end;
        let part = Cut::new(last - cut.range(range.start).start, cut.stride())?;
        Some(Self {
            number,
            window: Window::new(part, frame, patience),
            batch: Batch::new(cut.stride(), range.start, joining),
            next: Part { frame, packet: range.start },
            range,
            letters: VecDeque::new(),
            placed: 0,
        })
    }

    /// The bytes of this part in a frame.
    pub fn bytes(&self) -> usize {
        self.window.cut.frame_bytes()
    }

    /// Expects this packet next.
    pub fn expect(&mut self, part: Part) {
        if self.range.contains(&part.packet) {
            self.next = part;
        }
    }

    pub fn joining(&self) -> Joining {
        self.batch.joining
    }

    #[cfg(all(test, not(onebuf_shuttle)))]
    pub fn set_joining(&mut self, joining: Joining) {
        self.batch.joining = joining;
    }

    /// Where a packet of this part belongs.
    pub fn place(&self, part: Part) -> Place {
        self.window.place(part.frame, part.packet - self.range.start)
    }

    /// Whether a received packet waits to be stored.
    pub fn has_kept(&mut self) -> bool {
        self.batch.kept().is_some() || !self.letters.is_empty()
    }

    /// The frame of the next packet that waits to be stored.
    pub fn kept_frame(&mut self) -> Option<u64> {
        let kept = self.batch.kept().map(|(part, _)| part.frame);
        kept.or_else(|| self.letters.front().map(|letter| letter.part.frame))
    }

    /// Receives packets into this part of the frame's slot, until something stops it.
    pub fn gather(&mut self, memory: &mut [u8], how: &How<'_>) -> io::Result<Stop> {
        let stop = self.gather_on(memory, how);
        if !matches!(stop, Ok(Stop::Settled)) {
            how.common.leave();
        }
        stop
    }

    fn gather_on(&mut self, memory: &mut [u8], how: &How<'_>) -> io::Result<Stop> {
        add(&how.counters.moved_packets, self.window.restore(memory));
        let (round, start) = (how.common.round, coarse());
        let (mut progress, mut placed, mut listened) = (start, self.placed, false);
        let mut settled = None;
        loop {
            round.collect(self.number, &mut self.letters);
            let in_the_way = self.place_kept(memory, how);
            let now = coarse();
            if in_the_way || self.window.is_whole() || self.window.is_pressed() {
                if settled.is_none() && round.note_settled() {
                    how.common.wake_all();
                }
                let since = *settled.get_or_insert(now);
                if round.is_settled() {
                    // Others may have handed over packets before they settled.
                    round.collect(self.number, &mut self.letters);
                    self.place_kept(memory, how);
                    return Ok(Stop::Settled);
                }
                if round.is_left() || now - start >= LONGEST {
                    return Ok(Stop::Pause);
                }
                self.wait_for_others(memory, how, !in_the_way && now - since >= PATIENCE)?;
                continue;
            }
            if how.common.is_over || round.end().is_some_and(|end| self.window.first >= end) {
                return Ok(Stop::Quiet);
            }
            if self.placed > placed {
                (progress, placed) = (now, self.placed);
            }
            // Useless packets do not count as progress, and useful ones may arrive slowly. A thread that has not run for a
            // while has not listened yet, so that time is no silence.
            if listened && now - progress >= SLICE {
                return Ok(Stop::Quiet);
            }
            if round.is_left() || now - start >= LONGEST {
                return Ok(Stop::Pause);
            }
            if !self.listen(memory, how)? {
                return Ok(Stop::Quiet);
            }
            listened = true;
        }
    }

    /// Waits a little for the other threads. If they take long, it receives what has arrived meanwhile, unless that has no
    /// position yet.
    fn wait_for_others(
        &mut self,
        memory: &mut [u8],
        how: &How<'_>,
        receives: bool,
    ) -> io::Result<()> {
        let round = how.common.round;
        let looks = if round.may_spin() { LOOKS } else { 1 };
        for _ in 0..looks {
            if round.is_settled() || round.is_left() {
                return Ok(());
            }
            hint::spin_loop();
        }
        if !receives || !self.receive(memory, how, Wait::No)? {
            how.line.bell.wait(NAP)?;
        }
        Ok(())
    }

    /// Waits for packets and receives them; false if none arrived in time. The only thread of a stream waits in the receive
    /// call. One of several also wakes when it is handed a packet.
    fn listen(&mut self, memory: &mut [u8], how: &How<'_>) -> io::Result<bool> {
        if how.common.round.shares() == 1 {
            return self.receive(memory, how, Wait::Timeout);
        }
        let start = Instant::now();
        loop {
            if self.receive(memory, how, Wait::No)? {
                return Ok(true);
            }
            if start.elapsed() >= how.line.busy_poll || how.common.round.is_left() {
                return how.line.wait(SLICE);
            }
            hint::spin_loop();
        }
    }

    /// One receive call; false if no packet arrived in time.
    fn receive(&mut self, memory: &mut [u8], how: &How<'_>, wait: Wait) -> io::Result<bool> {
        let from = self.expected();
        let socket = &how.line.socket;
        let came = match self.batch.receive(socket, &mut self.window, from, memory, wait) {
            Ok(came) => came,
            Err(error) if is_silence(&error) => return Ok(false),
            // An interrupted call is no silence; the clock decides.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(error),
        };
        add(&how.counters.batches, 1);
        self.judge(came, how);
        let right = self.batch.settle(came, &mut self.window, memory);
        add(&how.counters.packets, right as u64);
        self.placed += right as u64;
        Ok(true)
    }

    /// Classifies each received packet, and sets which one is expected next.
    fn judge(&mut self, came: usize, how: &How<'_>) {
        add(&how.counters.bytes, self.batch.bytes(came) as u64);
        for number in 0..came {
            let (header, from) = (self.batch.header(number), self.batch.origin(number));
            let found = check(header, from, &how.common, how.counters);
            self.batch.note(number, found);
            if let Some(part) = found {
                self.follow(part);
            }
        }
    }

    /// Where the next packet is expected.
    fn expected(&self) -> Spot {
        let Part { frame, packet } = self.next;
        match frame.checked_sub(self.window.first) {
            Some(behind) => {
                let behind = usize::try_from(behind).unwrap_or(usize::MAX);
                Spot { behind, packet: packet - self.range.start }
            }
            None => Spot { behind: 0, packet: 0 },
        }
    }

    /// Expects the packet after this one.
    pub fn follow(&mut self, Part { frame, packet }: Part) {
        if self.range.contains(&packet) {
            self.next = match packet + 1 == self.range.end {
                true => Part { frame: frame + 1, packet: self.range.start },
                false => Part { frame, packet: packet + 1 },
            };
        }
    }

    /// Stores the kept packets. Returns true at a packet that has no position until the first frame is closed.
    fn place_kept(&mut self, memory: &mut [u8], how: &How<'_>) -> bool {
        let Self { range, window, batch, letters, placed, .. } = self;
        let mut store = |part: Part, payload: &[u8]| {
            match window.place(part.frame, part.packet - range.start) {
                Place::Late => add(&how.counters.late_packets, 1),
                Place::Twice => add(&how.counters.duplicate_packets, 1),
                Place::At(spot) => {
                    window.store(spot, payload, memory);
                    *placed += 1;
                    add(&how.counters.packets, 1);
                    add(&how.counters.moved_packets, 1);
                }
                Place::Ahead => return false,
            }
            true
        };
        letters.retain(|letter| !store(letter.part, &letter.payload));
        let in_the_way = !letters.is_empty();
        while let Some((part, payload)) = batch.kept() {
            if !range.contains(&part.packet) {
                how.common.hand_over(part, payload);
            } else if !store(part, payload) {
                return true;
            }
            batch.let_go();
        }
        in_the_way
    }
}

/// Accepts packets of the stream, and counts the others.
pub(super) fn check(
    header: Option<Header>,
    from: Origin,
    &Common { id, cut, round, .. }: &Common<'_>,
    counters: &ReceiveCounters,
) -> Option<Part> {
    let of = header.as_ref().and_then(|header| StreamId::of(header, from));
    match (header, of) {
        (Some(_), Some(of)) if of != id => add(&counters.stray_packets, 1),
        (Some(header), Some(_)) if header.cut == cut => match header.kind {
            Kind::Part(packet) if round.end().is_none_or(|end| header.frame < end) => {
                return Some(Part { frame: header.frame, packet });
            }
            Kind::Part(_) => add(&counters.malformed_packets, 1),
            Kind::End => round.set_end(header.frame),
        },
        _ => add(&counters.malformed_packets, 1),
    }
    None
}

/// Whether the error means that nothing arrived in time.
pub(super) fn is_silence(error: &io::Error) -> bool {
    [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock].contains(&error.kind())
}
