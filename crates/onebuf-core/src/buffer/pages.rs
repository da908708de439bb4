//! Managed memory: one address, with pages on the device or on the host. Moving them is a part of the hand-over.
//!
//! Managed memory has no access state: it is never mapped or unmapped, and its pages may be on different sides. A hand-over
//! moves those pages of the taken bytes that are on the wrong side. The ledger counts that as an implied copy.

use super::{
    Core,
    alias::HOME,
    hand_over::{Execution, failed},
    span::Span,
    transition::{Enqueued, On, Outcome, Pages, Sides, StepFailed},
};
use crate::{ledger::Cause, observe::What, queue_state::QueuePoint};
use onebuf_hal::{AccessState, Error, RouteKind};

impl Core {
    /// Returns where the pages of these bytes are, and those of all bytes.
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

    /// Extends the span of the whole buffer to the whole allocation, which staged copies copy.
    fn allocated(&self, span: Span) -> Span {
        if span == self.whole() { Span::whole(self.capacity) } else { span }
    }
}

impl Execution<'_> {
    /// Moves the pages that are on the other side.
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
        // Also if the move failed part way.
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
