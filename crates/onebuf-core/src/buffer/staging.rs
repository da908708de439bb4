//! The staged route: copies the newest contents to an alias in another replica.

use super::{
    Core,
    hand_over::{Execution, failed},
    state::CoreState,
    transition::{CopySource, Enqueued, On, Outcome, RouteEnd, StepFailed},
};
use crate::{
    ledger::Cause,
    observe::What,
    queue_state::{QueuePoint, QueueState},
    route::{
        means::Means,
        staged::{self, End},
    },
    topology::DeviceIx,
};
use onebuf_hal::{Error, Memory, Result, RouteKind, locks::Arc};
use std::ptr::NonNull;

/// One end of a staged copy, ready to be read or written.
pub(super) struct Opened {
    pub queue_state: Arc<QueueState>,
    pub memory: Arc<dyn Memory>,
    /// The address, if the calling thread can access the bytes itself. `None` for bytes that another process can write: the
    /// host's queue copies those.
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

impl Execution<'_> {
    /// Copies the contents of one replica into another's memory.
    pub fn copy(&mut self, from: CopySource, to: usize, on: On) -> Outcome<QueuePoint, Error> {
        let (core, state) = (self.core, &*self.state);
        let source = match core.open_source(state, from) {
            Ok(source) => source,
            Err(error) => {
                // If the host cannot use the home's mapping, the contents are read without it.
                let looks_in = !from.as_is && core.aliases[from.alias].memory().is_none();
                let blind = looks_in && matches!(error, Error::Unsupported { .. });
                return failed(error, blind.then_some(RouteEnd::Source));
            }
        };
        let opened = self.queue(on, to).and_then(|on| core.open_end(state, to, on.clone()));
        let ends = opened.and_then(|target| {
            let means = core.means_between(source.queue_state.device, core.aliases[to].device)?;
            Ok((target, means))
        });
        let (target, means) = match ends {
            Ok(ends) => ends,
            Err(error) => return failed(error, None),
        };
        let began = core.hub.tracer().begin(What::Copy);
        let copied = staged::copy(&source.end(), &target.end(), core.capacity, means);
        let on = Some(target.queue_state.note());
        if let Err(error) = copied {
            // Parts of the copy may still be running.
            let given = Enqueued { source: Some(source.queue_state.note()), on };
            return (given, Err(StepFailed { error, route: None, of_work: true }));
        }
        let (from, to) = (source.queue_state.device, core.aliases[to].device);
        core.count_implied_bytes(from, to, core.capacity);
        began.end(&target.queue_state, |event| {
            event.name = "stage".into();
            event.route = Some(RouteKind::Staged);
            core.tell_copy(event, Cause::Implied, from, to, core.capacity);
        });
        (Enqueued { source: None, on }, Ok(()))
    }
}

impl Core {
    /// The queue and staging pool for a copy between two devices: those of the target if it is a discrete chip, else the source's.
    pub(crate) fn means_between(&self, from: DeviceIx, to: DeviceIx) -> Result<Means<'_>> {
        let mut means = self.means(if self.has_own_memory(to) { to } else { from })?;
        let info = |device| &self.hub.topology().node(device).info;
        let (one, other) = (info(from), info(to));
        // What one driver has pinned is ordinary memory to another.
        let apart = one.api != other.api || one.platform != other.platform;
        if apart && self.has_own_memory(from) && self.has_own_memory(to) {
            means.source = Some(Box::new(self.means(from)?));
        }
        Ok(means)
    }

    /// Whether the device's memory is not the host's.
    pub(crate) fn has_own_memory(&self, device: DeviceIx) -> bool {
        let unified = self.hub.topology().node(device).info.caps.unified_memory;
        let as_discrete = self.hub.copy_pool().tuning.as_discrete;
        !unified || (as_discrete && device != self.hub.host_index())
    }

    /// The queue and staging pool for a copy to or from a device.
    pub(crate) fn means(&self, device: DeviceIx) -> Result<Means<'_>> {
        let (hub, timeout) = (&self.hub, self.hub.timeout());
        let queue = hub.service_queue_state(device)?.hal.clone();
        Ok(Means {
            device: hub.hal(device),
            queue,
            staging_pool: hub.staging_pool(device),
            copy_pool: hub.copy_pool(),
            timeout,
            source: None,
        })
    }

    /// Opens the end that a copy reads from.
    fn open_source(&self, state: &CoreState, from: CopySource) -> Result<Opened> {
        match from.as_is {
            true => self.contents_as_is(state, from.alias),
            false => self.open_end(state, from.alias, self.queue_state_for(state, from.alias)?),
        }
    }

    /// Opens an alias that was handed over to a copy.
    fn open_end(
        &self,
        state: &CoreState,
        alias: usize,
        queue_state: Arc<QueueState>,
    ) -> Result<Opened> {
        let host = self.aliases[alias].device == self.hub.host_index();
        let memory = match self.aliases[alias].memory() {
            Some(memory) => memory.clone(),
            None => self.through_home(self.whole())?,
        };
        let pointer = memory.host_pointer().filter(|_| host && !state.exposed);
        Ok(Opened { queue_state, memory, pointer })
    }
}
