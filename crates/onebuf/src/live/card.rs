//! What is kept of a buffer for whoever watches: written by the program without a lock, read by the server's thread.

use crate::{
    RouteKind, Rung,
    sync::{Arc, Mutex, lock},
    topology::DeviceIx,
};
use std::sync::{
    Weak,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

/// The steps of the ladder, in its order.
pub(super) const RUNGS: [Rung; 6] = [
    Rung::SameQueue,
    Rung::Semaphore,
    Rung::Event,
    Rung::WaitValue,
    Rung::Callback,
    Rung::HostWait,
];

/// No hand-over yet.
const NEVER: u64 = u64::MAX;

/// One buffer's.
#[derive(Debug)]
pub(crate) struct Card {
    pub name: String,
    pub number: u64,
    pub bytes: u64,
    pub home: DeviceIx,
    pub sites: Vec<Sight>,
    pub hand_overs: AtomicU64,
    pub implied: AtomicU64,
    last: AtomicU64,
    cards: Arc<Cards>,
}

/// How a device sees the buffer.
#[derive(Debug)]
pub(crate) struct Sight {
    pub device: DeviceIx,
    kind: RouteKind,
    /// Its route failed: by staged copies from then on.
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

impl Card {
    /// It went from one device to another.
    pub fn note_hand_over(&self, from: DeviceIx, to: DeviceIx, rung: Rung) {
        self.hand_overs.fetch_add(1, Ordering::Relaxed);
        let packed = u64::from(from.0) << 32 | u64::from(to.0) << 16 | rung as u64;
        self.last.store(packed, Ordering::Relaxed);
        self.cards.rungs[rung as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A device's route failed.
    pub fn note_failure(&self, site: usize) {
        if let Some(sight) = self.sites.get(site) {
            sight.failed.store(true, Ordering::Relaxed);
        }
    }

    /// The last one.
    pub fn last(&self) -> Option<(DeviceIx, DeviceIx, Rung)> {
        let packed = self.last.load(Ordering::Relaxed);
        let rung = RUNGS.get((packed & 0xFFFF) as usize).filter(|_| packed != NEVER)?;
        Some((DeviceIx((packed >> 32) as u16), DeviceIx((packed >> 16) as u16), *rung))
    }
}

/// Those of all buffers that live, and what all hand-overs were.
#[derive(Debug, Default)]
pub(crate) struct Cards {
    all: Mutex<Vec<Weak<Card>>>,
    rungs: [AtomicU64; RUNGS.len()],
}

impl Cards {
    /// For a new buffer.
    pub fn add(
        self: &Arc<Self>,
        (name, number): (String, u64),
        bytes: u64,
        home: DeviceIx,
        sites: Vec<Sight>,
    ) -> Arc<Card> {
        let card = Arc::new(Card {
            name,
            number,
            bytes,
            home,
            sites,
            hand_overs: AtomicU64::new(0),
            implied: AtomicU64::new(0),
            last: AtomicU64::new(NEVER),
            cards: self.clone(),
        });
        let mut all = lock(&self.all);
        // Those of buffers that are gone go when the list would grow: nothing is to be done when a buffer is dropped.
        if all.len() == all.capacity() {
            all.retain(|card| card.strong_count() > 0);
        }
        all.push(Arc::downgrade(&card));
        card
    }

    /// Those of buffers that live, in the order of their making.
    pub fn living(&self) -> Vec<Arc<Card>> {
        lock(&self.all).iter().filter_map(Weak::upgrade).collect()
    }

    /// How many hand-overs there were by each rung.
    pub fn rungs(&self) -> [(Rung, u64); RUNGS.len()] {
        RUNGS.map(|rung| (rung, self.rungs[rung as usize].load(Ordering::Relaxed)))
    }
}
