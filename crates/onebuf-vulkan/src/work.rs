//! The work of a queue: recorded into a batch, which is submitted on request.
//!
//! Work that waits for a host signal is held back here and not by the driver: several queues of onebuf may share a
//! native queue, and none may block another.

use super::{
    batch::{Batch, Commands, Latch, Slot},
    block::{Block, BlockKind},
    device::{Context, Driver},
    event::Event,
    memory::Inner,
    shared_queue::{SemaphorePoint, Submission},
    timeline::Timeline,
};
use onebuf_hal::{
    Error, HostAccess, Result,
    host_signals::HostSignals,
    locks::{Arc, AtomicBool, Mutex, MutexGuard, Ordering, lock},
};
use onebuf_sys::vulkan::{vk, vk::Handle};
use std::{collections::VecDeque, fmt, sync::Weak, time::Duration};

/// How long dropping a queue waits for its work.
const FREE_WAIT: Duration = Duration::from_secs(10);
/// After this many commands a batch is submitted without a request.
const MOST_COMMANDS: u32 = 32;
/// The number of staging blocks kept for later copies.
const KEPT_STAGING: usize = 4;

/// The recorded and submitted work of a queue.
#[derive(Default)]
pub(super) struct State {
    /// The batch being recorded.
    pub open: Option<Batch>,
    /// Recorded batches that are held back, or that the driver has refused so far.
    backlog: VecDeque<Batch>,
    /// Submitted batches, in order.
    flying: VecDeque<Batch>,
    /// Points of other queues that the next batch waits for.
    after: Vec<(Arc<Timeline>, u64)>,
    latches: Vec<Arc<Latch>>,
    takes: Vec<vk::Semaphore>,
    /// Memory that other code's work on the native queue uses, and timelines that it waits for: kept by the next batch.
    noted: Vec<Arc<Inner>>,
    waited: Vec<Arc<Timeline>>,
    /// Reads of other queues that this queue waits for. Their bytes are copied to the caller only when a thread checks.
    pub unlanded: Vec<(Weak<RawQueue>, u64)>,
    /// The value of the newest recorded batch.
    newest: u64,
    idle: Vec<Slot>,
    staging: Vec<Block>,
}

impl State {
    /// The value of the newest recorded batch.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// Whether the next batch has anything to wait for.
    fn waits(&self) -> bool {
        !(self.after.is_empty() && self.latches.is_empty() && self.takes.is_empty())
    }

    /// Removes the newest batch, which will not be submitted. The next batch waits for what it waited for.
    fn take_back(&mut self, batch: &mut Batch) {
        self.newest -= 1;
        self.after.append(&mut batch.after);
        self.latches.append(&mut batch.latches);
        self.takes.append(&mut batch.takes);
        self.waited.append(&mut batch.waited);
        self.noted.append(&mut batch.noted);
    }
}

/// A queue of work. Events and host signals keep it alive.
pub(super) struct RawQueue {
    pub timeline: Arc<Timeline>,
    /// The index of the native queue.
    pub lane: usize,
    commands: Commands,
    pub profiling: bool,
    /// Whether other code submits to the native queue, too.
    is_given: AtomicBool,
    /// The host signals that later work waits for.
    pub host_signals: HostSignals,
    state: Mutex<State>,
}

impl RawQueue {
    pub fn new(context: Arc<Context>, lane: usize, profiling: bool) -> Result<Arc<RawQueue>> {
        let timeline = Arc::new(Timeline::new(context.clone())?);
        let Context { driver, table, .. } = &*context;
        let flags = vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER
            | vk::CommandPoolCreateFlags::TRANSIENT;
        let info = vk::CommandPoolCreateInfo::default()
            .queue_family_index(driver.family.index)
            .flags(flags);
        // SAFETY: a live device, a family that it has.
        let pool = driver.check(unsafe { table.create_command_pool(&info) })?;
        let commands = Commands { pool, level: context.lane(lane).level() };
        let (is_given, host_signals) = (AtomicBool::new(false), HostSignals::default());
        let state = Mutex::new(State { newest: timeline.submitted(), ..State::default() });
        let queue = RawQueue { timeline, lane, commands, profiling, is_given, host_signals, state };
        let queue = Arc::new(queue);
        context.enlist(&queue);
        Ok(queue)
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.timeline.context
    }

    pub fn driver(&self) -> &Arc<Driver> {
        &self.timeline.context.driver
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The batch being recorded, or a new one.
    pub fn open<'s>(&self, state: &'s mut State) -> Result<&'s mut Batch> {
        if state.open.is_none() {
            let context = self.context();
            let slot = match state.idle.pop() {
                Some(slot) => slot,
                None => Slot::new(context, self.commands, self.profiling)?,
            };
            match slot.begin(context) {
                Ok(()) => state.open = Some(Batch::of(slot, self.is_given())),
                Err(why) => {
                    state.idle.push(slot);
                    return Err(why);
                }
            }
        }
        state.open.as_mut().ok_or_else(|| Error::invalid("no batch is being recorded"))
    }

    /// Ends the batch being recorded. If the driver fails, its work is lost, and the caller gets the error.
    fn end(&self, state: &mut State) -> Result<()> {
        let Some(mut batch) = state.open.take() else { return Ok(()) };
        if let Err(why) = batch.end(self.context()) {
            // Its command buffer cannot be used any longer, and is freed with the pool.
            batch.slot.take().into_iter().for_each(|slot| slot.free(self.context()));
            self.recycle(state, &mut batch);
            return Err(why);
        }
        self.enqueue(state, batch);
        Ok(())
    }

    fn enqueue(&self, state: &mut State, mut batch: Batch) {
        state.newest += 1;
        batch.value = state.newest;
        batch.after = std::mem::take(&mut state.after);
        batch.latches = std::mem::take(&mut state.latches);
        batch.takes = std::mem::take(&mut state.takes);
        batch.waited = std::mem::take(&mut state.waited);
        batch.noted = std::mem::take(&mut state.noted);
        state.backlog.push_back(batch);
    }

    /// Submits every batch that nothing holds back. A batch that the driver refuses stays, and the next call tries it again.
    fn submit(&self, state: &mut State) -> Result<()> {
        while let Some(batch) = state.backlog.front().filter(|batch| batch.is_ready()) {
            self.submit_one(batch)?;
            self.timeline.note_submitted(batch.value);
            state.flying.extend(state.backlog.pop_front());
        }
        Ok(())
    }

    fn submit_one(&self, batch: &Batch) -> Result<()> {
        let waits = points(&batch.after, &batch.takes);
        let end = SemaphorePoint::timeline(self.timeline.raw, batch.value);
        let signals: Vec<_> = std::iter::once(end)
            .chain(batch.signals.iter().copied().map(SemaphorePoint::binary))
            .collect();
        let commands: Vec<_> =
            batch.slot.iter().map(|slot| slot.commands.as_raw() as usize).collect();
        batch.load();
        self.pass_on(&Submission { waits: &waits, commands: &commands, signals: &signals })
    }

    fn pass_on(&self, work: &Submission<'_>) -> Result<()> {
        let Context { driver, table, .. } = &**self.context();
        // SAFETY: commands that were recorded and are not pending; batches, and the queue's state, keep the semaphores.
        unsafe { self.context().lane(self.lane).submit(table, driver, work) }
    }

    /// Ends the batch being recorded, and submits what it can.
    pub fn flush(&self, state: &mut State) -> Result<()> {
        self.end(state)?;
        self.submit(state)
    }

    /// Flushes if the batch being recorded is full.
    pub fn flush_if_full(&self, state: &mut State) -> Result<()> {
        let full = state.open.as_ref().is_some_and(|batch| batch.commands >= MOST_COMMANDS);
        if full { self.flush(state) } else { Ok(()) }
    }

    /// Submits the one command recorded since the last `flush`. If the driver refuses it, the batch is removed, because the
    /// caller's memory is valid only until the error is returned.
    pub fn flush_own(self: &Arc<Self>, state: &mut State) -> Result<Event> {
        self.end(state)?;
        let value = state.newest;
        match self.submit(state) {
            Ok(()) => Ok(Event::new(self.clone(), value, None)),
            Err(why) => {
                if let Some(mut batch) = state.backlog.pop_back() {
                    state.take_back(&mut batch);
                    self.recycle(state, &mut batch);
                }
                Err(why)
            }
        }
    }

    /// Submits batches that a host signal held back. Returns whether there were any.
    pub fn pump(&self) -> bool {
        let mut state = self.lock();
        let before = state.backlog.len();
        if let Err(why) = self.submit(&mut state) {
            // The batch stays, and the next caller of this queue gets the error.
            tracing::warn!(device = %self.driver().info.name, "{why}");
        }
        state.backlog.len() < before
    }

    /// Returns an event after all work so far.
    pub fn mark(self: &Arc<Self>) -> Result<Event> {
        let mut state = self.lock();
        if self.is_given() {
            // Behind what other code has submitted.
            self.open(&mut state)?;
        }
        self.end(&mut state)?;
        if state.waits() {
            self.enqueue(&mut state, Batch::default());
        }
        self.submit(&mut state)?;
        let value = state.newest;
        drop(state);
        Ok(Event::new(self.clone(), value, None))
    }

    /// Makes later work wait for an event of another queue.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        event.check_host_signals()?;
        if Arc::ptr_eq(&event.timeline, &self.timeline) || event.is_reached()? {
            return Ok(());
        }
        let lands = event.queue.as_ref().filter(|queue| queue.lands_before(event.value));
        let mut state = self.lock();
        self.flush(&mut state)?;
        state.after.push((event.timeline.clone(), event.value));
        if let Some(queue) = lands {
            state.unlanded.push((Arc::downgrade(queue), event.value));
        }
        self.host_signals.extend(event.behind());
        drop(state);
        self.settle_if_given()
    }

    /// Whether other code submits to the native queue, too.
    pub fn is_given(&self) -> bool {
        self.is_given.load(Ordering::Acquire)
    }

    /// Lets other code submit to the native queue. Its work comes after all work so far, and before every later event.
    pub fn give(&self) -> Result<()> {
        self.is_given.store(true, Ordering::Release);
        self.settle()
    }

    /// Keeps memory that other code's work uses until the next event.
    pub fn note_use(&self, memory: &Arc<Inner>) -> Result<()> {
        self.lock().noted.push(memory.clone());
        self.give()
    }

    fn settle_if_given(&self) -> Result<()> {
        if self.is_given() { self.settle() } else { Ok(()) }
    }

    /// Submits everything, also waits that no batch has. If the driver cannot be given a part of it, because that waits for
    /// the host, the calling thread waits.
    fn settle(&self) -> Result<()> {
        let mut state = self.lock();
        self.flush(&mut state)?;
        let given = |(timeline, value): &(Arc<Timeline>, u64)| timeline.is_submitted(*value);
        let known = state.latches.is_empty() && state.after.iter().all(given);
        if known && state.backlog.is_empty() {
            return self.submit_waits(&mut state);
        }
        self.enqueue(&mut state, Batch::default());
        let (value, limit) = (state.newest, self.driver().post.limit());
        drop(state);
        match self.wait(value, limit)? {
            true => Ok(()),
            false => Err(Error::timeout("work that the next work of its queue waits for", limit)),
        }
    }

    /// Makes the native queue wait, without a batch.
    fn submit_waits(&self, state: &mut State) -> Result<()> {
        let waits = points(&state.after, &state.takes);
        if !waits.is_empty() {
            self.pass_on(&Submission { waits: &waits, commands: &[], signals: &[] })?;
            state.takes.clear();
            let after = std::mem::take(&mut state.after);
            state.waited.extend(after.into_iter().map(|(timeline, _)| timeline));
        }
        Ok(())
    }

    /// Transfers ownership of memory that others access: true acquires it, false releases it.
    pub fn transfer_ownership(&self, inner: &Arc<Inner>, steps: &[bool]) -> Result<()> {
        let mut state = self.lock();
        self.open(&mut state)?.transfer_ownership(self.context(), inner, steps);
        drop(state);
        self.settle_if_given()
    }

    /// Makes later work wait for a latch.
    pub fn hold(&self, latch: &Arc<Latch>) -> Result<()> {
        let mut state = self.lock();
        self.flush(&mut state)?;
        state.latches.push(latch.clone());
        Ok(())
    }

    /// Signals a semaphore after all work so far. Refused while that work is held back here, because other APIs could not know
    /// whether the signal is pending.
    pub fn signal(&self, semaphore: vk::Semaphore) -> Result<()> {
        let mut state = self.lock();
        self.flush(&mut state)?;
        self.enqueue(&mut state, Batch::signalling(semaphore));
        let given = self.submit(&mut state);
        let Some(mut held) = state.backlog.pop_back() else { return given };
        state.take_back(&mut held);
        given.and(Err(Error::unsupported(
            format!("a signal of work on {} that waits for another queue", self.driver().info.name),
            "work that the driver has been given",
        )))
    }

    /// Makes later work wait for a semaphore whose signal is pending.
    pub fn take(&self, semaphore: vk::Semaphore) -> Result<()> {
        let mut state = self.lock();
        self.flush(&mut state)?;
        state.takes.push(semaphore);
        drop(state);
        self.settle_if_given()
    }

    /// Drops the copies of batches from `since` on, because their call failed and the caller's memory is no longer valid.
    pub fn forget_callers(&self, since: u64) {
        let mut state = self.lock();
        let State { flying, backlog, .. } = &mut *state;
        for batch in flying.iter_mut().chain(backlog).filter(|batch| batch.value >= since) {
            batch.loads.clear();
            batch.landings.clear();
        }
    }

    /// Whether work up to `value` still has to copy bytes to a caller's memory.
    fn lands_before(&self, value: u64) -> bool {
        let state = self.lock();
        let batches = state.flying.iter().chain(&state.backlog);
        batches.into_iter().any(|batch| batch.value <= value && !batch.landings.is_empty())
    }

    /// Completes finished batches: copies their bytes to the callers, then releases what they used.
    pub fn sweep(&self) {
        let mut done = Vec::new();
        let mut state = self.lock();
        while let Some(front) = state.flying.front() {
            if !self.timeline.has_reached(front.value).unwrap_or(false) {
                break;
            }
            let Some(mut batch) = state.flying.pop_front() else { break };
            // Under the lock, so that no thread sees the batch as done before its bytes are copied.
            batch.land(self.context());
            self.recycle(&mut state, &mut batch);
            done.push(batch);
        }
        drop(state);
        // Not under the lock: this may drop the owner of any imported memory.
        drop(done);
    }

    /// Keeps the slot and the staging memory for reuse.
    fn recycle(&self, state: &mut State, batch: &mut Batch) {
        state.idle.extend(batch.slot.take());
        for block in batch.staging.drain(..) {
            match state.staging.len() < KEPT_STAGING {
                true => state.staging.push(block),
                false => block.free(&self.context().table),
            }
        }
    }

    /// Returns mapped staging memory of at least `bytes`, for the batch being recorded.
    pub fn stage(&self, state: &mut State, bytes: usize) -> Result<Block> {
        let fits = state.staging.iter().position(|block| block.bytes >= bytes as u64);
        if let Some(kept) = fits {
            return Ok(state.staging.swap_remove(kept));
        }
        let Context { driver, table, .. } = &**self.context();
        // All kept blocks are too small, and the next copy is probably as large as this one.
        state.staging.drain(..).for_each(|block| block.free(table));
        let made = Block::new(table, driver, bytes, BlockKind::Mapped(HostAccess::ReadWrite));
        made.map_err(|trouble| trouble.error(driver, bytes))
    }

    /// Retries submission on every queue of the device if the driver does not have the work up to `value` yet.
    pub fn urge(&self, value: u64) {
        if !self.timeline.is_submitted(value) {
            self.context().pump();
        }
    }

    /// Waits for work up to `value`, and for its copies. Returns false at the timeout.
    pub fn wait(&self, value: u64, timeout: Duration) -> Result<bool> {
        self.urge(value);
        let reached = self.timeline.wait(value, timeout)?;
        if reached {
            self.sweep();
        }
        Ok(reached)
    }

    /// Submits all work and waits for it. Returns whether it has ended.
    fn drain(&self, state: &mut State) -> bool {
        let given = self.flush(state).or_else(|_| self.flush(state));
        let known = given.is_ok() && state.backlog.is_empty();
        let last = state.flying.back().map_or(0, |batch| batch.value);
        // Retried after an error, because giving up leaks the queue.
        let waited = self.timeline.wait(last, FREE_WAIT);
        let ended = match waited.or_else(|_| self.timeline.wait(last, FREE_WAIT)) {
            Ok(reached) => reached,
            Err(why) => matches!(why, Error::DeviceLost { .. }),
        };
        if !known {
            tracing::error!(device = %self.driver().info.name, "work was lost with its queue");
        }
        ended
    }
}

/// The semaphores that work waits for.
fn points(after: &[(Arc<Timeline>, u64)], takes: &[vk::Semaphore]) -> Vec<SemaphorePoint> {
    let after =
        after.iter().map(|(timeline, value)| SemaphorePoint::timeline(timeline.raw, *value));
    after.chain(takes.iter().copied().map(SemaphorePoint::binary)).collect()
}

impl Drop for RawQueue {
    fn drop(&mut self) {
        let mut state = std::mem::take(&mut *self.lock());
        if !(state.noted.is_empty() && state.waited.is_empty()) {
            // Shows when the native queue uses them no longer.
            self.enqueue(&mut state, Batch::default());
        }
        if !self.drain(&mut state) {
            tracing::error!(device = %self.driver().info.name, "work does not end: queue leaked");
            std::mem::forget((state, self.timeline.clone()));
            return;
        }
        let context = self.context().clone();
        let State { open, backlog, flying, mut idle, mut staging, .. } = state;
        // The bytes of reads are not copied: there is no event left to report them.
        for mut batch in open.into_iter().chain(backlog).chain(flying) {
            idle.extend(batch.slot.take());
            staging.append(&mut batch.staging);
        }
        idle.into_iter().for_each(|slot| slot.free(&context));
        staging.into_iter().for_each(|block| block.free(&context.table));
        // SAFETY: created by `new`, destroyed once, with no command pending.
        unsafe { context.table.destroy_command_pool(self.commands.pool) };
    }
}

impl fmt::Debug for RawQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({} on {})", self.lane, self.driver().info.name)
    }
}
