//! One allocation, who sees it, and the hand-over between them.
//!
//! An *alias* is one device's view of the buffer. Aliases that see the same bytes form a *replica*: the home
//! allocation and its aliases are one, each staged copy is another. How it is handed over from one to the other is decided in
//! [`transition`](super::transition) and done in [`hand_over`](super::hand_over).

use super::{
    failover::Spare,
    few::Few,
    guard_entries::GuardEntry,
    label::Label,
    lease::Lease,
    owner::{Claim, Lender, Loan},
    pages::PAGES_MOVE,
    part::{Part, Seen},
    span::Span,
    state::{CoreState, Settled},
    transition::Use,
};
use crate::{
    Hub,
    fence::Fence,
    ledger::Cause,
    observe::{BufferObservers, Event as ObservedEvent, What},
    plan::Plan,
    queue_state::{QueuePoint, QueueState},
    topology::DeviceIx,
};
use onebuf_hal::{
    Access, CopyPolicy, Error, Event, Export, HostAccess, HostRange, Memory, Result, RouteKind,
    SyncMethod,
    locks::{Arc, AtomicU64, Mutex, MutexGuard, Ordering, lock},
};
use std::{any::Any, ptr::NonNull, sync::OnceLock, time::Duration};

/// One device's view of the buffer.
#[derive(Debug)]
pub(crate) struct Alias {
    pub device: DeviceIx,
    pub kind: RouteKind,
    /// The memory as this device sees it; `None` for the host looking through the home's mapping.
    pub memory: Option<Arc<dyn Memory>>,
    pub replica: usize,
    /// Whether its memory is the home's own: the home, and the other devices of a foreign context.
    pub is_home: bool,
    /// Whether it uses the home's memory where it lies, while that is acquired, and not through a mapping: by its address, or
    /// by a descriptor of what lies there.
    pub in_place: bool,
    /// Whether a hand-over to or from it copies, or is not proven not to.
    pub copies: bool,
    /// The best sync method that may join it to the others.
    pub sync: SyncMethod,
    /// Whether the plan has it; the host may be there unasked.
    pub planned: bool,
    /// Why it is a staged copy and not what the plan says; known since the buffer was built.
    pub lost: Option<String>,
    /// What it uses since its route failed.
    pub spare: OnceLock<Spare>,
    /// The foreign context that it needs: goes last.
    pub registration: Option<Arc<dyn Any + Send + Sync>>,
}

/// The part of a buffer that has no type.
#[derive(Debug)]
pub struct Core {
    #[doc(hidden)]
    pub hub: Hub,
    /// How many bytes it uses.
    pub bytes: usize,
    /// How many were allocated: at least as many.
    pub capacity: usize,
    pub(crate) align: usize,
    /// What kernels may do with it at all.
    pub access: Access,
    /// What the host may.
    pub host: HostAccess,
    pub(crate) aliases: Vec<Alias>,
    #[doc(hidden)]
    pub plan: Arc<Plan>,
    pub(crate) policy: CopyPolicy,
    pub(crate) state: Mutex<CoreState>,
    pub(crate) lease: Lease,
    /// Whether the caller trusts what drivers declare: then callbacks need no experiment.
    pub trusts: bool,
    /// Bytes that were moved although nobody asked.
    pub implied: AtomicU64,
    /// Where it goes when its buffer is dropped; nowhere for a buffer that was built.
    pub(crate) loan: Option<Loan>,
    /// What is owed to former owners of its memory, once that is no longer used: dropped last.
    pub(crate) claims: Mutex<Vec<Claim>>,
    /// What people call it.
    pub(crate) label: Label,
    /// Who is told what happens to it.
    pub(crate) observers: BufferObservers,
}

/// What a guard gets when it is taken.
pub(crate) struct Taken<'b> {
    pub alias: usize,
    pub memory: Seen<'b>,
    pub sync_method: SyncMethod,
    /// What launches on an out-of-order queue wait for.
    pub after: Vec<Arc<dyn Event>>,
    /// The newest contents are elsewhere until the taker says that they were overwritten.
    pub overwrites: bool,
    /// Another process can write the memory.
    pub exposed: bool,
}

/// The home allocation is the first alias and the first replica.
pub(crate) const HOME: usize = 0;

impl Core {
    /// Whether its memory is somebody else's.
    #[inline]
    pub fn is_foreign(&self) -> bool {
        matches!(self.loan, Some(Loan { lender: Lender::Foreign, .. }))
    }

    /// Whether it goes back to a pool.
    pub fn is_pooled(&self) -> bool {
        matches!(self.loan, Some(Loan { lender: Lender::Pool, .. }))
    }

    pub(crate) fn device_id(&self, device: DeviceIx) -> &str {
        &self.hub.topology().node(device).id
    }

    pub(crate) fn alias_of(&self, device: DeviceIx) -> Option<usize> {
        self.aliases.iter().position(|s| s.device == device)
    }

    /// The host's view, if it has one; staged or not.
    pub fn host_alias(&self) -> Option<usize> {
        self.alias_of(self.hub.host_index())
    }

    /// Marks the bytes, hands them over to the queue, and says as what memory the queue sees them. The
    /// contents come along unless `keep` is false: then the taker overwrites all of them.
    pub(crate) fn take<'b>(
        &'b self,
        part: &Part<'b>,
        queue_state: &Arc<QueueState>,
        write: bool,
        keep: bool,
    ) -> Result<Taken<'b>> {
        let alias =
            self.alias_of(queue_state.device).ok_or_else(|| self.not_shared(queue_state.device))?;
        self.check_policy(alias)?;
        let entry = GuardEntry { span: part.span, alias, write };
        let mut state = self.lock_reclaimed()?;
        state.guard_entries.take(entry)?;
        state.settled = None;
        // What is newest elsewhere stays so until it has been overwritten here.
        let keep = keep || state.has_newest(self.aliases[alias].replica());
        let began = self.hub.tracer().begin(What::HandOver);
        let told = began.is_on() || self.observers.is_on();
        let from = if told { state.last_other(queue_state) } else { None };
        let taken = match self.begins_with(alias, &state) {
            true => Ok((self.begin(&mut state, write), Vec::new())),
            false => self.hand_over(&mut state, &entry, queue_state, keep),
        };
        if let Some(from) = from {
            if let Ok((sync_method, _)) = &taken {
                self.observers.handed_over(from.device, queue_state.device, *sync_method);
            }
            began.end(queue_state, |event| {
                event.came_from(&from);
                event.bytes = Some(part.span.len() as u64);
                event.buffer = Some(self.label.to_string());
                event.route = Some(self.aliases[alias].kind());
                event.sync_method = taken.as_ref().ok().map(|(sync_method, _)| *sync_method);
                event.failed = taken.is_err();
            });
        }
        let taken =
            taken.and_then(|(sync_method, after)| Ok((part.memory(alias)?, sync_method, after)));
        let (memory, sync_method, after) =
            taken.inspect_err(|_| state.guard_entries.give_back(&entry))?;
        // A view through another device's mapping is made anew each time.
        let has_own = self.aliases[alias].memory().is_some();
        let leases = queue_state.is_in_order() && !queue_state.marks_at_once;
        if keep && part.is_whole() && leases && has_own {
            state.settled = Some(Settled { queue_state: queue_state.clone(), alias, write });
        }
        Ok(Taken { alias, memory, sync_method, after, overwrites: !keep, exposed: state.exposed })
    }

    /// Whether the home's own queue is the first to use it, and nobody else sees the bytes: then there is nothing to wait for,
    /// and nothing to move. As with most memory of others, which is wrapped for one launch.
    fn begins_with(&self, alias: usize, state: &CoreState) -> bool {
        let alone = || self.aliases.iter().all(|alias| alias.is_home || alias.memory.is_none());
        let home = || alias == HOME && self.aliases[HOME].spare.get().is_none();
        // New memory may have been filled on either side.
        let stays = !self.moves_pages();
        state.uses.is_empty() && stays && home() && self.is_at_home(state) && alone()
    }

    fn begin(&self, state: &mut CoreState, write: bool) -> SyncMethod {
        if write {
            state.written_at(HOME);
        }
        state.sync_method = SyncMethod::SameQueue;
        state.sync_method
    }

    /// The alias holds everything: it was overwritten.
    pub fn overwritten(&self, alias: usize) {
        self.lock_state().written_at(alias);
    }

    /// Notes that the queue may have been given work on these bytes, and clears the mark. On an
    /// out-of-order queue the work's own events tell its end, where they are all there is. Where there are
    /// none nothing was done, nor waited for: what came before stays what the next one waits for.
    pub(crate) fn give_back(
        &self,
        entry: &GuardEntry,
        queue_state: &Arc<QueueState>,
        ends: Option<Few<Arc<dyn Event>>>,
    ) {
        let mut state = self.lock_state();
        state.guard_entries.give_back(entry);
        match ends {
            _ if queue_state.marks_at_once => match queue_state.hal.mark() {
                Ok(mark_here) => state.note(entry, queue_state.at_event(mark_here)),
                // Whoever has to wait for it asks again, and is told.
                Err(_) => state.note_queue_state(entry, queue_state),
            },
            Some(ends) if !queue_state.is_in_order() => {
                for point in ends.into_vec().into_iter().map(|event| queue_state.at_event(event)) {
                    state.note(entry, point);
                }
                return;
            }
            // In order, the last one's end is everybody's. Transfers have none.
            Some(mut ends) if !queue_state.was_given_away() => match ends.pop() {
                Some(last) => state.note(entry, queue_state.at_event(last)),
                None => state.note_queue_state(entry, queue_state),
            },
            _ => state.note_queue_state(entry, queue_state),
        }
        // Nothing of ours goes to a queue of somebody else's unless the caller says so.
        if queue_state.is_in_order() && !queue_state.is_foreign {
            let last = &mut state.queue_states[entry.alias];
            if !last.as_ref().is_some_and(|last| Arc::ptr_eq(last, queue_state)) {
                *last = Some(queue_state.clone());
            }
        }
        self.lease.grant(&state);
    }

    /// The plan has no copies under `Forbid`; but the host, where it was not asked for, may look through
    /// a mapping that copies.
    pub(super) fn check_policy(&self, alias: usize) -> Result<()> {
        let Alias { device, kind, planned, .. } = self.aliases[alias];
        if self.policy != CopyPolicy::Forbid || !self.aliases[alias].copies() || planned {
            return Ok(());
        }
        let (home, device) = (self.device_id(self.aliases[HOME].device), self.device_id(device));
        let route = format!("{home} -> {device}");
        let why = match self.moves_pages() {
            true => PAGES_MOVE.into(),
            false => format!(
                "{kind} is not proven to be free of copies: share the buffer with {device} too"
            ),
        };
        Err(Error::CopyForbidden { route, why })
    }

    pub(crate) fn not_shared(&self, device: DeviceIx) -> Error {
        let ids: Vec<&str> = self.aliases.iter().map(|s| self.device_id(s.device)).collect();
        Error::NotShared { device: self.device_id(device).into(), shared_with: ids.join(", ") }
    }

    /// What observers are told of a copy.
    pub fn tell_copy(
        &self,
        event: &mut ObservedEvent,
        cause: Cause,
        from: DeviceIx,
        to: DeviceIx,
        bytes: usize,
    ) {
        event.cause = Some(cause);
        (event.from, event.to) = (Some(from), Some(to));
        event.bytes = Some(bytes as u64);
        event.buffer = Some(self.label.to_string());
    }

    pub(crate) fn count_implied_bytes(&self, from: DeviceIx, to: DeviceIx, bytes: usize) {
        if self.policy == CopyPolicy::Warn {
            let (from, to) = (self.device_id(from), self.device_id(to));
            let buffer = self.label.to_string();
            tracing::warn!(target: "onebuf::copies", buffer, from, to, bytes, "an implied copy");
        }
        self.implied.fetch_add(bytes as u64, Ordering::Relaxed);
        self.observers.copied_implicitly(bytes as u64);
        self.hub.ledger().record(from, to, Cause::Implied, bytes);
    }

    /// What the alias's kernels, or the host, see of some bytes.
    pub(crate) fn memory(&self, alias: usize, span: Span) -> Result<Seen<'_>> {
        match self.aliases[alias].memory() {
            Some(memory) => Ok(Seen::Alias(&**memory)),
            None => self.through_home(span).map(Seen::Mapped),
        }
    }

    /// The home's mapping as memory of the host.
    pub(super) fn through_home(&self, span: Span) -> Result<Arc<dyn Memory>> {
        let Some(home) = self.aliases[HOME].memory.clone() else {
            return Err(Error::unsupported("a host view of this buffer", "a home"));
        };
        let pointer = home.host_pointer().ok_or_else(|| {
            Error::unsupported("a host view of this buffer", "memory that its device maps")
        })?;
        if pointer.addr().get() % self.align != 0 {
            return Err(Error::unsupported(
                format!("a host view aligned to {} bytes", self.align),
                "a driver whose maps are aligned so: share the buffer with the host too",
            ));
        }
        self.on_host(home, pointer, span)
    }

    /// Some bytes of a memory that is mapped, as memory of the host.
    pub(super) fn on_host(
        &self,
        memory: Arc<dyn Memory>,
        pointer: NonNull<u8>,
        span: Span,
    ) -> Result<Arc<dyn Memory>> {
        let owner: Arc<dyn Any + Send + Sync> = Arc::new(memory);
        let range = HostRange { pointer, bytes: self.bytes, owner }.part(span.start, span.len())?;
        let host = self.hub.hal(self.hub.host_index());
        host.import(&Export::Host(range), Access::ReadWrite)
    }

    /// An alias that holds the newest contents, for copies that the caller asked for: the host's if it
    /// can see them, else the last writer's.
    pub fn newest_alias(&self) -> usize {
        let state = self.lock_state();
        state.source(state.newest()).unwrap_or(HOME)
    }

    /// Where to overwrite everything: at the home, by the host if it sees the bytes themselves.
    pub fn overwrite_alias(&self) -> usize {
        self.lock_state().source(HOME).unwrap_or(HOME)
    }

    /// An alias other than the host's that sees the newest contents, the last writer's if it does.
    pub fn newest_device_alias(&self) -> Option<usize> {
        let state = self.lock_state();
        let host = self.hub.host_index();
        let fits = |s: &usize| {
            let alias = &self.aliases[*s];
            alias.device != host && alias.takes_transfers() && state.has_newest(alias.replica())
        };
        let writers = state.replicas.iter().filter_map(|g| g.writer);
        writers.chain(0..self.aliases.len()).find(fits)
    }

    /// The queue on which to do the caller's copies at an alias.
    pub(crate) fn queue_state_at(&self, alias: usize) -> Result<Arc<QueueState>> {
        let state = self.lock_state();
        self.queue_state_for(&state, alias)
    }

    /// The last writes of the bytes as a fence, or the last reads where nothing was written.
    pub(crate) fn fence(&self, span: Span) -> Option<Fence> {
        self.fence_of(span, |writes, reads| if writes.is_empty() { reads } else { writes })
    }

    /// The last writes of the bytes and the reads since, as a fence.
    pub(crate) fn uses(&self, span: Span) -> Option<Fence> {
        self.fence_of(span, |writes, reads| [writes, reads].concat())
    }

    fn fence_of(
        &self,
        span: Span,
        choose: impl FnOnce(Vec<QueuePoint>, Vec<QueuePoint>) -> Vec<QueuePoint>,
    ) -> Option<Fence> {
        let state = self.lock_state();
        let all = |uses: &[Use<QueuePoint>]| -> Vec<QueuePoint> {
            let mine = uses.iter().filter(|used| used.span.overlaps(span));
            mine.map(|used| used.point.clone()).collect()
        };
        let points = choose(all(&state.uses.writes), all(&state.uses.reads));
        if points.is_empty() {
            return None;
        }
        Some(Fence::of(points, self.hub.timeout()).with_sync_method(state.sync_method))
    }

    /// The state, brought up to date.
    pub(crate) fn lock_state(&self) -> MutexGuard<'_, CoreState> {
        let mut state = lock(&self.state);
        self.lease.recall(&mut state, self.whole());
        state
    }

    /// The same for who has the core alone: no lock.
    pub(super) fn state_mut(&mut self) -> &mut CoreState {
        let whole = self.whole();
        let state = self.state.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.lease.recall(state, whole);
        state
    }
}

impl Core {
    /// The buffer is gone: back to the pool, or freed.
    #[inline]
    pub fn retire(self: Box<Self>) {
        match self.loan.clone() {
            Some(Loan { owner, tag, .. }) => owner.take_back(self, tag),
            None => drop(self),
        }
    }

    /// Another life, of so many bytes. What earlier lives left to wait for is about all of them: a hand-over
    /// is of the whole allocation, and a write of all bytes shall end the list.
    #[inline]
    pub fn renew(&mut self, bytes: usize) {
        if self.bytes == bytes {
            return;
        }
        let old = self.whole();
        self.bytes = bytes;
        let state = self.state.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.lease.recall(state, old);
        state.widen(Span::whole(bytes));
    }

    /// Whether nobody can still use the memory but work that is fenced.
    #[inline]
    pub fn is_reusable(&mut self) -> bool {
        // One whose route failed is not what its pool was asked for.
        let whole_route = self.aliases.iter().all(|alias| alias.spare.get().is_none());
        let state = self.state_mut();
        whole_route && !(state.guard_entries.any() || state.quarantined || state.detached)
    }
}

/// How long the drop of a buffer whose work is not known to have ended waits for it.
const LAST_WAIT: Duration = Duration::from_secs(1);

impl Drop for Core {
    fn drop(&mut self) {
        if self.is_foreign() {
            self.return_to_owner();
        }
        let state = self.state_mut();
        let forgotten = state.guard_entries.any();
        let running =
            |used: &Use<QueuePoint>| used.point.wait(LAST_WAIT).is_err() && !used.point.is_over();
        let late = state.quarantined && state.uses.iter().any(running);
        if forgotten || late {
            // A guard that was never dropped, or work that never ended, may still use the memory.
            tracing::warn!(
                bytes = self.bytes,
                forgotten,
                "a buffer's memory is kept: it may still be in use"
            );
            for alias in self.aliases.drain(..) {
                std::mem::forget((alias.memory, alias.spare));
            }
            std::mem::forget(std::mem::take(&mut *lock(&self.claims)));
            // A foreign one stays known, so that who wraps it again is refused and does not meet that work.
            return;
        }
        if let Some(Loan { owner, tag, .. }) = &self.loan {
            owner.forget(*tag);
        }
    }
}
