//! Aliases: how each device sees the buffer.

use crate::topology::DeviceIx;
use onebuf_hal::{Memory, RouteKind, SyncMethod, locks::Arc};
use std::{any::Any, sync::OnceLock};

/// The index of the home, which is the first alias and the first replica.
pub(crate) const HOME: usize = 0;

/// One device's view of the buffer.
#[derive(Debug)]
pub(crate) struct Alias {
    pub device: DeviceIx,
    pub kind: RouteKind,
    /// The memory as this device sees it; `None` for the host when it uses the home's mapping.
    pub memory: Option<Arc<dyn Memory>>,
    pub replica: usize,
    /// Whether its memory is the home's own memory: for the home, and for the other devices of a foreign context.
    pub is_home: bool,
    /// Whether it uses the home's memory in place while that is acquired, and not through a mapping: by its address, or by a
    /// descriptor of that address.
    pub in_place: bool,
    /// Whether a hand-over to or from it copies, or is not proven to be free of copies.
    pub copies: bool,
    /// The best sync method that may order it with other aliases.
    pub sync: SyncMethod,
    /// Whether it serves maps alone, because the host may not both read and write: no view, and no copy of onebuf's, uses it.
    pub only_maps: bool,
    /// Whether the plan contains this device. The host may have an alias without being in the plan.
    pub planned: bool,
    /// Why the planned route failed when the buffer was built; the alias is a staged copy then.
    pub lost: Option<String>,
    /// The memory that replaces a route that failed later.
    pub spare: OnceLock<Spare>,
    /// Keeps the foreign context alive; the last field, so that it is dropped last.
    pub registration: Option<Arc<dyn Any + Send + Sync>>,
}

/// The memory that an alias uses after its route has failed.
#[derive(Debug)]
pub(crate) struct Spare {
    pub(super) memory: Arc<dyn Memory>,
    pub(super) replica: usize,
    pub(super) why: String,
}

impl Alias {
    /// The memory that the device uses now; `None` for the host when it uses the home's mapping.
    #[inline]
    pub fn memory(&self) -> Option<&Arc<dyn Memory>> {
        match self.spare.get() {
            None => self.memory.as_ref(),
            Some(spare) => Some(&spare.memory),
        }
    }

    /// The alias's memory in a replica: an alias that left its first replica still has memory there.
    pub(super) fn memory_in(&self, replica: usize) -> Option<&Arc<dyn Memory>> {
        if self.replica == replica { self.memory.as_ref() } else { self.memory() }
    }

    /// The replica that the alias belongs to now.
    #[inline]
    pub fn replica(&self) -> usize {
        self.spare.get().map_or(self.replica, |spare| spare.replica)
    }

    /// Whether the driver copies in a hand-over to or from this alias, or is not proven not to.
    pub fn copies(&self) -> bool {
        self.copies && self.spare.get().is_none()
    }

    /// The route that the alias uses now.
    pub fn kind(&self) -> RouteKind {
        self.spare.get().map_or(self.kind, |_| RouteKind::Staged)
    }

    /// Why the alias is a staged copy instead of the planned route.
    pub(super) fn failure(&self) -> Option<&str> {
        self.spare.get().map(|spare| spare.why.as_str()).or(self.lost.as_deref())
    }

    /// Whether it uses the home's memory as the home itself does, while that is acquired.
    pub fn uses_home(&self) -> bool {
        self.is_home || (self.in_place && self.spare.get().is_none())
    }

    /// Whether transfers on its queues can use the memory.
    pub fn takes_transfers(&self) -> bool {
        !self.only_maps && self.memory().is_none_or(|memory| memory.takes_transfers())
    }
}

/// The memory behind a guard.
pub(crate) enum Seen<'b> {
    /// The alias's own memory.
    Alias(&'b dyn Memory),
    /// A region, or the host's view through the home's mapping.
    Mapped(Arc<dyn Memory>),
}

impl Seen<'_> {
    #[inline]
    pub fn get(&self) -> &dyn Memory {
        match self {
            Seen::Alias(memory) => *memory,
            Seen::Mapped(memory) => &**memory,
        }
    }
}
