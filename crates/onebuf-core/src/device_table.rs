//! The devices of a hub: those that were discovered, and the devices of foreign contexts.
//!
//! The device table only grows, so that its entries can be borrowed for as long as the hub lives. Each new device entry comes
//! with a new topology; old topologies stay valid for code that still uses them.

pub(crate) use crate::identity::FOREIGN_MARK;

use crate::{
    observe::Tracer,
    queue_state::{PendingWork, QueueState},
    route::{self, staging_pool::StagingPool},
    topology::{DeviceIx, Node, Route, Topology, Verdict, VerdictState},
    verdicts::Verdicts,
};
use onebuf_hal::{
    self as hal, Error, QueueSpec, Result, RouteKind,
    locks::{Arc, AtomicU64, Mutex, Ordering, lock},
};
use std::{
    any::Any,
    sync::{OnceLock, Weak},
    time::Duration,
};

/// Maximum number of devices of foreign contexts in a hub.
pub const MAX_FOREIGN_DEVICES: usize = 32;

/// One device, with the hub's objects for it.
pub(crate) struct DeviceEntry {
    pub device: Arc<dyn hal::Device>,
    /// The service queue, for transfers and hand-overs; opened at first use.
    pub service: Mutex<Option<Arc<QueueState>>>,
    /// Pinned host memory for staged copies.
    pub staging_pool: StagingPool,
    /// The keeper of the foreign context that the device belongs to; not kept alive by this.
    context: Mutex<Option<Weak<dyn Any + Send + Sync>>>,
}

impl DeviceEntry {
    fn new(device: Arc<dyn hal::Device>) -> Self {
        let (service, context) = (Mutex::new(None), Mutex::new(None));
        Self { device, service, staging_pool: StagingPool::default(), context }
    }

    /// Releases everything that was created in the device's context.
    pub fn clear(&self) {
        let service = lock(&self.service).take();
        drop(service);
        self.staging_pool.clear();
    }
}

pub(crate) struct DeviceTable {
    entries: Box<[OnceLock<DeviceEntry>]>,
    /// The topology with n foreign devices, at index n.
    topologies: Box<[OnceLock<Topology>]>,
    /// Number of foreign devices; stored after their topology.
    foreign_devices: AtomicU64,
    growing: Mutex<()>,
    found: usize,
    verdicts: Verdicts,
    services: Services,
}

/// What the service queues are opened with.
pub(crate) struct Services {
    /// Records events.
    pub tracer: Tracer,
    /// The timeout of waits.
    pub timeout: Duration,
    /// Waits for their work at shutdown.
    pub pending: Arc<PendingWork>,
}

impl DeviceTable {
    pub fn new(
        devices: Vec<Arc<dyn hal::Device>>,
        nodes: Vec<Node>,
        verdicts: Verdicts,
        services: Services,
    ) -> Self {
        let found = devices.len();
        let entries = devices.into_iter().map(|device| OnceLock::from(DeviceEntry::new(device)));
        let empty = std::iter::repeat_with(OnceLock::new).take(MAX_FOREIGN_DEVICES);
        let first = topology(nodes, &Topology::default(), &verdicts);
        let later = std::iter::repeat_with(OnceLock::new).take(MAX_FOREIGN_DEVICES);
        let device_table = Self {
            entries: entries.chain(empty).collect(),
            topologies: std::iter::once(OnceLock::from(first)).chain(later).collect(),
            foreign_devices: AtomicU64::new(0),
            growing: Mutex::new(()),
            found,
            verdicts,
            services,
        };
        device_table.acquaint(|_| true);
        device_table
    }

    /// Announces to devices whose objects they will import, before their contexts are created. Refuted routes are skipped,
    /// because a driver may have crashed there.
    fn acquaint(&self, with: impl Fn(DeviceIx) -> bool) {
        let wanted = |route: &&Route| {
            let refuted = route.verdict.state == VerdictState::Refuted;
            route.kind == RouteKind::ApiShare && !refuted && with(route.from)
        };
        for route in self.topology().routes().iter().filter(wanted) {
            self.entry(route.to).device.will_share_with(&self.entry(route.from).device);
        }
    }

    pub fn topology(&self) -> &Topology {
        let newest = self.foreign_devices.load(Ordering::Acquire) as usize;
        self.topologies[newest].get().expect("set before the count of foreign devices")
    }

    pub fn entry(&self, device: DeviceIx) -> &DeviceEntry {
        self.entries[device.get()].get().expect("an index of this hub's")
    }

    pub fn hal(&self, device: DeviceIx) -> &dyn hal::Device {
        &*self.entry(device).device
    }

    /// The timeout of waits.
    pub fn timeout(&self) -> Duration {
        self.services.timeout
    }

    /// The service queue of a device, for transfers and hand-overs for which the caller has named no queue.
    pub fn service_queue_state(&self, device: DeviceIx) -> Result<Arc<QueueState>> {
        let entry = self.entry(device);
        let mut slot = lock(&entry.service);
        match &*slot {
            Some(queue_state) => Ok(queue_state.clone()),
            None => {
                let (spec, Services { tracer, pending, .. }) =
                    (QueueSpec::default(), &self.services);
                let native = entry.device.queue(spec)?;
                let queue_state = QueueState::of(device, native, spec, None).traced(tracer);
                let queue_state = queue_state.drained_by(pending);
                tracer.service_queue(queue_state.number);
                Ok(slot.insert(queue_state).clone())
            }
        }
    }

    /// The verdicts that were stored when the hub was created.
    pub fn verdicts(&self) -> &Verdicts {
        &self.verdicts
    }

    /// Number of discovered devices; foreign devices come after them.
    pub fn found(&self) -> usize {
        self.found
    }

    /// The keeper of a device's foreign context; `None` for a discovered device, or if the context is no longer in use.
    pub fn context_of(&self, device: DeviceIx) -> Option<Arc<dyn Any + Send + Sync>> {
        let entry = self.entries[self.found..].get(device.get().checked_sub(self.found)?)?;
        lock(&entry.get()?.context).as_ref()?.upgrade()
    }

    /// Sets the foreign context of a device, without keeping the context alive.
    pub fn set_context(&self, device: DeviceIx, context: &Arc<dyn Any + Send + Sync>) {
        *lock(&self.entry(device).context) = Some(Arc::downgrade(context));
    }

    /// Adds a foreign device. Its id is derived from `known_as`, the id of the discovered device that it is another context of.
    pub fn add(&self, device: Arc<dyn hal::Device>, known_as: &str) -> Result<DeviceIx> {
        let _one_at_a_time = lock(&self.growing);
        let foreign_devices = self.foreign_devices.load(Ordering::Acquire) as usize;
        if foreign_devices == MAX_FOREIGN_DEVICES {
            return Err(Error::Busy {
                what: format!(
                    "all {MAX_FOREIGN_DEVICES} device entries for devices of foreign contexts are taken, or kept for other devices: \
                     drop contexts of this one first"
                ),
            });
        }
        let old = self.topology();
        let mut nodes = old.nodes().to_vec();
        let id = format!("{known_as}{FOREIGN_MARK}{}", foreign_devices + 1);
        nodes.push(Node { id, info: device.info().clone() });
        let new = topology(nodes, old, &self.verdicts);
        let place = self.found + foreign_devices;
        let fresh = self.entries[place].set(DeviceEntry::new(device)).is_ok()
            && self.topologies[foreign_devices + 1].set(new).is_ok();
        debug_assert!(fresh, "one grows it at a time");
        self.foreign_devices.store(foreign_devices as u64 + 1, Ordering::Release);
        let newcomer = DeviceIx(place as u16);
        self.acquaint(|from| from == newcomer);
        Ok(newcomer)
    }
}

/// Builds the topology of these devices. Verdicts belong to devices, whatever their context.
fn topology(nodes: Vec<Node>, old: &Topology, verdicts: &Verdicts) -> Topology {
    let known = |route: &Route| -> Option<Verdict> {
        let before = old.between(route.from, route.to).iter().find(|o| o.kind == route.kind);
        match before {
            Some(before) => Some(before.verdict.clone()),
            None => verdicts.find(&nodes[route.from.get()], &nodes[route.to.get()], route.kind),
        }
    };
    let routes = route::with_verdicts(route::candidates(&nodes), known);
    Topology::new(nodes, routes)
}
