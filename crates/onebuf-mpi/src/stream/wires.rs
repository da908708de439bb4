//! What both ends of a stream have on the communication thread.
//!
//! # Safety
//! The owner of an end keeps the memory of a slot whenever its request is started: see `sender` and `receiver`.

#![allow(unsafe_code)]

use super::Spec;
use crate::{
    engine::{Io, Standing},
    layout::Layout,
    post::{Inbox, Outbox},
    transport::{Address, Lane, Transfer, Way},
};
use onebuf_hal::Result;

/// Marks of transfers: the record that comes, the bytes of each slot, and the records that go.
pub(super) const COMES: u64 = 0;
const BYTES: u64 = 1;
const GO: u64 = 1 << 32;

/// The slot whose bytes have this mark.
pub(super) fn slot_of(mark: u64) -> Option<usize> {
    (BYTES..GO).contains(&mark).then(|| (mark - BYTES) as usize)
}

pub(super) struct Wires {
    way: Way,
    pub out: Outbox,
    pub inbox: Inbox,
    begun: bool,
    /// The other end has described itself as expected.
    pub agreed: bool,
    /// Frames that may be sent, or slots that the sender does not know of yet.
    pub credits: u32,
    /// By slot: the address and the request.
    standing: Vec<Option<(Address, Standing)>>,
    /// This side has sent its last record.
    pub said: bool,
    /// The other side has.
    pub heard: bool,
}

impl Wires {
    /// Those of the end that sends frames, or receives them.
    pub fn new(spec: &Spec, way: Way, slots: usize) -> Self {
        let (down, up) = (spec.down(), spec.up());
        let (out, comes) = if way == Way::Send { (down, up) } else { (up, down) };
        Self {
            way,
            out: Outbox::new(spec.peer, out, GO),
            inbox: Inbox::new(spec.peer, comes, COMES),
            begun: false,
            agreed: false,
            credits: 0,
            standing: vec![None; slots],
            said: false,
            heard: false,
        }
    }

    /// Describes this end to the other, and listens to that.
    pub fn begin(&mut self, spec: &Spec, io: &mut Io<'_>) -> Result<()> {
        if self.begun {
            return Ok(());
        }
        self.begun = true;
        self.inbox.start(io)?;
        self.out.send(io, &spec.open())
    }

    /// Begins to send or receive a slot's memory.
    ///
    /// # Safety
    /// The memory, of a frame's size, is kept until the transfer has ended.
    pub unsafe fn start(
        &mut self,
        spec: &Spec,
        io: &mut Io<'_>,
        slot: usize,
        at: Address,
    ) -> Result<()> {
        let standing = self.standing(spec, io, slot, at)?;
        // SAFETY: the caller's guarantee.
        unsafe { io.start(BYTES + slot as u64, standing) }
    }

    /// The request of a slot, which is made anew if the slot has other memory now.
    fn standing(
        &mut self,
        spec: &Spec,
        io: &mut Io<'_>,
        slot: usize,
        at: Address,
    ) -> Result<Standing> {
        match self.standing[slot].take() {
            Some((known, standing)) if known == at => {
                self.standing[slot] = Some((at, standing));
                return Ok(standing);
            }
            Some((_, standing)) => io.release(standing),
            None => {}
        }
        let (way, peer, tag, layout) =
            (self.way, spec.peer, spec.down(), Layout::contiguous(spec.bytes));
        // SAFETY: the caller of `start` guarantees the memory of the request.
        let standing =
            unsafe { io.prepare(&Transfer { way, at, layout, peer, lane: Lane::Data, tag }) }?;
        self.standing[slot] = Some((at, standing));
        Ok(standing)
    }

    /// Gives up the receive into a slot.
    pub fn cancel(&self, io: &mut Io<'_>, slot: usize) {
        io.cancel(BYTES + slot as u64);
    }

    /// Whether both sides have said their last, and it was sent.
    pub fn is_closed(&self) -> bool {
        self.said && self.heard && self.out.is_idle()
    }

    /// Frees the requests if no records and no bytes are under way, and the stream is over or has failed. Returns whether it is
    /// closed.
    pub fn retire(&mut self, io: &mut Io<'_>, busy: usize, failed: bool) -> bool {
        let idle = self.out.is_idle() && self.inbox.is_idle() && busy == 0;
        let ends = idle && (self.is_closed() || failed);
        if ends {
            self.out.release(io);
            self.inbox.release(io);
            self.standing
                .iter_mut()
                .filter_map(Option::take)
                .for_each(|(_, standing)| io.release(standing));
            io.retire();
        }
        ends || self.is_closed()
    }

    /// The owner waits no longer for the other end.
    pub fn abandon(&mut self, io: &mut Io<'_>) {
        self.inbox.cancel(io);
        self.heard = true;
    }

    /// A rank is lost: nothing more is said or heard.
    pub fn cut(&mut self, io: &mut Io<'_>) {
        (self.said, self.heard) = (true, true);
        self.inbox.cancel(io);
        io.retire();
    }
}
