//! What changes in a buffer's life: who holds it, what must be waited for, where the contents are.

use super::{
    core::{Alias, Core, HOME},
    few::Few,
    guard_entries::{GuardEntries, GuardEntry},
    span::Span,
};
use crate::{
    fence,
    queue_state::{QueuePoint, QueueState},
};
use onebuf_hal::{Result, SyncMethod, locks::Arc};

#[derive(Debug)]
pub(crate) struct State {
    pub guard_entries: GuardEntries,
    pub writes: Few<Use>,
    pub reads: Few<Use>,
    /// By replica: whether it holds the newest contents, and which alias wrote them last.
    pub replicas: Few<Replica>,
    /// By alias: the in-order queue that used it last; its access state changes go there.
    pub queue_states: Few<Option<Arc<QueueState>>>,
    /// Who needs no hand-over to take the buffer again.
    pub settled: Option<Settled>,
    pub sync_method: SyncMethod,
    /// A wait for this buffer's work ran out of time: its memory must not be freed.
    pub quarantined: bool,
    /// An access state change failed during this hand-over.
    pub tripped: bool,
    /// Taken out of its pool for good.
    pub detached: bool,
    /// Another process can write the memory, now and for ever: it may keep its mapping.
    pub exposed: bool,
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

/// Work on some bytes, and how far its queue will be when it is done.
#[derive(Clone, Debug)]
pub(crate) struct Use {
    pub span: Span,
    pub point: QueuePoint,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Replica {
    pub current: bool,
    pub writer: Option<usize>,
}

/// Uses that are kept apart by their bytes before they are put together.
const MANY: usize = 16;

impl State {
    pub fn new(aliases: &[Alias]) -> Self {
        let replicas = aliases.iter().map(|s| s.replica).max().unwrap_or(0) + 1;
        let replica = |g| Replica { current: g == HOME, writer: None };
        Self {
            guard_entries: GuardEntries::default(),
            writes: Few::None,
            reads: Few::None,
            replicas: (0..replicas).map(replica).collect(),
            queue_states: aliases.iter().map(|_| None).collect(),
            settled: None,
            sync_method: SyncMethod::SameQueue,
            quarantined: false,
            tripped: false,
            detached: false,
            exposed: false,
            offered: false,
            tenants: Vec::new(),
        }
    }

    /// Whether there is no work on it that anybody would have to wait for.
    pub fn is_unused(&self) -> bool {
        self.writes.is_empty() && self.reads.is_empty()
    }

    /// An alias of this replica writes: what others hold is old.
    pub fn written_at(&mut self, alias: usize, replica: usize) {
        for (index, other) in self.replicas.iter_mut().enumerate() {
            other.current = index == replica;
        }
        self.replicas[replica].writer = Some(alias);
    }

    /// Notes work on the bytes of a guard.
    pub fn note(&mut self, entry: &GuardEntry, point: QueuePoint) {
        let new = Use { span: entry.span, point };
        if entry.write { self.note_write(new) } else { self.note_read(new) }
    }

    /// The same for everything that the queue was given so far.
    pub fn note_queue_state(&mut self, entry: &GuardEntry, queue_state: &Arc<QueueState>) {
        let uses = if entry.write { &mut self.writes } else { &mut self.reads };
        // A queue that comes again, as most do: nothing is allocated, no reference counted.
        if let [only] = &mut **uses
            && only.span == entry.span
            && only.point.renew(queue_state)
        {
            if entry.write {
                self.reads.retain(|old| !entry.span.covers(old.span));
            }
            return;
        }
        self.note(entry, queue_state.note());
    }

    /// The newest point of each queue is enough for the same bytes: queues run in order.
    pub fn note_read(&mut self, new: Use) {
        let same = |old: &&mut Use| new.span.covers(old.span) && new.point.is_behind(&old.point);
        match self.reads.iter_mut().find(same) {
            Some(old) => *old = new,
            None => {
                self.reads.push(new);
                shorten(&mut self.reads);
            }
        }
    }

    /// What `new` waited for is behind it.
    pub fn note_write(&mut self, new: Use) {
        let left = |old: &Use| !new.span.covers(old.span);
        self.reads.retain(left);
        match &mut *self.writes {
            [only] if only.span == new.span => *only = new,
            _ => {
                self.writes.retain(left);
                self.writes.push(new);
                shorten(&mut self.writes);
            }
        }
    }

    /// An access state change waited for earlier writes, but readers elsewhere may still run.
    pub fn note_change(&mut self, new: Use) {
        self.writes.retain(|old| !new.point.is_behind(&old.point));
        self.writes.push(new);
    }

    /// A queue other than this that used the buffer last, so far as that is known: a writer, or else a reader.
    pub fn last_other(&self, queue_state: &Arc<QueueState>) -> Option<Arc<QueueState>> {
        let queue_states =
            self.writes.iter().chain(&*self.reads).map(|used| &used.point.queue_state);
        queue_states.into_iter().find(|other| !Arc::ptr_eq(other, queue_state)).cloned()
    }

    /// A timeout quarantines the buffer; failed work is reported once, and is over.
    pub fn settle<T>(&mut self, outcome: Result<T>) -> Result<T> {
        match &outcome {
            Err(error) if fence::is_timeout(error) => self.quarantined = true,
            Err(_) => self.forget_failed(),
            Ok(_) => {}
        }
        outcome
    }

    /// Work that failed is over; the buffer's contents are whatever it left.
    pub fn forget_failed(&mut self) {
        self.writes.retain(|used| !used.point.is_over());
        self.reads.retain(|used| !used.point.is_over());
        // What is left may be running: only the question about it failed.
        self.quarantined |= !(self.writes.is_empty() && self.reads.is_empty());
    }

    /// Everything that is to be waited for is about these bytes, and nobody is behind it all.
    pub fn widen(&mut self, span: Span) {
        self.writes.iter_mut().chain(&mut *self.reads).for_each(|used| used.span = span);
        self.settled = None;
    }

    /// The memory must outlive this buffer: somebody may still use it.
    pub fn quarantine(&mut self) {
        self.quarantined = true;
    }
}

/// Keeps a list short when a program uses ever other bytes: what is over goes, and what is in one
/// in-order queue becomes one use of all its bytes.
pub(super) fn shorten(uses: &mut Few<Use>) {
    if uses.len() <= MANY {
        return;
    }
    let mut kept = Few::None;
    let all = std::mem::take(uses).into_vec();
    for new in all.into_iter().filter(|used| used.point.poll() != Ok(true)) {
        match kept.iter_mut().find(|old: &&mut Use| new.point.is_behind(&old.point)) {
            Some(old) => *old = Use { span: old.span.hull(new.span), point: new.point },
            None => kept.push(new),
        }
    }
    *uses = kept;
}
