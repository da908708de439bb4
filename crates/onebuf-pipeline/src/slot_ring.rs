//! The location of every slot of a ring: free, waiting before a stage, or held by a thread.
//!
//! Only the thread that holds a slot has its number, so the slots themselves need no locks.

use onebuf_hal::{
    Error,
    locks::{Condvar, Mutex, MutexGuard, lock},
};
use std::{
    collections::VecDeque,
    mem,
    sync::Arc,
    task::{Wake, Waker},
    time::{Duration, Instant},
};

/// What happens when the source is faster than the stages and the sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// The source waits. For files, memory, and senders with flow control.
    #[default]
    Block,
    /// Drops and counts the frame that has waited longest before the first stage.
    DropOldest,
    /// Drops and counts the frame that has just arrived.
    DropNewest,
}

/// A frame in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameInFlight {
    /// The slot that holds the frame.
    pub slot: usize,
    /// The frame's number, from zero.
    pub frame: u64,
    /// When the source finished filling the slot.
    pub filled: Instant,
    /// When the frame arrived at its current stage.
    pub came: Instant,
}

/// A part that failed, and its frame.
#[derive(Debug)]
pub(super) struct Failed {
    pub at: String,
    pub frame: u64,
    pub error: Error,
}

struct RingState {
    free: Vec<usize>,
    /// The frames that wait before each stage; the last entry is the sink's.
    waiting: Vec<VecDeque<FrameInFlight>>,
    /// How many parts, counted from the source, have ended and pass on nothing more.
    ended: usize,
    failed: Option<Failed>,
    /// For each part whether its waker was woken since it looked: the source is 0, the first stage is 1.
    woken: Vec<bool>,
    /// For each part how many threads sleep. Only those are woken, because waking takes a system call.
    sleeping: Vec<usize>,
}

pub(super) struct SlotRing {
    shared: Arc<SharedRing>,
}

/// What wakers keep of the ring.
struct SharedRing {
    state: Mutex<RingState>,
    /// By part: something that the part may wait for has happened.
    moved: Vec<Condvar>,
}

/// Wakes one part.
struct PartWaker {
    ring: Arc<SharedRing>,
    part: usize,
}

impl Wake for PartWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = lock(&self.ring.state);
        state.woken[self.part] = true;
        self.ring.tell(state, self.part);
    }
}

impl SharedRing {
    /// Wakes a part, if it sleeps, after a change of the state.
    fn tell(&self, state: MutexGuard<'_, RingState>, part: usize) {
        let sleeps = state.sleeping[part] > 0;
        drop(state);
        if sleeps {
            self.moved[part].notify_all();
        }
    }
}

impl SlotRing {
    /// Creates a ring with all slots free, for `stages` stages and the sink.
    pub fn new(slots: usize, stages: usize) -> Self {
        let waiting = (0..=stages).map(|_| VecDeque::with_capacity(slots)).collect();
        let free = (0..slots).rev().collect();
        let parts = stages + 2;
        let (woken, sleeping) = (vec![false; parts], vec![0; parts]);
        let state = RingState { free, waiting, ended: 0, failed: None, woken, sleeping };
        let moved = (0..parts).map(|_| Condvar::new()).collect();
        Self { shared: Arc::new(SharedRing { state: Mutex::new(state), moved }) }
    }

    /// A waker of a part: the source is 0, the first stage is 1, the sink is the last.
    pub fn waker(&self, part: usize) -> Waker {
        Arc::new(PartWaker { ring: self.shared.clone(), part }).into()
    }

    /// A free slot, if there is one and the pipeline has not failed.
    pub fn try_free(&self) -> Option<usize> {
        let mut state = lock(&self.shared.state);
        if state.failed.is_some() { None } else { state.free.pop() }
    }

    /// The next frame for a stage, if one waits.
    pub fn try_take(&self, stage: usize) -> Option<FrameInFlight> {
        let mut state = lock(&self.shared.state);
        if state.failed.is_some() { None } else { state.waiting[stage].pop_front() }
    }

    /// Whether no more frames will come to a stage.
    pub fn is_last(&self, stage: usize) -> bool {
        let state = lock(&self.shared.state);
        state.ended > stage && state.waiting[stage].is_empty()
    }

    /// Waits until the part was woken, or has something to begin with: the source a free slot, the others a frame; a part without
    /// any frames also for the end. Returns after `most` in any case.
    pub fn wait_part(&self, part: usize, most: Duration, has_none: bool) {
        self.wait_for(part, most, |state| match part {
            0 => !state.free.is_empty(),
            part => !state.waiting[part - 1].is_empty() || (has_none && state.ended >= part),
        });
    }

    /// Waits until the part was woken, for at most `most`.
    pub fn wait_woken(&self, part: usize, most: Duration) {
        self.wait_for(part, most, |_| false);
    }

    fn wait_for(&self, part: usize, most: Duration, also: impl Fn(&RingState) -> bool) {
        let mut state = lock(&self.shared.state);
        let until = Instant::now() + most;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let woken = mem::take(&mut state.woken[part]);
            if woken || also(&state) || state.failed.is_some() || left.is_zero() {
                return;
            }
            state = self.wait(state, part, Some(left));
        }
    }

    /// Waits for a free slot. Returns `None` if the pipeline has failed.
    pub fn take_free(&self) -> Option<usize> {
        let mut state = lock(&self.shared.state);
        loop {
            if state.failed.is_some() {
                return None;
            }
            match state.free.pop() {
                Some(slot) => return Some(slot),
                None => state = self.wait(state, 0, None),
            }
        }
    }

    pub fn put_free(&self, slot: usize) {
        let mut state = lock(&self.shared.state);
        state.free.push(slot);
        self.shared.tell(state, 0);
    }

    /// Adds a frame before the first stage. Returns how many frames were dropped so that the next one has a slot.
    pub fn enter(&self, in_flight: FrameInFlight, when_full: WhenFull) -> u64 {
        let mut state = lock(&self.shared.state);
        state.waiting[0].push_back(in_flight);
        let dropped = if state.free.is_empty() { state.drop_one(when_full) } else { None };
        // The source itself gets what is free now.
        state.free.extend(dropped);
        self.shared.tell(state, 1);
        dropped.is_some().into()
    }

    /// The next frames for a stage: a full batch, or fewer if the first has waited for `linger` or no more will come. `None`
    /// if nothing will come any more.
    pub fn take(&self, stage: usize, batch: usize, linger: Duration) -> Option<Vec<FrameInFlight>> {
        let mut state = lock(&self.shared.state);
        loop {
            let waiting = &state.waiting[stage];
            let since = waiting.front().map(|in_flight| in_flight.came.elapsed());
            let last = state.ended > stage;
            if state.failed.is_some() || (last && waiting.is_empty()) {
                return None;
            }
            let patient = since.is_none_or(|since| since < linger);
            if waiting.len() >= batch || (!waiting.is_empty() && (last || !patient)) {
                let n = waiting.len().min(batch);
                return Some(state.waiting[stage].drain(..n).collect());
            }
            let left = since.map(|since| linger.saturating_sub(since));
            state = self.wait(state, stage + 1, left);
        }
    }

    /// Passes frames on to the next stage.
    pub fn pass(&self, to: usize, in_flight: Vec<FrameInFlight>) {
        let mut state = lock(&self.shared.state);
        state.waiting[to].extend(in_flight);
        self.shared.tell(state, to + 1);
    }

    /// Marks a part as ended: the source is 0, the first stage is 1.
    pub fn end(&self, place: usize) {
        let mut state = lock(&self.shared.state);
        state.ended = place + 1;
        self.shared.tell(state, place + 1);
    }

    /// Stops the pipeline. Only the first reason is kept.
    pub fn fail(&self, why: Failed) {
        lock(&self.shared.state).failed.get_or_insert(why);
        self.shared.moved.iter().for_each(Condvar::notify_all);
    }

    pub fn has_failed(&self) -> bool {
        lock(&self.shared.state).failed.is_some()
    }

    pub fn into_failed(self) -> Option<Failed> {
        lock(&self.shared.state).failed.take()
    }

    /// How many frames are in flight, including those that a thread holds.
    #[cfg(test)]
    pub fn fill(&self, slots: usize) -> usize {
        slots - lock(&self.shared.state).free.len()
    }

    /// Lets a thread of a part sleep until something has happened.
    fn wait<'s>(
        &self,
        mut state: MutexGuard<'s, RingState>,
        part: usize,
        most: Option<Duration>,
    ) -> MutexGuard<'s, RingState> {
        state.sleeping[part] += 1;
        let moved = &self.shared.moved[part];
        let mut state = match most {
            None => moved.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner()),
            Some(most) => {
                let woken = moved.wait_timeout(state, most);
                woken.unwrap_or_else(|poisoned| poisoned.into_inner()).0
            }
        };
        state.sleeping[part] -= 1;
        state
    }
}

impl RingState {
    /// Drops a waiting frame that no stage has started, and returns its slot.
    fn drop_one(&mut self, when_full: WhenFull) -> Option<usize> {
        let entrance = &mut self.waiting[0];
        let dropped = match when_full {
            WhenFull::Block => None,
            WhenFull::DropOldest => entrance.pop_front(),
            WhenFull::DropNewest => entrance.pop_back(),
        };
        dropped.map(|in_flight| in_flight.slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn in_flight(slot: usize, frame: u64) -> FrameInFlight {
        let now = Instant::now();
        FrameInFlight { slot, frame, filled: now, came: now }
    }

    fn frames(in_flight: Option<Vec<FrameInFlight>>) -> Option<Vec<u64>> {
        in_flight.map(|in_flight| in_flight.iter().map(|in_flight| in_flight.frame).collect())
    }

    #[test]
    fn a_batch_is_whole_or_the_last() {
        let slot_ring = SlotRing::new(4, 1);
        for frame in 0..3 {
            let slot = slot_ring.take_free().unwrap();
            assert_eq!(slot_ring.enter(in_flight(slot, frame), WhenFull::Block), 0);
        }
        assert_eq!(frames(slot_ring.take(0, 2, LONG)), Some(vec![0, 1]));
        assert_eq!(
            frames(slot_ring.take(0, 2, Duration::ZERO)),
            Some(vec![2]),
            "it waited long enough"
        );
        slot_ring.end(0);
        assert_eq!(slot_ring.take(0, 2, LONG), None);
        slot_ring.pass(1, vec![in_flight(0, 0)]);
        slot_ring.end(1);
        assert_eq!(frames(slot_ring.take(1, 2, LONG)), Some(vec![0]), "the last");
        assert_eq!(slot_ring.take(1, 2, LONG), None);
    }

    #[test]
    fn a_full_ring_drops_what_nobody_has_begun() {
        for (when_full, left) in [(WhenFull::DropOldest, [1, 2]), (WhenFull::DropNewest, [0, 1])] {
            let slot_ring = SlotRing::new(3, 1);
            let mut dropped = 0;
            for frame in 0..3 {
                let slot = slot_ring.take_free().expect("there is always one");
                dropped += slot_ring.enter(in_flight(slot, frame), when_full);
            }
            assert_eq!((dropped, slot_ring.fill(3)), (1, 2), "{when_full:?}");
            assert_eq!(frames(slot_ring.take(0, 2, LONG)), Some(left.to_vec()), "{when_full:?}");
            // Other threads hold all slots now, so the next frame is dropped.
            let slot = slot_ring.take_free().unwrap();
            assert_eq!(slot_ring.enter(in_flight(slot, 3), when_full), 1);
        }
    }

    #[test]
    fn the_first_reason_to_stop_stays() {
        let slot_ring = SlotRing::new(1, 0);
        assert!(!slot_ring.has_failed());
        for at in ["stage", "sink"] {
            slot_ring.fail(Failed { at: at.into(), frame: 1, error: Error::invalid("late") });
        }
        assert_eq!((slot_ring.take_free(), slot_ring.take(0, 1, LONG)), (None, None));
        assert_eq!(slot_ring.into_failed().unwrap().at, "stage");
    }
}
