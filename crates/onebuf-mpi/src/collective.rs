//! Calls that all ranks make: barrier, broadcast, gather, all-to-all.
//!
//! All ranks make the same calls in the same order. Each message carries the number of its call, so that ranks which do not are
//! noticed.
//!
//! # Safety
//! A call's guards are those of its memory. Actors own the arrays that they gather into.

#![allow(unsafe_code)]

mod broadcast;
mod collect;

use crate::{
    bundle::{Bundle, Label, Letter},
    flight::{InFlight, wait_while},
    layout::Layout,
    memory::{Held, Span},
    transport::Way,
    wire::Kind,
    world::World,
};
use broadcast::{Broadcast, What};
use bytemuck::Pod;
use collect::Collect;
use onebuf_hal::{Error, Result};
use std::{sync::Arc, time::Duration};

/// The tags of calls follow those of messages.
const FIRST_TAG: i32 = 1 << 14;
/// Calls with other numbers have other tags, as far as there are some.
const TAGS: u64 = 1 << 12;

/// Which call it is, in records.
#[derive(Clone, Copy)]
enum Op {
    Gather = 1,
    AllToAll = 2,
    Collect = 3,
}

impl World {
    /// Waits until all ranks have called it.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::PeerLost`] if a rank of this machine is gone.
    pub fn barrier(&self, timeout: Duration) -> Result<()> {
        self.barrier_while(timeout, || Ok(()))
    }

    /// Like [`World::barrier`]; an error of `go_on`, which is called every 50 ms, ends the wait. For bindings of languages whose signals
    /// end waits.
    #[doc(hidden)]
    pub fn barrier_while(
        &self,
        timeout: Duration,
        go_on: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let call = Arc::new(Broadcast::new(What::Barrier, self.next_call(), self));
        self.link().post(call.clone());
        wait_while(self, &*call, timeout, go_on)
    }

    /// Begins to copy the root's elements to all ranks.
    ///
    /// # Errors
    /// As for [`World::send`]. If the ranks ask for different lengths or roots, the wait fails on every rank, with their numbers.
    pub fn broadcast<'b, T: Pod>(
        &self,
        span: impl Into<Span<'b, T>>,
        root: usize,
    ) -> Result<InFlight<'b, T>> {
        self.check_rank(root)?;
        let span = span.into();
        // MPI's own broadcast is in no experiment with device memory.
        let held = if self.rank() == root { span.read(None) } else { span.overwrite(None) }?;
        let (at, bytes) = (held.at(), held.bytes());
        let what = What::Broadcast { at, bytes, root };
        let call = Arc::new(Broadcast::new(what, self.next_call(), self));
        // SAFETY: `held` guards the bytes.
        Ok(unsafe { InFlight::begin(self, call, vec![held]) })
    }

    /// Begins to send the elements of every rank to the root, which receives them one rank after another. All ranks send equally
    /// many. Only the root passes `into`.
    ///
    /// # Errors
    /// As for [`World::send`].
    pub fn gather<'b, T: Pod>(
        &self,
        from: impl Into<Span<'b, T>>,
        root: usize,
        into: Option<Span<'b, T>>,
    ) -> Result<InFlight<'b, T>> {
        let from = from.into();
        let counts = into.is_some().then(|| vec![from.len(); self.size()]);
        self.gather_v(from, root, into.zip(counts.as_deref()))
    }

    /// Like [`World::gather`], with as many elements of each rank as the root says.
    ///
    /// # Errors
    /// As for [`World::send`]; [`Error::InvalidArgument`] unless there is a count for each rank, and their sum is the number of
    /// elements.
    pub fn gather_v<'b, T: Pod>(
        &self,
        from: impl Into<Span<'b, T>>,
        root: usize,
        into: Option<(Span<'b, T>, &[usize])>,
    ) -> Result<InFlight<'b, T>> {
        self.check_rank(root)?;
        if into.is_some() != (self.rank() == root) {
            return Err(Error::invalid(format!("rank {root} gathers: it alone passes where to")));
        }
        if let Some((into, counts)) = &into {
            into.check_counts(counts, self.size(), "a gather")?;
        }
        let from = from.into();
        let from = from.read(None)?;
        let whole = Layout::contiguous(from.bytes());
        let mut letters = vec![Letter { way: Way::Send, peer: root, at: from.at(), layout: whole }];
        let mut held = vec![from];
        if let Some((into, counts)) = into {
            let into = into.overwrite(None)?;
            letters.extend(divided(Way::Receive, &into, counts));
            held.push(into);
        }
        // SAFETY: `held` guards the letters' memory.
        Ok(unsafe { self.call(Op::Gather, letters, held) })
    }

    /// Begins to exchange elements: the part of `from` for each rank, in the order of the ranks, goes to that rank's `into`. All
    /// parts are equally long.
    ///
    /// ```
    /// # let hub = onebuf::discover()?;
    /// # let world = onebuf_mpi::Join::new().start()?;
    /// let from = hub.buffer_from(&vec![world.rank() as u32; world.size()]).build()?;
    /// let into = hub.buffer::<u32>(world.size()).build()?;
    /// world.all_to_all(&from, &into)?.wait_default()?;
    /// assert_eq!(into.to_vec()?, Vec::from_iter(0..world.size() as u32));
    /// # Ok::<(), onebuf::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`World::send`]; [`Error::InvalidArgument`] for lengths that the number of ranks does not divide.
    pub fn all_to_all<'b, T: Pod>(
        &self,
        from: impl Into<Span<'b, T>>,
        into: impl Into<Span<'b, T>>,
    ) -> Result<InFlight<'b, T>> {
        let (from, into, size) = (from.into(), into.into(), self.size());
        let counts = |span: &Span<'_, T>| vec![span.len() / size; size];
        let (sends, receives) = (counts(&from), counts(&into));
        self.all_to_all_v(from, &sends, into, &receives)
    }

    /// Like [`World::all_to_all`], with as many elements for and from each rank as the counts say.
    ///
    /// # Errors
    /// As for [`World::send`]; [`Error::InvalidArgument`] unless there is a count for each rank, and their sums are the numbers
    /// of elements.
    pub fn all_to_all_v<'b, T: Pod>(
        &self,
        from: impl Into<Span<'b, T>>,
        sends: &[usize],
        into: impl Into<Span<'b, T>>,
        receives: &[usize],
    ) -> Result<InFlight<'b, T>> {
        let (from, into) = (from.into(), into.into());
        from.check_counts(sends, self.size(), "an all-to-all sends")?;
        into.check_counts(receives, self.size(), "an all-to-all receives")?;
        let (from, into) = (from.read(None)?, into.overwrite(None)?);
        let mut letters: Vec<Letter> = divided(Way::Receive, &into, receives).collect();
        letters.extend(divided(Way::Send, &from, sends));
        // SAFETY: both guards are held.
        Ok(unsafe { self.call(Op::AllToAll, letters, vec![from, into]) })
    }

    /// Gathers bytes of every rank at the root, whatever their number, and returns them there in the order of the ranks. For
    /// reports and other small things: they are copied.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the ranks that are late; [`Error::PeerLost`]; [`Error::PeerRefused`] for more than 1 GiB of a
    /// rank.
    pub fn collect(
        &self,
        bytes: Vec<u8>,
        root: usize,
        timeout: Duration,
    ) -> Result<Option<Vec<Vec<u8>>>> {
        self.collect_while(bytes, root, timeout, || Ok(()))
    }

    /// Like [`World::collect`], with `go_on` as in [`World::barrier_while`].
    #[doc(hidden)]
    pub fn collect_while(
        &self,
        bytes: Vec<u8>,
        root: usize,
        timeout: Duration,
        go_on: impl FnMut() -> Result<()>,
    ) -> Result<Option<Vec<Vec<u8>>>> {
        self.check_rank(root)?;
        let label = self.label(Op::Collect);
        let call = Arc::new(Collect::new(bytes, root, self.rank(), label, self.ranks()));
        self.link().post(call.clone());
        wait_while(self, &*call, timeout, go_on)?;
        Ok((self.rank() == root).then(|| call.take()))
    }

    /// Begins the letters of a call of all ranks.
    ///
    /// # Safety
    /// `held` guards the letters' memory.
    unsafe fn call<'b, T: Pod>(
        &self,
        op: Op,
        letters: Vec<Letter>,
        held: Vec<Held<'b, T>>,
    ) -> InFlight<'b, T> {
        // SAFETY: the caller's guarantee.
        unsafe {
            let bundle = Arc::new(Bundle::new(letters, self.label(op), self.ranks()));
            InFlight::begin(self, bundle, held)
        }
    }

    fn label(&self, op: Op) -> Label {
        let number = self.next_call();
        let tag = FIRST_TAG + (number % TAGS) as i32;
        Label { kind: Kind::Collective, tag, number, call: op as u32 }
    }
}

/// Letters for all ranks, of parts of one memory.
fn divided<T: Pod>(way: Way, held: &Held<'_, T>, counts: &[usize]) -> impl Iterator<Item = Letter> {
    let (base, mut offset) = (held.at(), 0);
    counts.iter().copied().enumerate().map(move |(peer, count)| {
        let (at, bytes) = (base.plus(offset), count * size_of::<T>());
        offset += bytes;
        Letter { way, peer, at, layout: Layout::contiguous(bytes) }
    })
}
