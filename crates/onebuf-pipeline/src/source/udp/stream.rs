//! One sender's stream: packets in, frames out.

use super::{
    Arrival,
    batch::{Batch, Part},
    counts::{Counters, add},
    joining::Joining,
    window::{Place, Spot, Window},
};
use crate::net::{
    clock::coarse,
    mmsg::Origin,
    packet::{Header, Kind},
};
use std::{io, net::UdpSocket, sync::atomic::Ordering, time::Duration};

/// So often a stop is heard, and for so long a packet may be later than those sent after it.
pub(super) const SLICE: Duration = Duration::from_millis(50);

/// No call is longer, though packets come: a stop wants to be heard.
const LONGEST: Duration = Duration::from_millis(250);

/// Longer gaps are counted as a whole, and not frame by frame.
const LONGEST_GAP: u64 = 4096;

/// What a stream that is quiet makes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// The stream goes on with it.
    Wanted,
    /// It has this stream's number and sender, but its frame is over: a late packet, or a sender that began again.
    Past,
    /// It has come before: sent twice, or by a sender that began again.
    Again,
    /// It is another stream's.
    Other,
}

pub(super) struct Stream {
    pub id: u32,
    /// Who sends it. A stream has one sender, so that no frame is made of the packets of two.
    pub from: Origin,
    window: Window,
    batch: Batch,
    /// The packet that will come next if all goes well.
    next: Part,
    /// How many frames there are, when the sender has said so.
    end: Option<u64>,
    /// Nothing has come since: what is missing then will not.
    is_over: bool,
    /// How many packets have found their place.
    placed: u64,
}

impl Stream {
    /// A stream, by the first packet of it that came.
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

    /// Whether only one packet of it has come, which may be a stray.
    pub fn is_lone(&self) -> bool {
        self.placed < 2
    }

    /// Whether it can do nothing without another packet.
    pub fn is_waiting(&mut self) -> bool {
        let over = self.is_over || self.end.is_some_and(|end| self.window.first >= end);
        let has_work = self.window.is_whole() || self.window.is_pressed();
        !over && !has_work && self.batch.kept().is_none()
    }

    /// What a packet is to it, while it is waiting.
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

    /// Another stream takes over: frames that have begun are told as they are, and no packet is waited for.
    pub fn close(&mut self) {
        self.end = Some(self.window.first + self.window.begun());
        self.is_over = true;
    }

    pub fn frame_bytes(&self) -> usize {
        self.window.cut.frame_bytes()
    }

    /// What the kernel was told last.
    pub fn joining(&self) -> Joining {
        self.batch.joining
    }

    /// As a sender may bring about in the middle of a stream.
    #[cfg(all(test, not(onebuf_shuttle)))]
    pub fn ask_joined(&mut self, socket: &UdpSocket, joined: bool) {
        self.batch.joining = Joining::ask(socket, joined);
    }

    /// Keeps packets of one sender that were received elsewhere: those that it began with, or goes on with.
    pub fn keep<'p>(
        &mut self,
        packets: impl Iterator<Item = &'p [u8]>,
        from: Origin,
        counters: &Counters,
    ) {
        let came = self.batch.hold(packets, from);
        self.judge(came, counters);
    }

    /// What each of so many packets is, and which one is expected after them.
    fn judge(&mut self, came: usize, counters: &Counters) {
        for number in 0..came {
            let (header, from) = (self.batch.header(number), self.batch.origin(number));
            let found = self.check(header, from, counters);
            self.batch.note(number, found);
        }
        if let Some(last) = self.batch.last_found(came) {
            self.follow(last);
        }
    }

    /// The frame has a slot, for as long as this call lasts.
    pub fn fill(&mut self, frame: &mut [u8], how: &How<'_>) -> io::Result<Arrival> {
        self.with_slot(frame, how, Self::gather)
    }

    /// The frame has a slot, and nothing came for a while.
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
            // Packets that are of no use are as good as none, and those that are may come slowly. A thread that did not run for a while
            // has heard nothing yet.
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

    /// Nothing of use came for a while. What is missing of a frame will not come any more, when what was sent after it
    /// has.
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

    /// One call for packets; false when none came in time.
    fn listen(&mut self, frame: &mut [u8], how: &How<'_>) -> io::Result<bool> {
        let from = self.expected();
        let came = match self.batch.receive(how.socket, &mut self.window, from, frame) {
            Ok(came) => came,
            Err(error) if is_silence(&error) => return Ok(false),
            // A signal is no silence: time will tell.
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

    /// Lets pass what belongs to this stream, and counts what does not.
    fn check(&mut self, header: Option<Header>, from: Origin, counters: &Counters) -> Option<Part> {
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

    /// The packet after this one is expected next.
    fn follow(&mut self, Part { frame, packet }: Part) {
        self.next = match packet + 1 == self.window.cut.packets() {
            true => Part { frame: frame + 1, packet: 0 },
            false => Part { frame, packet: packet + 1 },
        };
    }

    /// Puts the packets that were kept where they belong, until one is in the way: the first frame has to be over
    /// before it has a place.
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

    /// Gives up frames of which nothing has come: all that are too many, at once.
    fn skip_to(&mut self, frame: u64, how: &How<'_>) {
        let gap = self.gap(frame);
        if gap > LONGEST_GAP {
            let lost = gap.saturating_mul(u64::from(self.window.cut.packets()));
            add(&how.counters.incomplete_frames, gap);
            add(&how.counters.lost_packets, lost);
            self.window.skip(gap);
        }
    }

    /// The first frame is over, whole or not.
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

/// What a stream works with.
pub(super) struct How<'h> {
    pub socket: &'h UdpSocket,
    pub counters: &'h Counters,
    /// What is missing of a frame is to be zero.
    pub silence_holes: bool,
}

impl How<'_> {
    /// How many packets have found their place.
    fn placed(&self) -> u64 {
        self.counters.packets.load(Ordering::Relaxed)
    }
}

/// Whether nothing came in time.
pub(super) fn is_silence(error: &io::Error) -> bool {
    [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock].contains(&error.kind())
}
