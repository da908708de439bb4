//! How the memory of a modelled buffer is shared.

use super::super::{super::core::HOME, AliasState, Rules};
use crate::topology::DeviceIx;

/// What an alias's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The home, as the bytes that everyone sees.
    Plain,
    /// The home, with a device's side and a mapping: who maps it copies.
    Mapped,
    /// The home: bytes whose pages lie on one side.
    Managed,
    /// Another device of the home's context: the home's own memory.
    Sibling,
    /// The home's mapping, seen by a device that copies what it sees.
    Import,
    /// The home's mapping, seen as it is.
    Direct,
    /// The home's own side, seen as it is.
    InPlace { transfers: bool },
    /// The host, looking through the home's mapping.
    Host { copies: bool },
    /// A copy.
    Staged,
}

#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub kinds: &'static [Kind],
    /// Whether the first of them is the host's.
    pub on_host: bool,
    pub rules: Rules,
    /// Whether halves are taken, too.
    pub halves: bool,
    /// Whether it is followed which work is ordered before which.
    pub orders: bool,
    /// How many steps of one request may fail.
    pub faults: usize,
    /// Whether what can be reached after a failure is followed to the end; otherwise each request is made once.
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
