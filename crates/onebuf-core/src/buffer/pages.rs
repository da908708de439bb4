//! Memory at one address whose pages lie on one side: moving them is a part of the hand-over.
//!
//! It has no access state: nothing is mapped and unmapped, and each part of it may lie elsewhere. What is moved is what lies on the
//! wrong side of the bytes that somebody takes; that is a copy which nobody asked for, and the ledger has it.

use super::{Core, core::HOME, guard_entries::GuardEntry, span::Span, state::State};
use crate::{ledger::Cause, observe::What, queue_state::QueueState};
use onebuf_hal::{AccessState, CopyPolicy, Error, MemoryKind, Result, RouteKind, locks::Arc};

/// Why whoever forbids copies does not get it.
pub(super) const PAGES_MOVE: &str =
    "the pages of managed memory move to whoever takes it: read and write it, or allow copies";

impl Core {
    /// Whether its pages are moved to whoever takes it.
    pub(super) fn moves_pages(&self) -> bool {
        self.plan.memory_kind == MemoryKind::Managed
    }

    /// Moves what lies on the other side of the bytes that an alias of the home's takes, behind all work there.
    pub(super) fn bring_pages(
        &self,
        state: &mut State,
        entry: &GuardEntry,
        queue_state: &Arc<QueueState>,
    ) -> Result<()> {
        let GuardEntry { alias, .. } = *entry;
        // Copies of the whole take the whole allocation.
        let span = if entry.span == self.whole() { Span::whole(self.capacity) } else { entry.span };
        if !self.moves_pages() || self.aliases[alias].replica() != HOME {
            return Ok(());
        }
        let here = self.aliases[alias].uses_home();
        let to = if here { AccessState::Acquired } else { AccessState::Released };
        let bytes = self.home().misplaced(span.start, span.len(), to);
        if bytes == 0 {
            return Ok(());
        }
        self.check_move(state, alias)?;
        let mover =
            if here { self.in_order(queue_state)? } else { self.queue_state_for(state, HOME)? };
        let all = GuardEntry { span: self.whole(), alias: HOME, write: true };
        self.order(state, &mover, &all, &mut Vec::new())?;
        let began = self.hub.tracer().begin(What::Copy);
        let moved = mover.hal.move_pages(self.home(), span.start, span.len(), to);
        // Also when it got only half way.
        state.note_change(self.use_of_all(&mover));
        moved?;
        let (host, device) = (self.hub.host_index(), self.aliases[HOME].device);
        let (from, to) = if here { (host, device) } else { (device, host) };
        self.count_implied_bytes(from, to, bytes);
        began.end(&mover, |event| {
            event.name = "pages".into();
            event.route = Some(RouteKind::SvmPointer);
            self.tell_copy(event, Cause::Implied, from, to, bytes);
        });
        Ok(())
    }

    /// Pages do not move under the other side's eyes: whoever reads there would draw them back, and nobody would know.
    fn check_move(&self, state: &State, alias: usize) -> Result<()> {
        let other = |s: &usize| *s != alias && self.aliases[*s].replica() == HOME;
        if (0..self.aliases.len()).filter(other).any(|s| state.guard_entries.held_at(s)) {
            return Err(Error::Busy {
                what: "the pages of managed memory lie where others read them; drop their guards first".into(),
            });
        }
        if self.policy == CopyPolicy::Forbid {
            let [home, to] = [HOME, alias].map(|s| self.device_id(self.aliases[s].device));
            return Err(Error::CopyForbidden {
                route: format!("{home} -> {to}"),
                why: PAGES_MOVE.into(),
            });
        }
        Ok(())
    }
}
