//! Two devices of one library: kernels of one use memory of the other, and copies between them.
//!
//! Access is enabled for the first memory that needs it, and stays enabled: the contexts are the primary ones, and
//! other code may rely on it by then.

use super::{
    device::{Context, Driver},
    event::Event,
    memory::Memory,
    queue::{Queue, RawQueue},
};
use onebuf_hal::{
    self as hal, Error, Result,
    locks::Arc,
    typed::{Events, PeerSource},
};
use onebuf_sys::{
    Flavor,
    cuda_like::{CuStatus, CudaLike},
};

/// Whether the driver has every call that peer access takes.
pub(super) fn is_there(table: &CudaLike) -> bool {
    let enables = match table.flavor() {
        Flavor::Cuda => table.has_cuda_enable_peer(),
        Flavor::Hip => table.has_hip_enable_peer(),
    };
    table.has_can_access_peer() && enables
}

/// Checks that kernels of `context` can access memory of `home`.
pub(super) fn check(context: &Context, home: &Context) -> Result<()> {
    let (driver, other) = (&*context.driver, &*home.driver);
    if !one_library(driver, other) {
        return Err(driver.foreign("memory", Some(other.domain)));
    }
    let reached = |chip: &hal::PhysicalId| chip.same_chip(&other.info.physical);
    if driver.info.caps.peers.iter().any(reached) {
        return Ok(());
    }
    let what = format!("memory of {} in place on {}", other.info.name, driver.info.name);
    Err(Error::unsupported(what, "two devices with peer access"))
}

fn one_library(a: &Driver, b: &Driver) -> bool {
    Arc::ptr_eq(&a.table, &b.table)
}

/// Enables access of `context`'s kernels to all plain memory of `home`. Other code may have enabled it already.
pub(super) fn enable(context: &Context, home: &Context) -> Result<()> {
    let (driver, _current) = (&context.driver, context.enter()?);
    // SAFETY: a live context, a device of this driver; the other's context is current.
    let enabled = unsafe {
        match driver.flavor() {
            Flavor::Cuda => driver.table.cuda_enable_peer(home.raw(), 0),
            Flavor::Hip => driver.table.hip_enable_peer(home.driver.device, 0),
        }
    };
    match enabled {
        Err(refused) if refused.status == CuStatus::PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        enabled => driver.check(enabled),
    }
}

impl Queue {
    /// Whether an event belongs to this library, on any device: streams can wait for all of those.
    pub fn is_ours(&self, event: &dyn hal::Event) -> bool {
        let event = event.as_any().downcast_ref::<Event>();
        event.is_some_and(|event| one_library(event.driver(), self.raw.driver()))
    }

    /// Returns an event of this library as its own type.
    pub fn own_event<'e>(&self, event: &'e dyn hal::Event) -> Result<&'e Event> {
        let own = event.as_any().downcast_ref::<Event>();
        own.filter(|_| self.is_ours(event))
            .ok_or_else(|| self.raw.driver().foreign("an event", own.map(hal::Event::domain)))
    }

    /// Copies from another device of this library. Returns `None` if the source is not from this library, or one of the
    /// two memories is not on its device.
    pub fn copy_peer(
        &self,
        from: PeerSource<'_, Queue>,
        to: (&Memory, usize),
        bytes: usize,
    ) -> Result<Option<Event>> {
        let Some((keeps, home)) = from.memory.on_device() else { return Ok(None) };
        let driver = self.raw.driver();
        let able = has_copy(&driver.table) && one_library(driver, &home.driver);
        if !able || to.0.on_device().is_none() {
            return Ok(None);
        }
        let (at, target) = (from.memory.byte(from.offset), to.0.byte(to.1));
        let before = hal::Queue::mark(from.queue)?;
        let _current = self.raw.enter()?;
        self.wait_for_all(Events::new(self, &[before]))?;
        to.0.note_use(&self.raw);
        let (context, stream) = (self.raw.context.clone(), self.raw.raw);
        // SAFETY: ranges that were checked, of these contexts' devices; a live stream of the current one.
        let copied = self.raw.timed(|| unsafe {
            match driver.flavor() {
                Flavor::Cuda => {
                    let (to_context, from_context) = (context.raw(), home.raw());
                    driver.table.cuda_copy_peer(target, to_context, at, from_context, bytes, stream)
                }
                Flavor::Hip => {
                    let (to_device, from_device) = (driver.device, home.driver.device);
                    driver.table.hip_copy_peer(target, to_device, at, from_device, bytes, stream)
                }
            }
        });
        // The source belongs to another context, whose frees do not track this stream.
        self.keep(move || drop(keeps));
        match copied {
            // Some runtimes export the call without implementing it.
            Err(Error::Driver { code, .. }) if code == CuStatus::NOT_SUPPORTED.0 => Ok(None),
            copied => copied.map(Some),
        }
    }

    /// Keeps a value until all work so far has run. The context is current.
    fn keep(&self, held: impl FnOnce() + Send + 'static) {
        let users: &[Arc<RawQueue>] = std::slice::from_ref(&self.raw);
        self.raw.context.free_later(users, move |_| held());
    }
}

fn has_copy(table: &CudaLike) -> bool {
    table.has_cuda_copy_peer() || table.has_hip_copy_peer()
}
