//! Statistics of each buffer for viewers: the program updates them without a lock, and the server's thread reads them.

use onebuf_core::{
    observe::{BufferObserver, NewBuffer, Observer},
    topology::DeviceIx,
};
use onebuf_hal::{
    RouteKind, SyncMethod,
    locks::{Arc, Mutex, lock},
};
use std::sync::{
    Weak,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

/// No hand-over yet.
const NEVER: u64 = u64::MAX;

/// The statistics of one buffer.
#[derive(Debug)]
pub(super) struct BufferStatistics {
    pub name: String,
    pub number: u64,
    pub bytes: u64,
    pub home: DeviceIx,
    pub aliases: Vec<Sight>,
    pub hand_overs: AtomicU64,
    pub implied: AtomicU64,
    last: AtomicU64,
    sync_methods: Arc<[AtomicU64; SyncMethod::ALL.len()]>,
}

/// A device's route to the buffer.
#[derive(Debug)]
pub(super) struct Sight {
    pub device: DeviceIx,
    kind: RouteKind,
    /// The route failed; staged copies replace it.
    failed: AtomicBool,
}

impl Sight {
    pub fn new(device: DeviceIx, kind: RouteKind) -> Self {
        Self { device, kind, failed: AtomicBool::new(false) }
    }

    pub fn kind(&self) -> RouteKind {
        if self.failed.load(Ordering::Relaxed) { RouteKind::Staged } else { self.kind }
    }
}

impl BufferObserver for BufferStatistics {
    fn handed_over(&self, from: DeviceIx, to: DeviceIx, sync_method: SyncMethod) {
        self.hand_overs.fetch_add(1, Ordering::Relaxed);
        let packed = u64::from(from.0) << 32 | u64::from(to.0) << 16 | sync_method as u64;
        self.last.store(packed, Ordering::Relaxed);
        self.sync_methods[sync_method as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn copied_implicitly(&self, bytes: u64) {
        self.implied.fetch_add(bytes, Ordering::Relaxed);
    }

    fn route_failed(&self, route: usize) {
        if let Some(sight) = self.aliases.get(route) {
            sight.failed.store(true, Ordering::Relaxed);
        }
    }
}

impl BufferStatistics {
    /// The last hand-over: from, to, sync method.
    pub fn last(&self) -> Option<(DeviceIx, DeviceIx, SyncMethod)> {
        let packed = self.last.load(Ordering::Relaxed);
        let sync_method =
            SyncMethod::ALL.get((packed & 0xFFFF) as usize).filter(|_| packed != NEVER)?;
        Some((DeviceIx((packed >> 32) as u16), DeviceIx((packed >> 16) as u16), *sync_method))
    }
}

/// The statistics of all live buffers, and the totals of all hand-overs.
#[derive(Debug, Default)]
pub(super) struct StatisticsTable {
    all: Mutex<Vec<Weak<BufferStatistics>>>,
    sync_methods: Arc<[AtomicU64; SyncMethod::ALL.len()]>,
}

impl Observer for StatisticsTable {
    fn wants_events(&self) -> bool {
        false
    }

    fn buffer_made(&self, buffer: &NewBuffer) -> Option<Arc<dyn BufferObserver>> {
        let aliases = buffer.routes.iter().map(|&(device, kind)| Sight::new(device, kind));
        let statistics = Arc::new(BufferStatistics {
            name: buffer.name.clone(),
            number: buffer.number,
            bytes: buffer.bytes,
            home: buffer.home,
            aliases: aliases.collect(),
            hand_overs: AtomicU64::new(0),
            implied: AtomicU64::new(0),
            last: AtomicU64::new(NEVER),
            sync_methods: self.sync_methods.clone(),
        });
        let mut all = lock(&self.all);
        // Entries of dropped buffers are removed when the list would grow, so that dropping a buffer costs nothing.
        if all.len() == all.capacity() {
            all.retain(|statistics| statistics.strong_count() > 0);
        }
        all.push(Arc::downgrade(&statistics));
        Some(statistics)
    }
}

impl StatisticsTable {
    /// The statistics of live buffers, in the order of creation.
    pub fn living(&self) -> Vec<Arc<BufferStatistics>> {
        lock(&self.all).iter().filter_map(Weak::upgrade).collect()
    }

    /// The number of hand-overs by each sync method.
    pub fn sync_methods(&self) -> [(SyncMethod, u64); SyncMethod::ALL.len()] {
        SyncMethod::ALL.map(|sync_method| {
            (sync_method, self.sync_methods[sync_method as usize].load(Ordering::Relaxed))
        })
    }
}
