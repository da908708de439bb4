//! Semaphores between queues of different APIs on one chip: the `semaphore` rung.
//!
//! A binary semaphore is one signal and one wait for it, and then again. So each hand-over has a semaphore of its own, and
//! the next gets it only when its wait is known to have ended well. A signal that nobody waited for, and a wait whose signal
//! never came, stay with their semaphore and meet nobody else.

use crate::{
    Error, Hub, Result,
    fence::is_timeout,
    hal,
    queue::{Line, Position},
    route::semaphore_maker,
    sync::{Arc, Mutex, lock},
    topology::DeviceIx,
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
    /// Makes the receiver's later work wait for everything that the sender was given.
    pub fn join(&self, hub: &Hub, sender: &Arc<Line>, receiver: &Arc<Line>) -> Result<()> {
        let ends = [sender.device, receiver.device];
        let mut known = lock(&self.0);
        let exchange = known.entry(ends).or_insert_with(|| Exchange::between(hub, ends)).clone();
        drop(known);
        exchange.ok_or_else(no_maker)?.join(hub, sender, receiver)
    }
}

fn no_maker() -> Error {
    let needs = "two devices of one chip that import semaphores, and one that exports them";
    Error::unsupported("a semaphore between two queues", needs)
}

/// Whether queues of one device can signal those of another, as far as the devices say.
pub(crate) fn are_between(hub: &Hub, ends: [DeviceIx; 2]) -> bool {
    let guest = ends.iter().any(|device| hub.guests().of(*device).is_some());
    !guest && semaphore_maker(hub.topology(), ends).is_some()
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
    sent: Position,
    taken: Position,
}

impl Exchange {
    fn between(hub: &Hub, ends: [DeviceIx; 2]) -> Option<Arc<Exchange>> {
        let maker = semaphore_maker(hub.topology(), ends).filter(|_| are_between(hub, ends))?;
        Some(Arc::new(Exchange { maker, ends, stock: Mutex::default() }))
    }

    /// Signals behind everything that the sender was given, and makes the receiver wait for that.
    fn join(&self, hub: &Hub, sender: &Arc<Line>, receiver: &Arc<Line>) -> Result<()> {
        let link = self.take(hub)?;
        let sent = sender.hal.signal(&*link.far);
        let joined = sent.and_then(|()| receiver.hal.wait_signal(&*link.near));
        let used = Used { link, sent: sender.note(), taken: receiver.note() };
        let mut stock = lock(&self.stock);
        match &joined {
            Ok(()) => stock.fresh.push(used),
            // Perhaps there is a signal and no wait.
            Err(_) => stock.spent.push(used),
        }
        joined
    }

    fn take(&self, hub: &Hub) -> Result<Link> {
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
        let made = self.make(hub);
        match &made {
            Ok(_) => stock.made += 1,
            // What never worked is not tried each time.
            Err(why) if stock.made == 0 => stock.refused = Some(why.clone()),
            Err(_) => {}
        }
        made
    }

    fn make(&self, hub: &Hub) -> Result<Link> {
        let made = hub.hal(self.maker).semaphore()?;
        let end = |device| match device == self.maker {
            true => Ok(made.own.clone()),
            false => hub.hal(device).import_semaphore(made.fd.as_fd()),
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
    /// Given to queues before, with what tells that the wait is over; by the queue that waits, since one that is late shall
    /// keep no other's back.
    busy: BTreeMap<usize, VecDeque<Asked>>,
    /// Nobody knows what they are: they are destroyed when nothing can use them any more.
    spent: Vec<Used>,
    made: usize,
    /// Why the first could not be made.
    refused: Option<Error>,
}

/// One whose end was asked for.
type Asked = (Used, Arc<dyn hal::Event>);

impl Stock {
    fn next(&mut self) -> Option<Link> {
        if self.idle.is_empty() {
            self.ask();
            self.collect();
        }
        self.idle.pop()
    }

    fn under_way(&self) -> usize {
        let busy: usize = self.busy.values().map(VecDeque::len).sum();
        self.fresh.len() + busy + self.spent.len()
    }

    /// Has the queues tell of many waits at once: one event covers them all.
    fn ask(&mut self) {
        if self.fresh.len() < BATCH {
            return;
        }
        for used in std::mem::take(&mut self.fresh) {
            match used.taken.event().map(|event| event.cloned()) {
                Ok(Some(event)) => {
                    let line = used.taken.line.number;
                    self.busy.entry(line).or_default().push_back((used, event));
                }
                Ok(None) => self.idle.push(used.link),
                Err(_) => self.spent.push(used),
            }
        }
    }

    /// Takes back those whose wait has ended well.
    fn collect(&mut self) {
        for line in self.busy.values_mut() {
            while let Some(outcome) = line.front().map(|(_, event)| event.poll()) {
                let over = outcome != Ok(false);
                let Some((used, _)) = over.then(|| line.pop_front()).flatten() else { break };
                match outcome {
                    Ok(_) => self.idle.push(used.link),
                    Err(_) => self.spent.push(used),
                }
            }
        }
        self.busy.retain(|_, line| !line.is_empty());
        self.spent.retain(|used| !(used.sent.is_over() && used.taken.is_over()));
    }
}

impl Drop for Stock {
    fn drop(&mut self) {
        let end = Instant::now() + LAST_WAIT;
        let busy = std::mem::take(&mut self.busy).into_values().flatten().map(|(used, _)| used);
        for used in busy.chain(self.fresh.drain(..)).chain(self.spent.drain(..)) {
            used.destroy(end);
        }
    }
}

impl Used {
    /// Drivers want nothing to use what is destroyed: it is lost where that does not come to an end.
    fn destroy(self, until: Instant) {
        let over = |position: &Position| {
            let left = until.saturating_duration_since(Instant::now());
            !matches!(position.wait(left), Err(why) if is_timeout(&why)) || position.is_over()
        };
        if !(over(&self.sent) && over(&self.taken)) {
            tracing::warn!("a semaphore is kept: work may still use it");
            std::mem::forget(self.link);
        }
    }
}
