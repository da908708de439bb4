//! Which messages MPI is given a device's memory for, instead of the host's.
//!
//! Only where this MPI claims to take it, an experiment on this machine has proven it ([`World::try_device_memory`]), all ranks have agreed
//! on that proof and on the chip ([`World::use_device_memory`]), and the message goes to another process of this machine: the
//! experiment has shown no more.

use crate::{memory::Span, world::World};
use bytemuck::Pod;
use onebuf::{Buffer, Device, MemoryKind, Queue, topology::Node};
use onebuf_hal::Result;

/// Which memory a message uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The device's, if that is proven.
    Proof,
    /// The host's: its own, or pinned memory beside the device's.
    Host,
    /// The device's, although nothing is proven: for the experiment itself.
    Device,
}

impl World {
    /// Lets messages between ranks give MPI this device's memory, without a copy, if an experiment has proven it: all ranks call it, each with
    /// its own device, before the first message. Returns whether they may. They may not unless all ranks are processes of one machine and
    /// have the verdict of one chip; then device memory is staged, as without this call.
    ///
    /// # Errors
    /// Those of the call that all ranks make, such as [`Error::Timeout`](onebuf::Error::Timeout).
    pub fn use_device_memory(&self, device: &Device) -> Result<bool> {
        let proven = self.proven_chip(device).unwrap_or_default();
        let mut same = !proven.is_empty();
        for root in 0..self.size() {
            let all = self.collect(proven.clone().into_bytes(), root, self.timeout())?;
            same &= all.is_none_or(|all| all.iter().all(|other| *other == proven.as_bytes()));
        }
        self.set_proven_chip(device.info().physical.uuid.filter(|_| same));
        Ok(same)
    }

    /// The chip, and what was tried on it, if its memory is proven and all ranks are of this machine.
    fn proven_chip(&self, device: &Device) -> Option<String> {
        let (hub, uuid) = (device.hub(), device.info().physical.uuid?);
        let here = (0..self.size()).all(|rank| self.ranks().is_here(rank));
        let home = hub.topology().node(device.index());
        let verdict = hub.verdicts().find_mpi(home, self.library_key())?;
        let proven = here && is_own(home) && self.claims(device) && verdict.proven_for(PAGE as u64);
        proven.then(|| format!("{uuid:02x?} {:?}", verdict.envelope))
    }

    /// The queue on which the device that has the elements is held while MPI uses its memory. `None` if MPI gets memory of the host.
    pub(crate) fn direct<T: Pod>(&self, span: &Span<'_, T>, by: By, peer: usize) -> Option<Queue> {
        let buffer = span.buffer();
        // The experiment has plain device memory of this process. Exportable memory, and that of other programs, may move differently.
        let is_plain = buffer.plan().memory_kind == MemoryKind::Device && buffer.was_planned();
        if by == By::Host || !is_plain || buffer.is_foreign() || buffer.maps_in_place(false) {
            return None;
        }
        let (hub, home) = (buffer.hub(), home_of(buffer));
        if !self.claims_api(home.info.api.0) || !is_own(home) {
            return None;
        }
        let bytes = span.len() * size_of::<T>();
        let proven = || {
            let verdict = hub.verdicts().find_mpi(home, self.library_key());
            verdict.is_some_and(|verdict| verdict.proven_for(bytes as u64))
        };
        // All trials began at a page.
        let begins_page = span.start_bytes().is_multiple_of(PAGE);
        let is_agreed = home.info.physical.uuid.is_some_and(|uuid| self.has_proven_chip(uuid));
        let other = peer != self.rank() && self.ranks().is_here(peer);
        if by == By::Proof && !(is_agreed && other && begins_page && proven()) {
            return None;
        }
        hub.device(&home.id).ok()?.default_queue().ok()
    }

    /// Whether this MPI claims to take memory of a device: see [`World::gpu_claim`].
    pub fn claims(&self, device: &Device) -> bool {
        self.claims_api(device.info().api.0)
    }

    fn claims_api(&self, api: &str) -> bool {
        let claim = self.gpu_claim();
        match api {
            "cuda" => claim.cuda == Some(true),
            "hip" => claim.hip == Some(true),
            _ => false,
        }
    }
}

/// Where a message must begin: the trials of the experiment do.
const PAGE: usize = 4096;

/// The device whose memory a buffer is.
pub(crate) fn home_of<T: Pod>(buffer: &Buffer<T>) -> &Node {
    buffer.hub().topology().node(buffer.plan().allocate_on)
}

/// Whether a device is in a context of onebuf's own: those of other programs were not tried.
fn is_own(home: &Node) -> bool {
    !home.id.contains('@')
}
