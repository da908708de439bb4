//! Other APIs' work that a queue waits for on the device: by semaphores, by numbers in memory, or in a shared context. None
//! of those say how it ended, and where it fails the wait may never end. So it stays known until the queue has come past it.
//!
//! No driver is called under a lock: a hand-over from another thread would wait for that.

use super::{QueuePoint, QueueState, watch::Watch};
use onebuf_hal::{
    self as hal, Result,
    locks::{Arc, AtomicU64, Mutex, Ordering, lock},
};
use std::{
    collections::VecDeque,
    sync::{OnceLock, Weak},
};

/// So many are kept before those that are over are looked for.
pub(super) const MOST: usize = 32;

/// Of so many queues it is remembered what their last signal was behind.
const SIGNALS: usize = 8;

/// What one queue waits for.
#[derive(Debug, Default)]
pub(super) struct Joined {
    /// The oldest first.
    senders: Mutex<VecDeque<Arc<Sender>>>,
    /// How many waits are being enqueued that are not among them yet.
    coming: AtomicU64,
    /// Queues by their numbers, and how many pieces of their work it is behind, whatever else happens.
    behind: Mutex<VecDeque<(usize, u64)>>,
    /// Of those who ask and do not wait.
    pub asked: Mutex<Option<Watch>>,
}

/// One piece of it.
#[derive(Debug)]
struct Sender {
    /// Beside the line, which it does not keep: two lines that wait for each other would keep each other for ever.
    hal: Arc<dyn hal::Queue>,
    queue_state: Weak<QueueState>,
    /// How many pieces of its work there are up to what is waited for: the signal itself, where there is one.
    at: u64,
    /// Where the waiting queue waits for it first.
    since: u64,
    /// The wait is over when that queue has come so far.
    until: u64,
    /// What tells how the work ended. `None` where the end of the wait says that it ended well: a signal does not come where
    /// the work before it failed.
    event: Option<Arc<dyn hal::Event>>,
    /// Asked while the wait goes on. For a signal it is made when somebody has waited for so long.
    watch: OnceLock<Arc<dyn hal::Event>>,
}

impl Joined {
    /// Whether the queue waits for nobody's work, as far as is known.
    pub fn is_empty(&self) -> bool {
        self.coming.load(Ordering::Acquire) == 0 && lock(&self.senders).is_empty()
    }

    /// Enqueues a wait and notes it. Who waits behind it from another thread meanwhile watches already.
    pub fn expect<T>(&self, enqueue: impl FnOnce() -> T) -> T {
        self.coming.fetch_add(1, Ordering::AcqRel);
        let enqueued = enqueue();
        self.coming.fetch_sub(1, Ordering::AcqRel);
        enqueued
    }

    /// Whether the queue waits already for a signal that is behind that work, or has.
    pub fn is_behind(&self, work: &QueuePoint) -> bool {
        let covers = |(queue_state, covered): &(usize, u64)| {
            *queue_state == work.queue_state.number && *covered >= work.at
        };
        work.own.is_none() && lock(&self.behind).iter().any(covers)
    }

    /// The queue is behind so many pieces of another's work. Of the queues, those met last are remembered.
    pub fn put_behind(&self, queue_state: usize, covered: u64) {
        let mut behind = lock(&self.behind);
        let known = behind.iter().position(|(known, _)| *known == queue_state);
        let before = known.and_then(|at| behind.remove(at)).map_or(0, |(_, before)| before);
        behind.push_front((queue_state, covered.max(before)));
        behind.truncate(SIGNALS);
    }

    /// Work whose event tells how it ended.
    pub fn note(&self, work: &QueuePoint, event: &Arc<dyn hal::Event>, until: u64) {
        let event = Some(event.clone());
        self.push(Sender { event, ..Sender::of(&work.queue_state, work.at, until) });
    }

    /// Work whose failure is the queue's own as well; but it may never end.
    pub fn note_watched(&self, work: &QueuePoint, event: &Arc<dyn hal::Event>, until: u64) {
        let watch = OnceLock::from(event.clone());
        self.push(Sender { watch, ..Sender::of(&work.queue_state, work.at, until) });
    }

    /// A signal of that queue's, or its number in memory, enqueued as its work up to `at`. A later one takes the place of an
    /// earlier one that nobody has asked after. There are never more than there are semaphores under way: see
    /// [`Joined::pass`].
    pub fn note_signal(&self, queue_state: &Arc<QueueState>, at: u64, until: u64) {
        let mut new = Sender::of(queue_state, at, until);
        let mut all = lock(&self.senders);
        let Some(old) = all.iter_mut().find(|old| new.replaces(old)) else {
            return all.push_back(Arc::new(new));
        };
        new.since = old.since;
        match Arc::get_mut(old) {
            Some(place) => *place = new,
            None => *old = Arc::new(new),
        }
    }

    fn push(&self, sender: Sender) {
        let mut all = lock(&self.senders);
        all.push_back(Arc::new(sender));
        let many = all.len().saturating_sub(MOST);
        drop(all);
        if many > 0 {
            self.thin_out(many);
        }
    }

    /// Where nobody asks the queue for its end, what is over goes, so many at most; the oldest is asked first, for the others
    /// are hardly done before it. Of what has failed one stays for whoever waits.
    fn thin_out(&self, many: usize) {
        let (mut gone, mut failed) = (0, false);
        for sender in self.all() {
            let goes = match sender.ask() {
                Ok(false) => return,
                Ok(true) => true,
                Err(_) => sender.is_over() && std::mem::replace(&mut failed, true),
            };
            gone += usize::from(goes && self.remove(&sender));
            if gone >= many {
                return;
            }
        }
    }

    /// An error when some of it has failed that the queue waits for as its work up to `upto`, or that such work waits for
    /// itself. It stays known: the queue may never go on. `seen` are queues by their numbers, and up to where.
    pub fn check(&self, upto: u64, seen: &mut Vec<(usize, u64)>) -> Result<()> {
        let mut all = self.all().into_iter().filter(|sender| sender.since <= upto);
        all.try_for_each(|sender| sender.check(seen))
    }

    /// The queue has come so far: its waits up to there are over.
    pub fn pass(&self, reached: u64) {
        let is_over = |sender: &Arc<Sender>| sender.event.is_none() && sender.until <= reached;
        let mut all = lock(&self.senders);
        let over: Vec<_> = all.iter().filter(|sender| is_over(sender)).cloned().collect();
        all.retain(|sender| !is_over(sender));
        drop(all);
        // Only now: they may be the last to keep a native queue.
        drop(over);
    }

    /// The same, and how the work ended, as far as it has. The rest is asked again, and so is what comes behind a failure.
    pub fn tell(&self, reached: u64) -> Result<()> {
        self.pass(reached);
        if let Ok(mut asked) = self.asked.try_lock() {
            *asked = None;
        }
        let mut all = self.all().into_iter().filter(|sender| sender.event.is_some());
        all.try_for_each(|sender| match sender.ask() {
            Ok(false) => Ok(()),
            Err(why) if !sender.is_over() => Err(why),
            // Whoever takes it out tells.
            ended => {
                if self.remove(&sender) {
                    ended.map(drop)
                } else {
                    Ok(())
                }
            }
        })
    }

    fn all(&self) -> Vec<Arc<Sender>> {
        lock(&self.senders).iter().cloned().collect()
    }

    /// Whether it was still there.
    fn remove(&self, sender: &Arc<Sender>) -> bool {
        let mut all = lock(&self.senders);
        let at = all.iter().position(|known| Arc::ptr_eq(known, sender));
        at.and_then(|at| all.remove(at)).is_some()
    }

    #[cfg(all(test, not(onebuf_shuttle)))]
    pub fn count(&self) -> usize {
        lock(&self.senders).len()
    }
}

impl Sender {
    fn of(queue_state: &Arc<QueueState>, at: u64, until: u64) -> Sender {
        let (hal, queue_state) = (queue_state.hal.clone(), Arc::downgrade(queue_state));
        Sender { hal, queue_state, at, since: until, until, event: None, watch: OnceLock::new() }
    }

    fn replaces(&self, old: &Sender) -> bool {
        let unasked = old.event.is_none() && old.watch.get().is_none();
        unasked && Weak::ptr_eq(&self.queue_state, &old.queue_state) && self.at >= old.at
    }

    /// Whether it is over.
    fn ask(&self) -> Result<bool> {
        if let Some(event) = self.event.as_ref().or(self.watch.get()) {
            return event.poll();
        }
        if self.queue_state.upgrade().is_some_and(|queue_state| queue_state.has_reached(self.at)) {
            return Ok(true);
        }
        let made = self.hal.watch()?;
        self.watch.get_or_init(|| made).poll()
    }

    /// Whether it has certainly ended, well or not.
    fn is_over(&self) -> bool {
        self.event.as_ref().or(self.watch.get()).is_some_and(|event| event.is_over())
    }

    /// An error when it has failed, or what it waits for itself.
    fn check(&self, seen: &mut Vec<(usize, u64)>) -> Result<()> {
        if self.ask()? {
            return Ok(());
        }
        let Some(queue_state) = self.queue_state.upgrade() else { return Ok(()) };
        if seen.iter().any(|(number, upto)| *number == queue_state.number && *upto >= self.at) {
            return Ok(());
        }
        seen.push((queue_state.number, self.at));
        queue_state.joined.check(self.at, seen)
    }
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use crate::{Probe, Queue, fake::FakeConfig};
    use onebuf_hal::{Result, locks::Arc};

    /// A queue of each of two devices.
    fn queues(probe: &Arc<Probe>) -> [Queue; 2] {
        let builder = crate::builder().without(["opencl", "cuda", "vulkan", "gl"]);
        let fake = FakeConfig { probe: Some(probe.clone()), ..FakeConfig::default() };
        let hub = builder.without(["hip"]).fake(fake.clone()).fake(fake).build().unwrap();
        ["fake:0", "fake:1"].map(|id| hub.device(id).unwrap().queue().unwrap())
    }

    fn check(queue: &Queue) -> Result<()> {
        queue.queue_state.joined.check(u64::MAX, &mut Vec::new())
    }

    #[test]
    fn a_signal_is_behind_all_that_its_queue_was_given() {
        let [a, b] = queues(&Probe::new());
        let [first, second, third] = [0; 3].map(|_| a.queue_state.note());
        b.queue_state.note();
        let joined = &b.queue_state.joined;
        joined.put_behind(a.queue_state.number, second.at);
        joined.note_signal(&a.queue_state, first.at, 5);
        let behind =
            [&first, &second, &third, &b.queue_state.note()].map(|work| joined.is_behind(work));
        assert_eq!(behind, [true, true, false, false], "the last is of another queue");
        joined.tell(4).unwrap();
        assert!(!joined.is_empty(), "the queue has not come to the wait");
        joined.tell(5).unwrap();
        assert!(joined.is_empty());
        assert!(joined.is_behind(&second) && !joined.is_behind(&third), "that stays so");
    }

    /// However many hand-overs there were.
    #[test]
    fn a_sender_is_asked_once_and_late() {
        let probe = Probe::new();
        let [a, b] = queues(&probe);
        probe.reset();
        for _ in 0..40 {
            b.queue_state.joined.note_signal(&a.queue_state, a.queue_state.advance(), 40);
        }
        assert_eq!(probe.calls(), 0);
        check(&b).unwrap();
        let marks = probe.trace().iter().filter(|call| **call == "fake_mark").count();
        assert_eq!(marks, 1, "{:?}", probe.trace());
    }

    #[test]
    fn a_dead_sender_is_told_until_its_signal_has_come() {
        let probe = Probe::new();
        let [a, b] = queues(&probe);
        b.queue_state.joined.note_signal(&a.queue_state, a.queue_state.advance(), 1);
        probe.fail_always("fake_mark", -5);
        assert!(check(&b).is_err() && check(&b).is_err());
        b.queue_state.joined.tell(1).unwrap();
        check(&b).unwrap();
    }

    #[test]
    fn queues_that_wait_for_each_other_do_not_keep_each_other() {
        let [a, b] = queues(&Probe::new());
        a.queue_state.joined.note_signal(&b.queue_state, b.queue_state.advance(), 1);
        b.queue_state.joined.note_signal(&a.queue_state, a.queue_state.advance(), 1);
        let queue_states = [&a, &b].map(|queue| Arc::downgrade(&queue.queue_state));
        drop((a, b));
        assert!(queue_states.iter().all(|queue_state| queue_state.upgrade().is_none()));
    }
}
