//! Aliases that use the home's memory where it lies: by its address, or by a descriptor of what lies there.
//!
//! To them the home's mapping is in the way, as it is to the home's own kernels. So they need it acquired, and it
//! is acquired on a queue of the home's: theirs cannot. And where their API's calls do not know the memory, copies that
//! were asked for go through an alias whose do.

use super::core::{Alias, Core};
use onebuf_hal::{Error, FdKind, FdRange, Result};

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
