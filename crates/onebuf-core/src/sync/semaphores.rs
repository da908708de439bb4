//! Semaphores between queues of different APIs on one chip: the `semaphore` sync method.
//!
//! A binary semaphore is one signal and one wait for it, and then again. So each hand-over has a semaphore of its own, and
//! the next gets it only when its wait is known to have ended well. A signal that nobody waited for, and a wait whose signal
//! never came, stay with their semaphore and meet nobody else.

use super::{Pair, semaphore};
use crate::{
    device_table::DeviceTable,
    queue_state::{QueuePoint, QueueState},
    topology::DeviceIx,
};
use onebuf_hal::{
    self as hal, Error, Result,
    locks::{Arc, Mutex, lock},
};
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    os::fd::AsFd,
    time::{Duration, Instant},
};

/// So many hand-overs share one question about their end.
const BATCH: usize = 16;
/// So many semaphores of one pair of devices are under way at most.
const MOST: usize = 512;
/// How long the end of a hub waits for work that uses its semaphores.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// The semaphores of a hub, by sender and receiver; none where the two have no way to share one.
#[derive(Debug, Default)]
pub(crate) struct Semaphores(Mutex<HashMap<[DeviceIx; 2], Option<Arc<Exchange>>>>);

impl Semaphores {
    /// Makes the receiver's later work wait for everything that the sender was given. Where the signal is among the one's
    /// work, and the wait among the other's.
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

/// The semaphores by which one device's queues signal another's.
#[derive(Debug)]
struct Exchange {
    maker: DeviceIx,
    ends: [DeviceIx; 2],
    stock: Mutex<Stock>,
}

/// One semaphore, as both ends know it.
#[derive(Debug)]
struct Link {
    far: Arc<dyn hal::Semaphore>,
    near: Arc<dyn hal::Semaphore>,
    _own: Arc<dyn hal::Semaphore>,
}

/// One that was given to queues: where its signal is, and where its wait.
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
        let maker = semaphore::maker(&pair).filter(|_| !pair.is_foreign())?;
        Some(Arc::new(Exchange { maker, ends, stock: Mutex::default() }))
    }

    /// Signals behind everything that the sender was given, and makes the receiver wait for that.
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
            // Perhaps there is a signal and no wait.
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
            let what = format!("more than {MOST} semaphores under way between two devices");
            return Err(Error::unsupported(what, "a wait now and then"));
        }
        let made = self.make(devices);
        match &made {
            Ok(_) => stock.made += 1,
            // What never worked is not tried each time.
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

/// Where the semaphores of an exchange are.
#[derive(Debug, Default)]
struct Stock {
    /// Neither signalled nor waited on.
    idle: Vec<Link>,
    /// Given to queues, and not asked after yet.
    fresh: Vec<Used>,
    /// Given to queues before, and asked after together; by the queue that waits, since one that is late shall keep no
    /// other's back.
    busy: BTreeMap<usize, VecDeque<Vec<Used>>>,
    /// Nobody knows what they are: they are destroyed when nothing can use them any more.
    spent: Vec<Used>,
    made: usize,
    /// Why the first could not be made.
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

    /// Those whose queue is known to have come past the wait: no driver is asked.
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

    /// Has the queues tell of many waits at once: one event covers them all.
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

    /// Takes back those whose wait has ended well.
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

/// Whether all waits of one queue have ended well: the last of them tells.
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
    /// Drivers want nothing to use what is destroyed: it is lost where that does not come to an end.
    fn destroy(self, until: Instant) {
        let over = |point: &QueuePoint| {
            let left = until.saturating_duration_since(Instant::now());
            // An error may be that of the sender, whose signal is still waited for.
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

    /// Whether the semaphore between two queues is destroyed at the end, where the receiver has come past its wait or not.
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
