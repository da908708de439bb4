//! The packets of one call: received where they are expected, and kept where they came instead.

use super::{
    joining::Joining,
    window::{Spot, Window},
};
use crate::net::{
    mmsg::{self, BATCH, Got, Origin},
    packet::{HEADER, Header},
};
use std::{
    io::{self, IoSliceMut},
    net::UdpSocket,
    ops::Range,
    os::fd::AsFd,
};

/// The longest message, of however many packets.
const LONGEST: usize = 1 << 16;

/// A packet by its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub frame: u64,
    pub packet: u32,
}

pub(super) struct Batch {
    heads: [[u8; HEADER]; BATCH],
    got: [Got; BATCH],
    /// Where each was expected; nowhere, when there was no place left to expect it.
    expected: [Option<Spot>; BATCH],
    /// What each turned out to be; nothing, when it is of no use.
    found: [Option<Part>; BATCH],
    /// A place for each payload that has no other.
    spare: Vec<u8>,
    stride: usize,
    /// Those that lie in the spare places and are still to be put where they belong.
    held: Range<usize>,
    /// What came together is one call's. Otherwise many packets are.
    pub joining: Joining,
}

/// Where one packet is received, but for its own place.
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
    /// Room for the longest packet: its head, its place if it has one, and the spare place for the rest. Together they are
    /// always equally long.
    fn parts(self, place: Option<(Spot, &'b mut [u8])>) -> [IoSliceMut<'b>; 3] {
        *self.expected = place.as_ref().map(|(spot, _)| *spot);
        let place = place.map_or(&mut [][..], |(_, place)| place);
        let rest = &mut self.spare[place.len()..];
        [self.head, place, rest].map(IoSliceMut::new)
    }
}

impl Batch {
    pub fn new(stride: usize, joining: Joining) -> Self {
        Self {
            heads: [[0; HEADER]; BATCH],
            got: [Got::default(); BATCH],
            expected: [None; BATCH],
            found: [None; BATCH],
            spare: vec![0; BATCH * stride],
            stride,
            held: 0..0,
            joining,
        }
    }

    /// Receives what is there, the payloads where they are expected: in order from a spot on.
    pub fn receive(
        &mut self,
        socket: &UdpSocket,
        window: &mut Window,
        from: Spot,
        first: &mut [u8],
    ) -> io::Result<usize> {
        let places = window.places(from, first);
        if self.joining.is_over() {
            return self.receive_many(socket, places);
        }
        let came = self.receive_joined(socket, places)?;
        let bytes = self.got[..came].iter().map(|got| got.bytes).sum();
        self.joining.note(came, bytes, socket);
        Ok(came)
    }

    /// Keeps packets that came before there was a place for any, no more than one call's. Returns how many they are.
    pub fn hold<'p>(&mut self, packets: impl Iterator<Item = &'p [u8]>, from: Origin) -> usize {
        self.held = 0..0;
        for (number, packet) in packets.take(BATCH).enumerate() {
            let (head, payload) = packet.split_at(packet.len().min(HEADER));
            let payload = &payload[..payload.len().min(self.stride)];
            self.heads[number][..head.len()].copy_from_slice(head);
            self.spare[number * self.stride..][..payload.len()].copy_from_slice(payload);
            self.got[number] = Got { bytes: packet.len(), cut_off: false, from };
            self.held.end = number + 1;
        }
        self.held.end
    }

    /// As many packets as are expected; as many as there may be, when none has a place.
    fn receive_many<'p>(
        &mut self,
        socket: &UdpSocket,
        places: impl Iterator<Item = (Spot, &'p mut [u8])>,
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
        mmsg::receive(socket.as_fd(), &mut parts, &mut self.got)
    }

    /// One message, of as many packets as one can have: with long packets those are few, and so is what is written here
    /// for each call.
    fn receive_joined<'p>(
        &mut self,
        socket: &UdpSocket,
        mut places: impl Iterator<Item = (Spot, &'p mut [u8])>,
    ) -> io::Result<usize> {
        let packet = HEADER + self.stride;
        let most = LONGEST.div_ceil(packet).min(BATCH);
        let slots = slots(&mut self.expected, &mut self.heads, &mut self.spare, self.stride);
        let mut parts = Vec::with_capacity(3 * most);
        for slot in slots.take(most) {
            let three = slot.parts(places.next());
            parts.extend(three.into_iter().filter(|part| !part.is_empty()));
        }
        let marked = self.joining.is_on();
        mmsg::receive_joined(socket.as_fd(), &mut parts, packet, marked, &mut self.got)
    }

    /// What the packet with this number is, by its own word.
    pub fn header(&self, number: usize) -> Option<Header> {
        let Got { bytes, cut_off, .. } = self.got[number];
        let payload = bytes.checked_sub(HEADER).filter(|_| !cut_off)?;
        Header::decode(&self.heads[number], payload)
    }

    /// Who sent the packet with this number.
    pub fn origin(&self, number: usize) -> Origin {
        self.got[number].from
    }

    /// What the packet with this number turned out to be.
    pub fn note(&mut self, number: usize, found: Option<Part>) {
        self.found[number] = found;
    }

    /// Marks those that came where they were expected, of so many, and keeps the others. Returns how many came right.
    pub fn settle(&mut self, came: usize, window: &mut Window, first: &mut [u8]) -> usize {
        let right = (0..came).take_while(|&number| self.came_right(number, window)).count();
        self.expected[..right].iter().flatten().for_each(|&spot| window.mark(spot));
        // All of them before any is put where it belongs: that may be where another one came.
        (right..came).for_each(|number| self.keep(number, window, first));
        self.held = right..came;
        right
    }

    /// The last of so many that is of use.
    pub fn last_found(&self, came: usize) -> Option<Part> {
        self.found[..came].iter().rev().find_map(|found| *found)
    }

    fn came_right(&self, number: usize, window: &Window) -> bool {
        let expected = self.expected[number];
        let expected = expected
            .map(|Spot { behind, packet }| Part { frame: window.first + behind as u64, packet });
        expected.is_some() && self.found[number] == expected
    }

    /// Moves a payload to its spare place, where what is longer than was expected lies already.
    fn keep(&mut self, number: usize, window: &mut Window, first: &mut [u8]) {
        let (Some(_), Some(spot)) = (self.found[number], self.expected[number]) else { return };
        let place = window.memory(spot, first);
        let here = place.len().min(self.got[number].bytes - HEADER);
        self.spare[number * self.stride..][..here].copy_from_slice(&place[..here]);
    }

    /// The next packet that was kept, and its payload. It stays until it is let go.
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

    /// Lets it go.
    pub fn let_go(&mut self) {
        self.held.start += 1;
    }
}
