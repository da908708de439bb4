//! The state that hand-overs are decided on: plain data, without a driver, a queue or a clock.

use super::{
    super::{alias::HOME, few::Few, guard_entries::GuardEntries, span::Span},
    Step,
};
use crate::topology::DeviceIx;
use onebuf_hal::AccessState;

/// The access states of a buffer's aliases, its guards, and where its newest contents are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BufferState {
    /// All bytes in use.
    pub whole: Span,
    pub guard_entries: GuardEntries,
    /// The first alias is the home.
    pub aliases: Few<AliasState>,
    /// The first replica is the home's.
    pub replicas: Few<Replica>,
    /// Where the pages of managed memory are; `None` for all other memory.
    pub pages: Option<Pages>,
    /// Another process can write the memory. Never reset, because that process may keep its mapping.
    pub exposed: bool,
    pub rules: Rules,
}

/// One device's view of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AliasState {
    pub device: DeviceIx,
    /// Whether its memory is the home's own memory.
    pub is_home: bool,
    /// Whether it uses the home's memory in place, while that is acquired.
    pub in_place: bool,
    /// Whether a hand-over to or from it copies, or is not proven to be free of copies.
    pub copies: bool,
    /// Whether its route gave it memory. The host may use the home's mapping instead.
    pub has_memory: bool,
    /// Whether transfers on its queues can use the memory that its route gave it.
    pub takes_transfers: bool,
    /// The replica that its route leads to.
    pub replica: usize,
    /// The access state of the memory that its route gave it; `None` if that needs no calls. An alias with the home's memory has
    /// the home's state: see `BufferState::keeper`.
    pub access: Option<AccessState>,
    /// The memory that replaces a route that failed.
    pub own: Option<OwnMemory>,
}

/// Separate memory of an alias whose route has failed, which is a new replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OwnMemory {
    pub replica: usize,
    pub access: Option<AccessState>,
}

/// A replica: aliases that see the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Replica {
    /// Whether it holds the newest contents.
    pub current: bool,
    /// The alias that wrote last.
    pub writer: Option<usize>,
    /// Whether the writer's memory has left `acquired` since: then the other aliases see what it wrote.
    pub published: bool,
}

impl Replica {
    /// Creates a replica without a writer; `current` if it holds the newest contents.
    pub fn new(current: bool) -> Self {
        Self { current, writer: None, published: false }
    }
}

/// Constant properties of a buffer that restrict its hand-overs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Rules {
    /// No implied copies.
    pub forbids_copies: bool,
    /// The caller forced the route: no other may replace it.
    pub keeps_routes: bool,
    /// The home's memory belongs to the application, which expects the contents there.
    pub is_foreign: bool,
}

/// The sides on which pages are: those of the bytes that are being taken, and of all bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Pages {
    pub taken: Sides,
    pub whole: Sides,
}

/// Whether any page is on the device, and whether any is on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Sides {
    pub device: bool,
    pub host: bool,
}

impl Sides {
    /// Whether a page is on the wrong side.
    pub fn misplaced(self, wanted: AccessState) -> bool {
        if wanted == AccessState::Acquired { self.host } else { self.device }
    }

    fn after_move(to: AccessState) -> Self {
        let device = to == AccessState::Acquired;
        Self { device, host: !device }
    }
}

impl AliasState {
    /// The replica that the alias belongs to now.
    #[inline]
    pub fn replica(&self) -> usize {
        self.own.map_or(self.replica, |own| own.replica)
    }

    /// Whether the driver copies in a hand-over to or from this alias, or is not proven not to.
    pub fn copies(&self) -> bool {
        self.copies && self.own.is_none()
    }

    /// Whether it uses the home's memory as the home itself does, while that is acquired.
    pub fn uses_home(&self) -> bool {
        self.is_home || (self.in_place && self.own.is_none())
    }

    /// Whether it has memory: from its route, or after a failover.
    pub fn sees(&self) -> bool {
        self.has_memory || self.own.is_some()
    }

    /// Whether transfers on its queues can use its memory in a replica. An alias that left a replica still has memory there.
    fn transfers_in(&self, replica: usize) -> bool {
        self.takes_transfers || (self.own.is_some() && self.replica != replica)
    }

    /// Whether it is the host's alias.
    pub fn is_host(&self) -> bool {
        self.device == DeviceIx::HOST
    }
}

impl BufferState {
    /// The access state of the memory that an alias uses now; `None` if that needs no calls.
    #[inline]
    pub fn access(&self, alias: usize) -> Option<AccessState> {
        let AliasState { own, .. } = self.aliases[alias];
        own.map_or_else(|| self.route_access(alias), |own| own.access)
    }

    /// The access state of the memory that an alias's route gave it.
    #[inline]
    pub fn route_access(&self, alias: usize) -> Option<AccessState> {
        self.aliases[self.keeper(alias)].access
    }

    /// The alias that stores the access state of a memory: the home, for aliases with the home's memory.
    #[inline]
    pub fn keeper(&self, alias: usize) -> usize {
        if self.aliases[alias].is_home { HOME } else { alias }
    }

    /// Whether other aliases see the bytes through this alias's mapping.
    pub fn lends_mapping(&self, alias: usize) -> bool {
        let home = &self.aliases[HOME];
        self.aliases[alias].is_home && home.own.is_none() && !home.is_host()
    }

    /// Whether a replica holds the newest contents, and its aliases can access them.
    pub fn has_newest(&self, replica: usize) -> bool {
        self.replicas[replica].current && !self.is_stranded(replica)
    }

    /// Whether no alias of a replica can access its contents: its last writer left the replica without having released the
    /// memory.
    fn is_stranded(&self, replica: usize) -> bool {
        let Replica { writer, published, .. } = self.replicas[replica];
        let left = |writer: usize| {
            let AliasState { own, replica: joined, .. } = self.aliases[writer];
            own.is_some() && joined == replica && self.route_access(writer).is_some()
        };
        !published && writer.is_some_and(left)
    }

    /// Returns a replica with the newest contents, preferably one whose aliases can access them.
    pub fn newest(&self) -> usize {
        let current = |&index: &usize| self.replicas[index].current;
        let seen = |&index: &usize| {
            self.has_newest(index) && self.aliases.iter().any(|alias| alias.replica() == index)
        };
        let all = || (0..self.replicas.len()).filter(current);
        all().find(seen).or_else(|| all().next()).unwrap_or(HOME)
    }

    /// Whether an alias cannot use the home's memory because of its access state, which can no longer change: the home has left
    /// that memory. An alias needs it mapped or, to use it in place, acquired.
    pub fn is_cut_off(&self, alias: usize, write: bool) -> bool {
        let seer = &self.aliases[alias];
        if self.aliases[HOME].own.is_none() || seer.own.is_some() || seer.replica != HOME {
            return false;
        }
        match self.route_access(HOME) {
            None => false,
            Some(AccessState::SharedRead) => write,
            Some(AccessState::Acquired) => !seer.uses_home(),
            Some(AccessState::Released) => seer.uses_home(),
        }
    }

    /// Returns the alias of a replica to copy from: the host's if it sees the bytes directly, else the last writer's. A mapping
    /// that copies is avoided: it would move all bytes for a part of them. `None` if no alias can access the contents.
    pub fn source(&self, replica: usize) -> Option<usize> {
        if self.is_stranded(replica) {
            return None;
        }
        let sees = |&alias: &usize| {
            self.aliases[alias].replica() == replica && !self.is_cut_off(alias, false)
        };
        let able = |alias: &usize| sees(alias) && self.aliases[*alias].transfers_in(replica);
        let direct = |alias: &usize| {
            let seen = &self.aliases[*alias];
            seen.is_host() && !seen.copies() && able(alias)
        };
        let host = (0..self.aliases.len()).find(direct);
        let writer = self.replicas[replica].writer.filter(able);
        host.or(writer).or_else(|| (0..self.aliases.len()).find(able))
    }

    /// Returns the alias whose memory holds a replica's contents, to read it as it is: the last writer, or the first alias.
    pub fn source_as_is(&self, replica: usize) -> usize {
        let able = |writer: &usize| self.aliases[*writer].transfers_in(replica);
        let first = || self.aliases.iter().position(|alias| alias.replica == replica);
        let writer = self.replicas[replica].writer.filter(able);
        writer.or_else(first).unwrap_or(HOME)
    }

    /// Records a write by an alias: the contents of all other replicas are outdated.
    pub fn written_at(&mut self, alias: usize) {
        let replica = self.aliases[alias].replica();
        for (index, other) in self.replicas.iter_mut().enumerate() {
            other.current = index == replica;
        }
        let written = &mut self.replicas[replica];
        (written.writer, written.published) = (Some(alias), false);
    }

    /// Records that the contents are no longer needed: those of any replica will do.
    pub fn discard(&mut self) {
        self.replicas.iter_mut().for_each(|replica| replica.current = true);
    }

    /// Records what a step has changed, once its call has succeeded.
    pub fn apply(&mut self, step: &Step) {
        match *step {
            Step::Order(_) | Step::Look { .. } => {}
            Step::Leave { alias } => {
                let replica = self.replicas.len();
                self.replicas.push(Replica::new(false));
                self.aliases[alias].own = Some(OwnMemory { replica, access: None });
            }
            Step::Change { alias, to, .. } => self.set_access(alias, to),
            Step::MovePages { to, span, .. } => self.moved_pages(to, span),
            Step::Copy { to, .. } => {
                let replica = self.aliases[to].replica();
                self.replicas[replica] = Replica { writer: Some(to), ..Replica::new(true) };
            }
            Step::Written { alias } => self.written_at(alias),
        }
    }

    fn set_access(&mut self, alias: usize, to: AccessState) {
        let keeper = self.keeper(alias);
        match &mut self.aliases[alias].own {
            Some(own) => own.access = Some(to),
            None => self.set_route_access(keeper, Some(to)),
        }
    }

    /// Sets the access state of the memory that an alias's route gave it.
    #[inline]
    pub fn set_route_access(&mut self, keeper: usize, access: Option<AccessState>) {
        self.aliases[keeper].access = access;
        let released = access.is_some_and(|access| access != AccessState::Acquired);
        let replica = self.aliases[keeper].replica;
        let wrote = self.replicas[replica].writer.is_some_and(|w| self.keeper(w) == keeper);
        if released && wrote {
            self.replicas[replica].published = true;
        }
    }

    /// Whether an alias wrote last, and other aliases see its writes only after it releases the memory.
    pub fn is_unpublished(&self, alias: usize) -> bool {
        let replica = &self.replicas[self.aliases[alias].replica()];
        replica.writer == Some(alias) && !replica.published
    }

    fn moved_pages(&mut self, to: AccessState, span: Span) {
        let (whole, Some(pages)) = (self.whole, &mut self.pages) else { return };
        pages.taken = Sides::after_move(to);
        if span == whole {
            pages.whole = pages.taken;
        } else {
            pages.whole.device |= pages.taken.device;
            pages.whole.host |= pages.taken.host;
        }
    }
}
