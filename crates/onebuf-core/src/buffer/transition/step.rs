//! The steps of a hand-over.

use super::super::{guard_entries::GuardEntry, span::Span};
use onebuf_hal::AccessState;

/// A request for a hand-over of some bytes to an alias.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acquire {
    pub entry: GuardEntry,
    /// Whether the contents are needed. Otherwise the alias overwrites everything.
    pub keep: bool,
    /// Whether the taking queue is in-order.
    pub in_order: bool,
    pub without: Without,
}

/// Ways that failed during this hand-over, and that planning must avoid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Without {
    /// The alias's route.
    pub route: bool,
    /// The hand-over to the alias that a staged copy reads from.
    pub source: bool,
}

/// One step of a hand-over: at most one driver call that changes something. For what is true after it succeeded see
/// [`BufferState::apply`](super::BufferState::apply).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A queue waits for earlier work.
    Order(OrderAfter),
    /// An alias's memory changes its access state.
    Change { alias: usize, to: AccessState, on: On, end: RouteEnd },
    /// The pages of some bytes move to the device (`Acquired`) or to the host.
    MovePages { to: AccessState, span: Span, on: On },
    /// All bytes are copied from a replica to an alias. Earlier steps have ordered both queues.
    Copy { from: CopySource, to: usize, on: On },
    /// The alias's route has failed: it gets separate memory, in a new replica.
    Leave { alias: usize },
    /// The host uses the home's mapping, which must exist.
    Look { alias: usize },
    /// The alias is about to write: its replica has the newest contents. No driver call.
    Written { alias: usize },
}

/// Orders a queue after the earlier work on some bytes. Work of another device counts whatever its bytes, because a hand-over
/// covers the whole buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OrderAfter {
    pub on: On,
    /// The alias that is ordered; its best sync method is the limit.
    pub alias: usize,
    pub span: Span,
    /// Also after the reads.
    pub write: bool,
    /// Whether the hand-over reports the sync method of this order.
    pub reported: bool,
}

/// The source of a staged copy: an alias's memory in the replica with the newest contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopySource {
    pub alias: usize,
    /// The memory is read in its present access state, without a hand-over.
    pub as_is: bool,
}

/// The queue that performs a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    /// The queue that takes the buffer.
    Taker,
    /// The service queue of the taking device, if the taking queue is out-of-order.
    Service,
    /// The in-order queue that used the step's alias last, or else its device's service queue. For moves of pages: the home's.
    Last,
    /// The queue that can read the contents as they are: the host's if they are mapped, else that of the step's alias.
    AsIs,
}

/// The end of a hand-over that a step belongs to. If the step's call fails, the route of that end has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteEnd {
    /// The alias that a staged copy reads from.
    Source,
    /// The alias that takes the buffer.
    Taker,
}

/// Why a hand-over is refused. No step was performed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// A staged copy from one alias to another is needed, but forbidden.
    CopyForbidden { from: usize, to: usize },
    /// Pages must move to this alias, which is an implied copy, and copies are forbidden.
    MoveForbidden { to: usize },
    /// Guards are held that read through the mapping, which the hand-over would remove.
    MappingInUse,
    /// Guards are held on the side where the pages are.
    PagesInUse,
    /// The home has left its first memory, and can no longer change its access state for an alias that uses it.
    HomeLeft,
    /// A route has failed, and staged copies must not replace it.
    NoFailover,
    /// A route has failed, and copies are forbidden.
    FailoverForbidden { alias: usize },
}

/// A list of steps. It does not allocate for the number of steps that nearly all hand-overs have.
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

    /// The steps in order.
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
