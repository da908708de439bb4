//! A buffer as the decisions about it know it: plain data, without a driver, a queue or a clock.

use super::{
    super::{core::HOME, few::Few, guard_entries::GuardEntries, span::Span},
    Step,
};
use crate::topology::DeviceIx;
use onebuf_hal::AccessState;

/// Who has what of a buffer, and where its newest contents are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BufferState {
    /// All bytes in use.
    pub whole: Span,
    pub guard_entries: GuardEntries,
    /// The first is the home.
    pub aliases: Few<AliasState>,
    /// The first is the home's.
    pub replicas: Few<Replica>,
    /// Where the pages of managed memory lie; `None` for all other memory.
    pub pages: Option<Pages>,
    /// Another process can write the memory, now and for ever: it may keep its mapping.
    pub exposed: bool,
    pub rules: Rules,
}

/// One device's view of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AliasState {
    pub device: DeviceIx,
    /// Whether its memory is the home's own.
    pub is_home: bool,
    /// Whether it uses the home's memory where it lies, while that is acquired.
    pub in_place: bool,
    /// Whether a hand-over to or from it copies, or is not proven not to.
    pub copies: bool,
    /// Whether it has memory: the host may look through the home's mapping instead.
    pub has_memory: bool,
    /// Whether its queues read, write, fill and copy the memory that its route gave it.
    pub takes_transfers: bool,
    /// The replica that its route leads to.
    pub replica: usize,
    /// The access state of the memory that its route gave it; `None` where that needs no calls. An alias whose memory is the
    /// home's has the home's.
    pub access: Option<AccessState>,
    /// What it has instead, since its route failed.
    pub own: Option<OwnMemory>,
}

/// Memory of an alias whose route has failed: a replica of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OwnMemory {
    pub replica: usize,
    pub access: Option<AccessState>,
}

/// Aliases that see the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Replica {
    /// Whether it holds the newest contents.
    pub current: bool,
    /// Which alias wrote them last.
    pub writer: Option<usize>,
    /// Whether its memory was not acquired at some time since: what it wrote is where the others see it.
    pub published: bool,
}

impl Replica {
    /// With the newest contents in it, or not.
    pub fn new(current: bool) -> Self {
        Self { current, writer: None, published: false }
    }
}

/// What never changes about a buffer and restricts its hand-overs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Rules {
    /// No implied copies.
    pub forbids_copies: bool,
    /// The caller ordered the kind of route: no other takes its place.
    pub keeps_routes: bool,
    /// The home's memory belongs to the application, which will look for the contents there.
    pub is_foreign: bool,
}

/// On which sides pages lie: of the bytes that are being taken, and of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Pages {
    pub taken: Sides,
    pub whole: Sides,
}

/// Whether any page lies there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Sides {
    pub device: bool,
    pub host: bool,
}

impl Sides {
    /// Whether a page lies where it is not wanted.
    pub fn misplaced(self, wanted: AccessState) -> bool {
        if wanted == AccessState::Acquired { self.host } else { self.device }
    }

    fn after_move(to: AccessState) -> Self {
        let device = to == AccessState::Acquired;
        Self { device, host: !device }
    }
}

impl AliasState {
    /// Which aliases see the same bytes.
    #[inline]
    pub fn replica(&self) -> usize {
        self.own.map_or(self.replica, |own| own.replica)
    }

    /// Whether a hand-over to or from it copies behind the scenes, or is not proven not to.
    pub fn copies(&self) -> bool {
        self.copies && self.own.is_none()
    }

    /// Whether it uses the home's memory as the home itself does, while that is acquired.
    pub fn uses_home(&self) -> bool {
        self.is_home || (self.in_place && self.own.is_none())
    }

    /// Whether it has memory, that of its route or its own.
    pub fn sees(&self) -> bool {
        self.has_memory || self.own.is_some()
    }

    /// Whether its queues read and write what it has of a replica: an alias that left still has what it had there.
    fn transfers_in(&self, replica: usize) -> bool {
        self.takes_transfers || (self.own.is_some() && self.replica != replica)
    }

    /// Whether it is the host's.
    pub fn is_host(&self) -> bool {
        self.device == DeviceIx::HOST
    }
}

impl BufferState {
    /// The access state of the memory that an alias uses now; `None` where that needs no calls.
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

    /// The alias that a memory's access state is kept at: the home, for those that have its memory.
    #[inline]
    pub fn keeper(&self, alias: usize) -> usize {
        if self.aliases[alias].is_home { HOME } else { alias }
    }

    /// Whether other aliases see the bytes through this alias's mapping.
    pub fn lends_mapping(&self, alias: usize) -> bool {
        let home = &self.aliases[HOME];
        self.aliases[alias].is_home && home.own.is_none() && !home.is_host()
    }

    /// Whether the aliases of a replica can get at the newest contents there.
    pub fn has_newest(&self, replica: usize) -> bool {
        self.replicas[replica].current && !self.is_stranded(replica)
    }

    /// Whether a replica's contents are where none of its aliases can get at them: its last writer left, and had not released
    /// the memory.
    fn is_stranded(&self, replica: usize) -> bool {
        let Replica { writer, published, .. } = self.replicas[replica];
        let left = |writer: usize| {
            let AliasState { own, replica: joined, .. } = self.aliases[writer];
            own.is_some() && joined == replica && self.route_access(writer).is_some()
        };
        !published && writer.is_some_and(left)
    }

    /// A replica with the newest contents, one whose aliases can get at them if there is one.
    pub fn newest(&self) -> usize {
        let current = |&index: &usize| self.replicas[index].current;
        let seen = |&index: &usize| {
            self.has_newest(index) && self.aliases.iter().any(|alias| alias.replica() == index)
        };
        let all = || (0..self.replicas.len()).filter(current);
        all().find(seen).or_else(|| all().next()).unwrap_or(HOME)
    }

    /// Whether an alias sees the home's memory in a way that it is not fit for now, and that nobody can change: the home has
    /// left it. Others see it mapped, or in place while it is acquired.
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

    /// Which alias of a replica to copy from: the host's where it sees the bytes themselves, else the last
    /// writer's. A mapping that copies would move everything for the sake of a part. None where no alias gets at the contents.
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
            seen.is_host() && !seen.copies() && sees(alias)
        };
        let host = (0..self.aliases.len()).find(direct);
        let writer = self.replicas[replica].writer.filter(able);
        host.or(writer).or_else(|| (0..self.aliases.len()).find(able))
    }

    /// Which alias's memory to read where that replica's contents are, as they are: its last writer's, or the first.
    pub fn source_as_is(&self, replica: usize) -> usize {
        let able = |writer: &usize| self.aliases[*writer].transfers_in(replica);
        let first = || self.aliases.iter().position(|alias| alias.replica == replica);
        let writer = self.replicas[replica].writer.filter(able);
        writer.or_else(first).unwrap_or(HOME)
    }

    /// An alias writes: what other replicas hold is old.
    pub fn written_at(&mut self, alias: usize) {
        let replica = self.aliases[alias].replica();
        for (index, other) in self.replicas.iter_mut().enumerate() {
            other.current = index == replica;
        }
        let written = &mut self.replicas[replica];
        (written.writer, written.published) = (Some(alias), false);
    }

    /// What a step has changed, once its call has succeeded.
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

    /// The access state of the memory that an alias's route gave it, and that it is kept at.
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

    /// Whether an alias has written what others cannot see before it releases it.
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
