//! Numbers in memory that one device writes and another's queues wait for: the `wait_value` rung.
//!
//! A mailbox belongs to an ordered pair of devices. Its memory is the receiver's, imported by the sender, and each of
//! the sender's queues has a word of it. A queue posts by adding one to its word behind all its work; in order,
//! so a word that has come so far says that the work has.

use crate::{
    Error, Hub, Result, RouteKind,
    hal::{Access, AllocSpec, Export, FdKind, HostAccess, Memory, Residency, Strategy},
    queue::Line,
    sync::{Arc, Mutex, lock},
    topology::{DeviceIx, State},
};
use std::{collections::HashMap, sync::OnceLock};

/// What exportable memory has at least; so many queues can post.
const BYTES: usize = 2 << 20;
const WORD: usize = size_of::<u32>();

/// A queue's word in one mailbox: which, and what was posted last.
type Words = HashMap<usize, (usize, u32)>;

/// Where one device's queues leave word for another's.
#[derive(Debug)]
pub(crate) struct Mailbox {
    /// As the receiver sees it.
    near: Arc<dyn Memory>,
    /// As the sender does.
    far: Arc<dyn Memory>,
    words: Mutex<(Words, usize)>,
}

/// A mailbox, once somebody needed it; or why there is none.
type Slot = Arc<OnceLock<Result<Arc<Mailbox>>>>;

/// The mailboxes of a hub, by sender and receiver.
#[derive(Debug, Default)]
pub(crate) struct Mailboxes(Mutex<HashMap<(DeviceIx, DeviceIx), Slot>>);

impl Mailboxes {
    /// The mailbox between two devices; the first failure to make one stays the answer.
    pub fn between(&self, hub: &Hub, from: DeviceIx, to: DeviceIx) -> Result<Arc<Mailbox>> {
        if [from, to].iter().any(|device| hub.guests().of(*device).is_some()) {
            return Err(Error::unsupported(
                "a mailbox in a foreign context",
                "devices of the hub's own",
            ));
        }
        let slot = lock(&self.0).entry((from, to)).or_default().clone();
        slot.get_or_init(|| Mailbox::new(hub, from, to).map(Arc::new)).clone()
    }
}

impl Mailbox {
    fn new(hub: &Hub, from: DeviceIx, to: DeviceIx) -> Result<Mailbox> {
        let kind = shared_by(hub, from, to)?;
        let spec = AllocSpec {
            bytes: BYTES,
            align: WORD,
            strategy: Strategy::Exportable,
            access: Access::ReadWrite,
            host: HostAccess::default(),
            hint: None,
        };
        let near = hub.hal(to).allocate(&spec, None)?;
        let line = hub.service_line(to)?;
        line.hal.fill(&*near, 0, BYTES, &[0])?;
        line.note().wait(hub.timeout())?;
        let far = hub.hal(from).import(&Export::Fd(near.export_fd(kind)?), Access::ReadWrite)?;
        Ok(Mailbox { near, far, words: Mutex::default() })
    }

    /// Behind everything that the sender's queue was given, and makes the receiver's queue wait for it.
    pub fn join(&self, sender: &Arc<Line>, receiver: &Line) -> Result<()> {
        let (offset, value) = self.post(sender)?;
        receiver.hal.wait_value(&*self.near, offset, value)
    }

    /// The lock is held over the driver's calls: the memory is acquired and released whole.
    fn post(&self, sender: &Arc<Line>) -> Result<(usize, u32)> {
        let mut words = lock(&self.words);
        let (known, next) = &mut *words;
        let (offset, last) = match known.get(&sender.number) {
            // A word is used up: not every API's wait goes round with it.
            Some(word) if word.1 < u32::MAX => *word,
            _ if *next < BYTES => (std::mem::replace(next, *next + WORD), 0),
            _ => return Err(Error::unsupported("another word in a mailbox", "fewer queues")),
        };
        let value = last + 1;
        sender.hal.reside(&*self.far, Residency::Attached)?;
        sender.hal.fill(&*self.far, offset, WORD, &value.to_ne_bytes())?;
        // From here on the number may be written.
        known.insert(sender.number, (offset, value));
        sender.hal.reside(&*self.far, Residency::Published)?;
        sender.hal.flush()?;
        Ok((offset, value))
    }
}

/// By which descriptor the sender can see the receiver's memory, unless that was refuted.
fn shared_by(hub: &Hub, from: DeviceIx, to: DeviceIx) -> Result<FdKind> {
    let routes = hub.topology().between(to, from).iter();
    let mut kinds = routes.filter(|route| route.verdict.state != State::Refuted).map(|r| r.kind);
    let kind = kinds.find_map(|kind| match kind {
        RouteKind::OpaqueFd => Some(FdKind::OpaqueFd),
        RouteKind::DmaBuf => Some(FdKind::DmaBuf),
        _ => None,
    });
    kind.ok_or_else(|| {
        Error::unsupported("a mailbox", "memory that both devices see by a descriptor")
    })
}
