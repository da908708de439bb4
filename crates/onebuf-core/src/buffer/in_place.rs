//! Aliases that use the home's memory where it lies: by its address, or by a descriptor of what lies there.
//!
//! To them the home's mapping is in the way, as it is to the home's own kernels. So they need it acquired, and it
//! is acquired on a queue of the home's: theirs cannot. And where their API's calls do not know the memory, copies that
//! were asked for go through an alias whose do.

use super::{
    core::{Alias, Core, HOME},
    guard_entries::GuardEntry,
    state::State,
};
use onebuf_hal::{AccessState, Error, FdKind, FdRange, Result};

impl Alias {
    /// Whether it uses the home's memory as the home itself does, while that is acquired.
    pub fn uses_home(&self) -> bool {
        self.is_home || (self.in_place && self.spare.get().is_none())
    }

    /// Whether its queues read, write, fill and copy the memory.
    pub fn takes_transfers(&self) -> bool {
        self.memory().is_none_or(|memory| memory.takes_transfers())
    }
}

impl Core {
    /// Unmaps the home for an alias that uses it in place: before a write whatever it is mapped for, before a read where
    /// others may write.
    pub(super) fn attach_home_for(
        &self,
        state: &mut State,
        alias: usize,
        write: bool,
    ) -> Result<()> {
        let home = self.aliases[HOME].memory.as_ref().filter(|home| home.needs_access_state());
        let Some(home) =
            home.filter(|_| self.aliases[alias].uses_home() && !self.aliases[alias].is_home)
        else {
            return Ok(());
        };
        match home.access_state() {
            AccessState::Acquired => return Ok(()),
            AccessState::SharedRead if !write => return Ok(()),
            AccessState::SharedRead | AccessState::Released => {}
        }
        // A home that has left its own memory can no longer unmap it.
        if self.aliases[HOME].spare.get().is_some() {
            state.tripped = true;
            return Err(Error::unsupported(
                "memory whose own device cannot unmap it, in place",
                "a device that can: a new buffer",
            ));
        }
        if !state.guard_entries.alone() {
            return Err(Error::Busy {
                what: "others read through this memory's mapping; drop their guards first".into(),
            });
        }
        let queue_state = self.queue_state_for(state, HOME)?;
        let entry = GuardEntry { span: self.whole(), alias: HOME, write: true };
        self.order(state, &queue_state, &entry, &mut Vec::new())?;
        self.reside(state, HOME, &queue_state, AccessState::Acquired)
    }

    /// A descriptor of the memory: the home's own, or one that the runtime of an alias which uses it in place makes of it.
    pub(super) fn export_fd(&self, kind: FdKind) -> Result<FdRange> {
        let in_place = self.aliases.iter().filter(|alias| alias.uses_home() && !alias.is_home);
        let others = in_place.filter_map(|alias| alias.memory());
        let mut exported = self.home().export_fd(kind);
        for memory in others {
            match exported {
                Err(Error::Unsupported { .. }) => exported = memory.export_fd(kind),
                _ => break,
            }
        }
        exported
    }
}
