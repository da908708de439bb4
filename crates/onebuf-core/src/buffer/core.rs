//! The untyped core of a buffer: its memory, its aliases and its guards.
//!
//! An *alias* is one device's view of the buffer. Aliases that see the same bytes form a *replica*: the home
//! allocation and its aliases are one, each staged copy is another. [`transition`](super::transition) decides the steps of a
//! hand-over, and [`hand_over`](super::hand_over) performs them; [`take`](super::take) is the way in. [`CorePool`] is in this file
//! because it takes cores back.

use super::{
    alias::{Alias, HOME, Seen},
    label::Label,
    lease::Lease,
    owner::{Claim, Tag},
    span::Span,
    state::CoreState,
    transition::Use,
};
use crate::{
    Hub,
    fence::Fence,
    ledger::Cause,
    observe::{BufferObservers, Event as ObservedEvent},
    plan::Plan,
    queue_state::{QueuePoint, QueueState},
    topology::DeviceIx,
};
use onebuf_hal::{
    Access, AccessState, CopyPolicy, Error, Export, HostAccess, HostRange, Memory, MemoryKind,
    Result,
    locks::{Arc, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, lock},
};
use std::{any::Any, fmt, ops::Deref, ptr::NonNull, time::Duration};

/// A pool that lends whole cores.
pub(crate) trait CorePool: Send + Sync {
    /// Takes the core back after its buffer was dropped. No other code has the core.
    fn take_back(&self, core: Box<Core>, tag: Tag);
}

/// The lender of a core's memory.
#[derive(Clone)]
pub(crate) struct Loan {
    pub lender: Lender,
    pub tag: Tag,
    /// Whether foreign memory has been returned to its owner, or that has failed.
    pub returned: bool,
}

#[derive(Clone)]
pub(crate) enum Lender {
    /// A pool: gets the whole core back, and reuses it.
    Pool(Arc<dyn CorePool>),
    /// Foreign memory: its owner gets it back as it was lent, with the newest contents. `forget` then removes the hub's record
    /// of it; a reference to that record would cost every wrap two atomic operations. `keep` is for memory that the core holds
    /// nothing of: the hub may keep the core for the next wrap of the memory.
    Foreign { forget: fn(&Hub, Tag), keep: Option<fn(Arc<Core>)> },
}

/// The hub of a core. A resting core has none: its hub keeps it, and two that keep each other would never be freed.
#[derive(Debug)]
pub struct CoreHub(pub(super) Option<Hub>);

impl Deref for CoreHub {
    type Target = Hub;

    #[inline]
    fn deref(&self) -> &Hub {
        self.0.as_ref().expect("only a resting core has no hub")
    }
}

/// The untyped part of a buffer.
#[derive(Debug)]
pub struct Core {
    #[doc(hidden)]
    pub hub: CoreHub,
    /// The number of bytes in use.
    pub bytes: usize,
    /// The number of bytes allocated; at least `bytes`.
    pub capacity: usize,
    pub(crate) align: usize,
    /// What kernels may do with the buffer.
    pub access: Access,
    /// What the host may do with the buffer.
    pub host: HostAccess,
    pub(crate) aliases: Vec<Alias>,
    #[doc(hidden)]
    pub plan: Arc<Plan>,
    pub(crate) policy: CopyPolicy,
    pub(crate) state: Mutex<CoreState>,
    pub(crate) lease: Lease,
    /// Notified when a guard is dropped that threads wait for.
    pub(super) dropped: Condvar,
    /// Whether the caller trusts what drivers declare: then callbacks need no experiment to be used.
    pub trusts: bool,
    /// The number of bytes moved by implied copies.
    pub implied: AtomicU64,
    /// The pool or owner that gets the memory back; `None` for a buffer that was built.
    pub(crate) loan: Option<Loan>,
    /// Release callbacks of former owners of the memory. Declared after `aliases`: they run after the memory is dropped.
    pub(crate) claims: Mutex<Vec<Claim>>,
    /// The buffer's name and number.
    pub(crate) label: Label,
    /// Clients in this process whose visits are over, and whose work may still use the memory. Locked after `state`.
    pub(crate) tenants: Mutex<Vec<Arc<Core>>>,
    /// The observers of this buffer.
    pub(crate) observers: BufferObservers,
}

impl Loan {
    /// Whether the pool `owner` is the lender.
    pub fn is_by<O>(&self, owner: &Arc<O>) -> bool {
        match &self.lender {
            Lender::Pool(lender) => Arc::as_ptr(lender).addr() == Arc::as_ptr(owner).addr(),
            Lender::Foreign { .. } => false,
        }
    }

    pub fn is_foreign(&self) -> bool {
        matches!(self.lender, Lender::Foreign { .. })
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = if self.is_foreign() { "Foreign" } else { "Pool" };
        write!(f, "Loan({by}, {:#x})", self.tag.number)
    }
}

/// The reason given to callers that forbid copies.
pub(super) const PAGES_MOVE: &str = "the pages of managed memory move to the device that takes it: \
    use `read` and `write`, or allow copies";

impl Core {
    /// Whether the core wraps foreign memory.
    #[inline]
    pub fn is_foreign(&self) -> bool {
        self.loan.as_ref().is_some_and(Loan::is_foreign)
    }

    /// Whether the core belongs to a pool.
    pub fn is_pooled(&self) -> bool {
        self.loan.as_ref().is_some_and(|loan| !loan.is_foreign())
    }

    pub(crate) fn device_id(&self, device: DeviceIx) -> &str {
        &self.hub.topology().node(device).id
    }

    pub(crate) fn alias_of(&self, device: DeviceIx) -> Option<usize> {
        self.aliases.iter().position(|s| s.device == device)
    }

    /// Returns the host's alias, if there is one; staged or not.
    pub fn host_alias(&self) -> Option<usize> {
        self.alias_of(self.hub.host_index())
    }

    pub(super) fn whole(&self) -> Span {
        Span::whole(self.bytes)
    }

    /// The access state of an alias's memory; `None` for memory that needs no hand-over calls.
    pub(super) fn access_state(&self, alias: usize) -> Option<AccessState> {
        let memory = self.aliases[alias].memory().filter(|m| m.needs_access_state());
        memory.map(|memory| memory.access_state())
    }

    /// Returns the home's memory; the first alias always has memory.
    pub fn home(&self) -> &dyn Memory {
        self.aliases[HOME].memory.as_deref().expect("the home has memory")
    }

    /// Returns the in-order queue that used the alias last, or the device's service queue.
    pub(super) fn queue_state_for(
        &self,
        state: &CoreState,
        alias: usize,
    ) -> Result<Arc<QueueState>> {
        match &state.queue_states[alias] {
            Some(queue_state) => Ok(queue_state.clone()),
            None => self.hub.service_queue_state(self.aliases[alias].device),
        }
    }

    /// Whether a hand-over moves the buffer's pages.
    pub(super) fn moves_pages(&self) -> bool {
        self.plan.memory_kind == MemoryKind::Managed
    }

    /// Rejects copying routes under `Forbid`. Planned routes were checked by the planner; a host that the caller did not name
    /// may still use a mapping that copies.
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
        let shared = self.aliases.iter().filter(|alias| !alias.only_maps);
        let ids: Vec<&str> = shared.map(|alias| self.device_id(alias.device)).collect();
        Error::NotShared { device: self.device_id(device).into(), shared_with: ids.join(", ") }
    }

    /// Fills in the observers' event of a copy.
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

    /// Returns the memory through which the alias's kernels, or the host, use some bytes.
    pub(crate) fn memory(&self, alias: usize, span: Span) -> Result<Seen<'_>> {
        match self.aliases[alias].memory() {
            Some(memory) => Ok(Seen::Alias(&**memory)),
            None => self.through_home(span).map(Seen::Mapped),
        }
    }

    /// Returns the home's mapping as memory of the host.
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
                "a driver whose mappings are aligned to that: share the buffer with the host too",
            ));
        }
        self.on_host(home, pointer, span)
    }

    /// Returns some bytes of mapped memory as memory of the host.
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

    /// Returns an alias with the newest contents, for copies that the caller requested: the host's if it
    /// can see them, else the last writer's.
    pub fn newest_alias(&self) -> usize {
        let state = self.lock_state();
        state.source(state.newest()).unwrap_or(HOME)
    }

    /// Returns the alias by which to overwrite everything: one of the home's replica, the host's if it sees the bytes directly.
    pub fn overwrite_alias(&self) -> usize {
        self.lock_state().source(HOME).unwrap_or(HOME)
    }

    /// Returns an alias other than the host's that sees the newest contents, preferably the last writer's.
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

    /// Returns the queue for copies that the caller requested at an alias.
    pub(crate) fn queue_state_at(&self, alias: usize) -> Result<Arc<QueueState>> {
        let state = self.lock_state();
        self.queue_state_for(&state, alias)
    }

    /// Returns a fence of the last writes of the bytes, or of the last reads if nothing was written.
    pub(crate) fn fence(&self, span: Span) -> Option<Fence> {
        self.fence_of(span, |writes, reads| if writes.is_empty() { reads } else { writes })
    }

    /// Returns a fence of the last writes of the bytes and the reads since.
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

    /// Locks the state and recalls the lease, which brings the state up to date.
    pub(crate) fn lock_state(&self) -> MutexGuard<'_, CoreState> {
        let mut state = lock(&self.state);
        self.lease.recall(&mut state, self.whole());
        state
    }

    /// Recalls the lease and returns the state. Exclusive access to the core replaces the lock.
    pub(super) fn state_mut(&mut self) -> &mut CoreState {
        let whole = self.whole();
        let state = self.state.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.lease.recall(state, whole);
        state
    }
}

impl Core {
    /// Returns the core to its pool, or frees it, after its buffer was dropped.
    #[inline]
    pub fn retire(self: Box<Self>) {
        match self.loan.clone() {
            Some(Loan { lender: Lender::Pool(pool), tag, .. }) => pool.take_back(self, tag),
            _ => drop(self),
        }
    }

    /// Lets the core rest, or drops this reference, after a buffer that shared the core was dropped.
    #[inline]
    pub fn retire_shared(self: Arc<Self>) {
        match &self.loan {
            Some(Loan { lender: Lender::Foreign { keep: Some(keep), .. }, .. }) => keep(self),
            _ => drop(self),
        }
    }

    /// Prepares a pooled core for a buffer of `bytes` bytes. Earlier uses are extended to all of them: a hand-over
    /// covers the whole allocation, and a write of all bytes must clear the list.
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

    /// Whether a pool may reuse the core: only work that fences track can still use the memory.
    #[inline]
    pub fn is_reusable(&mut self) -> bool {
        // A core whose route failed no longer has the shape that was requested from the pool.
        let whole_route = self.aliases.iter().all(|alias| alias.spare.get().is_none());
        let state = self.state_mut();
        whole_route && !(state.guard_entries.any() || state.quarantined || state.detached)
    }
}

/// How long dropping a quarantined buffer waits for work that may still be running.
const LAST_WAIT: Duration = Duration::from_secs(1);

impl Drop for Core {
    fn drop(&mut self) {
        if self.hub.0.is_none() {
            // It rested: the memory is with its owner.
            return;
        }
        if self.loan.as_ref().is_some_and(|loan| loan.is_foreign() && !loan.returned) {
            self.return_to_owner();
        }
        let state = self.state_mut();
        let forgotten = state.guard_entries.any();
        let running =
            |used: &Use<QueuePoint>| used.point.wait(LAST_WAIT).is_err() && !used.point.is_over();
        let late = state.quarantined && state.uses.iter().any(running);
        if forgotten || late {
            // A guard that was never dropped, or work that has not ended, may still use the memory.
            tracing::warn!(
                bytes = self.bytes,
                forgotten,
                "a buffer's memory is kept: it may still be in use"
            );
            for alias in self.aliases.drain(..) {
                std::mem::forget((alias.memory, alias.spare));
            }
            std::mem::forget(std::mem::take(&mut *lock(&self.claims)));
            // Foreign memory stays registered: wrapping it again is refused, because that work may still run.
            return;
        }
        match &self.loan {
            Some(Loan { lender: Lender::Foreign { forget, .. }, tag, .. }) => {
                forget(&self.hub, *tag)
            }
            Some(Loan { lender: Lender::Pool(_), .. }) | None => {}
        }
    }
}
