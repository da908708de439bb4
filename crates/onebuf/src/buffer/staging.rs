//! Bringing the newest contents to a site that has memory of its own: the staged route.

use super::{
    Core,
    core::{HOME, Site},
    marks::Mark,
    state::{Group, State},
};
use crate::{
    CopyPolicy, Error, Result, RouteKind,
    hal::Memory,
    ledger::Cause,
    queue::Line,
    route::staged::{self, End, Means},
    sync::Arc,
    topology::DeviceIx,
    trace::What,
};
use std::ptr::NonNull;

/// One end of a staged copy, handed over to it.
pub(super) struct Opened {
    pub line: Arc<Line>,
    pub memory: Arc<dyn Memory>,
    /// Where the calling thread can touch the bytes itself. Not where another process can write them: the host's queue copies
    /// those.
    pub pointer: Option<NonNull<u8>>,
}

impl Opened {
    fn end(&self) -> End<'_> {
        match self.pointer {
            Some(pointer) => End::Host(pointer),
            None => End::Device(&*self.line.hal, &*self.memory, 0),
        }
    }
}

impl Core {
    /// Brings the newest contents into a group of its own: the staged route.
    pub(super) fn stage_in(&self, state: &mut State, site: usize, line: &Arc<Line>) -> Result<()> {
        let group = self.sites[site].group();
        let from = (0..state.groups.len()).find(|&g| state.groups[g].current).unwrap_or(HOME);
        let to_device = self.sites[site].device;
        if self.policy == CopyPolicy::Forbid {
            let from_device = self.sites[self.source_site(state, from)].device;
            return Err(Error::CopyForbidden {
                route: format!("{} -> {}", self.device_id(from_device), self.device_id(to_device)),
                why: "the contents are in another copy of the buffer".into(),
            });
        }
        let line = self.in_order(line)?;
        let began = self.hub.tap().begin(What::Copy);
        let source = self.open_source(state, from)?;
        self.release_others(state, site, true)?;
        let target = self.open_end(state, site, &line, true)?;
        let means = self.means_between(source.line.device, to_device)?;
        let copied = staged::copy(&source.end(), &target.end(), self.capacity, means);
        if copied.is_err() {
            // Parts of it may still be under way.
            state.note_read(self.use_of_all(&source.line));
            state.note_change(self.use_of_all(&line));
        }
        state.settle(copied)?;
        state.note_write(self.use_of_all(&line));
        state.groups[group] = Group { current: true, writer: Some(site) };
        let (from, to) = (source.line.device, to_device);
        self.count_implied_bytes(from, to, self.capacity);
        began.end(&line, |event| {
            event.name = "stage".into();
            event.route = Some(RouteKind::Staged);
            self.tell_copy(event, Cause::Implied, from, to, self.capacity);
        });
        Ok(())
    }

    /// What a copy between two devices goes through: a chip with memory of its own has the say.
    pub fn means_between(&self, from: DeviceIx, to: DeviceIx) -> Result<Means<'_>> {
        let discrete = !self.hub.topology().node(to).info.caps.unified_memory;
        self.means(if discrete { to } else { from })
    }

    /// What a copy to or from a device goes through.
    pub fn means(&self, device: DeviceIx) -> Result<Means<'_>> {
        let (hub, timeout) = (&self.hub, self.hub.timeout());
        let queue = hub.service_line(device)?.hal.clone();
        Ok(Means { device: hub.hal(device), queue, bay: hub.bay(device), timeout })
    }

    /// Which site of a group to copy from: the host's where it sees the bytes themselves, else the last
    /// writer's. A mapping that copies would move everything for the sake of a part.
    pub(super) fn source_site(&self, state: &State, group: usize) -> usize {
        let direct = |s: &usize| self.sites[*s].group() == group && !self.sites[*s].copies();
        let host = self.host_site().filter(direct);
        let able = |s: &Site| s.group() == group && s.takes_transfers();
        let first = || self.sites.iter().position(able).unwrap_or(HOME);
        let writer = state.groups[group].writer.filter(|&w| able(&self.sites[w]));
        host.or(writer).unwrap_or_else(first)
    }

    /// Hands a site over to the copy engine.
    pub(super) fn open_end(
        &self,
        state: &mut State,
        site: usize,
        line: &Arc<Line>,
        write: bool,
    ) -> Result<Opened> {
        let mark = Mark { span: self.whole(), site, write };
        self.acquire(state, &mark, line, &mut Vec::new())?;
        let host = self.sites[site].device == self.hub.host_index();
        let memory = match self.sites[site].memory() {
            Some(memory) => memory.clone(),
            None => self.through_home(self.whole())?,
        };
        let pointer = memory.host_pointer().filter(|_| host && !state.exposed);
        Ok(Opened { line: line.clone(), memory, pointer })
    }
}
