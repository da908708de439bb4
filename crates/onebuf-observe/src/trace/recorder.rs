//! The event buffer, which keeps a limited number of the newest events.

use super::{Clock, Event};
use onebuf_core::observe::{Observer, Timed};
use onebuf_hal::{
    Profile,
    locks::{Mutex, lock},
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    time::Duration,
};

/// Pending device times are queried again when this many more launches are pending.
const LOOK_AGAIN: usize = 64;
/// The maximum number of pending launches. Each holds a driver's object.
const MOST_RUNNING: usize = 4096;

/// The row of an event in the viewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Track {
    /// A queue, by its number.
    Queue(usize),
    /// A part of a pipeline that has no queue.
    Part(&'static str),
}

impl Track {
    pub fn of(event: &Event) -> Self {
        event.queue.map_or_else(|| Self::Part(event.part.unwrap_or_default()), Self::Queue)
    }
}

/// The newest events of a hub.
pub(super) struct Recorder {
    most: usize,
    kept: Mutex<Kept>,
    /// The internal queues, which the program did not create.
    own: Mutex<BTreeSet<usize>>,
}

#[derive(Default)]
struct Kept {
    events: VecDeque<(Event, Option<Profile>)>,
    /// How many events were dropped before the first one kept.
    dropped: u64,
    /// Launches whose device times are pending, by their event's absolute number.
    running: VecDeque<(u64, Timed)>,
    look_at: usize,
}

impl Recorder {
    pub fn new(most: usize) -> Self {
        let kept = Kept { look_at: LOOK_AGAIN, ..Kept::default() };
        Self { most: most.max(1), kept: Mutex::new(kept), own: Mutex::default() }
    }

    pub fn catch_up(&self) {
        lock(&self.kept).look();
    }

    /// The numbers of the internal queues.
    pub fn service_queues(&self) -> BTreeSet<usize> {
        lock(&self.own).clone()
    }

    pub fn dropped(&self) -> u64 {
        lock(&self.kept).dropped
    }

    pub fn clear(&self) {
        *lock(&self.kept) = Kept { look_at: LOOK_AGAIN, ..Kept::default() };
    }

    fn push(&self, event: Event, timed: Option<Timed>) {
        let mut kept = lock(&self.kept);
        if kept.events.len() == self.most {
            kept.events.pop_front();
            kept.dropped += 1;
        }
        let number = kept.dropped + kept.events.len() as u64;
        kept.events.push_back((event, None));
        if let Some(timed) = timed {
            kept.running.push_back((number, timed));
            if kept.running.len() >= kept.look_at {
                kept.look();
            }
        }
    }

    /// All events kept. A launch with device times appears a second time, by the device's clock.
    pub fn events(&self) -> Vec<Event> {
        let mut kept = lock(&self.kept);
        kept.look();
        let shifts = kept.shifts();
        let mut events = Vec::with_capacity(kept.events.len());
        for (event, profile) in &kept.events {
            events.push(event.clone());
            let Some((profile, shift)) = profile.zip(shifts.get(&Track::of(event))) else {
                continue;
            };
            let at =
                |ns: u64| Duration::from_nanos(shift.saturating_add_unsigned(ns).max(0) as u64);
            let (start, end) = (at(profile.started_ns), at(profile.ended_ns));
            let mut on_device = event.clone();
            (on_device.start, on_device.end, on_device.clock) = (start, end, Clock::Device);
            events.push(on_device);
        }
        events
    }
}

impl Kept {
    /// Queries the device times of completed launches.
    fn look(&mut self) {
        for (number, timed) in std::mem::take(&mut self.running) {
            match timed.profile() {
                Ok(profile) => self.note(number, profile),
                Err(onebuf_hal::Error::Busy { .. }) => self.running.push_back((number, timed)),
                // The launch failed, or the driver reports no times.
                Err(error) => tracing::debug!(%error, "no device times for a launch"),
            }
        }
        let many = self.running.len().saturating_sub(MOST_RUNNING);
        self.running.drain(..many);
        self.look_at = self.running.len() + LOOK_AGAIN;
    }

    fn note(&mut self, number: u64, profile: Profile) {
        let at = number.checked_sub(self.dropped).map(|at| at as usize);
        if let Some((_, times)) = at.and_then(|at| self.events.get_mut(at)) {
            *times = Some(profile);
        }
    }

    /// The offset of each queue's clock: the smallest one for which no launch was queued before its call began.
    fn shifts(&self) -> BTreeMap<Track, i64> {
        let mut shifts = BTreeMap::new();
        for (event, profile) in &self.events {
            let Some(profile) = profile else { continue };
            let shift = event.start.as_nanos() as i64 - profile.queued_ns as i64;
            let most = shifts.entry(Track::of(event)).or_insert(shift);
            *most = shift.max(*most);
        }
        shifts
    }
}

impl Observer for Recorder {
    fn event(&self, event: Event, timed: Option<Timed>) {
        self.push(event, timed);
    }

    fn service_queue(&self, queue: usize) {
        lock(&self.own).insert(queue);
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recorder({} events)", lock(&self.kept).events.len())
    }
}
