//! One sender's stream: packets in, frames out.

use super::{
    Arrival,
    batch::{Batch, Part},
    counts::{ReceiveCounters, add},
    joining::Joining,
    window::{Place, Spot, Window},
};
use crate::net::{
    clock::coarse,
    mmsg::Origin,
    packet::{Header, Kind},
};
use std::{io, net::UdpSocket, sync::atomic::Ordering, time::Duration};

/// How often stop requests are checked, and how long a packet may be delayed behind packets sent after it.
pub(super) const SLICE: Duration = Duration::from_millis(50);

/// One call takes no longer than this even while packets arrive, so that a stop request is noticed.
const LONGEST: Duration = Duration::from_millis(250);

/// Longer gaps are counted at once instead of frame by frame.
const LONGEST_GAP: u64 = 4096;

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
    pub id: u32,
    /// The sender. A stream has one sender, so that a frame never mixes packets of two.
    pub from: Origin,
    window: Window,
    batch: Batch,
    /// The packet expected next if none is lost or reordered.
    next: Part,
    /// The number of frames, once the sender has announced it.
    end: Option<u64>,
    /// Nothing has arrived since the end was announced, so missing packets are lost.
    is_over: bool,
    /// How many packets have been stored.
    placed: u64,
}

impl Stream {
    /// Starts a stream with the first packet that arrived.
    pub fn begin(
        header: &Header,
        packet: u32,
        from: Origin,
        patience: usize,
        joining: Joining,
    ) -> Self {
        Self {
            id: header.stream,
            from,
            window: Window::new(header.cut, header.frame, patience),
            batch: Batch::new(header.cut.stride(), joining),
            next: Part { frame: header.frame, packet },
            end: None,
            is_over: false,
            placed: 0,
        }
    }

    /// Whether only one packet has arrived, which may be a stray.
    pub fn is_lone(&self) -> bool {
        self.placed < 2
    }

    /// Whether the stream cannot proceed without another packet.
    pub fn is_waiting(&mut self) -> bool {
        let over = self.is_over || self.end.is_some_and(|end| self.window.first >= end);
        let has_work = self.window.is_whole() || self.window.is_pressed();
        !over && !has_work && self.batch.kept().is_none()
    }

    /// How a packet relates to this stream while it waits.
    pub fn claim(&self, header: &Header, from: Origin) -> Claim {
        if (header.stream, from, header.cut) != (self.id, self.from, self.window.cut) {
            return Claim::Other;
        }
        match header.kind {
            Kind::Part(packet) => match self.window.place(header.frame, packet) {
                Place::Late => Claim::Past,
                Place::Twice => Claim::Again,
                _ => Claim::Wanted,
            },
            _ => Claim::Wanted,
        }
    }

    /// Closes the stream because another takes over: open frames are returned as they are, and no packet is waited for.
    pub fn close(&mut self) {
        self.end = Some(self.window.first + self.window.begun());
        self.is_over = true;
    }

    pub fn frame_bytes(&self) -> usize {
        self.window.cut.frame_bytes()
    }

    /// The current setting for joining packets.
    pub fn joining(&self) -> Joining {
        self.batch.joining
    }

    /// Changes the setting, as a sender's behaviour may do in mid-stream.
    #[cfg(all(test, not(onebuf_shuttle)))]
    pub fn ask_joined(&mut self, socket: &UdpSocket, joined: bool) {
        self.batch.joining = Joining::ask(socket, joined);
    }

    /// Keeps packets that were received outside of this stream: those it begins or continues with.
    pub fn keep<'p>(
        &mut self,
        packets: impl Iterator<Item = &'p [u8]>,
        from: Origin,
        counters: &ReceiveCounters,
    ) {
        let came = self.batch.hold(packets, from);
        self.judge(came, counters);
    }

    /// Classifies each received packet, and sets which one is expected next.
    fn judge(&mut self, came: usize, counters: &ReceiveCounters) {
        for number in 0..came {
            let (header, from) = (self.batch.header(number), self.batch.origin(number));
            let found = self.check(header, from, counters);
            self.batch.note(number, found);
        }
        if let Some(last) = self.batch.last_found(came) {
            self.follow(last);
        }
    }

    /// Receives packets into the frame's slot, which is available during this call only.
    pub fn fill(&mut self, frame: &mut [u8], how: &How<'_>) -> io::Result<Arrival> {
        self.with_slot(frame, how, Self::gather)
    }

    /// Handles a silence while the frame has a slot.
    pub fn fill_in_silence(&mut self, frame: &mut [u8], how: &How<'_>) -> io::Result<Arrival> {
        self.with_slot(frame, how, |stream, frame, how| Ok(stream.quiet(frame, how)))
    }

    fn with_slot(
        &mut self,
        frame: &mut [u8],
        how: &How<'_>,
        work: impl FnOnce(&mut Self, &mut [u8], &How<'_>) -> io::Result<Arrival>,
    ) -> io::Result<Arrival> {
        add(&how.counters.moved_packets, self.window.restore(frame));
        let arrival = work(self, frame, how);
        if matches!(arrival, Err(_) | Ok(Arrival::Silence)) {
            self.window.park(frame);
        }
        arrival
    }

    fn gather(&mut self, frame: &mut [u8], how: &How<'_>) -> io::Result<Arrival> {
        let start = coarse();
        let (mut progress, mut placed, mut listened) = (start, how.placed(), false);
        loop {
            let in_the_way = self.place_kept(frame, how);
            if in_the_way || self.window.is_whole() || self.window.is_pressed() {
                return Ok(self.conclude(frame, how));
            }
            if self.is_over || self.end.is_some_and(|end| self.window.first >= end) {
                return Ok(self.quiet(frame, how));
            }
            let now = coarse();
            if how.placed() > placed {
                (progress, placed) = (now, how.placed());
            }
            // Useless packets do not count as progress, and useful ones may arrive slowly. A thread that has not run for a
            // while has not listened yet, so that time is no silence.
            if listened && now - progress >= SLICE {
                return Ok(self.quiet(frame, how));
            }
            if now - start >= LONGEST {
                return Ok(Arrival::Silence);
            }
            if !self.listen(frame, how)? {
                return Ok(self.quiet(frame, how));
            }
            listened = true;
        }
    }

    /// No useful packet arrived for a while. If packets sent after a frame have arrived, its missing packets are lost.
    fn quiet(&mut self, frame: &mut [u8], how: &How<'_>) -> Arrival {
        self.is_over = self.end.is_some();
        if !self.is_over && !self.window.has_more() {
            return Arrival::Silence;
        }
        if let Some(end) = self.end
            && self.window.is_empty()
        {
            self.skip_to(end, how);
        }
        match self.end {
            Some(end) if self.window.first >= end => Arrival::End,
            _ => self.conclude(frame, how),
        }
    }

    /// One receive call; false if no packet arrived in time.
    fn listen(&mut self, frame: &mut [u8], how: &How<'_>) -> io::Result<bool> {
        let from = self.expected();
        let came = match self.batch.receive(how.socket, &mut self.window, from, frame) {
            Ok(came) => came,
            Err(error) if is_silence(&error) => return Ok(false),
            // An interrupted call is no silence; the clock decides.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(error),
        };
        self.judge(came, how.counters);
        let right = self.batch.settle(came, &mut self.window, frame);
        add(&how.counters.packets, right as u64);
        self.placed += right as u64;
        Ok(true)
    }

    /// Where the next packet is expected.
    fn expected(&self) -> Spot {
        let Part { frame, packet } = self.next;
        match frame.checked_sub(self.window.first) {
            Some(behind) => Spot { behind: usize::try_from(behind).unwrap_or(usize::MAX), packet },
            None => Spot { behind: 0, packet: 0 },
        }
    }

    /// Accepts packets of this stream, and counts the others.
    fn check(
        &mut self,
        header: Option<Header>,
        from: Origin,
        counters: &ReceiveCounters,
    ) -> Option<Part> {
        match header {
            Some(Header { stream, .. }) if (stream, from) != (self.id, self.from) => {
                add(&counters.stray_packets, 1);
            }
            Some(Header { cut, kind, frame, .. }) if cut == self.window.cut => match kind {
                Kind::Part(packet) if self.end.is_none_or(|end| frame < end) => {
                    return Some(Part { frame, packet });
                }
                Kind::Part(_) => add(&counters.malformed_packets, 1),
                Kind::End => _ = self.end.get_or_insert(frame),
            },
            _ => add(&counters.malformed_packets, 1),
        }
        None
    }

    /// Expects the packet after this one.
    fn follow(&mut self, Part { frame, packet }: Part) {
        self.next = match packet + 1 == self.window.cut.packets() {
            true => Part { frame: frame + 1, packet: 0 },
            false => Part { frame, packet: packet + 1 },
        };
    }

    /// Stores the kept packets. Returns true at a packet that has no position until the first frame is closed.
    fn place_kept(&mut self, frame: &mut [u8], how: &How<'_>) -> bool {
        while let Some((part, payload)) = self.batch.kept() {
            match self.window.place(part.frame, part.packet) {
                Place::Late => add(&how.counters.late_packets, 1),
                Place::Twice => add(&how.counters.duplicate_packets, 1),
                Place::At(spot) => {
                    self.window.store(spot, payload, frame);
                    self.placed += 1;
                    add(&how.counters.packets, 1);
                    add(&how.counters.moved_packets, 1);
                }
                Place::Ahead if self.window.is_empty() && self.gap(part.frame) > LONGEST_GAP => {
                    self.skip_to(part.frame, how);
                    continue;
                }
                Place::Ahead => return true,
            }
            self.batch.let_go();
        }
        false
    }

    fn gap(&self, frame: u64) -> u64 {
        frame.saturating_sub(self.window.first)
    }

    /// Gives up frames of which no packet has arrived, if they are too many to return one by one.
    fn skip_to(&mut self, frame: u64, how: &How<'_>) {
        let gap = self.gap(frame);
        if gap > LONGEST_GAP {
            let lost = gap.saturating_mul(u64::from(self.window.cut.packets()));
            add(&how.counters.incomplete_frames, gap);
            add(&how.counters.lost_packets, lost);
            self.window.skip(gap);
        }
    }

    /// Closes the first frame, complete or not.
    fn conclude(&mut self, into: &mut [u8], how: &How<'_>) -> Arrival {
        let (frame, missing) = (self.window.first, self.window.missing());
        if missing > 0 && how.silence_holes {
            self.window.silence_holes(into);
        }
        self.window.advance();
        if missing == 0 {
            add(&how.counters.frames, 1);
            return Arrival::Whole { frame };
        }
        add(&how.counters.incomplete_frames, 1);
        add(&how.counters.lost_packets, missing.into());
        Arrival::Holes { frame, missing }
    }
}

/// What a stream needs for one call.
pub(super) struct How<'h> {
    pub socket: &'h UdpSocket,
    pub counters: &'h ReceiveCounters,
    /// Zero the missing bytes of incomplete frames.
    pub silence_holes: bool,
}

impl How<'_> {
    /// How many packets have been stored.
    fn placed(&self) -> u64 {
        self.counters.packets.load(Ordering::Relaxed)
    }
}

/// Whether the error means that nothing arrived in time.
pub(super) fn is_silence(error: &io::Error) -> bool {
    [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock].contains(&error.kind())
}
