//! Bringing the newest contents to an alias that has memory of its own: the staged route.

use super::{
    Core,
    core::{Alias, HOME},
    guard_entries::GuardEntry,
    state::{Replica, State},
};
use crate::{
    ledger::Cause,
    observe::What,
    queue_state::QueueState,
    route::staged::{self, End, Means},
    topology::DeviceIx,
};
use onebuf_hal::{CopyPolicy, Error, Memory, Result, RouteKind, locks::Arc};
use std::ptr::NonNull;

/// One end of a staged copy, handed over to it.
pub(super) struct Opened {
    pub queue_state: Arc<QueueState>,
    pub memory: Arc<dyn Memory>,
    /// Where the calling thread can touch the bytes itself. Not where another process can write them: the host's queue copies
    /// those.
    pub pointer: Option<NonNull<u8>>,
}

impl Opened {
    fn end(&self) -> End<'_> {
        match self.pointer {
            Some(pointer) => End::Host(pointer),
            None => End::Device(&*self.queue_state.hal, &*self.memory, 0),
        }
    }
}

impl Core {
    /// Brings the newest contents into a replica of its own: the staged route.
    pub(super) fn stage_in(
        &self,
        state: &mut State,
        alias: usize,
        queue_state: &Arc<QueueState>,
    ) -> Result<()> {
        let replica = self.aliases[alias].replica();
        let from = (0..state.replicas.len()).find(|&g| state.replicas[g].current).unwrap_or(HOME);
        let to_device = self.aliases[alias].device;
        if self.policy == CopyPolicy::Forbid {
            let from_device = self.aliases[self.source_alias(state, from)].device;
            return Err(Error::CopyForbidden {
                route: format!("{} -> {}", self.device_id(from_device), self.device_id(to_device)),
                why: "the contents are in another copy of the buffer".into(),
            });
        }
        let queue_state = self.in_order(queue_state)?;
        let began = self.hub.tracer().begin(What::Copy);
        let source = self.open_source(state, from)?;
        self.release_others(state, alias, true)?;
        let target = self.open_end(state, alias, &queue_state, true)?;
        let means = self.means_between(source.queue_state.device, to_device)?;
        let copied = staged::copy(&source.end(), &target.end(), self.capacity, means);
        if copied.is_err() {
            // Parts of it may still be under way.
            state.note_read(self.use_of_all(&source.queue_state));
            state.note_change(self.use_of_all(&queue_state));
        }
        state.settle(copied)?;
        state.note_write(self.use_of_all(&queue_state));
        state.replicas[replica] = Replica { current: true, writer: Some(alias) };
        let (from, to) = (source.queue_state.device, to_device);
        self.count_implied_bytes(from, to, self.capacity);
        began.end(&queue_state, |event| {
            event.name = "stage".into();
            event.route = Some(RouteKind::Staged);
            self.tell_copy(event, Cause::Implied, from, to, self.capacity);
        });
        Ok(())
    }

    /// What a copy between two devices goes through: a chip with memory of its own has the say.
    pub(crate) fn means_between(&self, from: DeviceIx, to: DeviceIx) -> Result<Means<'_>> {
        let discrete = !self.hub.topology().node(to).info.caps.unified_memory;
        self.means(if discrete { to } else { from })
    }

    /// What a copy to or from a device goes through.
    pub(crate) fn means(&self, device: DeviceIx) -> Result<Means<'_>> {
        let (hub, timeout) = (&self.hub, self.hub.timeout());
        let queue = hub.service_queue_state(device)?.hal.clone();
        Ok(Means {
            device: hub.hal(device),
            queue,
            staging_pool: hub.staging_pool(device),
            timeout,
        })
    }

    /// Which alias of a replica to copy from: the host's where it sees the bytes themselves, else the last
    /// writer's. A mapping that copies would move everything for the sake of a part.
    pub(super) fn source_alias(&self, state: &State, replica: usize) -> usize {
        let direct =
            |s: &usize| self.aliases[*s].replica() == replica && !self.aliases[*s].copies();
        let host = self.host_alias().filter(direct);
        let able = |s: &Alias| s.replica() == replica && s.takes_transfers();
        let first = || self.aliases.iter().position(able).unwrap_or(HOME);
        let writer = state.replicas[replica].writer.filter(|&w| able(&self.aliases[w]));
        host.or(writer).unwrap_or_else(first)
    }

    /// Hands an alias over to the copy engine.
    pub(super) fn open_end(
        &self,
        state: &mut State,
        alias: usize,
        queue_state: &Arc<QueueState>,
        write: bool,
    ) -> Result<Opened> {
        let entry = GuardEntry { span: self.whole(), alias, write };
        self.acquire(state, &entry, queue_state, &mut Vec::new())?;
        let host = self.aliases[alias].device == self.hub.host_index();
        let memory = match self.aliases[alias].memory() {
            Some(memory) => memory.clone(),
            None => self.through_home(self.whole())?,
        };
        let pointer = memory.host_pointer().filter(|_| host && !state.exposed);
        Ok(Opened { queue_state: queue_state.clone(), memory, pointer })
    }
}
