//! Selects the stream to receive, if there is none or the current one has gone quiet.
//!
//! One stream at a time owns the receiver: a stream number from one address and port. While it is live, packets of others are
//! counted as strays and have no effect. If no useful packet has arrived for a while, the receiver inspects every packet,
//! whatever its size. A packet that the owner waits for lets the owner continue. Any other packet that can begin a stream
//! begins one, which takes over.

use super::{
    LONGEST_MESSAGE, Udp,
    counts::add,
    stream::{Claim, SLICE, Stream, is_silence},
};
use crate::net::{
    failed,
    mmsg::{Origin, Whole, receive_whole},
    packet::{Header, Kind},
};
use onebuf_hal::Result;
use std::{
    io::{ErrorKind, IoSliceMut},
    os::fd::AsFd,
    time::Instant,
};

/// What to do with a packet.
enum Verdict {
    /// Ignore it; it has been counted.
    Useless,
    /// Pass it to the owner.
    Owned,
    /// Begin a stream with this part of a frame.
    Begins(Header, u32),
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
        while start.elapsed() < SLICE {
            let fd = self.socket.as_fd();
            let Whole { bytes, each, from, .. } =
                match receive_whole(fd, &mut [IoSliceMut::new(&mut memory)]) {
                    Ok(came) => came,
                    Err(error) if is_silence(&error) => return Ok(false),
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(error) => return Err(failed("recvmsg")(error)),
                };
            // An empty datagram is a packet too. It is malformed.
            let packets: Vec<&[u8]> = match bytes {
                0 => vec![&[]],
                bytes => memory[..bytes].chunks(each).collect(),
            };
            if self.sort(&packets, from, frame_bytes) {
                return Ok(true);
            }
        }
        Ok(false)
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
                Verdict::Begins(header, part) => {
                    let joining = match &self.stream {
                        Some(old) => old.joining().again(&self.socket),
                        None => self.joining,
                    };
                    let mut new = Stream::begin(&header, part, from, self.window, joining);
                    new.keep(rest, from, &self.counters);
                    self.begin(new);
                    return true;
                }
            }
        }
        false
    }

    fn judge(&mut self, packet: &[u8], from: Origin, frame_bytes: usize) -> Verdict {
        let head = packet.split_first_chunk();
        let header = head.and_then(|(head, payload)| Header::decode(head, payload.len()));
        let counters = &self.counters;
        let Some(header) = header else {
            add(&counters.malformed_packets, 1);
            return Verdict::Useless;
        };
        let claim = self.stream.as_ref().map(|stream| stream.claim(&header, from));
        let over = self.over == Some((header.stream, from));
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
            Kind::Part(part) => return Verdict::Begins(header, part),
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
                    old = old.id,
                    new = new.id,
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
        self.over = Some((stream.id, stream.from));
        self.joining = stream.joining().again(&self.socket);
    }
}
