//! Aliases that use the home's memory in place: by its address, or by a descriptor of that address.
//!
//! Like the home's own kernels they must not use the memory while it is mapped, so it must be acquired. Only a queue of the
//! home can acquire it. If transfers of their API cannot use the memory, copies that the caller requests go through another
//! alias.

use super::Core;
use onebuf_hal::{Error, FdKind, FdRange, Result};

impl Core {
    /// Exports a descriptor of the memory: by the home, or else by the runtime of an alias that uses the memory in place.
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
