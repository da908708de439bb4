//! Which stream is received, when there is none or the one that there is has gone quiet.
//!
//! One stream at a time owns the receiver: a stream number, sent from one address and port. While it is live, packets of others
//! are counted as strays and change nothing. When nothing of use has come for a while, the receiver looks at every packet as a
//! whole, whatever its size: one that the owner waits for lets the owner go on, and any other that can begin a stream begins
//! one, which takes over.

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
    /// Nothing: it has been counted.
    Useless,
    /// The owner goes on with it.
    Owned,
    /// A stream begins with this part of a frame.
    Begins(Header, u32),
}

impl Udp {
    /// Whether another stream may begin. One packet alone may be a stray, so a stream of one packet is not waited for.
    pub(super) fn is_open(&mut self) -> bool {
        let Some(stream) = &mut self.stream else { return true };
        let patience = self.takeover_after;
        let patience = if stream.is_lone() { patience.min(SLICE) } else { patience };
        self.idle >= patience && stream.is_waiting()
    }

    /// Waits a while for a packet that a stream begins or goes on with; false when none came.
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
            // One without a byte is a packet too, and none of ours.
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

    /// Gives packets, from the first that is of use on, to the stream that wants them; false when none is.
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
        // A sender that is heard again after so long has begun again, though its numbers are the same.
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

    /// A new stream is the owner; as soon as what has come of the old one has been told, if there is one.
    fn begin(&mut self, new: Stream) {
        self.over = None;
        match &mut self.stream {
            Some(old) => {
                tracing::warn!(
                    old = old.id,
                    new = new.id,
                    "a stream went quiet; another takes over"
                );
                old.close();
                add(&self.counters.takeovers, 1);
                self.successor = Some(Box::new(new));
            }
            None => self.stream = Some(Box::new(new)),
        }
    }

    /// The old stream's frames have all been told, and the one that takes over is received; false where there is none.
    pub(super) fn succeed(&mut self) -> bool {
        let Some(new) = self.successor.take() else { return false };
        self.stream = Some(new);
        true
    }

    /// The stream has ended.
    pub(super) fn leave(&mut self) {
        let Some(stream) = self.stream.take() else { return };
        self.over = Some((stream.id, stream.from));
        self.joining = stream.joining().again(&self.socket);
    }
}
