//! The mutable state of a buffer: its [`BufferState`], and the queues and queue points that belong to it.

use super::{
    alias::{Alias, HOME},
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
    /// The state that hand-overs are decided on. The memories hold the access states; [`CoreState::refresh`] reads them.
    pub buffer: BufferState,
    /// The work that later users must wait for.
    pub uses: Uses<QueuePoint>,
    /// By alias: the in-order queue that used it last, which also performs its access state changes.
    pub queue_states: Few<Option<Arc<QueueState>>>,
    /// The queue that needs no hand-over to take the buffer again.
    pub settled: Option<Settled>,
    pub sync_method: SyncMethod,
    /// A wait for this buffer's work timed out: its memory must not be freed while the work may run.
    pub quarantined: bool,
    /// Permanently taken out of its pool.
    pub detached: bool,
    /// The buffer is offered to other processes.
    pub offered: bool,
    /// Counts guards that were dropped, except those on a lease.
    pub drops: u64,
    /// How many threads wait until a guard is dropped.
    pub waiting: u32,
}

/// The in-order queue that took the whole buffer last, and how. Until another queue takes the buffer, this queue is
/// ordered after all work that it must wait for, and the memory is in the access state that it needs.
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

/// The number of uses with separate byte ranges that are kept before they are merged.
const MANY: usize = 16;

impl CoreState {
    /// Inlined, because moving the large structure costs a wrap more than creating it.
    #[inline(always)]
    pub fn new(aliases: &[Alias], whole: Span, rules: Rules, pages: Option<Pages>) -> Self {
        let replicas = aliases.iter().map(|s| s.replica).max().unwrap_or(0) + 1;
        let replica = |g| Replica::new(g == HOME);
        Self {
            buffer: BufferState {
                whole,
                guard_entries: Default::default(),
                aliases: aliases.iter().map(describe).collect(),
                replicas: (0..replicas).map(replica).collect(),
                pages,
                exposed: false,
                rules,
            },
            uses: Uses::default(),
            queue_states: aliases.iter().map(|_| None).collect(),
            settled: None,
            sync_method: SyncMethod::SameQueue,
            quarantined: false,
            detached: false,
            offered: false,
            drops: 0,
            waiting: 0,
        }
    }

    /// Reads the access states of the memories.
    pub fn refresh(&mut self, aliases: &[Alias]) {
        for (index, alias) in aliases.iter().enumerate() {
            // Aliases with the home's memory have the home's access state.
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

    /// Records work on the bytes of a guard.
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

    /// Records all work that the queue has received so far as work on the bytes of a guard.
    pub fn note_queue_state(&mut self, entry: &GuardEntry, queue_state: &Arc<QueueState>) {
        let uses = if entry.write { &mut self.uses.writes } else { &mut self.uses.reads };
        // The common case, the same queue again: no allocation, no reference counting.
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

    /// Returns the last known user of the buffer on another queue: a writer, or else a reader.
    pub fn last_other(&self, queue_state: &Arc<QueueState>) -> Option<Arc<QueueState>> {
        let mut queue_states = self.uses.iter().map(|used| &used.point.queue_state);
        queue_states.find(|other| !Arc::ptr_eq(other, queue_state)).cloned()
    }

    /// Records the error of a wait: a timeout quarantines the buffer; failed work has ended and is reported only once.
    pub fn settle<T>(&mut self, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| self.settle_failure(error))
    }

    /// Records an error: see `CoreState::settle`.
    pub fn settle_failure(&mut self, error: &Error) {
        match fence::is_timeout(error) {
            true => self.quarantined = true,
            false => self.forget_failed(),
        }
    }

    /// Removes work that has ended with a failure; the buffer's contents are whatever it left.
    fn forget_failed(&mut self) {
        self.uses.writes.retain(|used| !used.point.is_over());
        self.uses.reads.retain(|used| !used.point.is_over());
        // The remaining work may still run: only the query about it failed.
        self.quarantined |= !self.uses.is_empty();
    }

    /// Changes the buffer's span. All recorded uses now cover it, and no queue is known to be ordered after all of them.
    pub fn widen(&mut self, span: Span) {
        let Uses { writes, reads } = &mut self.uses;
        writes.iter_mut().chain(&mut **reads).for_each(|used| used.span = span);
        (self.buffer.whole, self.settled) = (span, None);
    }

    /// Keeps the memory from being freed or reused while work may still use it.
    pub fn quarantine(&mut self) {
        self.quarantined = true;
    }
}

/// Describes an alias for [`BufferState`].
fn describe(alias: &Alias) -> AliasState {
    AliasState {
        device: alias.device,
        is_home: alias.is_home,
        in_place: alias.in_place,
        copies: alias.copies,
        has_memory: alias.memory.is_some(),
        takes_transfers: alias.takes_transfers(),
        replica: alias.replica,
        access: None,
        own: None,
    }
}

/// The access state of a memory; `None` for memory that needs no hand-over calls.
#[inline]
pub(super) fn access_of(memory: &dyn Memory) -> Option<onebuf_hal::AccessState> {
    memory.needs_access_state().then(|| memory.access_state())
}

/// Shortens a list that grows because a program uses ever different bytes: removes completed uses, and merges
/// the uses of each in-order queue into one that spans all their bytes.
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
