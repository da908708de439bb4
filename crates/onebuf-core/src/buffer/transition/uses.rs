//! Work on a buffer that later users must wait for.
//!
//! Every later user waits for `writes`; a later writer also waits for `reads`. Each use names the bytes that it covers.

use super::{
    super::{few::Few, span::Span},
    OrderAfter, Step,
};
use crate::topology::DeviceIx;

/// The point of a queue at which a piece of work is done.
pub(crate) trait Point {
    /// The device of the queue.
    fn device(&self) -> DeviceIx;

    /// Whether reaching this point implies that `other` is reached: both are on one in-order queue, and this is not the earlier.
    fn is_behind(&self, other: &Self) -> bool;
}

/// Work on some bytes, and the queue point at which it is done.
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

/// What a step enqueued, also if it failed part way: on the queue of a copy's source, and on the queue of the step.
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
    /// Whether there is no work to wait for.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.reads.is_empty()
    }

    /// Writes, then reads.
    pub fn iter(&self) -> impl Iterator<Item = &Use<P>> {
        self.writes.iter().chain(&*self.reads)
    }

    /// The uses that an order waits for, on a queue of `device`: writes, then reads.
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

    /// Adds a read. It replaces an earlier read of bytes that it covers, if that is on the same in-order queue.
    pub fn note_read(&mut self, new: Use<P>) {
        let same = |old: &&mut Use<P>| new.span.covers(old.span) && new.point.is_behind(&old.point);
        match self.reads.iter_mut().find(same) {
            Some(old) => *old = new,
            None => self.reads.push(new),
        }
    }

    /// Adds a write. It replaces all uses of bytes that it covers, because it waited for them.
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

    /// Adds an access state change. It replaces earlier writes on its own queue. Reads stay: those on other queues may still run.
    pub fn note_change(&mut self, new: Use<P>) {
        self.writes.retain(|old| !new.point.is_behind(&old.point));
        self.writes.push(new);
    }

    /// Records what a step enqueued. A step that failed may have enqueued a part, which later users must wait for.
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
