//! The packets of one receive call: received at their expected positions, and kept aside if they belong elsewhere.

use super::{
    joining::Joining,
    window::{Spot, Window},
};
use crate::net::{
    mmsg::{self, BATCH, Got, Joined, Origin, Wait},
    packet::{HEADER, Header},
};
use std::{
    io::{self, IoSliceMut},
    net::UdpSocket,
    ops::Range,
    os::fd::AsFd,
};

/// The longest message, joined packets included.
const LONGEST: usize = 1 << 16;

/// A packet's frame and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub frame: u64,
    pub packet: u32,
}

pub(super) struct Batch {
    heads: [[u8; HEADER]; BATCH],
    got: [Got; BATCH],
    /// Where each packet was expected; `None` if no position was left.
    expected: [Option<Spot>; BATCH],
    /// What each packet turned out to be; `None` if it is of no use.
    found: [Option<Part>; BATCH],
    /// A spare buffer for each payload without a position.
    spare: Vec<u8>,
    stride: usize,
    /// The number of the first packet of this part of a frame.
    start: u32,
    /// Packets in spare buffers that still have to be stored.
    held: Range<usize>,
    /// While joining, one call receives one message of joined packets; otherwise it receives many packets.
    pub joining: Joining,
}

/// The buffers of one packet, except its position in the frame.
struct Slot<'b> {
    expected: &'b mut Option<Spot>,
    head: &'b mut [u8],
    spare: &'b mut [u8],
}

fn slots<'b>(
    expected: &'b mut [Option<Spot>],
    heads: &'b mut [[u8; HEADER]],
    spare: &'b mut [u8],
    stride: usize,
) -> impl Iterator<Item = Slot<'b>> {
    let slots = expected.iter_mut().zip(heads).zip(spare.chunks_mut(stride));
    slots.map(|((expected, head), spare)| Slot { expected, head, spare })
}

impl<'b> Slot<'b> {
    /// Buffers for the longest packet: its header, its position in the frame if it has one, and the spare buffer for the
    /// rest. Their total size is always the same.
    fn parts(self, place: Option<(Spot, &'b mut [u8])>) -> [IoSliceMut<'b>; 3] {
        *self.expected = place.as_ref().map(|(spot, _)| *spot);
        let place = place.map_or(&mut [][..], |(_, place)| place);
        let rest = &mut self.spare[place.len()..];
        [self.head, place, rest].map(IoSliceMut::new)
    }
}

impl Batch {
    pub fn new(stride: usize, start: u32, joining: Joining) -> Self {
        Self {
            heads: [[0; HEADER]; BATCH],
            got: [Got::default(); BATCH],
            expected: [None; BATCH],
            found: [None; BATCH],
            spare: vec![0; BATCH * stride],
            stride,
            start,
            held: 0..0,
            joining,
        }
    }

    /// Receives what has arrived. Payloads go to their expected positions, in order from a spot on.
    pub fn receive(
        &mut self,
        socket: &UdpSocket,
        window: &mut Window,
        from: Spot,
        first: &mut [u8],
        wait: Wait,
    ) -> io::Result<usize> {
        let places = window.places(from, first);
        if self.joining.is_over() {
            return self.receive_many(socket, places, wait);
        }
        let came = self.receive_joined(socket, places, wait)?;
        self.joining.note(came, self.bytes(came), socket);
        Ok(came)
    }

    /// Receives as many packets as are expected, or a full batch if none has a position.
    fn receive_many<'p>(
        &mut self,
        socket: &UdpSocket,
        places: impl Iterator<Item = (Spot, &'p mut [u8])>,
        wait: Wait,
    ) -> io::Result<usize> {
        self.expected = [None; BATCH];
        let mut places = places.peekable();
        let any = places.peek().is_some();
        let mut parts = Vec::with_capacity(BATCH);
        for slot in slots(&mut self.expected, &mut self.heads, &mut self.spare, self.stride) {
            let place = places.next();
            if any && place.is_none() {
                break;
            }
            parts.push(slot.parts(place));
        }
        mmsg::receive(socket.as_fd(), &mut parts, &mut self.got, wait)
    }

    /// Receives one message with as many packets as it can have. Long packets make that few, which keeps the setup per call
    /// cheap.
    fn receive_joined<'p>(
        &mut self,
        socket: &UdpSocket,
        mut places: impl Iterator<Item = (Spot, &'p mut [u8])>,
        wait: Wait,
    ) -> io::Result<usize> {
        let packet = HEADER + self.stride;
        let most = LONGEST.div_ceil(packet).min(BATCH);
        let slots = slots(&mut self.expected, &mut self.heads, &mut self.spare, self.stride);
        let mut parts = Vec::with_capacity(3 * most);
        for slot in slots.take(most) {
            let three = slot.parts(places.next());
            parts.extend(three.into_iter().filter(|part| !part.is_empty()));
        }
        let joined = Joined { packet, is_marked: self.joining.is_on() };
        mmsg::receive_joined(socket.as_fd(), &mut parts, joined, &mut self.got, wait)
    }

    /// The decoded header of a packet; `None` if it is malformed or cut off.
    pub fn header(&self, number: usize) -> Option<Header> {
        let Got { bytes, cut_off, .. } = self.got[number];
        let payload = bytes.checked_sub(HEADER).filter(|_| !cut_off)?;
        Header::decode(&self.heads[number], payload)
    }

    /// The size of the first `came` packets together.
    pub fn bytes(&self, came: usize) -> usize {
        self.got[..came].iter().map(|got| got.bytes).sum()
    }

    /// The sender of a packet.
    pub fn origin(&self, number: usize) -> Origin {
        self.got[number].from
    }

    /// Records what a packet turned out to be.
    pub fn note(&mut self, number: usize, found: Option<Part>) {
        self.found[number] = found;
    }

    /// Marks the leading packets that arrived at their expected positions, and keeps the others aside. Returns how many were
    /// right.
    pub fn settle(&mut self, came: usize, window: &mut Window, first: &mut [u8]) -> usize {
        let right = (0..came).take_while(|&number| self.came_right(number, window)).count();
        self.expected[..right].iter().flatten().for_each(|&spot| window.mark(spot));
        // All of them are moved aside before any is stored, because a packet's position may hold another packet.
        (right..came).for_each(|number| self.keep(number, window, first));
        self.held = right..came;
        right
    }

    fn came_right(&self, number: usize, window: &Window) -> bool {
        let expected = self.expected[number];
        let expected = expected.map(|Spot { behind, packet }| Part {
            frame: window.first + behind as u64,
            packet: self.start + packet,
        });
        expected.is_some() && self.found[number] == expected
    }

    /// Moves a payload to its spare buffer. The part that exceeded the expected position is there already.
    fn keep(&mut self, number: usize, window: &mut Window, first: &mut [u8]) {
        let (Some(_), Some(spot)) = (self.found[number], self.expected[number]) else { return };
        let place = window.memory(spot, first);
        let here = place.len().min(self.got[number].bytes - HEADER);
        self.spare[number * self.stride..][..here].copy_from_slice(&place[..here]);
    }

    /// The next kept packet and its payload. It stays until `let_go`.
    pub fn kept(&mut self) -> Option<(Part, &[u8])> {
        while let Some(number) = self.held.clone().next() {
            if let Some(part) = self.found[number] {
                let payload = self.got[number].bytes - HEADER;
                return Some((part, &self.spare[number * self.stride..][..payload]));
            }
            self.held.start += 1;
        }
        None
    }

    /// Removes the packet that `kept` returned.
    pub fn let_go(&mut self) {
        self.held.start += 1;
    }
}
