//! What changes in a buffer's life: its [`BufferState`], and beside it the queues and points that belong to it.

use super::{
    core::{Alias, Core, HOME},
    few::Few,
    guard_entries::GuardEntry,
    span::Span,
    transition::{AliasState, BufferState, Pages, Point, Replica, Rules, Use, Uses},
};
use crate::{
    fence,
    queue_state::{QueuePoint, QueueState},
    topology::DeviceIx,
};
use onebuf_hal::{Error, Memory, Result, SyncMethod, locks::Arc};
use std::ops::{Deref, DerefMut};

#[derive(Debug)]
pub(crate) struct CoreState {
    /// What hand-overs are decided by. Access states are the memories' own: [`CoreState::refresh`] reads them.
    pub buffer: BufferState,
    /// What must be waited for.
    pub uses: Uses<QueuePoint>,
    /// By alias: the in-order queue that used it last; its access state changes go there.
    pub queue_states: Few<Option<Arc<QueueState>>>,
    /// Who needs no hand-over to take the buffer again.
    pub settled: Option<Settled>,
    pub sync_method: SyncMethod,
    /// A wait for this buffer's work ran out of time: its memory must not be freed.
    pub quarantined: bool,
    /// Taken out of its pool for good.
    pub detached: bool,
    /// There is an offer of it to other processes.
    pub offered: bool,
    /// Clients in this process whose visits are over, and who may still be at work on the memory.
    pub tenants: Vec<Arc<Core>>,
}

/// The in-order queue that took the whole buffer last, and how. Until somebody else takes it, that queue is
/// behind everything it must be behind, and the memory is where it needs it.
#[derive(Clone, Debug)]
pub(crate) struct Settled {
    pub queue_state: Arc<QueueState>,
    pub alias: usize,
    pub write: bool,
}

impl Deref for CoreState {
    type Target = BufferState;

    #[inline]
    fn deref(&self) -> &BufferState {
        &self.buffer
    }
}

impl DerefMut for CoreState {
    #[inline]
    fn deref_mut(&mut self) -> &mut BufferState {
        &mut self.buffer
    }
}

impl Point for QueuePoint {
    #[inline]
    fn device(&self) -> DeviceIx {
        self.queue_state.device
    }

    #[inline]
    fn is_behind(&self, other: &QueuePoint) -> bool {
        QueuePoint::is_behind(self, other)
    }
}

/// Uses that are kept apart by their bytes before they are put together.
const MANY: usize = 16;

impl CoreState {
    pub fn new(aliases: &[Alias], whole: Span, rules: Rules, pages: Option<Pages>) -> Self {
        let replicas = aliases.iter().map(|s| s.replica).max().unwrap_or(0) + 1;
        let replica = |g| Replica::new(g == HOME);
        let buffer = BufferState {
            whole,
            guard_entries: Default::default(),
            aliases: aliases.iter().map(describe).collect(),
            replicas: (0..replicas).map(replica).collect(),
            pages,
            exposed: false,
            rules,
        };
        Self {
            buffer,
            uses: Uses::default(),
            queue_states: aliases.iter().map(|_| None).collect(),
            settled: None,
            sync_method: SyncMethod::SameQueue,
            quarantined: false,
            detached: false,
            offered: false,
            tenants: Vec::new(),
        }
    }

    /// Reads what the memories know of themselves.
    pub fn refresh(&mut self, aliases: &[Alias]) {
        for (index, alias) in aliases.iter().enumerate() {
            // Those that have the home's memory have its access state.
            if index == HOME || !alias.is_home {
                self.buffer.set_route_access(index, alias.memory.as_deref().and_then(access_of));
            }
            if let (Some(own), Some(spare)) =
                (&mut self.buffer.aliases[index].own, alias.spare.get())
            {
                own.access = access_of(&*spare.memory);
            }
        }
    }

    /// Notes work on the bytes of a guard.
    pub fn note(&mut self, entry: &GuardEntry, point: QueuePoint) {
        let new = Use { span: entry.span, point };
        if entry.write {
            self.uses.note_write(new);
            shorten(&mut self.uses.writes);
        } else {
            self.uses.note_read(new);
            shorten(&mut self.uses.reads);
        }
    }

    /// The same for everything that the queue was given so far.
    pub fn note_queue_state(&mut self, entry: &GuardEntry, queue_state: &Arc<QueueState>) {
        let uses = if entry.write { &mut self.uses.writes } else { &mut self.uses.reads };
        // A queue that comes again, as most do: nothing is allocated, no reference counted.
        if let [only] = &mut **uses
            && only.span == entry.span
            && only.point.renew(queue_state)
        {
            if entry.write {
                self.uses.reads.retain(|old| !entry.span.covers(old.span));
            }
            return;
        }
        self.note(entry, queue_state.note());
    }

    /// A queue other than this that used the buffer last, so far as that is known: a writer, or else a reader.
    pub fn last_other(&self, queue_state: &Arc<QueueState>) -> Option<Arc<QueueState>> {
        let mut queue_states = self.uses.iter().map(|used| &used.point.queue_state);
        queue_states.find(|other| !Arc::ptr_eq(other, queue_state)).cloned()
    }

    /// A timeout quarantines the buffer; failed work is reported once, and is over.
    pub fn settle<T>(&mut self, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| self.settle_failure(error))
    }

    /// The same for an error that is known.
    pub fn settle_failure(&mut self, error: &Error) {
        match fence::is_timeout(error) {
            true => self.quarantined = true,
            false => self.forget_failed(),
        }
    }

    /// Work that failed is over; the buffer's contents are whatever it left.
    fn forget_failed(&mut self) {
        self.uses.writes.retain(|used| !used.point.is_over());
        self.uses.reads.retain(|used| !used.point.is_over());
        // What is left may be running: only the question about it failed.
        self.quarantined |= !self.uses.is_empty();
    }

    /// The buffer has other bytes. Everything that is to be waited for is about them, and nobody is behind it all.
    pub fn widen(&mut self, span: Span) {
        let Uses { writes, reads } = &mut self.uses;
        writes.iter_mut().chain(&mut **reads).for_each(|used| used.span = span);
        (self.buffer.whole, self.settled) = (span, None);
    }

    /// The memory must outlive this buffer: somebody may still use it.
    pub fn quarantine(&mut self) {
        self.quarantined = true;
    }
}

/// An alias as decisions know it.
fn describe(alias: &Alias) -> AliasState {
    AliasState {
        device: alias.device,
        is_home: alias.is_home,
        in_place: alias.in_place,
        copies: alias.copies,
        has_memory: alias.memory.is_some(),
        takes_transfers: alias.memory.as_ref().is_none_or(|memory| memory.takes_transfers()),
        replica: alias.replica,
        access: None,
        own: None,
    }
}

/// Where a memory is; `None` for memory that needs no hand-over calls.
#[inline]
pub(super) fn access_of(memory: &dyn Memory) -> Option<onebuf_hal::AccessState> {
    memory.needs_access_state().then(|| memory.access_state())
}

/// Keeps a list short when a program uses ever other bytes: what is over goes, and what is in one
/// in-order queue becomes one use of all its bytes.
pub(super) fn shorten(uses: &mut Few<Use<QueuePoint>>) {
    if uses.len() <= MANY {
        return;
    }
    let mut kept = Few::None;
    let all = std::mem::take(uses).into_vec();
    for new in all.into_iter().filter(|used| used.point.poll() != Ok(true)) {
        match kept.iter_mut().find(|old: &&mut Use<QueuePoint>| new.point.is_behind(&old.point)) {
            Some(old) => *old = Use { span: old.span.hull(new.span), point: new.point },
            None => kept.push(new),
        }
    }
    *uses = kept;
}
