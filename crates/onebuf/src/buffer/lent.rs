//! Memory that somebody else made: what its owner does with it, and giving it back.

use super::{
    Core,
    core::HOME,
    marks::Mark,
    part::Part,
    span::Span,
    state::{State, Use, shorten},
};
use crate::{
    Access, Error, Fence, Result,
    fence::is_timeout,
    hal::{Memory, Residency},
    view::Hold,
};

impl Core {
    /// The home as its own device sees it; the first site always has memory.
    pub fn home(&self) -> &dyn Memory {
        self.sites[HOME].memory.as_deref().expect("the home has memory")
    }

    /// Somebody else's work on these bytes ends there.
    pub fn note_foreign(&self, span: Span, fence: &Fence, write: bool) -> Result<()> {
        let mut state = self.lock_state();
        state.marks.check(&Mark { span, site: HOME, write })?;
        if !self.is_at_home(&state) {
            return Err(Error::Busy {
                what: "the memory is mapped, or newer elsewhere: hand it to its owner first".into(),
            });
        }
        state.settled = None;
        let uses = if write { &mut state.writes } else { &mut state.reads };
        for position in fence.positions() {
            // Nothing is known of what it waited for: what was before stays, until it is over.
            uses.push(Use { span, position: position.clone() });
        }
        shorten(uses);
        if write {
            state.written_at(HOME, self.sites[HOME].group);
        }
        Ok(())
    }

    /// Whether the newest contents are in the home, and its owner's kernels may use it.
    pub(super) fn is_at_home(&self, state: &State) -> bool {
        self.is_attached() && state.groups[HOME].current
    }

    fn is_attached(&self) -> bool {
        matches!(self.residency(HOME), None | Some(Residency::Attached))
    }

    /// Whether another site has it by calls of its own, which must be taken back before the owner can count on it.
    fn is_held_elsewhere(&self) -> bool {
        let group = self.sites[HOME].group();
        let held = |site: usize| {
            let at = self.residency(site);
            self.sites[site].group() == group && !matches!(at, None | Some(Residency::Away))
        };
        (0..self.sites.len()).filter(|&site| site != HOME).any(held)
    }

    /// At the end: the owner finds the newest contents, and nothing of ours at work. Once more after a failure:
    /// nobody can be told, and the owner counts on it.
    pub(super) fn return_to_owner(&mut self) {
        let returned = match self.return_home() {
            Err(error) if !is_timeout(&error) => self.return_home(),
            returned => returned,
        };
        if let Err(why) = returned {
            tracing::error!("a foreign buffer was not given back as it should be: {why}");
        }
    }

    /// Puts the newest contents into the owner's memory, and waits for work of ours on it.
    fn return_home(&mut self) -> Result<()> {
        let at_home = self.is_attached() && self.state_mut().groups[HOME].current;
        if !at_home || self.is_held_elsewhere() {
            let line = self.hub.service_line(self.sites[HOME].device)?;
            drop(Hold::take(Part::whole(self), &line, Access::ReadWrite)?);
        }
        let (timeout, state) = (self.hub.timeout(), self.state_mut());
        let ours = |used: &&Use| !used.position.line.is_foreign;
        let mut uses = state.writes.iter().chain(&*state.reads).filter(ours);
        let waited = uses.try_for_each(|used| used.position.wait(timeout));
        state.settle(waited)
    }
}
