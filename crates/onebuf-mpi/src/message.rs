//! Buffers as messages: send and receive.
//!
//! # Safety
//! A call's guards are those of its letters' memory.

#![allow(unsafe_code)]

use crate::{
    bundle::{Bundle, Label, Letter},
    direct::By,
    flight::InFlight,
    layout::Layout,
    memory::Span,
    transport::Way,
    wire::Kind,
    world::World,
};
use bytemuck::Pod;
use onebuf_hal::{Error, Result};
use std::sync::Arc;

/// The largest tag of a message.
pub const MOST_TAG: u32 = 16_383;

impl World {
    /// Begins to send elements to a rank. Waits for the work that writes them; they are read in place if the host can map them, or
    /// if MPI was proven to take this device's memory ([`World::use_device_memory`]), and through pinned memory otherwise, which the
    /// ledger counts as an implied copy.
    ///
    /// ```
    /// # let hub = onebuf::discover()?;
    /// # let (from, to) = (hub.buffer_from(&[7.0f32; 100]).build()?, hub.buffer::<f32>(100).build()?);
    /// # let world = onebuf_mpi::Join::new().start()?;
    /// # let (next, previous) = (world.rank(), world.rank());
    /// let sent = world.send(&from, next, 5)?;              // a whole buffer, with tag 5
    /// let mut came = world.receive(&to, previous, 5)?;
    /// came.wait(world.timeout())?;
    /// assert_eq!(to.map()?[99], 7.0);
    /// # drop(sent);
    /// # Ok::<(), onebuf::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a rank or tag that does not exist, or a range that is empty or outside; those of
    /// [`Buffer::map`](onebuf::Buffer::map).
    pub fn send<'b, T: Pod>(
        &self,
        from: impl Into<Span<'b, T>>,
        to: usize,
        tag: u32,
    ) -> Result<InFlight<'b, T>> {
        self.message(Way::Send, from.into(), to, tag)
    }

    /// Begins to receive elements from a rank, which must send as many with the same tag. A message of another length is
    /// [`Error::InvalidArgument`] with both lengths; the elements are unspecified then, and nothing beyond them is written.
    ///
    /// # Errors
    /// As for [`World::send`].
    pub fn receive<'b, T: Pod>(
        &self,
        into: impl Into<Span<'b, T>>,
        from: usize,
        tag: u32,
    ) -> Result<InFlight<'b, T>> {
        self.message(Way::Receive, into.into(), from, tag)
    }

    fn message<'b, T: Pod>(
        &self,
        way: Way,
        span: Span<'b, T>,
        peer: usize,
        tag: u32,
    ) -> Result<InFlight<'b, T>> {
        if tag > MOST_TAG {
            return Err(Error::invalid(format!("tag {tag}: tags are 0 to {MOST_TAG}")));
        }
        self.tagged(way, span, peer, tag as i32, By::Proof)
    }

    /// A message with a tag that programs do not have.
    pub(crate) fn tagged<'b, T: Pod>(
        &self,
        way: Way,
        span: Span<'b, T>,
        peer: usize,
        tag: i32,
        by: By,
    ) -> Result<InFlight<'b, T>> {
        self.check_rank(peer)?;
        let queue = self.direct(&span, by, peer);
        let held = match way {
            Way::Send => span.read(queue)?,
            Way::Receive => span.overwrite(queue)?,
        };
        let (at, layout) = (held.at(), Layout::contiguous(held.bytes()));
        let letters = vec![Letter { way, peer, at, layout }];
        let label = Label { kind: Kind::Message, tag, number: 0, call: 0 };
        // SAFETY: `held` guards the letter's memory.
        unsafe {
            let bundle = Arc::new(Bundle::new(letters, label, self.ranks()));
            Ok(InFlight::begin(self, bundle, vec![held]))
        }
    }
}
