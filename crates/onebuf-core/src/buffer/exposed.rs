//! A buffer that two processes see: what changes when another one can write the memory, and whose turn it is.
//!
//! Fences do not cross processes. So a hand-over to another one brings the contents home, sends every other
//! device away and waits for all work; while it lasts nobody here gets a guard.

use super::{
    Core,
    core::HOME,
    guard_entries::{GuardEntry, Turn, not_ours},
    part::Part,
    state::CoreState,
};
use onebuf_hal::{
    Error, Export, FdRange, HostRange, IpcRange, MemoryKind, Result,
    locks::{Arc, MutexGuard},
};

impl Core {
    /// The host pages that another process may be given.
    pub fn pages_for_peers(&self) -> Result<HostRange> {
        let why_not = match () {
            () if self.is_pooled() => "a pooled buffer has what others left",
            () if self.is_foreign() => "its memory is somebody else's",
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
        Err(Error::unsupported(what, "one that was built: a pool's has what others left"))
    }

    /// A handle of a device's plain memory that another process may be given.
    pub fn handle_for_peers(&self) -> Result<IpcRange> {
        self.check_pool()?;
        self.home().export_ipc()
    }

    /// A descriptor of a device's memory that another process may be given, of the first sort that the device
    /// exports.
    pub fn descriptor_for_peers(&self) -> Result<FdRange> {
        let device = &self.hub.topology().node(self.aliases[HOME].device);
        self.check_pool()?;
        let caps = &device.info.caps;
        if caps.parses_fds {
            return Err(Error::unsupported(
                format!("sharing memory of {} with another process", device.id),
                "a driver that does not believe what a file says, as this one does: the peer can write the file. Share \
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
            // `Export` may grow; the host's memory is pages.
            #[allow(unreachable_patterns)]
            other => Err(Error::unsupported(format!("{other:?} as host pages"), "host pages")),
        }
    }

    /// From now on another process can write the memory. Nobody may hold a guard, and no work be left: either
    /// could have a slice.
    pub fn expose(&self) -> Result<()> {
        let mut state = self.bring_home()?;
        (state.exposed, state.detached) = (true, true);
        check_turn(&state, Turn::Ours)
    }

    /// Whether it is offered to other processes. Two offers would each have a peer whose turn it is.
    pub fn set_offered(&self, offered: bool) -> Result<()> {
        let mut state = self.lock_state();
        if offered && state.offered {
            let what = "the buffer is offered to other processes already: drop that offer first";
            return Err(Error::Busy { what: what.into() });
        }
        state.offered = offered;
        Ok(())
    }

    /// A new buffer over another process's memory, whose turn it is. Nobody here has used it, and nothing is done to
    /// it: its owner may be writing.
    pub fn arrive(&self) {
        let mut state = self.lock_state();
        (state.exposed, state.detached, state.settled) = (true, true, None);
        state.guard_entries.set_turn(Turn::Theirs);
    }

    /// It is the other process's turn: the newest contents are in the home, and nothing of ours is at work.
    pub fn lend(&self) -> Result<()> {
        self.lend_as(Turn::Theirs)
    }

    fn lend_as(&self, turn: Turn) -> Result<()> {
        let mut state = self.bring_home()?;
        state.guard_entries.set_turn(turn);
        check_turn(&state, turn)
    }

    /// The newest contents are in the home, and nothing of ours is at work, until the state is unlocked.
    fn bring_home(&self) -> Result<MutexGuard<'_, CoreState>> {
        let queue_state = self.hub.service_queue_state(self.aliases[HOME].device)?;
        drop(self.take(&Part::whole(self), &queue_state, true, true)?);
        let mut state = self.lock_state();
        // Where the home itself is another's memory that was acquired, it is released.
        let released = self.release_home(&mut state);
        let waited = self.wait_for_uses(&state);
        let settled = state.settle(released.and(waited));
        state.guard_entries.give_back(&self.entry_of_all());
        settled?;
        state.settled = None;
        Ok(state)
    }

    fn wait_for_uses(&self, state: &CoreState) -> Result<()> {
        let mut uses = state.uses.iter();
        uses.try_for_each(|used| used.point.wait(self.hub.timeout()))
    }

    /// It is this process's turn again. Other devices were sent away, so they see what was written meanwhile. A client that
    /// lost the buffer for good does not get it back: its owner may be using it.
    pub fn take_back(&self) -> Result<()> {
        let mut state = self.lock_state();
        if state.guard_entries.turn() == Turn::Lost {
            let reason = "the owner ended the visit".into();
            return Err(Error::PeerLost { reason });
        }
        state.guard_entries.set_turn(Turn::Ours);
        Ok(())
    }

    /// The connection to the owner is gone: there is no turn here any more. Guards that are held stay.
    pub fn orphan(&self) {
        self.lock_state().guard_entries.set_turn(Turn::Lost);
    }

    /// A visit is over: the buffer is its owner's again. A client in this process may not have noticed, or may have left work
    /// behind; it loses the buffer when the owner uses it next, and that waits for its work.
    pub fn claim_back(&self, mut clients: Vec<Arc<Core>>) {
        clients.retain(|client| !client.has_let_go());
        let mut state = self.lock_state();
        state.tenants.extend(clients);
        let turn = if state.tenants.is_empty() { Turn::Ours } else { Turn::Claimed };
        state.guard_entries.set_turn(turn);
    }

    /// Takes the buffer from clients in this process whose visits are over. Busy while one of them holds a guard.
    fn reclaim(&self) -> Result<()> {
        // The list's own references are never the last ones, so that no client is dropped while the state is locked.
        let tenants = self.lock_state().tenants.clone();
        for client in &tenants {
            client.evict()?;
            self.lock_state().tenants.retain(|other| !Arc::ptr_eq(other, client));
        }
        let mut state = self.lock_state();
        if state.tenants.is_empty() && state.guard_entries.turn() == Turn::Claimed {
            state.guard_entries.set_turn(Turn::Ours);
        }
        Ok(())
    }

    /// The state, for who is about to take the buffer: after the clients whose visits are over.
    pub(super) fn lock_reclaimed(&self) -> Result<MutexGuard<'_, CoreState>> {
        let state = self.lock_state();
        if state.guard_entries.turn() != Turn::Claimed {
            return Ok(state);
        }
        drop(state);
        self.reclaim()?;
        Ok(self.lock_state())
    }

    /// Whether a client has lost the buffer, and nothing of its work is left.
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
            // It may have handed the buffer over meanwhile.
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

/// An owner in this process may have ended a client's visit in the meantime.
fn check_turn(state: &CoreState, turn: Turn) -> Result<()> {
    match state.guard_entries.turn() {
        now if now == turn => Ok(()),
        now => Err(not_ours(now)),
    }
}

/// Why an owner does not get its buffer back from a client in this process.
fn in_use(error: Error) -> Error {
    match error {
        Error::Busy { .. } => not_ours(Turn::Claimed),
        other => other,
    }
}
