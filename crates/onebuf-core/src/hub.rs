//! The hub: this process's view of the machine.
//!
//! `Hub` is a low-level type: it holds what its queues share (devices, ledger, policy, timeout, observers). Modules above store
//! their data in it as a [typed extension](crate::extensions), and define the hub's methods for buffers, programs and foreign
//! objects.

mod pages;

use crate::{
    device_table::{DeviceEntry, DeviceTable},
    extensions::Extensions,
    ledger::Ledger,
    observe::{BufferObservers, NewBuffer, Observer, Observers, Tracer},
    queue_state::{PendingWork, QueueState},
    route::{CopyTuning, copy_pool::CopyPool, staging_pool::StagingPool},
    sync::{Joiner, SyncTables},
    topology::{DeviceIx, Topology},
    verdicts::Verdicts,
};
use onebuf_hal::{self as hal, CopyPolicy, Domain, Error, Result, Unavailable, locks::Arc};
use onebuf_sys::Probe;
use std::{
    any::Any,
    path::{Path, PathBuf},
    sync::{
        OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// This process's view of the machine: the discovered devices, and the verdicts on the routes between them. There is no global
/// state; a process can have several hubs. Cheap to clone; buffers, queues and devices keep their hub alive.
#[derive(Clone)]
pub struct Hub(Arc<HubState>);

struct HubState {
    device_table: DeviceTable,
    ledger: Ledger,
    policy: CopyPolicy,
    timeout: Duration,
    cache_folder: Option<PathBuf>,
    unavailable: Vec<Unavailable>,
    notes: Vec<Error>,
    /// The requested libraries, as values of their environment variables.
    libraries: Vec<(&'static str, String)>,
    sync_tables: SyncTables,
    /// Threads that help with large copies.
    copy_pool: CopyPool,
    /// Counts driver calls and injects failures, for tests.
    probe: Option<Arc<Probe>>,
    /// Data of modules and crates above.
    extensions: Extensions,
    /// Passes events to the observers that want them.
    tracer: Tracer,
    observers: Observers,
    /// The host's service queue, once it has been used: maps take it without a lock.
    host_queue_state: OnceLock<Arc<QueueState>>,
    /// Unfinished work. Dropped last, so that it includes the work that dropping the other fields leaves.
    pending: Arc<PendingWork>,
}

/// The parts of a hub.
pub(crate) struct HubParts {
    pub device_table: DeviceTable,
    pub ledger: Ledger,
    pub policy: CopyPolicy,
    pub timeout: Duration,
    pub cache_folder: Option<PathBuf>,
    pub copy_tuning: CopyTuning,
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
            cache_folder: parts.cache_folder,
            unavailable: parts.unavailable,
            notes: parts.notes,
            libraries: parts.libraries,
            sync_tables: SyncTables::default(),
            copy_pool: CopyPool::new(parts.copy_tuning),
            probe: parts.probe,
            extensions: parts.extensions,
            tracer: parts.tracer,
            observers: parts.observers,
            host_queue_state: OnceLock::new(),
            pending: parts.pending,
        }))
    }

    /// The devices and routes, as input of [`crate::plan::plan`].
    #[inline]
    pub fn topology(&self) -> &Topology {
        self.0.device_table.topology()
    }

    /// The bytes moved so far by buffers of this hub.
    pub fn ledger(&self) -> &Ledger {
        &self.0.ledger
    }

    /// The APIs that are unavailable, with the reasons.
    pub fn unavailable(&self) -> &[Unavailable] {
        &self.0.unavailable
    }

    /// Errors that did not stop discovery, such as an unreadable verdict cache or a device that did not respond.
    pub fn notes(&self) -> &[Error] {
        &self.0.notes
    }

    /// The doctor's verdicts that the hub was created with.
    pub fn verdicts(&self) -> &Verdicts {
        self.0.device_table.verdicts()
    }

    /// The folder of cached verdicts and programs; `None` if the hub was given its verdicts, and no folder.
    #[doc(hidden)]
    pub fn cache_folder(&self) -> Option<&Path> {
        self.0.cache_folder.as_deref()
    }

    /// The timeout of this hub's waits.
    pub fn timeout(&self) -> Duration {
        self.0.timeout
    }

    /// What this hub does about implied copies.
    pub fn copy_policy(&self) -> CopyPolicy {
        self.0.policy
    }

    /// Whether both handles are of one hub.
    #[inline]
    pub fn is(&self, other: &Hub) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The environment variables with which a helper process sees the same devices.
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

    /// The object that keeps a device's foreign context alive. `None` for a discovered device.
    pub(crate) fn context_of(&self, device: DeviceIx) -> Option<Arc<dyn Any + Send + Sync>> {
        self.0.device_table.context_of(device)
    }

    /// Returns a new number for a context.
    pub(crate) fn new_domain(&self) -> Domain {
        next_domain()
    }

    #[doc(hidden)]
    pub fn downgrade(&self) -> WeakHub {
        WeakHub(Arc::downgrade(&self.0))
    }

    /// The unfinished work of the hub's queues.
    pub(crate) fn pending(&self) -> &Arc<PendingWork> {
        &self.0.pending
    }

    /// Orders the hub's queues after each other.
    #[inline]
    pub(crate) fn sync(&self) -> Joiner<'_> {
        Joiner::new(&self.0.device_table, &self.0.sync_tables)
    }

    /// The probe that counts driver calls and injects failures, if a test installed one.
    #[doc(hidden)]
    pub fn probe(&self) -> Option<&Arc<Probe>> {
        self.0.probe.as_ref()
    }

    /// Data of modules and crates above.
    #[doc(hidden)]
    #[inline]
    pub fn extensions(&self) -> &Extensions {
        &self.0.extensions
    }

    /// The recorder of events.
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

    /// Returns the observer of this type, and installs it if necessary. A new one sees buffers that are created from now on. It
    /// gets no events: those need an observer that the hub was built with.
    #[doc(hidden)]
    pub fn observe_with<T: Observer>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        self.0.observers.find_or_add(make)
    }

    /// The observers of a new buffer.
    #[inline]
    pub(crate) fn buffer_observers(&self, describe: impl FnOnce() -> NewBuffer) -> BufferObservers {
        self.0.observers.of_buffer(describe)
    }

    /// Pinned host memory for copies to and from a device.
    pub(crate) fn staging_pool(&self, device: DeviceIx) -> &StagingPool {
        &self.entry(device).staging_pool
    }

    /// The threads that help with large copies.
    /// Copies a slice to another of the same length, by several threads if that is faster.
    ///
    /// # Panics
    /// If the lengths differ.
    #[doc(hidden)]
    pub fn copy_slice(&self, from: &[u8], to: &mut [u8]) {
        self.0.copy_pool.copy_slice(from, to);
    }

    pub(crate) fn copy_pool(&self) -> &CopyPool {
        &self.0.copy_pool
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

    /// The device's service queue, for transfers and access-state changes without a queue of the caller.
    pub(crate) fn service_queue_state(&self, device: DeviceIx) -> Result<Arc<QueueState>> {
        self.0.device_table.service_queue_state(device)
    }
}

/// Returns a number for another context. It is unique in the process, across hubs.
pub(crate) fn next_domain() -> Domain {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Domain(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A hub handle that does not keep the hub alive.
pub struct WeakHub(Weak<HubState>);

impl WeakHub {
    #[doc(hidden)]
    pub fn upgrade(&self) -> Option<Hub> {
        self.0.upgrade().map(Hub)
    }
}
