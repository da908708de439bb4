//! Memory at one address whose pages lie on one side: moving them is a part of the hand-over.
//!
//! It has no residency: nothing is mapped and unmapped, and each part of it may lie elsewhere. What is moved is what lies on the
//! wrong side of the bytes that somebody takes; that is a copy which nobody asked for, and the ledger has it.

use super::{Core, core::HOME, marks::Mark, span::Span, state::State};
use crate::{
    CopyPolicy, Error, Result, RouteKind, Strategy, hal::Residency, ledger::Cause, queue::Line,
    sync::Arc, trace::What,
};

/// Why whoever forbids copies does not get it.
pub(super) const PAGES_MOVE: &str =
    "the pages of managed memory move to whoever takes it: read and write it, or allow copies";

impl Core {
    /// Whether its pages are moved to whoever takes it.
    pub(super) fn moves_pages(&self) -> bool {
        self.plan.strategy == Strategy::Managed
    }

    /// Moves what lies on the other side of the bytes that a site of the home's takes, behind all work there.
    pub(super) fn bring_pages(
        &self,
        state: &mut State,
        mark: &Mark,
        line: &Arc<Line>,
    ) -> Result<()> {
        let Mark { site, .. } = *mark;
        // Copies of the whole take the whole allocation.
        let span = if mark.span == self.whole() { Span::whole(self.capacity) } else { mark.span };
        if !self.moves_pages() || self.sites[site].group() != HOME {
            return Ok(());
        }
        let here = self.sites[site].uses_home();
        let to = if here { Residency::Attached } else { Residency::Away };
        let bytes = self.home().misplaced(span.start, span.len(), to);
        if bytes == 0 {
            return Ok(());
        }
        self.check_move(state, site)?;
        let mover = if here { self.in_order(line)? } else { self.line_for(state, HOME)? };
        let all = Mark { span: self.whole(), site: HOME, write: true };
        self.order(state, &mover, &all, &mut Vec::new())?;
        let began = self.hub.tap().begin(What::Copy);
        let moved = mover.hal.move_pages(self.home(), span.start, span.len(), to);
        // Also when it got only half way.
        state.note_change(self.use_of_all(&mover));
        moved?;
        let (host, device) = (self.hub.host_index(), self.sites[HOME].device);
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
    fn check_move(&self, state: &State, site: usize) -> Result<()> {
        let other = |s: &usize| *s != site && self.sites[*s].group() == HOME;
        if (0..self.sites.len()).filter(other).any(|s| state.marks.held_at(s)) {
            return Err(Error::Busy {
                what: "the pages of managed memory lie where others read them; drop their guards first".into(),
            });
        }
        if self.policy == CopyPolicy::Forbid {
            let [home, to] = [HOME, site].map(|s| self.device_id(self.sites[s].device));
            return Err(Error::CopyForbidden {
                route: format!("{home} -> {to}"),
                why: PAGES_MOVE.into(),
            });
        }
        Ok(())
    }
}
