//! The packets of one call: received where they are expected, and kept where they came instead.

use super::window::{Spot, Window};
use crate::pipeline::net::{
    mmsg::{self, BATCH, Got},
    packet::{HEADER, Header},
};
use std::{
    io::{self, IoSliceMut},
    net::UdpSocket,
    ops::Range,
    os::fd::AsFd,
};

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
}

impl Batch {
    pub fn new(stride: usize) -> Self {
        Self {
            heads: [[0; HEADER]; BATCH],
            got: [Got::default(); BATCH],
            expected: [None; BATCH],
            found: [None; BATCH],
            spare: vec![0; BATCH * stride],
            stride,
            held: 0..0,
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
        let mut places = window.places(from, first);
        let (mut parts, mut any) = (Vec::with_capacity(BATCH), false);
        self.expected = [None; BATCH];
        let spares = self.heads.iter_mut().zip(self.spare.chunks_mut(self.stride));
        for (expected, (head, spare)) in self.expected.iter_mut().zip(spares) {
            let head = IoSliceMut::new(head);
            parts.push(match places.next() {
                Some((spot, place)) => {
                    (*expected, any) = (Some(spot), true);
                    // A longer packet than the one that was expected goes on in the spare place.
                    let rest = if place.len() < self.stride { spare } else { &mut [] };
                    [head, IoSliceMut::new(place), IoSliceMut::new(rest)]
                }
                None if any => break,
                None => [head, IoSliceMut::new(spare), IoSliceMut::new(&mut [])],
            });
        }
        mmsg::receive(socket.as_fd(), &mut parts, &mut self.got)
    }

    /// What the packet with this number is, by its own word.
    pub fn header(&self, number: usize) -> Option<Header> {
        let Got { bytes, cut_off } = self.got[number];
        let payload = bytes.checked_sub(HEADER).filter(|_| !cut_off)?;
        Header::decode(&self.heads[number], payload)
    }

    /// Marks those that came where they were expected, and keeps the others. Returns how many came right.
    pub fn settle(
        &mut self,
        found: &[Option<Part>],
        window: &mut Window,
        first: &mut [u8],
    ) -> usize {
        let came = found.len();
        self.found[..came].copy_from_slice(found);
        let right = (0..came).take_while(|&number| self.came_right(number, window)).count();
        self.expected[..right].iter().flatten().for_each(|&spot| window.mark(spot));
        // All of them before any is put where it belongs: that may be where another one came.
        (right..came).for_each(|number| self.keep(number, window, first));
        self.held = right..came;
        right
    }

    fn came_right(&self, number: usize, window: &Window) -> bool {
        let expected = self.expected[number];
        let expected = expected
            .map(|Spot { behind, packet }| Part { frame: window.first + behind as u64, packet });
        expected.is_some() && self.found[number] == expected
    }

    /// Moves a payload to its spare place, where a rest of it may lie already.
    fn keep(&mut self, number: usize, window: &mut Window, first: &mut [u8]) {
        let (Some(_), Some(spot)) = (self.found[number], self.expected[number]) else { return };
        let payload = self.got[number].bytes - HEADER;
        let place = window.memory(spot, first);
        let here = place.len().min(payload);
        let spare = &mut self.spare[number * self.stride..][..self.stride];
        spare.copy_within(..payload - here, here);
        spare[..here].copy_from_slice(&place[..here]);
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
