//! Selects the stream to receive, if there is none or the current one has gone quiet.
//!
//! One stream at a time owns the receiver: a stream number from one sender. While it is live, packets of others are
//! counted as strays and have no effect. If no useful packet has arrived for a while, the receiver inspects every packet,
//! whatever its size. A packet that the owner waits for lets the owner continue. Any other packet that can begin a stream
//! begins one, which takes over.

use super::{
    LONGEST_MESSAGE, Line, Udp,
    counts::add,
    share::{SLICE, is_silence},
    stream::{Claim, Stream},
};
use crate::net::{
    failed,
    mmsg::{Origin, Wait, Whole, peek, receive_whole},
    packet::{HEADER, Header, Kind, StreamId},
    socket,
};
use onebuf_hal::Result;
use std::{
    io::{ErrorKind, IoSliceMut},
    os::fd::{AsFd, BorrowedFd},
    time::Instant,
};

/// What to do with a packet.
enum Verdict {
    /// Ignore it; it has been counted.
    Useless,
    /// Pass it to the owner.
    Owned,
    /// Begin a stream with this part of a frame.
    Begins(Header, u32, StreamId),
}

impl Udp {
    /// Whether another stream may begin. A single packet may be a stray, so a stream of one packet gives way sooner.
    pub(super) fn is_open(&mut self) -> bool {
        let Some(stream) = &mut self.stream else { return true };
        let patience = self.takeover_after;
        let patience = if stream.is_lone() { patience.min(SLICE) } else { patience };
        self.idle >= patience && stream.is_waiting()
    }

    /// Waits briefly for a packet that begins or continues a stream; false if none arrived.
    pub(super) fn admit(&mut self, frame_bytes: usize) -> Result<bool> {
        let (start, mut memory) = (Instant::now(), vec![0; LONGEST_MESSAGE]);
        while let Some(left) = SLICE.checked_sub(start.elapsed()) {
            let sockets: Vec<BorrowedFd<'_>> =
                self.lines.iter().map(|line| line.socket.as_fd()).collect();
            let ready = socket::wait_for_any(&sockets, left).map_err(failed("poll"))?;
            if ready.is_empty() {
                return Ok(false);
            }
            for line in ready {
                if self.admit_from(line, &mut memory, frame_bytes)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// One message of a socket that has one; false if it neither begins nor continues a stream.
    fn admit_from(&mut self, line: usize, memory: &mut [u8], frame_bytes: usize) -> Result<bool> {
        let fd = self.lines[line].socket.as_fd();
        let Whole { bytes, each, from, .. } =
            match receive_whole(fd, &mut [IoSliceMut::new(memory)], Wait::No) {
                Ok(came) => came,
                Err(error) if is_silence(&error) => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(false),
                Err(error) => return Err(failed("recvmsg")(error)),
            };
        // An empty datagram is a packet too. It is malformed.
        let packets: Vec<&[u8]> = match bytes {
            0 => vec![&[]],
            bytes => memory[..bytes].chunks(each).collect(),
        };
        Ok(self.sort(&packets, from, frame_bytes))
    }

    /// Gives packets, from the first useful one on, to the stream that they belong to; false if none is useful.
    fn sort(&mut self, packets: &[&[u8]], from: Origin, frame_bytes: usize) -> bool {
        for (at, packet) in packets.iter().enumerate() {
            let rest = packets[at..].iter().copied();
            match self.judge(packet, from, frame_bytes) {
                Verdict::Useless => {}
                Verdict::Owned => {
                    if let Some(stream) = &mut self.stream {
                        stream.keep(rest, from, &self.counters);
                    }
                    return true;
                }
                Verdict::Begins(header, part, id) => {
                    for (number, line) in self.lines.iter_mut().enumerate() {
                        let old = self.stream.as_ref().and_then(|old| old.joining(number));
                        line.joining = old.map_or(line.joining, |old| old.again(&line.socket));
                    }
                    let header = Header { frame: self.earliest(&header, id), ..header };
                    let new = Stream::begin(&header, part, id, self.window, &self.lines);
                    let Some(mut new) = new else { return false };
                    new.keep(rest, from, &self.counters);
                    self.begin(new);
                    return true;
                }
            }
        }
        false
    }

    /// The earliest frame of a stream of which a packet waits first in any of several sockets. Their packets arrive at the
    /// same time, but are read one socket after another.
    fn earliest(&self, begins: &Header, id: StreamId) -> u64 {
        let waiting = |line: &Line| {
            let mut head = [0; HEADER];
            let from = peek(line.socket.as_fd(), &mut head).ok()?.from;
            let (header, _) = Header::read(&head)?;
            let is_of = StreamId::of(&header, from) == Some(id) && header.cut == begins.cut;
            (is_of && header.kind != Kind::End).then_some(header.frame)
        };
        let several = if self.lines.len() > 1 { &self.lines[..] } else { &[] };
        several.iter().filter_map(waiting).fold(begins.frame, u64::min)
    }

    fn judge(&mut self, packet: &[u8], from: Origin, frame_bytes: usize) -> Verdict {
        let head = packet.split_first_chunk();
        let header = head.and_then(|(head, payload)| Header::decode(head, payload.len()));
        let known = header.and_then(|header| Some((header, StreamId::of(&header, from)?)));
        let counters = &self.counters;
        let Some((header, id)) = known else {
            add(&counters.malformed_packets, 1);
            return Verdict::Useless;
        };
        let claim = self.stream.as_ref().map(|stream| stream.claim(&header, id));
        let over = self.over == Some(id);
        // A sender that is heard again after so long has restarted, even if its numbers are the same.
        let begins_again = self.idle >= self.takeover_after;
        let late = (over || claim == Some(Claim::Past)) && !begins_again;
        let owned = claim == Some(Claim::Wanted) || claim == Some(Claim::Again) && !begins_again;
        match header.kind {
            _ if self.wanted.is_some_and(|wanted| wanted != header.stream) => {
                add(&counters.stray_packets, 1);
            }
            _ if owned => return Verdict::Owned,
            _ if late => add(&counters.late_packets, 1),
            _ if header.cut.frame_bytes() != frame_bytes => {
                self.misfit = Some(header.cut.frame_bytes());
                add(&counters.malformed_packets, 1);
            }
            Kind::Part(part) => return Verdict::Begins(header, part, id),
            Kind::End => add(&counters.stray_packets, 1),
        }
        Verdict::Useless
    }

    /// Makes a new stream the owner, or the successor if an old one still has frames to return.
    fn begin(&mut self, new: Stream) {
        self.over = None;
        match &mut self.stream {
            Some(old) => {
                tracing::warn!(
                    old = old.id.number,
                    new = new.id.number,
                    "the stream went quiet; another one takes over"
                );
                old.close();
                add(&self.counters.takeovers, 1);
                self.successor = Some(Box::new(new));
            }
            None => self.stream = Some(Box::new(new)),
        }
    }

    /// Switches to the successor once all frames of the old stream have been returned; false if there is none.
    pub(super) fn succeed(&mut self) -> bool {
        let Some(new) = self.successor.take() else { return false };
        self.stream = Some(new);
        true
    }

    /// Closes the current stream.
    pub(super) fn leave(&mut self) {
        let Some(stream) = self.stream.take() else { return };
        self.over = Some(stream.id);
        for (number, line) in self.lines.iter_mut().enumerate() {
            line.joining = stream.joining(number).unwrap_or(line.joining).again(&line.socket);
        }
    }
}
