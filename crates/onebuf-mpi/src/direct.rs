//! Which messages MPI is given a device's memory for, instead of the host's.
//!
//! Only where this MPI claims to take it, an experiment on this machine has proven it ([`World::try_device_memory`]), and all ranks of the
//! message are processes of this machine: the experiment has shown no more.

use crate::{memory::Span, world::World};
use bytemuck::Pod;
use onebuf::{Buffer, Device, MemoryKind, Queue, topology::Node};
use std::env;

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
    /// The queue on which the device that has the elements is held while MPI uses its memory. `None` if MPI gets memory of the host.
    pub(crate) fn direct<T: Pod>(
        &self,
        span: &Span<'_, T>,
        by: By,
        mut peers: impl Iterator<Item = usize>,
    ) -> Option<Queue> {
        let buffer = span.buffer();
        // The experiment has plain device memory. Exportable memory, and that of other programs, may move differently.
        let is_plain = buffer.plan().memory_kind == MemoryKind::Device && !buffer.is_foreign();
        if by == By::Host || !is_plain || buffer.maps_in_place(false) {
            return None;
        }
        let (hub, home) = (buffer.hub(), home_of(buffer));
        if !self.claims_api(home.info.api.0) {
            return None;
        }
        let proven = || {
            let verdict = hub.verdicts().find_mpi(home, &self.library_name());
            verdict.is_some_and(|verdict| verdict.proven_for((span.len() * size_of::<T>()) as u64))
        };
        if by == By::Proof && !(peers.all(|rank| self.ranks().is_here(rank)) && proven()) {
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

    /// What the library calls itself, in one line, and the variables that choose how it moves bytes: a part of the key of verdicts.
    pub(crate) fn library_name(&self) -> String {
        let name = self.library().split_whitespace().collect::<Vec<_>>().join(" ");
        let chooses = |name: &str| WAYS.iter().any(|prefix| name.starts_with(prefix));
        let set =
            env::vars_os().map(|(name, value)| [name, value].map(|one| one.display().to_string()));
        let set = set.filter(|[name, _]| chooses(name)).map(|pair| pair.join("="));
        let mut set: Vec<String> = set.collect();
        set.sort();
        format!("{name} with [{}]", set.join(" "))
    }
}

/// How the names of variables begin that choose how MPI moves bytes.
const WAYS: [&str; 7] = [
    "FI_",
    "MPICH_GPU",
    "MPIR_CVAR_",
    "OMPI_MCA_btl_",
    "OMPI_MCA_opal_cuda_",
    "OMPI_MCA_pml",
    "UCX_",
];

/// The device whose memory a buffer is.
pub(crate) fn home_of<T: Pod>(buffer: &Buffer<T>) -> &Node {
    buffer.hub().topology().node(buffer.plan().allocate_on)
}
