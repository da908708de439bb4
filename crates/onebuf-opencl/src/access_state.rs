//! The access state of memory, and the map and unmap commands that change it.
//!
//! Acquired is unmapped; shared_read is mapped for reading; released is mapped for reading and writing. Imported memory
//! is acquired and released instead. The state changes only after the driver has accepted the command, so it stays
//! correct after a failure.

use super::{
    conv, graphics,
    memory::Inner,
    queue::RawQueue,
    storage::{Address, Place},
};
use onebuf_hal::{
    AccessState, Error, MemoryKind, Result,
    locks::{Arc, AtomicU64, Ordering, lock},
};
use onebuf_sys::{
    ClStatus,
    opencl::{ClMem, consts as cl},
};
use std::{ptr, time::Duration};

/// How long an unmap waits for its map, on drivers that refuse the unmap before the map has run.
const MAP_WAIT: Duration = Duration::from_secs(10);

/// A memory's access state: read without a lock, written under the lock of [`MemoryState`].
#[derive(Debug)]
pub(super) struct Now(AtomicU64);

impl Default for Now {
    fn default() -> Now {
        Now(AtomicU64::new(Now::ACQUIRED))
    }
}

impl Now {
    const ACQUIRED: u64 = AccessState::Acquired as u64;
    const RELEASED: u64 = AccessState::Released as u64;
    const SHARED_READ: u64 = AccessState::SharedRead as u64;

    pub fn get(&self) -> AccessState {
        match self.0.load(Ordering::Acquire) {
            Self::RELEASED => AccessState::Released,
            Self::SHARED_READ => AccessState::SharedRead,
            _ => AccessState::Acquired,
        }
    }

    pub fn set(&self, access_state: AccessState) {
        self.0.store(access_state as u64, Ordering::Release);
    }

    #[inline]
    pub fn is_acquired(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::ACQUIRED
    }

    /// Checks that a kernel or copy may use the memory. Use of mapped memory is undefined, and most drivers do not report it
    /// (Oclgrind does).
    #[inline]
    pub fn check_use(&self, writes: bool) -> Result<()> {
        if self.is_acquired() {
            return Ok(());
        }
        match self.get() {
            AccessState::Released => Err(handed_out("released: others may write it")),
            AccessState::SharedRead if writes => Err(handed_out("shared_read: others may read it")),
            _ => Ok(()),
        }
    }
}

/// The mutable part of a memory.
#[derive(Default)]
pub(super) struct MemoryState {
    /// The address and queue of the current map; the unmap in `Drop` needs the queue.
    map: Option<(Address, Arc<RawQueue>)>,
    /// The queue that acquired imported memory last.
    acquired_on: Option<Arc<RawQueue>>,
    /// The address that every map must have, once it was handed out.
    fixed: Option<Address>,
    /// Queues whose work may use the memory, if they must be tracked. Only grows.
    users: Vec<Arc<RawQueue>>,
}

impl MemoryState {
    pub fn mapped(&self) -> Option<Address> {
        self.map.as_ref().map(|(at, _)| *at)
    }

    /// Makes a map at any other address an error from now on.
    pub fn must_be_at(&mut self, at: Address) {
        self.fixed = Some(at);
    }
}

fn handed_out(why: &str) -> Error {
    Error::invalid(format!("the memory is {why}; the device must acquire it before use"))
}

impl Inner {
    pub fn needs_access_state(&self) -> bool {
        !matches!(self.memory_kind, MemoryKind::FineSvm | MemoryKind::Device | MemoryKind::OnChip)
    }

    /// Enqueues the commands that change the access state. Returns whether there were any.
    pub fn reside(&self, queue: &Arc<RawQueue>, to: AccessState) -> Result<bool> {
        if !self.needs_access_state() {
            return Ok(false);
        }
        let mut state = lock(&self.state);
        if self.access_state.get() == to {
            return Ok(false);
        }
        if self.memory_kind == MemoryKind::Exportable {
            return self.reside_imported(queue, &mut state, to);
        }
        let flags = self.map_flags(to)?;
        queue.keep_order()?;
        self.unmap(queue, &mut state)?;
        if let Some(flags) = flags {
            self.map(queue, &mut state, to, flags)?;
        }
        queue.keep_order()?;
        Ok(true)
    }

    /// Changes the access state of imported memory. `SharedRead` is a release, which makes writes visible, and an acquire.
    fn reside_imported(
        &self,
        queue: &Arc<RawQueue>,
        state: &mut MemoryState,
        to: AccessState,
    ) -> Result<bool> {
        let from = self.access_state.get();
        queue.keep_order()?;
        if from == AccessState::Acquired || to == AccessState::Released {
            self.release(queue)?;
            self.access_state.set(AccessState::Released);
        }
        if self.access_state.get() == AccessState::Released && to != AccessState::Released {
            self.acquire(queue)?;
            state.acquired_on = Some(queue.clone());
        }
        self.access_state.set(to);
        self.used_on(queue, state);
        queue.keep_order()?;
        // From shared_read to acquired only onebuf's state changes; the driver gets no command.
        Ok(!(from == AccessState::SharedRead && to == AccessState::Acquired))
    }

    fn acquire(&self, queue: &RawQueue) -> Result<()> {
        let driver = queue.driver();
        if let (Place::Object(mem), Some(object)) = (self.place, &self.shared) {
            return graphics::acquire(object, queue, mem);
        }
        let (Place::Object(mem), Some(calls)) = (self.whole_place(), &driver.external) else {
            return Ok(());
        };
        // SAFETY: a live queue and imported object of one context, and calls of its platform.
        let acquired = unsafe { driver.cl.enqueue_acquire_external(calls, queue.raw, mem) };
        driver.check("clEnqueueAcquireExternalMemObjectsKHR", acquired)
    }

    fn release(&self, queue: &RawQueue) -> Result<()> {
        let driver = queue.driver();
        if let (Place::Object(mem), Some(object)) = (self.place, &self.shared) {
            return graphics::release(object, queue, mem);
        }
        let (Place::Object(mem), Some(calls)) = (self.whole_place(), &driver.external) else {
            return Ok(());
        };
        // SAFETY: as in `acquire`, which was enqueued before.
        let released = unsafe { driver.cl.enqueue_release_external(calls, queue.raw, mem) };
        driver.check("clEnqueueReleaseExternalMemObjectsKHR", released)
    }

    /// The map flags for an access state, limited to the host's access: a driver refuses more.
    fn map_flags(&self, to: AccessState) -> Result<Option<u64>> {
        let Some(flags) = conv::map_flags(to) else { return Ok(None) };
        let may = flags & conv::maps_allowed(self.host);
        let reads_in_vain = to == AccessState::SharedRead && !self.host.reads();
        if may == 0 || reads_in_vain {
            let host = self.host;
            return Err(Error::invalid(format!(
                "memory allocated for host access `{host}` cannot be mapped as {to:?}"
            )));
        }
        Ok(Some(may))
    }

    fn map(
        &self,
        queue: &Arc<RawQueue>,
        state: &mut MemoryState,
        to: AccessState,
        flags: u64,
    ) -> Result<()> {
        let at = match self.place {
            Place::Object(mem) => map_object(queue, mem, flags, self.bytes)?,
            Place::Svm { pointer, .. } => map_svm(queue, pointer, flags, self.bytes)?,
        };
        state.map = Some((at, queue.clone()));
        self.access_state.set(to);
        self.used_on(queue, state);
        match state.fixed {
            // Unmapped again, so that the next attempt does not find the memory mapped, and also fails.
            Some(fixed) if fixed != at => {
                self.unmap(queue, state)?;
                Err(moved(fixed, at))
            }
            _ => Ok(()),
        }
    }

    fn unmap(&self, queue: &Arc<RawQueue>, state: &mut MemoryState) -> Result<()> {
        let Some((at, mapped_on)) = state.map.clone() else { return Ok(()) };
        match self.place {
            Place::Object(mem) => unmap_object(queue, mem, at, &mapped_on)?,
            Place::Svm { pointer, .. } => unmap_svm(queue, pointer)?,
        }
        self.used_on(queue, state);
        state.map = None;
        self.access_state.set(AccessState::Acquired);
        Ok(())
    }

    /// Records a queue that uses the memory, if the driver does not wait for its work before it frees. Takes no lock if the
    /// queue is the one recorded last.
    #[inline]
    pub fn note_use(&self, queue: &Arc<RawQueue>) {
        if !self.knows(queue) {
            self.note_new_use(queue);
        }
    }

    /// Whether this queue does not have to be recorded.
    #[inline]
    pub fn knows(&self, queue: &RawQueue) -> bool {
        !self.tracks_users || self.last_user.load(Ordering::Acquire) == queue.id
    }

    /// Records the queue of a launch, unless onebuf waits for the launch.
    #[inline]
    pub fn note_launch(&self, queue: &Arc<RawQueue>) {
        if self.tracks_users && !self.context.driver.quirks.reads_arguments_late {
            self.note_use(queue);
        }
    }

    #[cold]
    fn note_new_use(&self, queue: &Arc<RawQueue>) {
        self.used_on(queue, &mut lock(&self.state));
    }

    fn used_on(&self, queue: &Arc<RawQueue>, state: &mut MemoryState) {
        if !self.tracks_users {
            return;
        }
        if !state.users.iter().any(|user| user.id == queue.id) {
            state.users.push(queue.clone());
        }
        self.last_user.store(queue.id, Ordering::Release);
    }

    /// The queues that have used the memory so far.
    pub fn users(&self) -> Vec<Arc<RawQueue>> {
        lock(&self.state).users.clone()
    }

    /// Unmaps or releases the memory before it is freed (some drivers leak mapped memory). Returns the queues that used it.
    pub fn retire(&mut self) -> Vec<Arc<RawQueue>> {
        // Exclusive access, so no lock.
        let state = self.state.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut state = std::mem::take(state);
        if let Some((_, queue)) = state.map.clone() {
            // Retried after a failure: on PoCL a map keeps the object, and so its pages, for ever.
            let unmapped = self.unmap(&queue, &mut state);
            let unmapped = unmapped.or_else(|_| self.unmap(&queue, &mut state));
            if let Err(why) = unmapped.and_then(|()| queue.flush()) {
                tracing::warn!("a memory was released while mapped: {why}");
            }
        }
        self.give_up(&mut state);
        state.users
    }

    /// Releases imported memory that is still acquired.
    fn give_up(&self, state: &mut MemoryState) {
        let Some(queue) = state.acquired_on.take() else { return };
        if self.access_state.get() != AccessState::Released {
            let release = || self.release_behind(&queue, &state.users);
            if let Err(why) = release().or_else(|_| release()).and_then(|()| queue.flush()) {
                tracing::warn!("imported memory was dropped without being released: {why}");
            }
        }
    }

    /// Releases imported memory after the work of all queues that used it: the hand-over no longer orders them.
    fn release_behind(&self, queue: &Arc<RawQueue>, users: &[Arc<RawQueue>]) -> Result<()> {
        let others = users.iter().filter(|user| user.id != queue.id);
        let marks = others.map(|user| user.mark()).collect::<Result<Vec<_>>>()?;
        marks.iter().try_for_each(|mark| queue.prepare(mark))?;
        let waits: Vec<_> = marks.iter().map(|mark| mark.handle()).collect();
        if !waits.is_empty() {
            queue.wait_list(&waits)?;
        }
        queue.keep_order()?;
        self.release(queue)
    }
}

fn moved(fixed: Address, at: Address) -> Error {
    let what = format!("memory handed out at {:p} but now mapped at {:p}", fixed.0, at.0);
    Error::unsupported(what, "a stable map address")
}

fn map_object(queue: &RawQueue, mem: ClMem, flags: u64, bytes: usize) -> Result<Address> {
    let driver = queue.driver();
    // SAFETY: a live queue and memory object of one context, mapped whole; no event is requested.
    let mapped = driver.slow("clEnqueueMapBuffer", || unsafe {
        let (blocking, none, no) = (cl::CL_FALSE, ptr::null(), ptr::null_mut());
        driver.cl.enqueue_map_buffer(queue.raw, mem, blocking, flags, 0, bytes, 0, none, no)
    });
    Ok(Address(mapped?.cast()))
}

fn unmap_object(
    queue: &RawQueue,
    mem: ClMem,
    at: Address,
    mapped_on: &Arc<RawQueue>,
) -> Result<()> {
    let driver = queue.driver();
    // SAFETY: mapped at this address, and not yet unmapped.
    let unmap = || unsafe {
        let (none, no) = (ptr::null(), ptr::null_mut());
        driver.cl.enqueue_unmap_mem_object(queue.raw, mem, at.void(), 0, none, no)
    };
    let unmapped = match unmap() {
        // Rusticl 22.3 considers an address mapped only after the map command has run, and refuses an unmap that is
        // enqueued right after it.
        Err(ClStatus::INVALID_VALUE) => {
            mapped_on.drain(MAP_WAIT)?;
            unmap()
        }
        unmapped => unmapped,
    };
    driver.check("clEnqueueUnmapMemObject", unmapped)
}

fn map_svm(queue: &RawQueue, at: Address, flags: u64, bytes: usize) -> Result<Address> {
    let driver = queue.driver();
    // SAFETY: a live queue and a live coarse-grained allocation of one context, of that length.
    driver.slow("clEnqueueSVMMap", || unsafe {
        let (blocking, none, no) = (cl::CL_FALSE, ptr::null(), ptr::null_mut());
        driver.cl.enqueue_svm_map(queue.raw, blocking, flags, at.void(), bytes, 0, none, no)
    })?;
    Ok(at)
}

fn unmap_svm(queue: &RawQueue, at: Address) -> Result<()> {
    let driver = queue.driver();
    // SAFETY: mapped at this address, and not yet unmapped.
    let unmapped = unsafe {
        driver.cl.enqueue_svm_unmap(queue.raw, at.void(), 0, ptr::null(), ptr::null_mut())
    };
    driver.check("clEnqueueSVMUnmap", unmapped)
}
