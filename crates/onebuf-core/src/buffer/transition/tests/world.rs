//! A model of memory and queues to check the decisions against: where contents are, which alias may use them, and
//! which work is ordered before which. It shares no code with the decisions.

use super::super::super::{alias::HOME, guard_entries::GuardEntry, span::Span};
use super::{
    super::{BufferState, Pages, Point, Replica, Sides, Use, Uses},
    layout::{Kind, Layout},
};
use crate::topology::DeviceIx;
use onebuf_hal::AccessState::{self, Acquired, Released, SharedRead};

pub const ALIASES: usize = 4;
/// One queue for each alias, and one for the host.
pub const QUEUES: usize = ALIASES + 1;
const HOST_QUEUE: usize = ALIASES;
/// The bytes that the home's replica shares, each alias's side of them, and each alias's separate memory.
const STORES: usize = 1 + 2 * ALIASES;
const SHARED: usize = 0;
const HALVES: usize = 2;
const WHOLE: Span = Span { start: 0, end: HALVES };

pub type Clock = [u8; QUEUES];

/// A point of a queue, with a vector clock of everything that is ordered before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct At {
    pub queue: usize,
    device: DeviceIx,
    clock: Clock,
}

impl At {
    pub fn device_of(&self) -> DeviceIx {
        self.device
    }
}

impl Point for At {
    fn device(&self) -> DeviceIx {
        self.device
    }

    fn is_behind(&self, other: &Self) -> bool {
        let at = |point: &Self| point.clock[point.queue];
        self.queue == other.queue && at(self) >= at(other)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Contents {
    Newest,
    Other,
}

/// Half of some bytes, and the work on it that not all queues are ordered after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Half {
    contents: Contents,
    written: Option<(usize, u8)>,
    read: Clock,
}

/// What a step or a kernel does to bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    Read,
    Write,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub buffer: BufferState,
    pub uses: Uses<At>,
    /// The access states in the driver.
    access: [AccessState; ALIASES],
    own: [bool; ALIASES],
    pages_on_device: [bool; HALVES],
    /// The contents of the bytes.
    stores: [[Half; HALVES]; STORES],
    clocks: [Clock; QUEUES],
    pub held: Vec<GuardEntry>,
}

pub type Checked<T = ()> = Result<T, String>;

impl World {
    pub fn new(layout: &Layout) -> Self {
        let (aliases, mut replicas) = (layout.kinds.len(), 0);
        let aliases = (0..aliases).map(|alias| layout.alias(alias, &mut replicas)).collect();
        let replica = |index| Replica::new(index == HOME);
        let managed = layout.kinds[HOME] == Kind::Managed;
        let buffer = BufferState {
            whole: WHOLE,
            guard_entries: Default::default(),
            aliases,
            replicas: (0..=replicas).map(replica).collect(),
            pages: managed.then(Default::default),
            exposed: false,
            rules: layout.rules,
        };
        let half = |contents| Half { contents, written: None, read: [0; QUEUES] };
        let mut stores = [[half(Contents::Other); HALVES]; STORES];
        // New memory: the home has the contents, and so have the aliases that see it.
        stores[SHARED] = [half(Contents::Newest); HALVES];
        for alias in (0..layout.kinds.len()).filter(|&alias| layout.has_sides(alias)) {
            stores[1 + alias] = [half(Contents::Newest); HALVES];
        }
        let mut world = Self {
            buffer,
            uses: Uses::default(),
            access: [Acquired; ALIASES],
            own: [false; ALIASES],
            pages_on_device: [true; HALVES],
            stores,
            clocks: [[0; QUEUES]; QUEUES],
            held: Vec::new(),
        };
        // The home was mapped for the import.
        if layout.kinds[HOME] == Kind::Mapped && layout.kinds.contains(&Kind::Import) {
            world.access[HOME] = Released;
        }
        world.refresh(layout, WHOLE);
        world
    }

    /// Describes the state for a test failure.
    pub fn brief(&self) -> String {
        let contents = |store: &[Half; HALVES]| store.map(|half| half.contents);
        let stores: Vec<_> = self.stores.iter().map(contents).collect();
        let (access, replicas) = (self.access, &*self.buffer.replicas);
        let used = |used: &Use<At>| (used.point.queue, used.point.clock);
        let writes: Vec<_> = self.uses.writes.iter().map(used).collect();
        let reads: Vec<_> = self.uses.reads.iter().map(used).collect();
        format!(
            "{access:?} {replicas:?} {stores:?} own {:?} writes {writes:?} reads {reads:?} clocks {:?} held {}",
            self.own,
            self.clocks,
            self.held.len()
        )
    }

    /// Updates the state under test from the driver's access states.
    pub fn refresh(&mut self, layout: &Layout, span: Span) {
        for alias in 0..layout.kinds.len() {
            let access = layout.has_sides(alias).then(|| self.access[alias]);
            if alias == HOME || !layout.is_home(alias) {
                self.buffer.set_route_access(alias, access);
            }
        }
        if let Some(pages) = &mut self.buffer.pages {
            let on = |span: Span| Sides {
                device: self.pages_on_device[span.start..span.end].contains(&true),
                host: self.pages_on_device[span.start..span.end].contains(&false),
            };
            *pages = Pages { taken: on(span), whole: on(WHOLE) };
        }
    }

    /// Checks that the state has the driver's access states, and that the newest contents exist somewhere.
    pub fn check_access(&self, layout: &Layout) -> Checked {
        for alias in (0..layout.kinds.len()).filter(|&alias| layout.has_sides(alias)) {
            let (known, is) = (self.buffer.aliases[alias].access, self.access[alias]);
            ensure(known == Some(is), || format!("alias {alias} is {is:?}, not {known:?}"))?;
        }
        let lost = (0..HALVES).find(|&half| {
            !self.stores.iter().any(|store| store[half].contents == Contents::Newest)
        });
        ensure(lost.is_none(), || "the newest contents are nowhere".into())
    }

    /// The index of the store that an alias's kernels use.
    fn store(&self, layout: &Layout, alias: usize) -> usize {
        let home = if layout.kinds[HOME] == Kind::Mapped { 1 + HOME } else { SHARED };
        match layout.kinds[alias] {
            _ if self.own[alias] => 1 + ALIASES + alias,
            Kind::Staged => 1 + ALIASES + alias,
            Kind::Import => 1 + alias,
            Kind::Direct | Kind::Host { .. } => SHARED,
            Kind::Plain | Kind::Mapped | Kind::Managed | Kind::Sibling | Kind::InPlace { .. } => {
                home
            }
        }
    }

    /// Checks that an alias's kernels may use its bytes now.
    pub fn allows(&self, layout: &Layout, entry: &GuardEntry) -> Checked {
        let GuardEntry { alias, write, span } = *entry;
        let mapped_home = layout.kinds[HOME] == Kind::Mapped;
        let with_device = |access: AccessState| match write {
            true => access == Acquired,
            false => access != Released,
        };
        let with_mapping = |access: AccessState| match write {
            true => access == Released,
            false => access != Acquired,
        };
        let (home, pages) = (self.access[HOME], &self.pages_on_device[span.start..span.end]);
        let allowed = match layout.kinds[alias] {
            Kind::Staged => true,
            _ if self.own[alias] => true,
            Kind::Import => with_device(self.access[alias]) && (!mapped_home || home != Acquired),
            Kind::Mapped => with_device(home),
            Kind::Direct | Kind::Host { .. } if mapped_home => with_mapping(home),
            Kind::Sibling | Kind::InPlace { .. } if mapped_home => with_device(home),
            Kind::Host { .. } if layout.kinds[HOME] == Kind::Managed => !pages.contains(&true),
            Kind::Managed => !pages.contains(&false),
            _ => true,
        };
        ensure(allowed, || format!("alias {alias} may not use its bytes (write: {write})"))
    }

    /// Checks that no other alias has access to the bytes of a writer.
    pub fn check_alone(&self, layout: &Layout, alias: usize) -> Checked {
        let at_home = |alias: usize| {
            layout.is_home(alias) || matches!(layout.kinds[alias], Kind::InPlace { .. })
        };
        let apart = |other: usize| self.own[other] || layout.kinds[other] == Kind::Staged;
        if apart(alias) {
            return Ok(());
        }
        let others = (0..layout.kinds.len()).filter(|&other| other != alias && !apart(other));
        let mut others = others.filter(|&other| layout.has_sides(other));
        let held = others
            .find(|&other| !(at_home(alias) && at_home(other)) && self.access[other] != Released);
        ensure(held.is_none(), || format!("alias {alias} writes what {held:?} still has"))
    }

    /// Runs a kernel of an alias on its queue.
    pub fn kernel(&mut self, layout: &Layout, entry: &GuardEntry, keep: bool) -> Checked {
        self.allows(layout, entry)?;
        let GuardEntry { alias, write, span } = *entry;
        let store = self.store(layout, alias);
        let seen = &self.stores[store][span.start..span.end];
        let stale = seen.iter().any(|half| half.contents != Contents::Newest);
        ensure(!(keep && stale), || format!("alias {alias} sees {:?}", seen[0].contents))?;
        let touch = if write { Touch::Write } else { Touch::Read };
        self.touch(alias, &[(store, touch)], span)
    }

    /// Records a kernel's write: with `contents` they become the newest, otherwise the bytes are undefined.
    pub fn wrote(&mut self, layout: &Layout, alias: usize, span: Span, contents: bool) {
        let store = self.store(layout, alias);
        for half in span.start..span.end {
            if contents {
                let old = self.stores.iter_mut().map(|store| &mut store[half]);
                old.filter(|half| half.contents == Contents::Newest)
                    .for_each(|half| half.contents = Contents::Other);
            }
            let now = if contents { Contents::Newest } else { Contents::Other };
            self.stores[store][half].contents = now;
        }
    }

    /// Adds work to a queue. Fails if it is not ordered after all conflicting work: that is a data race.
    fn touch(&mut self, queue: usize, touches: &[(usize, Touch)], span: Span) -> Checked {
        self.clocks[queue][queue] += 1;
        let clock = self.clocks[queue];
        for &(store, touch) in touches {
            for half in &mut self.stores[store][span.start..span.end] {
                let after_write = half.written.is_none_or(|(other, at)| clock[other] >= at);
                ensure(after_write, || format!("queue {queue} races a write of {store}"))?;
                if touch == Touch::Read {
                    half.read[queue] = clock[queue];
                    continue;
                }
                let after_reads = half.read.iter().zip(&clock).all(|(read, known)| read <= known);
                ensure(after_reads, || format!("queue {queue} races a read of {store}"))?;
                (half.written, half.read) = (Some((queue, clock[queue])), [0; QUEUES]);
            }
        }
        Ok(())
    }

    fn copy_bytes(&mut self, from: usize, to: usize) {
        for half in 0..HALVES {
            self.stores[to][half].contents = self.stores[from][half].contents;
        }
    }

    /// Changes an access state, like a driver that copies.
    pub fn change(
        &mut self,
        layout: &Layout,
        alias: usize,
        to: AccessState,
        queue: usize,
    ) -> Checked {
        if self.own[alias] {
            return Err(format!("alias {alias} has no access state"));
        }
        let alias = if layout.is_home(alias) { HOME } else { alias };
        let (side, from) = (1 + alias, self.access[alias]);
        let ends = match (from, to) {
            (Acquired, SharedRead | Released) | (SharedRead, Released) => Some((side, SHARED)),
            (Released, SharedRead | Acquired) => Some((SHARED, side)),
            _ => None,
        };
        if let Some((from, to)) = ends {
            self.touch(queue, &[(from, Touch::Read), (to, Touch::Write)], WHOLE)?;
            self.copy_bytes(from, to);
        } else {
            self.touch(queue, &[], WHOLE)?;
        }
        self.access[alias] = to;
        Ok(())
    }

    /// Whether two aliases share the access state of one memory.
    pub fn shares_memory(&self, layout: &Layout, one: usize, other: usize) -> bool {
        let in_place = |alias: usize| matches!(layout.kinds[alias], Kind::InPlace { .. });
        let at_home = |alias: usize| layout.is_home(alias) || in_place(alias);
        one == other || (at_home(one) && at_home(other))
    }

    pub fn access_of(&self, layout: &Layout, alias: usize) -> AccessState {
        self.access[if layout.is_home(alias) { HOME } else { alias }]
    }

    pub fn move_pages(&mut self, to: AccessState, span: Span, queue: usize) -> Checked {
        self.touch(queue, &[(SHARED, Touch::Write)], span)?;
        self.pages_on_device[span.start..span.end].fill(to == Acquired);
        Ok(())
    }

    /// Gives an alias separate memory in a new replica, without contents.
    pub fn leave(&mut self, alias: usize) {
        self.own[alias] = true;
        self.stores[1 + ALIASES + alias]
            .iter_mut()
            .for_each(|half| half.contents = Contents::Other);
    }

    /// Whether the home has a mapping for the host.
    pub fn is_mapped(&self, layout: &Layout) -> bool {
        layout.kinds[HOME] != Kind::Mapped || self.access[HOME] != Acquired
    }

    /// The store where a replica's contents are read as they are, and the queue that reads them.
    pub fn as_is(&self, layout: &Layout, alias: usize, replica: usize) -> (usize, usize) {
        let sides = layout.has_sides(alias) || layout.is_home(alias) && layout.has_sides(HOME);
        let at_route = replica == HOME && layout.kinds[alias] != Kind::Staged;
        match (at_route, sides) {
            (true, true) if self.access_of(layout, alias) == Released => (SHARED, HOST_QUEUE),
            (true, true) => {
                let side = if layout.is_home(alias) { HOME } else { alias };
                (1 + side, alias)
            }
            (true, false) => {
                let mut there = self.clone();
                there.own[alias] = false;
                (there.store(layout, alias), alias)
            }
            (false, _) => (self.store(layout, alias), alias),
        }
    }

    /// Copies everything, and waits for the copy. A copy that fails may still run, and leaves undefined contents.
    pub fn copy(
        &mut self,
        layout: &Layout,
        (from, reader): (usize, usize),
        (to, writer): (usize, usize),
        fails: bool,
    ) -> Checked {
        let to = self.store(layout, to);
        ensure(from != to, || "a copy onto itself".into())?;
        self.touch(reader, &[(from, Touch::Read)], WHOLE)?;
        self.touch(writer, &[(to, Touch::Write)], WHOLE)?;
        if fails {
            self.stores[to].iter_mut().for_each(|half| half.contents = Contents::Other);
            return Ok(());
        }
        let both = join(&self.clocks[reader], &self.clocks[writer]);
        self.clocks.iter_mut().for_each(|clock| *clock = join(clock, &both));
        self.copy_bytes(from, to);
        Ok(())
    }

    /// The store and the queue from which an alias is read after a hand-over.
    pub fn handed_over(&self, layout: &Layout, alias: usize) -> (usize, usize) {
        (self.store(layout, alias), alias)
    }

    /// The point that a queue has reached.
    pub fn now(&self, layout: &Layout, queue: usize) -> At {
        let device = match queue {
            HOST_QUEUE => DeviceIx::HOST,
            _ => layout.device(queue),
        };
        At { queue, device, clock: self.clocks[queue] }
    }

    /// Makes a queue wait for a point.
    pub fn order(&mut self, queue: usize, after: &At) {
        self.clocks[queue] = join(&self.clocks[queue], &after.clock);
    }

    /// Maps equivalent histories to one state: keeps only the order of clock values, and drops work that all queues are ordered
    /// after.
    pub fn normalised(mut self, layout: &Layout) -> Self {
        if !layout.orders {
            (self.uses, self.clocks) = (Uses::default(), [[0; QUEUES]; QUEUES]);
            for half in self.stores.iter_mut().flatten() {
                (half.written, half.read) = (None, [0; QUEUES]);
            }
        }
        let everyone: Clock =
            std::array::from_fn(|of| self.clocks.iter().map(|clock| clock[of]).min().unwrap_or(0));
        for half in self.stores.iter_mut().flatten() {
            half.written = half.written.filter(|&(queue, at)| at > everyone[queue]);
            for (read, known) in half.read.iter_mut().zip(&everyone) {
                *read = if *read <= *known { 0 } else { *read };
            }
        }
        let World { uses, clocks, stores, .. } = &mut self;
        for list in [&mut uses.writes, &mut uses.reads] {
            list.retain(|used| {
                used.point.clock.iter().zip(&everyone).any(|(at, known)| at > known)
            });
            list.sort_unstable_by_key(|used| (used.point.queue, used.span.start, used.span.end));
        }
        for queue in 0..QUEUES {
            let mut marks: Vec<u8> = Vec::new();
            for half in stores.iter().flatten() {
                marks.extend(half.written.filter(|at| at.0 == queue).map(|at| at.1));
                marks.extend(Some(half.read[queue]).filter(|at| *at > 0));
            }
            marks.sort_unstable();
            marks.dedup();
            let rank = |value: &mut u8| *value = marks.partition_point(|mark| mark <= value) as u8;
            clocks.iter_mut().for_each(|clock| rank(&mut clock[queue]));
            let points = uses.writes.iter_mut().chain(&mut *uses.reads);
            points.for_each(|used| rank(&mut used.point.clock[queue]));
            for half in stores.iter_mut().flatten() {
                rank(&mut half.read[queue]);
                half.written.iter_mut().filter(|at| at.0 == queue).for_each(|at| rank(&mut at.1));
            }
        }
        self.held.sort_by_key(|entry| (entry.alias, entry.span.start, entry.span.end));
        self
    }
}

fn join(one: &Clock, other: &Clock) -> Clock {
    std::array::from_fn(|queue| one[queue].max(other[queue]))
}

pub fn ensure(holds: bool, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(what()) }
}
