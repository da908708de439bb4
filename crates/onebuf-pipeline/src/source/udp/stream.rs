//! One sender's stream: packets in, frames out.
//!
//! With several sockets a frame's packets are divided into ranges, one for each socket and its thread. The threads receive at
//! the same time, each into its own part of the slot; everything else happens on the caller's thread, between their rounds.

use super::{
    Arrival, Line,
    batch::Part,
    counts::{ReceiveCounters, add},
    round::{Letter, Round},
    share::{Common, How, LONGEST_GAP, Share, Stop, check},
    window::Place,
};
use crate::net::{
    crew::Crew,
    mmsg::Origin,
    packet::{self, Cut, HEADER, Header, Kind, StreamId},
};
use onebuf_hal::locks::{Mutex, lock};
use std::io;

/// A part of a frame must have this many packets: receiving fewer on a thread of their own does not pay. The kernel's filter
/// has the same rule ([`steer`](crate::net::reuse::steer)).
pub(crate) const WORTH_A_SOCKET: u32 = 32;

/// How a packet relates to a quiet stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// The stream continues with it.
    Wanted,
    /// It has this stream's number and sender, but its frame is closed: a late packet, or a restarted sender.
    Past,
    /// It has already arrived: a duplicate, or a restarted sender.
    Again,
    /// It belongs to another stream.
    Other,
}

pub(super) struct Stream {
    /// A stream has one sender, so that a frame never mixes packets of two.
    pub id: StreamId,
    cut: Cut,
    shares: Vec<Share>,
    round: Round,
    /// Nothing has arrived since the end was announced, so missing packets are lost.
    is_over: bool,
}

/// What a stream needs for one call.
pub(super) struct Call<'c> {
    pub lines: &'c [Line],
    pub crew: &'c mut Option<Crew>,
    pub counters: &'c ReceiveCounters,
    /// Zero the missing bytes of incomplete frames.
    pub silence_holes: bool,
}

/// One thread's work in a round.
struct Seat<'s> {
    share: &'s mut Share,
    memory: &'s mut [u8],
    how: How<'s>,
    stop: io::Result<Stop>,
}

impl Seat<'_> {
    fn work(&mut self) {
        self.stop = self.share.gather(self.memory, &self.how);
    }
}

impl Stream {
    /// Starts a stream with the first packet that arrived. `None` if its frames cannot be received.
    pub fn begin(
        header: &Header,
        packet: u32,
        id: StreamId,
        patience: usize,
        lines: &[Line],
    ) -> Option<Self> {
        let (cut, frame) = (header.cut, header.frame);
        let several = cut.packets() as usize >= lines.len() * WORTH_A_SOCKET as usize;
        let many = if several { lines.len() } else { 1 };
        let share =
            |number: usize| Share::new(number, many, cut, frame, patience, lines[number].joining);
        let mut shares = (0..many).map(share).collect::<Option<Vec<Share>>>()?;
        shares.iter_mut().for_each(|share| share.expect(Part { frame, packet }));
        Some(Self { id, cut, shares, round: Round::new(many), is_over: false })
    }

    /// The first open frame.
    fn first(&self) -> u64 {
        self.shares[0].window.first
    }

    fn is_whole(&self) -> bool {
        self.shares.iter().all(|share| share.window.is_whole())
    }

    fn is_empty(&self) -> bool {
        self.shares.iter().all(|share| share.window.is_empty())
    }

    fn placed(&self) -> u64 {
        self.shares.iter().map(|share| share.placed).sum()
    }

    /// Whether only one packet has arrived, which may be a stray.
    pub fn is_lone(&self) -> bool {
        self.placed() < 2
    }

    /// Whether the stream cannot proceed without another packet.
    pub fn is_waiting(&mut self) -> bool {
        let over = self.is_over || self.round.end().is_some_and(|end| self.first() >= end);
        let pressed = self.shares.iter().any(|share| share.window.is_pressed());
        let kept = self.shares.iter_mut().any(Share::has_kept) || self.round.has_post();
        !over && !self.is_whole() && !pressed && !kept
    }

    /// How a packet relates to this stream while it waits.
    pub fn claim(&self, header: &Header, id: StreamId) -> Claim {
        if (id, header.cut) != (self.id, self.cut) {
            return Claim::Other;
        }
        let Kind::Part(packet) = header.kind else { return Claim::Wanted };
        let share = packet::share_of(packet, self.cut.packets(), self.shares.len());
        match self.shares[share].place(Part { frame: header.frame, packet }) {
            Place::Late => Claim::Past,
            Place::Twice => Claim::Again,
            _ => Claim::Wanted,
        }
    }

    /// Closes the stream because another takes over: open frames are returned as they are, and no packet is waited for.
    pub fn close(&mut self) {
        let begun = self.shares.iter().map(|share| share.window.begun()).max().unwrap_or(0);
        self.round.force_end(self.first() + begun);
        self.is_over = true;
    }

    pub fn frame_bytes(&self) -> usize {
        self.cut.frame_bytes()
    }

    /// The socket's current setting for joining packets, if the stream uses it.
    pub fn joining(&self, line: usize) -> Option<super::joining::Joining> {
        self.shares.get(line).map(Share::joining)
    }

    /// Changes the setting, as a sender's behaviour may do in mid-stream.
    #[cfg(all(test, not(onebuf_shuttle)))]
    pub fn ask_joined(&mut self, lines: &[Line], joined: bool) {
        for (share, line) in self.shares.iter_mut().zip(lines) {
            share.set_joining(super::joining::Joining::ask(&line.socket, joined));
        }
    }

    /// Keeps packets that were received outside of this stream: those it begins or continues with.
    pub fn keep<'p>(
        &mut self,
        packets: impl Iterator<Item = &'p [u8]>,
        from: Origin,
        counters: &ReceiveCounters,
    ) {
        let Self { id, cut, shares, round, is_over } = self;
        let common = Common { id: *id, cut: *cut, round, lines: &[], is_over: *is_over };
        for packet in packets {
            let head = packet.split_first_chunk();
            let header = head.and_then(|(head, payload)| Header::decode(head, payload.len()));
            let Some(part) = check(header, from, &common, counters) else { continue };
            let share = packet::share_of(part.packet, cut.packets(), shares.len());
            round.post(share, Letter { part, payload: packet[HEADER..].to_vec() });
            shares[share].follow(part);
        }
    }

    /// Receives packets into the frame's slot, which is available during this call only.
    pub fn fill(&mut self, frame: &mut [u8], call: &mut Call<'_>) -> io::Result<Arrival> {
        let before = self.placed();
        loop {
            let stop = match self.gather(frame, call) {
                Ok(stop) => stop,
                Err(error) => {
                    self.park(frame);
                    return Err(error);
                }
            };
            let arrival = match stop {
                Stop::Settled if self.skip_gap(call) => continue,
                Stop::Settled => self.conclude(frame, call),
                // One of several threads may have been quiet while others were not.
                Stop::Quiet if self.shares.len() == 1 || self.placed() == before => {
                    return Ok(self.quiet(frame, call));
                }
                _ => {
                    self.park(frame);
                    Arrival::Silence
                }
            };
            return Ok(arrival);
        }
    }

    /// Handles a silence while the frame has a slot.
    pub fn fill_in_silence(&mut self, frame: &mut [u8], call: &mut Call<'_>) -> Arrival {
        for (share, memory) in parts(&mut self.shares, frame) {
            add(&call.counters.moved_packets, share.window.restore(memory));
        }
        self.quiet(frame, call)
    }

    /// One round of all threads. Returns what stopped them.
    fn gather(&mut self, frame: &mut [u8], call: &mut Call<'_>) -> io::Result<Stop> {
        self.round.begin();
        let Self { id, cut, shares, round, is_over } = self;
        let lines = call.lines;
        let common = Common { id: *id, cut: *cut, round, lines, is_over: *is_over };
        let mut seats = Vec::with_capacity(lines.len());
        for ((share, memory), line) in parts(shares, frame).zip(lines) {
            let how = How { line, counters: &line.counters, common };
            seats.push(Mutex::new(Seat { share, memory, how, stop: Ok(Stop::Pause) }));
        }
        let work = |number: usize| {
            if let Some(seat) = seats.get(number) {
                lock(seat).work();
            }
        };
        match &mut *call.crew {
            Some(crew) if seats.len() > 1 => crew.run(&work),
            _ => (0..seats.len()).for_each(work),
        }
        let mut all = Stop::Settled;
        for seat in &seats {
            let stop = std::mem::replace(&mut lock(seat).stop, Ok(Stop::Pause))?;
            all = all.max(stop);
        }
        Ok(all)
    }

    /// No useful packet arrived for a while. If packets sent after a frame have arrived, its missing packets are lost.
    fn quiet(&mut self, frame: &mut [u8], call: &Call<'_>) -> Arrival {
        let end = self.round.end();
        self.is_over = end.is_some();
        if !self.is_over && !self.shares.iter().any(|share| share.window.has_more()) {
            self.park(frame);
            return Arrival::Silence;
        }
        if let Some(end) = end
            && self.is_empty()
        {
            self.skip_to(end, call);
        }
        match end {
            Some(end) if self.first() >= end => Arrival::End,
            _ => self.conclude(frame, call),
        }
    }

    /// Copies what has arrived of the first frame aside, because the caller takes the slot back.
    fn park(&mut self, frame: &mut [u8]) {
        for (share, memory) in parts(&mut self.shares, frame) {
            share.window.park(memory);
        }
    }

    /// Gives up frames of which no packet has arrived, up to the next one of which a packet has; false if they are few.
    fn skip_gap(&mut self, call: &Call<'_>) -> bool {
        let next = self.shares.iter_mut().filter_map(Share::kept_frame).min();
        self.is_empty() && next.is_some_and(|next| self.skip_to(next, call))
    }

    /// Gives up frames of which no packet has arrived, if they are too many to return one by one.
    fn skip_to(&mut self, frame: u64, call: &Call<'_>) -> bool {
        let gap = frame.saturating_sub(self.first());
        if gap <= LONGEST_GAP {
            return false;
        }
        add(&call.counters.incomplete_frames, gap);
        add(&call.counters.lost_packets, gap.saturating_mul(u64::from(self.cut.packets())));
        self.shares.iter_mut().for_each(|share| share.window.skip(gap));
        true
    }

    /// Closes the first frame, complete or not.
    fn conclude(&mut self, into: &mut [u8], call: &Call<'_>) -> Arrival {
        let frame = self.first();
        let missing: u32 = self.shares.iter().map(|share| share.window.missing()).sum();
        for (share, memory) in parts(&mut self.shares, into) {
            if missing > 0 && call.silence_holes {
                share.window.silence_holes(memory);
            }
            share.window.advance();
        }
        if missing == 0 {
            add(&call.counters.frames, 1);
            return Arrival::Whole { frame };
        }
        add(&call.counters.incomplete_frames, 1);
        add(&call.counters.lost_packets, missing.into());
        Arrival::Holes { frame, missing }
    }
}

/// Each part of the stream with its part of a frame's memory.
fn parts<'s>(
    shares: &'s mut [Share],
    mut frame: &'s mut [u8],
) -> impl Iterator<Item = (&'s mut Share, &'s mut [u8])> {
    shares.iter_mut().map(move |share| {
        let (memory, rest) = std::mem::take(&mut frame).split_at_mut(share.bytes());
        frame = rest;
        (share, memory)
    })
}
