//! A fake device: an example backend, a test device and documentation in one.
//!
//! It keeps its memory separate from the host's, finishes work late and in any order, and checks what real drivers
//! leave undefined:
//!
//! - **Separate memory.** A kernel works on the device's bytes; the host sees other bytes, at a stable address. Only
//!   [`reside`](crate::Queue::reside) copies between them, so a missing hand-over shows as wrong data. Fresh memory holds
//!   `0xA5` on the device and `0x5A` on the host.
//! - **Late completion.** Each queue has its own thread, and each command takes as long as [`Delay`] specifies.
//! - **A protocol checker.** A command on memory that is not `Acquired` (for reading, `SharedRead` is enough) fails
//!   with `PROTOCOL`; one that conflicts with another command's use of the same bytes fails with `RACE`.
//! - **Injected faults.** A [`Probe`] counts every call and can make it fail.
//!
//! # What a failure does
//!
//! A failed command, and a wait for something that failed, fails everything that was enqueued on its queue before an event
//! reported the failure; work enqueued after that runs. So no event of work that depends on the failed command succeeds, and
//! the queue stays usable.

mod backend;
mod claim;
mod device;
mod event;
mod heap;
mod memory;
mod program;
mod queue;
mod queue_state;
mod semaphore;
mod watch;

pub use backend::FakeBackend;
pub use device::FakeDevice;

use crate::{Api, Domain, Error, MemoryKind, PhysicalId, locks::Arc};
use onebuf_sys::Probe;
use std::time::Duration;

/// The name of this backend in device ids.
pub const API: Api = Api("fake");

/// The behaviour of a fake device.
#[derive(Clone, Debug)]
pub struct FakeConfig {
    /// The device's name.
    pub name: String,
    /// The domain of its objects. Two devices with one domain can wait for each other's events.
    pub domain: Domain,
    /// The chip that it reports.
    pub physical: PhysicalId,
    /// How long commands take.
    pub delay: Delay,
    /// How it treats host pages that it did not allocate.
    pub shares_host_pages: Sharing,
    /// The memory kinds that it allocates.
    pub memory_kinds: Vec<MemoryKind>,
    /// Whether it reports that device and host use one physical memory.
    pub unified: bool,
    /// Largest single allocation, in bytes.
    pub max_alloc_bytes: u64,
    /// Whether its events support callbacks.
    pub callbacks: bool,
    /// Whether its queues wait for host signals.
    pub host_signals: bool,
    /// Whether it has out-of-order queues; they shuffle all commands that are not ordered.
    pub out_of_order: bool,
    /// Whether it creates semaphores for others: files that the stub drivers accept as semaphores.
    pub exports_semaphores: bool,
    /// Whether it reports that it crashes if two threads call it at once.
    pub one_thread: bool,
    /// Counts its calls and objects, and makes calls fail.
    pub probe: Option<Arc<Probe>>,
}

impl Default for FakeConfig {
    fn default() -> Self {
        FakeConfig {
            name: "fake device".to_owned(),
            domain: Domain(0xFA4E),
            physical: PhysicalId::default(),
            delay: Delay::None,
            shares_host_pages: Sharing::Shadow,
            memory_kinds: vec![MemoryKind::MappedDevice, MemoryKind::Device, MemoryKind::CoarseSvm],
            unified: false,
            max_alloc_bytes: 1 << 30,
            callbacks: true,
            host_signals: true,
            out_of_order: true,
            exports_semaphores: false,
            one_thread: false,
            probe: None,
        }
    }
}

/// How long a command takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delay {
    /// As long as its work.
    #[default]
    None,
    /// This long, plus its work.
    Fixed(Duration),
    /// Up to this long, plus its work; the same seed gives each queue the same sequence.
    Random {
        /// Where the sequence starts.
        seed: u64,
        /// The longest delay.
        max: Duration,
    },
}

/// How a fake device treats host pages that other code allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// It refuses them.
    No,
    /// It keeps a copy that each hand-over updates, as drivers without shared memory do.
    #[default]
    Shadow,
    /// Its kernels use the pages themselves.
    Alias,
}

/// The error for misuse that real drivers leave undefined.
pub fn misuse(call: &'static str, name: &str) -> Error {
    Error::Driver { api: API.0, call, code: -1, name: name.to_owned() }
}

#[cfg(all(test, onebuf_shuttle))]
mod schedules;
#[cfg(all(test, not(onebuf_shuttle)))]
mod tests;
