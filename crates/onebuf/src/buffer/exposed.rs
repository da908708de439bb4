//! A buffer that two processes see: what changes when another one can write the memory, and whose turn it is.
//!
//! Fences do not cross processes. So a hand-over to another one brings the contents home, sends every other
//! device away and waits for all work; while it lasts nobody here gets a guard.

use super::{
    Core,
    core::HOME,
    marks::{Mark, Turn},
    part::Part,
};
use crate::{
    Error, Result, Strategy,
    hal::{Export, FdRange, HostRange, IpcRange, Residency},
};

impl Core {
    /// The host pages that another process may be given.
    pub fn pages_for_peers(&self) -> Result<HostRange> {
        let why_not = match () {
            () if self.pool.is_some() => "a pooled buffer has what others left",
            () if self.wrapped.is_some() => "its memory is somebody else's",
            () if self.plan.strategy != Strategy::HostPages => "it is not host pages",
            () if self.sites[HOME].device != self.hub.host_index() => "it is not the host's",
            () => return self.home_pages(),
        };
        Err(Error::unsupported(
            format!("sharing this buffer with another process ({why_not})"),
            "a buffer of its own host pages (`strategy(Strategy::HostPages)`, `allocate_on(&hub.host())`) or of a \
             device's memory (`strategy(Strategy::Exportable)`, or plain memory of an API with handles for that)",
        ))
    }

    fn check_pool(&self) -> Result<()> {
        if self.pool.is_none() {
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
        let device = &self.hub.topology().node(self.sites[HOME].device);
        self.check_pool()?;
        let kind = device.info.caps.exports.first().ok_or_else(|| {
            let what = format!("sharing memory of {} with another process", device.id);
            Error::unsupported(what, "memory of a device that exports descriptors")
        })?;
        self.home().export_fd(*kind)
    }

    fn home_pages(&self) -> Result<HostRange> {
        let line = self.hub.service_line(self.sites[HOME].device)?;
        match self.home().export(&*line.hal)? {
            Export::Host(range) => Ok(range),
            // `Export` may grow; the host's memory is pages.
            #[allow(unreachable_patterns)]
            other => Err(Error::unsupported(format!("{other:?} as host pages"), "host pages")),
        }
    }

    /// From now on another process can write the memory. Nobody may hold a guard, and no work be left: either
    /// could have a slice.
    pub fn expose(&self) -> Result<()> {
        self.lend()?;
        let mut state = self.lock_state();
        (state.exposed, state.detached) = (true, true);
        state.marks.set_turn(Turn::Ours);
        Ok(())
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
        state.marks.set_turn(Turn::Theirs);
    }

    /// It is the other process's turn: the newest contents are in the home, and nothing of ours is at work.
    pub fn lend(&self) -> Result<()> {
        let line = self.hub.service_line(self.sites[HOME].device)?;
        drop(self.take(&Part::whole(self), &line, true, true)?);
        let mut state = self.lock_state();
        // Where the home itself is another's memory that was acquired, it is released.
        let released = match self.residency(HOME) {
            None => Ok(()),
            Some(_) => self.reside_elsewhere(&mut state, HOME, Residency::Away),
        };
        let mut uses = state.writes.iter().chain(&*state.reads);
        let waited = uses.try_for_each(|used| used.position.wait(self.hub.timeout()));
        let settled = state.settle(released.and(waited));
        state.marks.give_back(&self.mark_of_all());
        settled?;
        state.settled = None;
        state.marks.set_turn(Turn::Theirs);
        Ok(())
    }

    /// It is this process's turn again. Other devices were sent away, so they see what was written meanwhile.
    pub fn take_back(&self) {
        self.lock_state().marks.set_turn(Turn::Ours);
    }

    /// The owner is gone. Whose turn it was not gets none any more.
    pub fn orphan(&self) {
        let mut state = self.lock_state();
        if state.marks.turn() == Turn::Theirs {
            state.marks.set_turn(Turn::Lost);
        }
    }

    fn mark_of_all(&self) -> Mark {
        Mark { span: self.whole(), site: HOME, write: true }
    }
}
