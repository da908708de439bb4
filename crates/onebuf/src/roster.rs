//! The devices of a hub: those that were found, and seats for those that come with foreign contexts.
//!
//! The roster only grows, so that whatever is in it can be borrowed for as long as the hub lives. With each
//! new seat comes a new topology; the old ones stay, for whoever still looks at one.

use crate::{
    Error, Result,
    doctor::Verdicts,
    hal,
    hal::RouteKind,
    queue::Line,
    route::{self, bay::Bay},
    sync::{Arc, AtomicU64, Mutex, Ordering, lock},
    topology::{DeviceIx, Node, Route, State, Topology, Verdict},
};
use std::sync::OnceLock;

/// How many devices of foreign contexts a hub has room for at one time.
pub(crate) const GUESTS: usize = 32;

/// One device, and what the hub keeps for it.
pub(crate) struct Seat {
    pub device: Arc<dyn hal::Device>,
    /// A queue of our own for transfers and hand-overs; opened when first needed.
    pub service: Mutex<Option<Arc<Line>>>,
    /// Host memory for copies.
    pub bay: Bay,
}

impl Seat {
    fn new(device: Arc<dyn hal::Device>) -> Self {
        Self { device, service: Mutex::new(None), bay: Bay::default() }
    }

    /// Lets go of everything that the device's context made.
    pub fn clear(&self) {
        let service = lock(&self.service).take();
        drop(service);
        self.bay.clear();
    }
}

pub(crate) struct Roster {
    seats: Box<[OnceLock<Seat>]>,
    /// The n-th has n guests.
    topologies: Box<[OnceLock<Topology>]>,
    /// How many guests there are; their topology was set before.
    guests: AtomicU64,
    growing: Mutex<()>,
    found: usize,
    verdicts: Verdicts,
}

impl Roster {
    pub fn new(devices: Vec<Arc<dyn hal::Device>>, nodes: Vec<Node>, verdicts: Verdicts) -> Self {
        let found = devices.len();
        let seats = devices.into_iter().map(|device| OnceLock::from(Seat::new(device)));
        let empty = std::iter::repeat_with(OnceLock::new).take(GUESTS);
        let first = topology(nodes, &Topology::default(), &verdicts);
        let later = std::iter::repeat_with(OnceLock::new).take(GUESTS);
        let roster = Self {
            seats: seats.chain(empty).collect(),
            topologies: std::iter::once(OnceLock::from(first)).chain(later).collect(),
            guests: AtomicU64::new(0),
            growing: Mutex::new(()),
            found,
            verdicts,
        };
        roster.acquaint(|_| true);
        roster
    }

    /// Tells devices whose objects they will be asked to share, while their contexts are still to be made. Not where that is
    /// known not to work: a driver that was seen to crash is left alone.
    fn acquaint(&self, with: impl Fn(DeviceIx) -> bool) {
        let wanted = |route: &&Route| {
            let refuted = route.verdict.state == State::Refuted;
            route.kind == RouteKind::ApiShare && !refuted && with(route.from)
        };
        for route in self.topology().routes().iter().filter(wanted) {
            self.seat(route.to).device.will_share_with(&self.seat(route.from).device);
        }
    }

    pub fn topology(&self) -> &Topology {
        let newest = self.guests.load(Ordering::Acquire) as usize;
        self.topologies[newest].get().expect("set before the count of guests")
    }

    pub fn seat(&self, device: DeviceIx) -> &Seat {
        self.seats[device.get()].get().expect("an index of this hub's")
    }

    /// What was remembered when it was made.
    pub fn verdicts(&self) -> &Verdicts {
        &self.verdicts
    }

    /// How many devices were found; guests come after them.
    pub fn found(&self) -> usize {
        self.found
    }

    /// Room for one more device: known by the id of the one that it is another context of.
    pub fn add(&self, device: Arc<dyn hal::Device>, known_as: &str) -> Result<DeviceIx> {
        let _one_at_a_time = lock(&self.growing);
        let guests = self.guests.load(Ordering::Acquire) as usize;
        if guests == GUESTS {
            return Err(Error::Busy {
                what: format!(
                    "all {GUESTS} seats for devices of foreign contexts are taken, or kept for other devices: \
                     drop contexts of this one first"
                ),
            });
        }
        let old = self.topology();
        let mut nodes = old.nodes().to_vec();
        let id = format!("{known_as}{GUEST_MARK}{}", guests + 1);
        nodes.push(Node { id, info: device.info().clone() });
        let new = topology(nodes, old, &self.verdicts);
        let place = self.found + guests;
        let fresh = self.seats[place].set(Seat::new(device)).is_ok()
            && self.topologies[guests + 1].set(new).is_ok();
        debug_assert!(fresh, "one grows it at a time");
        self.guests.store(guests as u64 + 1, Ordering::Release);
        let newcomer = DeviceIx(place as u16);
        self.acquaint(|from| from == newcomer);
        Ok(newcomer)
    }
}

/// In a guest's id, between that of the device it is another context of and its number.
pub(crate) const GUEST_MARK: char = '@';

/// Every route between these, with what is known of each: of the device, whatever its context.
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
