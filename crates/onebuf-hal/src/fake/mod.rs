//! A device that exists only for tests: template, test bed and documentation in one.
//!
//! It keeps its memory apart from the host's, finishes work late and in any order, and checks what
//! real drivers leave undefined:
//!
//! - **Separate memory.** A kernel works on the device's bytes; the host sees others, at a stable
//!   address. Only [`reside`](crate::Queue::reside) copies between them, so a hand-over that was
//!   forgotten shows as wrong data. Fresh memory holds `0xA5` on the device and `0x5A` on the host.
//! - **Late completion.** Each queue has a thread of its own and takes as long as its [`Delay`] says.
//! - **A protocol checker.** A command on memory that is not `Acquired` (to read, `SharedRead` will do)
//!   fails with `PROTOCOL`; one that meets another command's conflicting use of the same bytes fails
//!   with `RACE`.
//! - **Injected faults.** Each call counts with a [`Probe`], which can make it fail.
//!
//! # What a failure does
//!
//! A command that failed, and a wait for something that failed, fails everything on its queue that was
//! enqueued before an event told of it; work enqueued after that runs. So no event of work that depends
//! on the failed one succeeds, and the queue stays usable.

mod backend;
mod claim;
mod device;
mod event;
mod heap;
mod line;
mod memory;
mod program;
mod queue;
mod semaphore;
mod watch;

pub use backend::FakeBackend;
pub use device::FakeDevice;

use crate::{Api, Domain, Error, MemoryKind, PhysicalId, locks::Arc};
use onebuf_sys::Probe;
use std::time::Duration;

/// The name of this backend in device ids.
pub const API: Api = Api("fake");

/// How a fake device behaves.
#[derive(Clone, Debug)]
pub struct FakeConfig {
    /// The device's name.
    pub name: String,
    /// Where its objects belong. Two devices with one domain wait for each other's events.
    pub domain: Domain,
    /// Which chip it says it is.
    pub physical: PhysicalId,
    /// How long commands take.
    pub delay: Delay,
    /// What it makes of host pages that it did not allocate.
    pub shares_host_pages: Sharing,
    /// The forms in which it allocates.
    pub memory_kinds: Vec<MemoryKind>,
    /// Whether it says that device and host use one physical memory.
    pub unified: bool,
    /// Largest single allocation, in bytes.
    pub max_alloc_bytes: u64,
    /// Whether its events call back.
    pub callbacks: bool,
    /// Whether its queues wait at host signals.
    pub host_signals: bool,
    /// Whether it gives out-of-order queues; they shuffle what nothing orders.
    pub out_of_order: bool,
    /// Whether it makes semaphores for others: files that the stub drivers take for such.
    pub exports_semaphores: bool,
    /// Whether it says that two threads at once crash it.
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
    /// So long, and its work.
    Fixed(Duration),
    /// Up to so long, and its work; the same seed gives each queue the same sequence.
    Random {
        /// Where the sequence starts.
        seed: u64,
        /// The longest delay.
        max: Duration,
    },
}

/// What a fake device makes of host pages that somebody else allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// It refuses them.
    No,
    /// It keeps a copy, brought up to date by each hand-over, as drivers without shared memory do.
    #[default]
    Shadow,
    /// Its kernels use the pages themselves.
    Alias,
}

/// Something that only a wrong program does; real drivers leave it undefined.
pub fn misuse(call: &'static str, name: &str) -> Error {
    Error::Driver { api: API.0, call, code: -1, name: name.to_owned() }
}

#[cfg(all(test, onebuf_shuttle))]
mod schedules;
#[cfg(all(test, not(onebuf_shuttle)))]
mod tests;
