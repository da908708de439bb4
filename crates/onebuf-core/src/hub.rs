//! The hub: this process's view of the machine.
//!
//! The type stands low: it holds what its queues share (devices, ledger, policy, timeout, observers), and everything above keeps
//! what it needs with it as a [typed extension](crate::extensions). What a hub can do with a buffer, a program or a foreign object
//! is a method in the module of that.

mod pages;

use crate::{
    device_table::{DeviceEntry, DeviceTable},
    extensions::Extensions,
    ledger::Ledger,
    observe::{BufferObservers, NewBuffer, Observer, Observers, Tracer},
    queue_state::{PendingWork, QueueState},
    route::staging_pool::StagingPool,
    sync::{Joiner, SyncTables},
    topology::{DeviceIx, Topology},
    verdicts::Verdicts,
};
use onebuf_hal::{self as hal, CopyPolicy, Domain, Error, Result, Unavailable, locks::Arc};
use onebuf_sys::Probe;
use std::{
    any::Any,
    sync::{
        OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// This process's view of the machine: the devices found, and what is known of the routes between
/// them. There is no global state; hubs live side by side. Cheap to clone; buffers, queues and
/// devices keep their hub alive.
#[derive(Clone)]
pub struct Hub(Arc<HubState>);

struct HubState {
    device_table: DeviceTable,
    ledger: Ledger,
    policy: CopyPolicy,
    timeout: Duration,
    unavailable: Vec<Unavailable>,
    notes: Vec<Error>,
    /// The libraries that were asked for, as their environment variables have them.
    libraries: Vec<(&'static str, String)>,
    sync_tables: SyncTables,
    /// Counts driver calls and lets chosen ones fail: for tests.
    probe: Option<Arc<Probe>>,
    /// What modules and crates above keep with it.
    extensions: Extensions,
    /// To those of the observers that want events.
    tracer: Tracer,
    observers: Observers,
    /// The host's service queue, once it was needed: maps take it without a lock.
    host_queue_state: OnceLock<Arc<QueueState>>,
    /// What is under way. The last field: what the others leave is waited for.
    pending: Arc<PendingWork>,
}

/// What a hub is made of.
pub(crate) struct HubParts {
    pub device_table: DeviceTable,
    pub ledger: Ledger,
    pub policy: CopyPolicy,
    pub timeout: Duration,
    pub unavailable: Vec<Unavailable>,
    pub notes: Vec<Error>,
    pub libraries: Vec<(&'static str, String)>,
    pub probe: Option<Arc<Probe>>,
    pub extensions: Extensions,
    pub observers: Observers,
    pub tracer: Tracer,
    pub pending: Arc<PendingWork>,
}

impl Hub {
    pub(crate) fn new(parts: HubParts) -> Self {
        Self(Arc::new(HubState {
            device_table: parts.device_table,
            ledger: parts.ledger,
            policy: parts.policy,
            timeout: parts.timeout,
            unavailable: parts.unavailable,
            notes: parts.notes,
            libraries: parts.libraries,
            sync_tables: SyncTables::default(),
            probe: parts.probe,
            extensions: parts.extensions,
            tracer: parts.tracer,
            observers: parts.observers,
            host_queue_state: OnceLock::new(),
            pending: parts.pending,
        }))
    }

    /// The devices and routes, as [`crate::plan::plan`] takes them.
    pub fn topology(&self) -> &Topology {
        self.0.device_table.topology()
    }

    /// What was moved so far by buffers of this hub.
    pub fn ledger(&self) -> &Ledger {
        &self.0.ledger
    }

    /// APIs that are not to be had here, and why.
    pub fn unavailable(&self) -> &[Unavailable] {
        &self.0.unavailable
    }

    /// What went wrong while discovering without stopping it: an unreadable verdict cache, a device
    /// that did not answer.
    pub fn notes(&self) -> &[Error] {
        &self.0.notes
    }

    /// What the hub knew of its routes when it was made, as the doctor found it.
    pub fn verdicts(&self) -> &Verdicts {
        self.0.device_table.verdicts()
    }

    /// How long waits of this hub last.
    pub fn timeout(&self) -> Duration {
        self.0.timeout
    }

    /// What this hub does about implied copies.
    pub fn copy_policy(&self) -> CopyPolicy {
        self.0.policy
    }

    /// Whether both are one hub.
    #[inline]
    pub fn is(&self, other: &Hub) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// What a helper process must find in its environment to see the same devices.
    #[doc(hidden)]
    pub fn libraries(&self) -> &[(&'static str, String)] {
        &self.0.libraries
    }

    pub(crate) fn host_index(&self) -> DeviceIx {
        DeviceIx::HOST
    }

    pub(crate) fn hal(&self, device: DeviceIx) -> &dyn hal::Device {
        &*self.entry(device).device
    }

    pub(crate) fn entry(&self, device: DeviceIx) -> &DeviceEntry {
        self.0.device_table.entry(device)
    }

    pub(crate) fn device_table(&self) -> &DeviceTable {
        &self.0.device_table
    }

    /// What keeps the foreign context that a device belongs to; none for a device that was found.
    pub(crate) fn context_of(&self, device: DeviceIx) -> Option<Arc<dyn Any + Send + Sync>> {
        self.0.device_table.context_of(device)
    }

    /// A number for another context.
    pub(crate) fn new_domain(&self) -> Domain {
        next_domain()
    }

    #[doc(hidden)]
    pub fn downgrade(&self) -> WeakHub {
        WeakHub(Arc::downgrade(&self.0))
    }

    /// What its queues have under way.
    pub(crate) fn pending(&self) -> &Arc<PendingWork> {
        &self.0.pending
    }

    /// What makes its queues wait for each other.
    #[inline]
    pub(crate) fn sync(&self) -> Joiner<'_> {
        Joiner::new(&self.0.device_table, &self.0.sync_tables)
    }

    /// What counts driver calls and lets chosen ones fail, where a test asked for it.
    #[doc(hidden)]
    pub fn probe(&self) -> Option<&Arc<Probe>> {
        self.0.probe.as_ref()
    }

    /// What modules and crates above keep with it.
    #[doc(hidden)]
    pub fn extensions(&self) -> &Extensions {
        &self.0.extensions
    }

    /// Where what happens is told.
    #[inline]
    #[doc(hidden)]
    pub fn tracer(&self) -> &Tracer {
        &self.0.tracer
    }

    /// The observer of this type, if one is installed.
    #[doc(hidden)]
    pub fn observer<T: Observer>(&self) -> Option<Arc<T>> {
        self.0.observers.find()
    }

    /// The observer of this type, installed now unless it was before. It sees buffers that are made from now on, and no
    /// events: those want an observer that the hub is built with.
    #[doc(hidden)]
    pub fn observe_with<T: Observer>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        self.0.observers.find_or_add(make)
    }

    /// Who is told of a new buffer.
    #[inline]
    pub(crate) fn buffer_observers(&self, describe: impl FnOnce() -> NewBuffer) -> BufferObservers {
        self.0.observers.of_buffer(describe)
    }

    /// Host memory for copies to and from a device.
    pub(crate) fn staging_pool(&self, device: DeviceIx) -> &StagingPool {
        &self.entry(device).staging_pool
    }

    /// The host's [service queue](Self::service_queue_state).
    pub(crate) fn host_queue_state(&self) -> Result<&Arc<QueueState>> {
        match self.0.host_queue_state.get() {
            Some(queue_state) => Ok(queue_state),
            None => {
                let queue_state = self.service_queue_state(self.host_index())?;
                Ok(self.0.host_queue_state.get_or_init(|| queue_state))
            }
        }
    }

    /// The queue for transfers and hand-overs that no queue of the caller's is at hand for.
    pub(crate) fn service_queue_state(&self, device: DeviceIx) -> Result<Arc<QueueState>> {
        self.0.device_table.service_queue_state(device)
    }
}

/// A number for another context: no two of this process are the same, of whichever hubs.
pub(crate) fn next_domain() -> Domain {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Domain(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A hub that is not kept alive.
pub struct WeakHub(Weak<HubState>);

impl WeakHub {
    #[doc(hidden)]
    pub fn upgrade(&self) -> Option<Hub> {
        self.0.upgrade().map(Hub)
    }
}
