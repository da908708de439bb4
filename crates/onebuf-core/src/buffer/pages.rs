//! Memory at one address whose pages lie on one side: moving them is a part of the hand-over.
//!
//! It has no access state: nothing is mapped and unmapped, and each part of it may lie elsewhere. What is moved is what lies on the
//! wrong side of the bytes that somebody takes; that is a copy which nobody asked for, and the ledger has it.

use super::{
    Core,
    core::HOME,
    hand_over::{Execution, failed},
    span::Span,
    transition::{Enqueued, On, Outcome, Pages, Sides, StepFailed},
};
use crate::{ledger::Cause, observe::What, queue_state::QueuePoint};
use onebuf_hal::{AccessState, Error, MemoryKind, RouteKind};

/// Why whoever forbids copies does not get it.
pub(super) const PAGES_MOVE: &str =
    "the pages of managed memory move to whoever takes it: read and write it, or allow copies";

impl Core {
    /// Whether its pages are moved to whoever takes it.
    pub(super) fn moves_pages(&self) -> bool {
        self.plan.memory_kind == MemoryKind::Managed
    }

    /// Where the pages of these bytes lie, and those of all.
    pub(super) fn pages(&self, span: Span) -> Pages {
        let on = |span: Span| Sides {
            device: self.misplaced(span, AccessState::Released) > 0,
            host: self.misplaced(span, AccessState::Acquired) > 0,
        };
        Pages { taken: on(span), whole: on(self.whole()) }
    }

    fn misplaced(&self, span: Span, wanted: AccessState) -> usize {
        let span = self.allocated(span);
        self.home().misplaced(span.start, span.len(), wanted)
    }

    /// Copies of the whole take the whole allocation.
    fn allocated(&self, span: Span) -> Span {
        if span == self.whole() { Span::whole(self.capacity) } else { span }
    }
}

impl Execution<'_> {
    /// Moves what lies on the other side.
    pub fn move_pages(
        &mut self,
        to: AccessState,
        span: Span,
        on: On,
    ) -> Outcome<QueuePoint, Error> {
        let core = self.core;
        let mover = match self.queue(on, HOME) {
            Ok(mover) => mover,
            Err(error) => return failed(error, None),
        };
        let (bytes, span) = (core.misplaced(span, to), core.allocated(span));
        let began = core.hub.tracer().begin(What::Copy);
        let moved = mover.hal.move_pages(core.home(), span.start, span.len(), to);
        // Also when it got only half way.
        let given = Enqueued { source: None, on: Some(mover.note()) };
        if let Err(error) = moved {
            return (given, Err(StepFailed { error, route: None, of_work: false }));
        }
        let (host, device) = (core.hub.host_index(), core.aliases[HOME].device);
        let here = to == AccessState::Acquired;
        let (from, to) = if here { (host, device) } else { (device, host) };
        core.count_implied_bytes(from, to, bytes);
        began.end(&**mover, |event| {
            event.name = "pages".into();
            event.route = Some(RouteKind::SvmPointer);
            core.tell_copy(event, Cause::Implied, from, to, bytes);
        });
        (given, Ok(()))
    }
}
