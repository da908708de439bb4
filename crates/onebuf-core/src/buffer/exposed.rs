//! Buffers that another process can write, and the turns of the two processes.
//!
//! Fences do not cross processes. A hand-over to another process therefore copies the newest contents to the home, releases
//! all other devices and waits for all work. During the other process's turn no guard can be taken here.

use super::{
    Core,
    alias::HOME,
    guard_entries::{GuardEntry, Turn, not_ours},
    part::Part,
    state::CoreState,
};
use onebuf_hal::{
    Error, Export, FdRange, HostRange, IpcRange, MemoryKind, Result,
    locks::{Arc, MutexGuard, lock},
};

impl Core {
    /// Returns the host pages to share with another process.
    pub fn pages_for_peers(&self) -> Result<HostRange> {
        let why_not = match () {
            () if self.is_pooled() => "a pooled buffer may contain data of earlier users",
            () if self.is_foreign() => "it wraps foreign memory",
            () if self.plan.memory_kind != MemoryKind::HostPages => "it is not host pages",
            () if self.aliases[HOME].device != self.hub.host_index() => "it is not the host's",
            () => return self.home_pages(),
        };
        Err(Error::unsupported(
            format!("sharing this buffer with another process ({why_not})"),
            "a buffer of its own host pages (`memory_kind(MemoryKind::HostPages)`, `allocate_on(&hub.host())`) or of a \
             device's memory (`memory_kind(MemoryKind::Exportable)`, or plain memory of an API with handles for that)",
        ))
    }

    fn check_pool(&self) -> Result<()> {
        if !self.is_pooled() {
            return Ok(());
        }
        let what = "sharing a pooled buffer with another process";
        Err(Error::unsupported(
            what,
            "a buffer from `build`: pooled memory may contain data of earlier users",
        ))
    }

    /// Returns an IPC handle of the device's memory to share with another process.
    pub fn handle_for_peers(&self) -> Result<IpcRange> {
        self.check_pool()?;
        self.home().export_ipc()
    }

    /// Returns a descriptor of the device's memory to share with another process, of the first kind that the device
    /// exports.
    pub fn descriptor_for_peers(&self) -> Result<FdRange> {
        let device = &self.hub.topology().node(self.aliases[HOME].device);
        self.check_pool()?;
        let caps = &device.info.caps;
        if caps.parses_fds {
            return Err(Error::unsupported(
                format!("sharing memory of {} with another process", device.id),
                "a driver that does not trust the contents of the file; this one does, and the peer could write it. Share \
                 host pages (`onebuf share --memory pages`)",
            ));
        }
        let kind = caps.exports.first().ok_or_else(|| {
            let what = format!("sharing memory of {} with another process", device.id);
            Error::unsupported(what, "memory of a device that exports descriptors")
        })?;
        self.home().export_fd(*kind)
    }

    fn home_pages(&self) -> Result<HostRange> {
        let queue_state = self.hub.service_queue_state(self.aliases[HOME].device)?;
        match self.home().export(&*queue_state.hal)? {
            Export::Host(range) => Ok(range),
            // `Export` may get more variants; the host's memory is always pages.
            #[allow(unreachable_patterns)]
            other => Err(Error::unsupported(format!("{other:?} as host pages"), "host pages")),
        }
    }

    /// Records that another process can write the memory from now on. Fails while a guard is held, and waits for all work:
    /// either could use a slice.
    pub fn expose(&self) -> Result<()> {
        let mut state = self.bring_home()?;
        (state.exposed, state.detached) = (true, true);
        check_turn(&state, Turn::Ours)
    }

    /// Records whether the buffer is offered to other processes. A second offer is an error: each offer would give a turn to a
    /// peer.
    pub fn set_offered(&self, offered: bool) -> Result<()> {
        let mut state = self.lock_state();
        if offered && state.offered {
            let what = "the buffer is offered to other processes already: drop that offer first";
            return Err(Error::Busy { what: what.into() });
        }
        state.offered = offered;
        Ok(())
    }

    /// Marks a new buffer over another process's memory: it is that process's turn. No work is enqueued, because the owner may
    /// be writing.
    pub fn arrive(&self) {
        let mut state = self.lock_state();
        (state.exposed, state.detached, state.settled) = (true, true, None);
        state.guard_entries.set_turn(Turn::Theirs);
    }

    /// Gives the turn to the other process, after the newest contents are in the home and all work of this process has ended.
    pub fn lend(&self) -> Result<()> {
        self.lend_as(Turn::Theirs)
    }

    fn lend_as(&self, turn: Turn) -> Result<()> {
        let mut state = self.bring_home()?;
        state.guard_entries.set_turn(turn);
        check_turn(&state, turn)
    }

    /// Brings the newest contents to the home and waits for all work. Both stay true until the returned lock is dropped.
    fn bring_home(&self) -> Result<MutexGuard<'_, CoreState>> {
        let queue_state = self.hub.service_queue_state(self.aliases[HOME].device)?;
        drop(self.take(&Part::whole(self), &queue_state, true, true)?);
        let mut state = self.lock_state();
        // If the home itself is imported memory that was acquired, release it.
        let released = self.release_home(&mut state);
        let waited = self.wait_for_uses(&state);
        let settled = state.settle(released.and(waited));
        state.guard_entries.give_back(&self.entry_of_all());
        self.wake(&mut state);
        settled?;
        state.settled = None;
        Ok(state)
    }

    fn wait_for_uses(&self, state: &CoreState) -> Result<()> {
        let mut uses = state.uses.iter();
        uses.try_for_each(|used| used.point.wait(self.hub.timeout()))
    }

    /// Takes the turn back for this process. All other devices were released, so they see what was written meanwhile. Fails for
    /// a client that has lost the buffer: its owner may be using it.
    pub fn take_back(&self) -> Result<()> {
        let mut state = self.lock_state();
        if state.guard_entries.turn() == Turn::Lost {
            let reason = "the owner ended the visit".into();
            return Err(Error::PeerLost { reason });
        }
        state.guard_entries.set_turn(Turn::Ours);
        self.wake(&mut state);
        Ok(())
    }

    /// Ends this client's turns for good, when the connection to the owner ends. Guards that are held stay valid.
    pub fn orphan(&self) {
        self.lock_state().guard_entries.set_turn(Turn::Lost);
    }

    /// Returns the buffer to its owner at the end of a visit. A client in the same process may not have noticed the end, or may
    /// have work that still runs: the owner's next use ends the client's turn and waits for that work.
    pub fn claim_back(&self, mut clients: Vec<Arc<Core>>) {
        clients.retain(|client| !client.has_let_go());
        let mut state = self.lock_state();
        let mut tenants = lock(&self.tenants);
        tenants.extend(clients);
        let turn = if tenants.is_empty() { Turn::Ours } else { Turn::Claimed };
        state.guard_entries.set_turn(turn);
        self.wake(&mut state);
    }

    /// Ends the turns of clients in this process whose visits are over. Fails with `Busy` while one of them holds a guard.
    fn reclaim(&self) -> Result<()> {
        // The clone keeps the clients alive, so that none is dropped while the list is locked.
        let tenants = lock(&self.tenants).clone();
        for client in &tenants {
            client.evict()?;
            lock(&self.tenants).retain(|other| !Arc::ptr_eq(other, client));
        }
        let mut state = self.lock_state();
        if lock(&self.tenants).is_empty() && state.guard_entries.turn() == Turn::Claimed {
            state.guard_entries.set_turn(Turn::Ours);
        }
        Ok(())
    }

    /// Locks the state for taking the buffer, after ending the turns of clients whose visits are over.
    pub(super) fn lock_reclaimed(&self) -> Result<MutexGuard<'_, CoreState>> {
        let state = self.lock_state();
        if state.guard_entries.turn() != Turn::Claimed {
            return Ok(state);
        }
        drop(state);
        self.reclaim()?;
        Ok(self.lock_state())
    }

    /// Whether a client has lost the buffer, holds no guard, and all its work has ended.
    fn has_let_go(&self) -> bool {
        let state = self.lock_state();
        let mut uses = state.uses.iter();
        let over = uses.all(|used| used.point.is_over());
        over && state.guard_entries.turn() == Turn::Lost && !state.guard_entries.any()
    }

    /// Ends a client's turn for good, and waits for its work.
    fn evict(&self) -> Result<()> {
        let is_ours = || self.lock_state().guard_entries.turn() == Turn::Ours;
        if is_ours() {
            // The client may have handed the buffer over meanwhile.
            match self.lend_as(Turn::Lost) {
                Err(error) if is_ours() => return Err(in_use(error)),
                _ => {}
            }
        }
        let mut state = self.lock_state();
        state.guard_entries.set_turn(Turn::Lost);
        match state.guard_entries.any() {
            true => Err(in_use(Error::Busy { what: "a guard".into() })),
            false => {
                let waited = self.wait_for_uses(&state);
                state.settle(waited).map_err(in_use)
            }
        }
    }

    fn entry_of_all(&self) -> GuardEntry {
        GuardEntry { span: self.whole(), alias: HOME, write: true }
    }
}

/// Checks that the turn is as expected: an owner in this process may have ended a client's visit in the meantime.
fn check_turn(state: &CoreState, turn: Turn) -> Result<()> {
    match state.guard_entries.turn() {
        now if now == turn => Ok(()),
        now => Err(not_ours(now)),
    }
}

/// Converts the error of ending a client's turn into the one that the owner gets.
fn in_use(error: Error) -> Error {
    match error {
        Error::Busy { .. } => not_ours(Turn::Claimed),
        other => other,
    }
}
