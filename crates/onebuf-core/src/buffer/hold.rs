//! The common part of all guards: the hold of a buffer or region on one queue.
//!
//! # Safety
//! A guard of the host excludes writers (and, when it writes, all other users) until it is dropped, so
//! nothing in this process uses the bytes of its slice in conflict with it. A guard gives no slices of memory that another
//! process can write: memory is exposed only while no guard is held, and guards taken later record that it is exposed.

#![allow(unsafe_code)]

use super::{Core, Few, GuardEntry, Part, Seen, Span, Taken};
use crate::{
    ledger::Cause, observe::Began, queue_state::QueueState, queues::Queue, topology::DeviceIx,
};
use onebuf_hal::{
    self as hal, Access, Error, Event, HostAccess, Memory, RawHandle, Result, RouteKind,
    SyncMethod, VolatileBytes,
    locks::{Arc, Mutex, lock},
};
use std::{fmt, ptr::NonNull};

/// The common part of all guards. Taking it performs the hand-over; dropping it records the queue point.
///
/// The path from a lease to a launch's arguments is inlined, so that the value is not moved after it is
/// written: the move would cost as much as the lease.
pub struct Hold<'b> {
    core: &'b Core,
    span: Span,
    queue_state: HeldQueue<'b>,
    access: Access,
    /// The access that the buffer or region was created for.
    made_for: Access,
    how: How<'b>,
}

/// How a guard was taken.
struct How<'b> {
    memory: Seen<'b>,
    alias: usize,
    sync_method: SyncMethod,
    /// Taken on a lease, without a guard entry.
    leased: bool,
    /// The newest contents are in another replica until this guard reports that it has overwritten everything.
    overwrites: bool,
    /// Another process can write the memory.
    exposed: bool,
    /// On an out-of-order queue: the events that order its launches. On an in-order queue, for foreign memory: the events
    /// that show their completion.
    links: Option<Box<Mutex<Links>>>,
}

/// The queue of a guard: borrowed from the caller, or owned.
pub(crate) enum HeldQueue<'b> {
    Borrowed(&'b Arc<QueueState>),
    Own(Arc<QueueState>),
}

impl HeldQueue<'_> {
    #[inline]
    fn get(&self) -> &Arc<QueueState> {
        match self {
            HeldQueue::Borrowed(queue_state) => queue_state,
            HeldQueue::Own(queue_state) => queue_state,
        }
    }
}

/// The events of one guard's launches.
#[derive(Default)]
struct Links {
    /// What the launches wait for.
    after: Vec<Arc<dyn Event>>,
    /// The launches' own events. A launch that writes waits for the ones before.
    ends: Few<Arc<dyn Event>>,
    /// The native handle was given away: other code may have enqueued work, so that only a marker behind
    /// everything shows the completion.
    given_away: bool,
}

impl<'b> How<'b> {
    #[inline(always)]
    fn leased(alias: usize, memory: Seen<'b>) -> Self {
        let sync_method = SyncMethod::SameQueue;
        // Exposed memory gets no lease.
        let exposed = false;
        Self { memory, alias, sync_method, leased: true, overwrites: false, exposed, links: None }
    }

    /// Takes the buffer by a hand-over, without a lease.
    #[inline(never)]
    fn handed_over(
        part: Part<'b>,
        queue_state: &Arc<QueueState>,
        access: Access,
        keep: bool,
    ) -> Result<Self> {
        let Taken { alias, memory, sync_method, after, overwrites, exposed } =
            part.core.take(&part, queue_state, access.writes(), keep)?;
        // Returning foreign memory waits for onebuf's work on it. A launch's own event shows the completion, and saves
        // enqueueing a marker, unless it costs as much. A queue whose handle was given away needs the marker anyway.
        let watched = part.core.is_foreign()
            && !queue_state.is_foreign
            && !queue_state.was_given_away()
            && !queue_state.hal.events_take_calls();
        let links = (watched || !queue_state.is_in_order())
            .then(|| Box::new(Mutex::new(Links { after, ..Links::default() })));
        Ok(Self { memory, alias, sync_method, leased: false, overwrites, exposed, links })
    }
}

impl<'b> Hold<'b> {
    /// Takes a hold for kernels on the caller's queue.
    #[inline(always)]
    pub(crate) fn on(part: Part<'b>, queue: &'b Queue, access: Access) -> Result<Self> {
        if !part.core.hub.is(&queue.hub) {
            return Err(foreign(queue));
        }
        if part.core.host != HostAccess::ReadWrite {
            part.core.check_view(queue.queue_state.device)?;
        }
        Self::new(part, &queue.queue_state, HeldQueue::Borrowed(&queue.queue_state), access, true)
    }

    /// Takes a hold on a queue that it keeps. Without `keep`, earlier contents of a whole buffer are not brought along, and are lost
    /// when they have been [overwritten](Self::overwritten).
    pub(crate) fn keeping(
        part: Part<'b>,
        queue: &Queue,
        access: Access,
        keep: bool,
    ) -> Result<Self> {
        if !part.core.hub.is(&queue.hub) {
            return Err(foreign(queue));
        }
        if part.core.host != HostAccess::ReadWrite {
            part.core.check_view(queue.queue_state.device)?;
        }
        let (queue_state, keep) = (&queue.queue_state, keep || !part.is_whole());
        Self::new(part, queue_state, HeldQueue::Own(queue_state.clone()), access, keep)
    }

    /// Takes a hold for kernels that only write: earlier contents of a whole buffer are not brought along, and are lost.
    pub(crate) fn discarding(part: Part<'b>, queue: &'b Queue) -> Result<Self> {
        if !part.core.hub.is(&queue.hub) {
            return Err(foreign(queue));
        }
        let (queue_state, keep) = (&queue.queue_state, !part.is_whole());
        let held = HeldQueue::Borrowed(queue_state);
        let hold = Self::new(part, queue_state, held, Access::Write, keep)?;
        hold.overwritten();
        Ok(hold)
    }

    /// Takes a hold for the host.
    pub(crate) fn by_host(part: Part<'b>, access: Access) -> Result<Self> {
        let queue_state = part.core.hub.host_queue_state()?;
        Self::new(part, queue_state, HeldQueue::Borrowed(queue_state), access, true)
    }

    pub(crate) fn take(
        part: Part<'b>,
        queue_state: &Arc<QueueState>,
        access: Access,
    ) -> Result<Self> {
        Self::new(part, queue_state, HeldQueue::Own(queue_state.clone()), access, true)
    }

    /// Takes a hold for a caller that overwrites everything: earlier contents of a whole buffer are not brought along.
    pub(crate) fn overwrite(part: Part<'b>, queue_state: &Arc<QueueState>) -> Result<Self> {
        let keep = !part.is_whole();
        Self::new(part, queue_state, HeldQueue::Own(queue_state.clone()), Access::ReadWrite, keep)
    }

    #[inline(always)]
    fn new(
        part: Part<'b>,
        queue_state: &Arc<QueueState>,
        keeps: HeldQueue<'b>,
        access: Access,
        keep: bool,
    ) -> Result<Self> {
        let how = match part.take_leased(queue_state, access.writes()) {
            Some((alias, memory)) => How::leased(alias, memory),
            None => How::handed_over(part, queue_state, access, keep)?,
        };
        let Part { core, span, access: made_for, .. } = part;
        Ok(Self { core, span, queue_state: keeps, access, made_for, how })
    }

    /// Records that everything has been overwritten.
    pub fn overwritten(&self) {
        if self.how.overwrites {
            self.core.overwritten(self.how.alias);
        }
    }

    #[inline]
    #[doc(hidden)]
    pub fn memory(&self) -> &dyn Memory {
        self.how.memory.get()
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    pub(crate) fn sync_method(&self) -> SyncMethod {
        self.how.sync_method
    }

    #[doc(hidden)]
    pub fn bytes(&self) -> usize {
        self.span.len()
    }

    /// Returns the access that the buffer or region was created for.
    pub fn buffer_access(&self) -> Access {
        self.made_for
    }

    /// Reports a copy made under this guard to the observers.
    pub fn tell_copy(
        &self,
        began: Began<'_>,
        name: &str,
        cause: Cause,
        from: DeviceIx,
        to: DeviceIx,
        bytes: usize,
    ) {
        began.end(self.queue_state.get(), |event| {
            event.name = name.into();
            let in_place = self.device() == self.core.hub.host_index();
            let kind = self.core.aliases[self.how.alias].kind();
            event.route = Some(if in_place { kind } else { RouteKind::Staged });
            self.core.tell_copy(event, cause, from, to, bytes);
        });
    }

    /// Reports a copy that the caller requested, to or from the host.
    pub fn tell_asked(&self, began: Began<'_>, name: &str, to_host: bool, bytes: usize) {
        let (home, host) = (self.core.plan.allocate_on, self.core.hub.host_index());
        let (from, to) = if to_host { (home, host) } else { (host, home) };
        self.tell_copy(began, name, Cause::Asked, from, to, bytes);
    }

    /// Whether both the view and the buffer allow a kernel's access.
    #[inline]
    pub fn allows(&self, access: Access) -> bool {
        self.access.allows(access) && self.made_for.allows(access)
    }

    pub(crate) fn device(&self) -> DeviceIx {
        self.core.aliases[self.how.alias].device
    }

    pub(crate) fn api(&self) -> &'static str {
        self.core.hub.topology().node(self.device()).info.api.0
    }

    /// Returns the queue that the guard was taken on.
    pub fn queue(&self) -> &dyn hal::Queue {
        &*self.queue_state.get().hal
    }

    #[inline]
    #[doc(hidden)]
    pub fn is_on(&self, queue: &Queue) -> bool {
        Arc::ptr_eq(self.queue_state.get(), &queue.queue_state)
    }

    /// Adds the events that a launch must wait for, on an out-of-order queue.
    pub fn collect_waits(&self, waits: &mut Vec<Arc<dyn Event>>) -> Result<()> {
        let Some(links) = &self.how.links else { return Ok(()) };
        let links = lock(links);
        waits.extend(links.after.iter().cloned());
        if self.access.writes() {
            waits.extend(links.ends.iter().cloned());
        }
        if links.given_away {
            waits.push(self.queue().mark()?);
        }
        Ok(())
    }

    /// Whether the guard records its launches' own events.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.how.links.is_some()
    }

    /// Records a launch's own event, if the guard records them.
    pub fn launched(&self, event: Arc<dyn Event>) {
        let Some(links) = &self.how.links else { return };
        let mut links = lock(links);
        if self.access.writes() || self.queue_state.get().is_in_order() {
            links.ends.clear();
        }
        links.ends.push(event);
    }

    /// Makes the whole out-of-order queue wait for what this guard waits for, before other code enqueues work.
    fn give_away(&self) -> Result<()> {
        let Some(links) = &self.how.links else { return Ok(()) };
        let _turn = lock(&self.queue_state.get().launching);
        let mut links = lock(links);
        links.given_away = true;
        if self.queue_state.get().is_in_order() {
            return Ok(());
        }
        let before: Vec<_> = links.after.iter().chain(&*links.ends).cloned().collect();
        if !before.is_empty() {
            self.queue().wait_for(&before)?;
        }
        Ok(())
    }

    /// Gives back a guard that was taken without a lease, or whose lease was recalled.
    #[inline(never)]
    fn let_go(&mut self) {
        let entry =
            GuardEntry { span: self.span, alias: self.how.alias, write: self.access.writes() };
        let links = self.how.links.as_mut().map(|links| links.get_mut());
        let links = links.map(|links| links.unwrap_or_else(|poisoned| poisoned.into_inner()));
        let ends = links.and_then(Links::take_ends);
        self.core.give_back(&entry, self.queue_state.get(), ends);
    }

    /// Returns the native handle. Other code may enqueue work with it from now on.
    pub fn raw(&self) -> Result<RawHandle> {
        self.give_away()?;
        self.queue().note_use(self.memory())?;
        Ok(self.memory().raw())
    }

    /// Returns the address that kernels of `api` use. Fails on a queue of another API.
    pub fn device_ptr(&self, api: &str) -> Result<u64> {
        match self.raw()? {
            RawHandle::Address(address) if self.api() == api => Ok(address as u64),
            _ => {
                let what = format!("a {api} pointer of a view on {}", self.api());
                Err(Error::unsupported(what, format!("a view taken on a {api} queue")))
            }
        }
    }

    /// Checks that the bytes are whole, aligned elements of a type.
    pub fn check_cast<U>(&self) -> Result<()> {
        let start = match self.memory().raw() {
            RawHandle::Address(address) => address,
            RawHandle::Object(_) => self.span.start,
        };
        let (bytes, name) = (self.bytes(), std::any::type_name::<U>());
        let whole = size_of::<U>() > 0 && bytes.is_multiple_of(size_of::<U>());
        if whole && start.is_multiple_of(align_of::<U>()) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{bytes} bytes at {start:#x} are not whole, aligned elements of {name}"
        )))
    }

    /// Returns the native buffer of `api`, and the byte offset in it. Fails on a queue of another API.
    pub fn object(&self, api: &str) -> Result<(u64, u64)> {
        match self.raw()? {
            RawHandle::Object(object) if self.api() == api => {
                Ok((object as u64, self.memory().raw_offset() as u64))
            }
            _ => {
                let what = format!("a {api} buffer of a view on {}", self.api());
                Err(Error::unsupported(what, format!("a view taken on a {api} queue")))
            }
        }
    }

    /// Whether another process can write the memory.
    #[inline]
    pub fn is_exposed(&self) -> bool {
        self.how.exposed
    }

    /// Whether native kernels must be refused: they are functions of this process that get slices, and another process can
    /// write the memory.
    #[inline(always)]
    pub fn bars_native(&self) -> bool {
        self.how.exposed && self.is_native()
    }

    #[cold]
    fn is_native(&self) -> bool {
        !self.core.hub.hal(self.device()).compiles()
    }

    /// The host address of the bytes, if this is a guard of the host.
    fn host_pointer(&self) -> Option<NonNull<u8>> {
        let host = self.core.hub.host_index();
        self.memory().host_pointer().filter(|_| self.device() == host)
    }

    /// Returns the bytes as volatile memory, if this is a guard of the host and another process can write them.
    pub fn volatile(&self) -> Option<VolatileBytes<'_>> {
        let start = self.host_pointer().filter(|_| self.is_exposed())?;
        // SAFETY: the memory has `bytes()` bytes, and stays mapped while this guard borrows the buffer.
        Some(unsafe { VolatileBytes::new(start, self.bytes()) })
    }

    /// Returns the bytes; `None` for another device's guard, and for memory that another process can write.
    pub fn host_bytes(&self) -> Option<&[u8]> {
        let pointer = self.host_pointer().filter(|_| !self.is_exposed())?;
        // SAFETY: this guard excludes writers in this process, and no other process can write the memory (see the module).
        Some(unsafe { std::slice::from_raw_parts(pointer.as_ptr(), self.bytes()) })
    }

    /// Returns the bytes for writing; `None` also for a guard that only reads.
    pub fn host_bytes_mut(&mut self) -> Option<&mut [u8]> {
        let ours = self.access.writes() && !self.is_exposed();
        let pointer = self.host_pointer().filter(|_| ours)?;
        // SAFETY: this guard excludes all other users in this process, and no other process can write the memory (see the
        // module).
        Some(unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), self.bytes()) })
    }
}

impl Core {
    /// Refuses views on the host's queues if the host may not both read and write: it gets maps alone.
    #[cold]
    fn check_view(&self, device: DeviceIx) -> Result<()> {
        let only_maps = self.alias_of(device).is_some_and(|alias| self.aliases[alias].only_maps);
        if only_maps { Err(self.not_shared(device)) } else { Ok(()) }
    }
}

#[cold]
fn foreign(queue: &Queue) -> Error {
    Error::ForeignContext {
        have: format!("a queue of another hub ({})", queue.device()),
        want: "a queue of the buffer's hub".into(),
    }
}

impl Drop for Hold<'_> {
    #[inline]
    fn drop(&mut self) {
        if !(self.how.leased
            && self.core.lease.give_back(self.queue_state.get(), self.access.writes()))
        {
            self.let_go();
        }
    }
}

impl Links {
    /// Takes the events that show the completion of all work; `None` where only a marker does.
    fn take_ends(&mut self) -> Option<Few<Arc<dyn Event>>> {
        (!self.given_away).then(|| std::mem::take(&mut self.ends))
    }
}

impl fmt::Debug for Hold<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.core.device_id(self.device());
        write!(f, "{} view on {device} by {}", self.access, self.how.sync_method)
    }
}
