//! A world of one rank, without MPI: a message to oneself is a copy.
//!
//! # Safety
//! Copies between memories that the contract of [`Transport`] guarantees, when both a send and a receive have begun.

#![allow(unsafe_code)]

use super::{Address, Key, Outcome, Prepared, Transfer, Transport, Way};
use crate::{deadline::Deadline, layout::pairs};
use onebuf_hal::{Error, Result};
use onebuf_sys::mpi::{Comm, Mpi};
use std::collections::VecDeque;

/// The one rank.
#[derive(Default)]
pub(crate) struct Alone {
    /// Transfers without a partner, oldest first.
    waiting: VecDeque<(Key, Transfer)>,
    prepared: Vec<Option<Transfer>>,
    ended: Vec<(Key, Outcome)>,
}

impl Alone {
    /// The oldest transfer that this one belongs to.
    fn partner(&mut self, of: &Transfer) -> Option<(Key, Transfer)> {
        let fits =
            |other: &Transfer| other.way != of.way && (other.lane, other.tag) == (of.lane, of.tag);
        let at = self.waiting.iter().position(|(_, other)| fits(other))?;
        self.waiting.remove(at)
    }

    fn post(&mut self, transfer: Transfer, key: Key) -> Result<()> {
        if transfer.peer != 0 {
            return Err(Error::invalid(format!("rank {} in a world of one", transfer.peer)));
        }
        let Some((other_key, other)) = self.partner(&transfer) else {
            self.waiting.push_back((key, transfer));
            return Ok(());
        };
        let ((sent, from), (received, to)) = match transfer.way {
            Way::Send => ((key, transfer), (other_key, other)),
            Way::Receive => ((other_key, other), (key, transfer)),
        };
        // SAFETY: neither has been reported.
        let [went, came] = unsafe { deliver(&from, &to) };
        self.ended.extend([(sent, went), (received, came)]);
        Ok(())
    }
}

/// Copies a message to its receiver's memory, and returns how the two ends of it have ended.
///
/// # Safety
/// The memory of both transfers is valid, as the contract of [`Transport`] says.
pub(super) unsafe fn deliver(from: &Transfer, to: &Transfer) -> [Outcome; 2] {
    for (source, target, many) in pairs(from.layout, to.layout) {
        // SAFETY: both ranges are inside of the layouts, whose memory the caller guarantees. A frame may be sent to the memory
        // that it is in, so the two may overlap.
        unsafe { std::ptr::copy(from.at.plus(source).get(), to.at.plus(target).get(), many) };
    }
    let (bytes, room) = (from.layout.bytes(), to.layout.bytes());
    let came = if bytes > room { Outcome::Truncated } else { Outcome::Done(bytes as u64) };
    [Outcome::Done(bytes as u64), came]
}

impl Transport for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    unsafe fn begin(&mut self, transfer: &Transfer, key: Key) -> Result<()> {
        self.post(*transfer, key)
    }

    unsafe fn prepare(&mut self, transfer: &Transfer) -> Result<Prepared> {
        self.prepared.push(Some(*transfer));
        Ok(Prepared(self.prepared.len() - 1))
    }

    unsafe fn start(&mut self, prepared: Prepared, key: Key) -> Result<()> {
        let transfer = self.prepared.get(prepared.0).copied().flatten();
        self.post(transfer.ok_or_else(|| Error::invalid("a request that was released"))?, key)
    }

    fn release(&mut self, prepared: Prepared) {
        if let Some(transfer) = self.prepared.get_mut(prepared.0) {
            *transfer = None;
        }
    }

    fn cancel(&mut self, key: Key) {
        let unmatched =
            |(other, transfer): &(Key, Transfer)| *other == key && transfer.way == Way::Receive;
        if let Some(at) = self.waiting.iter().position(unmatched) {
            self.waiting.remove(at);
            self.ended.push((key, Outcome::Cancelled));
        }
    }

    unsafe fn broadcast(
        &mut self,
        _at: Address,
        bytes: usize,
        _root: usize,
        key: Key,
    ) -> Result<()> {
        self.ended.push((key, Outcome::Done(bytes as u64)));
        Ok(())
    }

    unsafe fn all_gather(
        &mut self,
        from: Address,
        into: Address,
        each: usize,
        key: Key,
    ) -> Result<()> {
        // SAFETY: one rank's bytes, and memory for as many, by the contract.
        unsafe { std::ptr::copy(from.get(), into.get(), each) };
        self.ended.push((key, Outcome::Done(each as u64)));
        Ok(())
    }

    fn barrier(&mut self, key: Key) -> Result<()> {
        self.ended.push((key, Outcome::Done(0)));
        Ok(())
    }

    fn poll(&mut self, ended: &mut Vec<(Key, Outcome)>) -> Result<()> {
        ended.append(&mut self.ended);
        Ok(())
    }

    fn raw(&self) -> Option<(&Mpi, Comm)> {
        None
    }

    fn close(&mut self, _orderly: bool, _until: Deadline) -> Result<()> {
        Ok(())
    }

    fn shrink(&mut self, _until: Deadline) -> Result<Option<Box<dyn Transport>>> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{layout::Layout, transport::Lane};

    fn transfer(way: Way, bytes: &mut [u8], layout: Layout, tag: i32) -> Transfer {
        assert!(layout.ranges().last().is_none_or(|last| last.end <= bytes.len()));
        Transfer {
            way,
            at: Address::new(bytes.as_mut_ptr()),
            layout,
            peer: 0,
            lane: Lane::Data,
            tag,
        }
    }

    #[test]
    fn messages_match_in_order_by_tag_and_lane() {
        let (mut one, mut two, mut out) = ([1u8; 8], [2u8; 8], [0u8; 24]);
        let whole = Layout::contiguous(8);
        let mut alone = Alone::default();
        let mut ended = Vec::new();
        // SAFETY: the arrays outlive the transport.
        unsafe {
            alone.begin(&transfer(Way::Send, &mut one, whole, 5), 1).unwrap();
            alone.begin(&transfer(Way::Send, &mut two, whole, 5), 2).unwrap();
            let head = Transfer { lane: Lane::Head, ..transfer(Way::Receive, &mut out, whole, 5) };
            alone.begin(&head, 3).unwrap();
            alone.poll(&mut ended).unwrap();
            assert_eq!(ended, [], "another lane");
            let spread = Layout::blocks(2, 4, 12);
            alone.begin(&transfer(Way::Receive, &mut out, spread, 5), 4).unwrap();
            alone.poll(&mut ended).unwrap();
            assert_eq!(ended, [(1, Outcome::Done(8)), (4, Outcome::Done(8))]);
            ended.clear();
            alone
                .begin(&transfer(Way::Receive, &mut out[20..], Layout::contiguous(4), 5), 6)
                .unwrap();
            alone.poll(&mut ended).unwrap();
            assert_eq!(ended, [(2, Outcome::Done(8)), (6, Outcome::Truncated)]);
            ended.clear();
            alone.cancel(3);
            alone.poll(&mut ended).unwrap();
            assert_eq!(ended, [(3, Outcome::Cancelled)]);
        }
        let expected = [&[1u8; 4][..], &[0; 8], &[1; 4], &[0; 4], &[2; 4]].concat();
        assert_eq!(out[..], expected);
    }
}
