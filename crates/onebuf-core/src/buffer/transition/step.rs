//! What a hand-over consists of.

use super::super::{guard_entries::GuardEntry, span::Span};
use onebuf_hal::AccessState;

/// What is asked for: these bytes for this alias.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acquire {
    pub entry: GuardEntry,
    /// Whether the contents come along. Without them the alias is going to overwrite everything.
    pub keep: bool,
    /// Whether the queue that asks runs in order.
    pub in_order: bool,
    pub without: Without,
}

/// Ways that have failed during this hand-over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Without {
    /// The alias's route.
    pub route: bool,
    /// A hand-over to the alias that a staged copy reads from.
    pub source: bool,
}

/// One part of a hand-over: at most one driver call that changes something, and what is true once it has succeeded: see
/// [`BufferState::apply`](super::BufferState::apply).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A queue waits for earlier work.
    Order(OrderAfter),
    /// An alias's memory goes to another access state.
    Change { alias: usize, to: AccessState, on: On, end: RouteEnd },
    /// The pages of some bytes move to the device (`Acquired`) or to the host.
    MovePages { to: AccessState, span: Span, on: On },
    /// All bytes are copied from a replica to an alias, behind the two queues' orders.
    Copy { from: CopySource, to: usize, on: On },
    /// The alias gets memory and a replica of its own: its route has failed.
    Leave { alias: usize },
    /// The host looks through the home's mapping, which must be there.
    Look { alias: usize },
    /// The newest contents will be those of this alias. No call.
    Written { alias: usize },
}

/// The earlier work on some bytes that a queue waits for; all of it, where that was on another device, because what was handed
/// over is the whole buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OrderAfter {
    pub on: On,
    /// For which alias: its proven sync method limits how.
    pub alias: usize,
    pub span: Span,
    /// After the reads, too.
    pub write: bool,
    /// Whether the sync method is what the hand-over reports.
    pub reported: bool,
}

/// Where a staged copy reads: an alias's memory, as the first replica with the newest contents has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopySource {
    pub alias: usize,
    /// The memory is read where the contents are: it was not handed over.
    pub as_is: bool,
}

/// A queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    /// The one that asks.
    Taker,
    /// In place of one that asks and is out of order: the service queue of its device.
    Service,
    /// The in-order queue that used the step's alias last, or else its device's service queue. Pages move on the home's.
    Last,
    /// The one that gets at the contents as they are: the host's where they are mapped, else that of the step's alias.
    AsIs,
}

/// Which end of a hand-over a step belongs to: where its call fails, that end's route has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteEnd {
    /// What a staged copy reads from.
    Source,
    /// The alias that takes the buffer.
    Taker,
}

/// Why there is no way. Nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// A staged copy from one alias to another is needed, and forbidden.
    CopyForbidden { from: usize, to: usize },
    /// Pages would have to move to this alias, which is a copy, and forbidden.
    MoveForbidden { to: usize },
    /// Guards are held that read through a mapping, which would go.
    MappingInUse,
    /// Guards are held where the pages are.
    PagesInUse,
    /// The home has left its memory mapped, and cannot unmap it for those who use it in place.
    HomeLeft,
    /// A route has failed, and must not be replaced by staged copies.
    NoFailover,
    /// A route has failed, and copies are forbidden.
    FailoverForbidden { alias: usize },
}

/// Steps in order. No allocation for as many as nearly all hand-overs have.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    first: [Step; FEW],
    len: usize,
    more: Vec<Step>,
}

const FEW: usize = 8;

impl Default for Steps {
    fn default() -> Self {
        Self { first: [Step::Look { alias: 0 }; FEW], len: 0, more: Vec::new() }
    }
}

impl Steps {
    #[inline]
    pub fn push(&mut self, step: Step) {
        match self.first.get_mut(self.len) {
            Some(slot) => *slot = step,
            None => self.more.push(step),
        }
        self.len += 1;
    }

    pub fn clear(&mut self) {
        self.len = 0;
        self.more.clear();
    }

    /// In order; from either end.
    #[inline]
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Step> {
        self.first[..self.len.min(FEW)].iter().chain(&self.more)
    }
}

impl FromIterator<Step> for Steps {
    fn from_iter<I: IntoIterator<Item = Step>>(all: I) -> Self {
        let mut steps = Self::default();
        all.into_iter().for_each(|step| steps.push(step));
        steps
    }
}
