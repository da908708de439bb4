//! How the memory of a modelled buffer is shared.

use super::super::{super::alias::HOME, AliasState, Rules};
use crate::topology::DeviceIx;

/// The kind of an alias's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The home: bytes that all aliases see directly.
    Plain,
    /// The home, with a device's side and a mapping: changing the access state copies between them.
    Mapped,
    /// The home: bytes whose pages are on one side.
    Managed,
    /// Another device of the home's context, with the home's own memory.
    Sibling,
    /// The home's mapping, imported by a device that works on a copy.
    Import,
    /// The home's mapping, used directly.
    Direct,
    /// The device's side of the home, used directly.
    InPlace { transfers: bool },
    /// The host, which uses the home's mapping.
    Host { copies: bool },
    /// A staged copy.
    Staged,
}

#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub kinds: &'static [Kind],
    /// Whether the home is on the host.
    pub on_host: bool,
    pub rules: Rules,
    /// Whether requests also take halves of the buffer.
    pub halves: bool,
    /// Whether the model tracks which work is ordered before which.
    pub orders: bool,
    /// How many steps of one request may fail.
    pub faults: usize,
    /// Whether states after a failure are explored fully; otherwise each request is made once there.
    pub follows: bool,
}

impl Layout {
    pub fn device(&self, alias: usize) -> DeviceIx {
        match self.kinds[alias] {
            Kind::Host { .. } => DeviceIx::HOST,
            _ if alias == HOME && self.on_host => DeviceIx::HOST,
            _ => DeviceIx(alias as u16 + 1),
        }
    }

    /// Whether the memory of the alias's route has access states.
    pub fn has_sides(&self, alias: usize) -> bool {
        matches!(self.kinds[alias], Kind::Mapped | Kind::Import)
    }

    pub fn is_home(&self, alias: usize) -> bool {
        alias == HOME || self.kinds[alias] == Kind::Sibling
    }

    pub fn alias(&self, alias: usize, replica: &mut usize) -> AliasState {
        let kind = self.kinds[alias];
        *replica += usize::from(kind == Kind::Staged);
        AliasState {
            device: self.device(alias),
            is_home: self.is_home(alias),
            in_place: matches!(kind, Kind::InPlace { .. }),
            copies: matches!(kind, Kind::Import | Kind::Host { copies: true }),
            has_memory: !matches!(kind, Kind::Host { .. }),
            takes_transfers: kind != Kind::InPlace { transfers: false },
            replica: if kind == Kind::Staged { *replica } else { HOME },
            access: None,
            own: None,
        }
    }
}
