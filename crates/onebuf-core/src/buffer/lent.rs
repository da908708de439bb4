//! Foreign memory: recording its owner's work, and returning it to the owner.

use super::{
    Core, Hold,
    alias::HOME,
    guard_entries::GuardEntry,
    part::Part,
    span::Span,
    state::{CoreState, shorten},
    transition::Use,
};
use crate::{
    fence::{Fence, is_timeout},
    queue_state::QueuePoint,
};
use onebuf_hal::{Access, AccessState, Error, Result};

impl Core {
    /// Records the owner's work on these bytes, which ends at `fence`.
    pub(crate) fn note_foreign(&self, span: Span, fence: &Fence, write: bool) -> Result<()> {
        let mut state = self.lock_state();
        let entry = GuardEntry { span, alias: HOME, write };
        state.guard_entries.check(&entry).map_err(|refused| self.refused(&entry, refused))?;
        if !self.is_at_home(&state) {
            return Err(Error::Busy {
                what: "the memory is mapped, or newer elsewhere: hand it to its owner first".into(),
            });
        }
        state.settled = None;
        let uses = if write { &mut state.uses.writes } else { &mut state.uses.reads };
        for point in fence.points() {
            // What the owner's work waited for is unknown, so earlier uses stay until they are complete.
            uses.push(Use { span, point: point.clone() });
        }
        shorten(uses);
        if write {
            state.written_at(HOME);
        }
        Ok(())
    }

    /// Whether the newest contents are in the home, and the home's kernels may use them.
    pub(super) fn is_at_home(&self, state: &CoreState) -> bool {
        self.is_acquired() && state.has_newest(HOME)
    }

    fn is_acquired(&self) -> bool {
        matches!(self.access_state(HOME), None | Some(AccessState::Acquired))
    }

    /// Whether another alias of the home's replica has not released its memory. It must, before the owner uses the contents.
    fn is_held_elsewhere(&self) -> bool {
        let replica = self.aliases[HOME].replica();
        let held = |alias: usize| {
            let at = self.access_state(alias);
            self.aliases[alias].replica() == replica
                && !matches!(at, None | Some(AccessState::Released))
        };
        (0..self.aliases.len()).filter(|&alias| alias != HOME).any(held)
    }

    /// Returns the memory to its owner, with the newest contents and without work of onebuf's. Retries once after a failure,
    /// because the drop cannot return an error and the owner relies on the contents. Returns whether it succeeded.
    pub(super) fn return_to_owner(&mut self) -> bool {
        let returned = match self.return_home() {
            Err(error) if !is_timeout(&error) => self.return_home(),
            returned => returned,
        };
        if let Err(why) = &returned {
            tracing::error!(
                "foreign memory could not be returned to its owner in the expected state: {why}"
            );
        }
        returned.is_ok()
    }

    /// Brings the newest contents into the owner's memory, and waits for work on onebuf's queues.
    fn return_home(&mut self) -> Result<()> {
        let at_home = self.is_acquired() && self.state_mut().has_newest(HOME);
        if !at_home || self.is_held_elsewhere() {
            let queue_state = self.hub.service_queue_state(self.aliases[HOME].device)?;
            drop(Hold::take(Part::whole(self), &queue_state, Access::ReadWrite)?);
        }
        let (timeout, state) = (self.hub.timeout(), self.state_mut());
        let ours = |used: &&Use<QueuePoint>| !used.point.queue_state.is_foreign;
        let waited = state.uses.iter().filter(ours).try_for_each(|used| used.point.wait(timeout));
        state.settle(waited)
    }
}
