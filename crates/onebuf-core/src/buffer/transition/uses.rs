//! Work on a buffer that others must wait for.
//!
//! `writes` is what must be done before anybody uses the buffer, `reads` what must also be done before anybody writes it. Each
//! use tells which bytes it is about.

use super::{
    super::{few::Few, span::Span},
    OrderAfter, Step,
};
use crate::topology::DeviceIx;

/// How far a queue will be when a piece of work is done.
pub(crate) trait Point {
    /// Whose queue it is.
    fn device(&self) -> DeviceIx;

    /// Whether the other is reached when this is, whatever happens: both are in one in-order queue, and this is the later.
    fn is_behind(&self, other: &Self) -> bool;
}

/// Work on some bytes, and how far its queue will be when it is done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Use<P> {
    pub span: Span,
    pub point: P,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Uses<P> {
    pub writes: Few<Use<P>>,
    pub reads: Few<Use<P>>,
}

/// What queues were given for a step, also when it failed half way: the source's of a copy, and that which the step is on.
#[derive(Debug)]
pub(crate) struct Enqueued<P> {
    pub source: Option<P>,
    pub on: Option<P>,
}

impl<P> Default for Enqueued<P> {
    fn default() -> Self {
        Self { source: None, on: None }
    }
}

impl<P> Default for Uses<P> {
    fn default() -> Self {
        Self { writes: Few::None, reads: Few::None }
    }
}

impl<P: Point> Uses<P> {
    /// Whether there is no work that anybody would have to wait for.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.reads.is_empty()
    }

    /// Writes, then reads.
    pub fn iter(&self) -> impl Iterator<Item = &Use<P>> {
        self.writes.iter().chain(&*self.reads)
    }

    /// What an order is about, for a queue of that device: writes, then reads.
    #[inline]
    pub fn before<'u>(
        &'u self,
        order: &OrderAfter,
        device: DeviceIx,
    ) -> impl Iterator<Item = &'u Use<P>> {
        let (span, reads) = (order.span, if order.write { &*self.reads } else { &[] });
        let matters =
            move |used: &&Use<P>| used.span.overlaps(span) || used.point.device() != device;
        self.writes.iter().chain(reads).filter(matters)
    }

    /// The newest point of each queue is enough for the same bytes: queues run in order.
    pub fn note_read(&mut self, new: Use<P>) {
        let same = |old: &&mut Use<P>| new.span.covers(old.span) && new.point.is_behind(&old.point);
        match self.reads.iter_mut().find(same) {
            Some(old) => *old = new,
            None => self.reads.push(new),
        }
    }

    /// What `new` waited for is behind it.
    pub fn note_write(&mut self, new: Use<P>) {
        let left = |old: &Use<P>| !new.span.covers(old.span);
        self.reads.retain(left);
        match &mut *self.writes {
            [only] if only.span == new.span => *only = new,
            _ => {
                self.writes.retain(left);
                self.writes.push(new);
            }
        }
    }

    /// An access state change waited for earlier writes, but readers elsewhere may still run.
    pub fn note_change(&mut self, new: Use<P>) {
        self.writes.retain(|old| !new.point.is_behind(&old.point));
        self.writes.push(new);
    }

    /// Notes what a step was. One that failed may have got half way: what it was given is still waited for.
    pub fn note_step(&mut self, step: &Step, succeeded: bool, whole: Span, given: Enqueued<P>) {
        let of_all = |point| Use { span: whole, point };
        let copied = succeeded && matches!(step, Step::Copy { .. });
        // A copy that succeeded waited for its source.
        if let Some(source) = given.source.filter(|_| !succeeded) {
            self.note_read(of_all(source));
        }
        match given.on.map(of_all) {
            Some(new) if copied => self.note_write(new),
            Some(new) => self.note_change(new),
            None => {}
        }
    }
}
