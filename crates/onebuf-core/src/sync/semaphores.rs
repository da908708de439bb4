//! Semaphores between queues of different APIs on one chip: the `semaphore` sync method.
//!
//! A binary semaphore alternates between one signal and one wait for it. So each hand-over gets its own semaphore, which is
//! reused only once its wait is known to have ended without an error. A signal that no queue waited for, or a wait whose signal
//! never came, cannot affect another hand-over.

use super::Pair;
use crate::{
    device_table::DeviceTable,
    queue_state::{QueuePoint, QueueState},
    topology::DeviceIx,
};
use onebuf_hal::{
    self as hal, DeviceInfo, Error, Result,
    locks::{Arc, Mutex, lock},
};
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    os::fd::AsFd,
    time::{Duration, Instant},
};

/// Number of hand-overs whose completion is queried with one event.
const BATCH: usize = 16;
/// Maximum number of semaphores in use for one pair of devices.
const MOST: usize = 512;
/// How long dropping a hub waits for work that uses its semaphores.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// The semaphores of a hub, by sender and receiver; `None` if the two devices cannot share one.
#[derive(Debug, Default)]
pub(crate) struct Semaphores(Mutex<HashMap<[DeviceIx; 2], Option<Arc<Exchange>>>>);

impl Semaphores {
    /// Makes the receiver's later work wait for all work of the sender so far. Returns the queue points of the signal and of
    /// the wait.
    pub fn join(
        &self,
        devices: &DeviceTable,
        sender: &Arc<QueueState>,
        receiver: &Arc<QueueState>,
    ) -> Result<[u64; 2]> {
        let ends = [sender.device, receiver.device];
        let mut known = lock(&self.0);
        let exchange =
            known.entry(ends).or_insert_with(|| Exchange::between(devices, ends)).clone();
        drop(known);
        exchange.ok_or_else(no_maker)?.join(devices, sender, receiver)
    }
}

fn no_maker() -> Error {
    let needs = "two devices of one chip that import semaphores, and one that exports them";
    Error::unsupported("a semaphore between two queues", needs)
}

/// The device, of the same chip, that creates semaphores which queues of both devices can signal and wait on.
pub(super) fn maker(pair: &Pair<'_>) -> Option<DeviceIx> {
    let [a, b] = pair.infos()?;
    let one_chip = |other: &DeviceInfo| a.physical.same_chip(&other.physical);
    let makes = |device: &DeviceIx| {
        let info = &pair.topology.node(*device).info;
        info.caps.exports_semaphores && one_chip(info)
    };
    let both = a.caps.imports_semaphores && b.caps.imports_semaphores && one_chip(b);
    both.then(|| pair.topology.indices().find(makes)).flatten()
}

/// The semaphores by which one device's queues signal another's.
#[derive(Debug)]
struct Exchange {
    maker: DeviceIx,
    ends: [DeviceIx; 2],
    stock: Mutex<Stock>,
}

/// One semaphore: the sender's, the receiver's and its creator's handle.
#[derive(Debug)]
struct Link {
    far: Arc<dyn hal::Semaphore>,
    near: Arc<dyn hal::Semaphore>,
    _own: Arc<dyn hal::Semaphore>,
}

/// A semaphore in use: the queue points of its signal and of its wait.
#[derive(Debug)]
struct Used {
    link: Link,
    sent: QueuePoint,
    taken: QueuePoint,
}

impl Exchange {
    fn between(devices: &DeviceTable, ends: [DeviceIx; 2]) -> Option<Arc<Exchange>> {
        let [sender, receiver] = ends;
        let pair = Pair::between(devices.topology(), sender, receiver);
        let maker = maker(&pair).filter(|_| !pair.is_foreign())?;
        Some(Arc::new(Exchange { maker, ends, stock: Mutex::default() }))
    }

    /// Signals after all work of the sender so far, and makes the receiver wait for that.
    fn join(
        &self,
        devices: &DeviceTable,
        sender: &Arc<QueueState>,
        receiver: &Arc<QueueState>,
    ) -> Result<[u64; 2]> {
        let link = self.take(devices)?;
        let sent = sender.hal.signal(&*link.far);
        let joined = sent.and_then(|()| receiver.hal.wait_signal(&*link.near));
        let used = Used { link, sent: sender.note(), taken: receiver.note() };
        let places = [used.sent.at, used.taken.at];
        let mut stock = lock(&self.stock);
        match &joined {
            Ok(()) => stock.fresh.push(used),
            // There may be a signal without a wait.
            Err(_) => stock.spent.push(used),
        }
        joined.map(|()| places)
    }

    fn take(&self, devices: &DeviceTable) -> Result<Link> {
        let mut stock = lock(&self.stock);
        if let Some(link) = stock.next() {
            return Ok(link);
        }
        if let Some(why) = &stock.refused {
            return Err(why.clone());
        }
        if stock.under_way() >= MOST {
            let what = format!("keeping more than {MOST} semaphores pending between two devices");
            return Err(Error::unsupported(what, "an occasional wait for the receiving queue"));
        }
        let made = self.make(devices);
        match &made {
            Ok(_) => stock.made += 1,
            // If the first attempt failed, later hand-overs do not try again.
            Err(why) if stock.made == 0 => stock.refused = Some(why.clone()),
            Err(_) => {}
        }
        made
    }

    fn make(&self, devices: &DeviceTable) -> Result<Link> {
        let made = devices.hal(self.maker).semaphore()?;
        let end = |device| match device == self.maker {
            true => Ok(made.own.clone()),
            false => devices.hal(device).import_semaphore(made.fd.as_fd()),
        };
        let [far, near] = self.ends.map(end);
        Ok(Link { far: far?, near: near?, _own: made.own })
    }
}

/// The semaphores of an exchange, by state.
#[derive(Debug, Default)]
struct Stock {
    /// Neither signalled nor waited on: ready for use.
    idle: Vec<Link>,
    /// In use, and not queried yet.
    fresh: Vec<Used>,
    /// In use, and queried in batches. Sorted by the waiting queue, so that a slow queue does not delay semaphores of others.
    busy: BTreeMap<usize, VecDeque<Vec<Used>>>,
    /// In an unknown state. They are destroyed once no work can use them any more.
    spent: Vec<Used>,
    made: usize,
    /// Why the first semaphore could not be created.
    refused: Option<Error>,
}

impl Stock {
    fn next(&mut self) -> Option<Link> {
        if self.idle.is_empty() {
            self.take_back_known();
        }
        if self.idle.is_empty() {
            self.ask();
            self.collect();
        }
        self.idle.pop()
    }

    /// Reclaims semaphores whose queue is known to be past the wait, without a driver call.
    fn take_back_known(&mut self) {
        let is_known = |used: &Used| used.taken.is_known();
        let (over, fresh): (Vec<_>, _) =
            std::mem::take(&mut self.fresh).into_iter().partition(is_known);
        self.fresh = fresh;
        self.idle.extend(links(over));
    }

    fn under_way(&self) -> usize {
        let busy: usize = self.busy.values().flatten().map(Vec::len).sum();
        self.fresh.len() + busy + self.spent.len()
    }

    /// Queries many waits at once: one event per queue covers them all.
    fn ask(&mut self) {
        if self.fresh.len() < BATCH {
            return;
        }
        let mut by_queue = BTreeMap::<usize, Vec<Used>>::new();
        for used in std::mem::take(&mut self.fresh) {
            by_queue.entry(used.taken.queue_state.number).or_default().push(used);
        }
        for (queue_state, batch) in by_queue {
            match is_over(&batch) {
                Ok(true) => self.idle.extend(links(batch)),
                Ok(false) => self.busy.entry(queue_state).or_default().push_back(batch),
                Err(_) => self.spent.extend(batch),
            }
        }
    }

    /// Reclaims semaphores whose wait has ended without an error, and destroys unknown ones that are no longer used.
    fn collect(&mut self) {
        for queue_state in self.busy.values_mut() {
            while let Some(outcome) = queue_state.front().map(|batch| is_over(batch)) {
                let over = outcome != Ok(false);
                let Some(batch) = over.then(|| queue_state.pop_front()).flatten() else { break };
                match outcome {
                    Ok(_) => self.idle.extend(links(batch)),
                    Err(_) => self.spent.extend(batch),
                }
            }
        }
        self.busy.retain(|_, queue_state| !queue_state.is_empty());
        self.spent.retain(|used| {
            let over = used.sent.is_over() && used.taken.is_over();
            if over {
                used.taken.queue_state.pass(used.taken.at);
            }
            !over
        });
    }
}

/// Whether all waits of one queue have ended without an error, by the event of the last one.
fn is_over(batch: &[Used]) -> Result<bool> {
    let Some(last) = batch.iter().map(|used| &used.taken).max_by_key(|taken| taken.at) else {
        return Ok(true);
    };
    let over = last.event()?.map_or(Ok(true), |event| event.poll())?;
    if over {
        last.queue_state.pass(last.at);
    }
    Ok(over)
}

fn links(batch: Vec<Used>) -> impl Iterator<Item = Link> {
    batch.into_iter().map(|used| used.link)
}

impl Drop for Stock {
    fn drop(&mut self) {
        let end = Instant::now() + LAST_WAIT;
        let busy = std::mem::take(&mut self.busy).into_values().flatten().flatten();
        for used in busy.chain(self.fresh.drain(..)).chain(self.spent.drain(..)) {
            used.destroy(end);
        }
    }
}

impl Used {
    /// Destroys the semaphore once no work uses it. Leaks it if that work does not end in time, because drivers require
    /// destroyed semaphores to be unused.
    fn destroy(self, until: Instant) {
        let over = |point: &QueuePoint| {
            let left = until.saturating_duration_since(Instant::now());
            // The error may be the sender's, while the receiver still waits for its signal.
            point.wait(left).is_ok() || point.is_over()
        };
        if !(over(&self.sent) && over(&self.taken)) {
            tracing::warn!("a semaphore is kept: work may still use it");
            std::mem::forget(self.link);
        }
    }
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::*;
    use crate::{
        Probe,
        queue_state::tests::{behind, failed},
    };
    use onebuf_hal::{
        Device as _,
        fake::{FakeConfig, FakeDevice},
    };

    /// Whether the semaphore between two queues is destroyed in the end, depending on whether the receiver is past its wait.
    fn is_destroyed(passed: bool) -> bool {
        let probe = Probe::new();
        let maker = FakeDevice::new(FakeConfig {
            exports_semaphores: true,
            probe: Some(probe.clone()),
            ..FakeConfig::default()
        });
        let own = maker.semaphore().unwrap().own;
        let link = Link { far: own.clone(), near: own.clone(), _own: own };
        let sender = failed();
        let (receiver, host_signal) = behind(&sender);
        if passed {
            host_signal.open(Ok(()));
            receiver.note().wait(LAST_WAIT).unwrap();
        } else {
            std::mem::forget(host_signal);
        }
        let used = Used { link, sent: sender.note(), taken: receiver.note() };
        let mut stock = Stock::default();
        stock.fresh.push(used);
        drop(stock);
        !probe.live().contains_key("semaphore")
    }

    #[test]
    fn a_queue_that_waits_keeps_its_semaphore() {
        assert!(!is_destroyed(false), "its sender has failed, and it waits for ever");
        assert!(is_destroyed(true));
    }
}
