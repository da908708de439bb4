//! Values in memory that one device writes and another's queues wait for: the `wait_value` sync method.
//!
//! A table of wait-value words belongs to an ordered pair of devices. Its memory belongs to the receiver and is imported by the
//! sender, and each of the sender's queues has one word in it. A queue posts by incrementing its word after all its work. The
//! queue is in order, so a word that has reached a value proves that the work before it is complete.

use super::Pair;
use crate::{
    device_table::DeviceTable,
    queue_state::QueueState,
    topology::{DeviceIx, VerdictState},
};
use onebuf_hal::{
    Access, AccessState, AllocSpec, Error, Export, FdKind, HostAccess, Memory, MemoryKind, Result,
    RouteKind,
    locks::{Arc, Mutex, lock},
};
use std::{collections::HashMap, sync::OnceLock};

/// Minimum size of exportable memory. It limits the number of queues that can post.
const BYTES: usize = 2 << 20;
const WORD: usize = size_of::<u32>();

/// Each queue's word in one table, by the queue's number: its offset, and the value posted last.
type Words = HashMap<usize, (usize, u32)>;

/// The wait-value words by which one device's queues signal another's.
#[derive(Debug)]
pub(crate) struct WaitValueWords {
    /// The memory on the receiver.
    near: Arc<dyn Memory>,
    /// The memory on the sender.
    far: Arc<dyn Memory>,
    words: Mutex<(Words, usize)>,
}

/// A table of wait-value words, created at first use; or the reason why it could not be created.
type Slot = Arc<OnceLock<Result<Arc<WaitValueWords>>>>;

/// A hub's tables of wait-value words, by sender and receiver.
#[derive(Debug, Default)]
pub(crate) struct WaitValueTable(Mutex<HashMap<(DeviceIx, DeviceIx), Slot>>);

impl WaitValueTable {
    /// The table of wait-value words between two devices. A failure to create it is permanent.
    pub fn between(
        &self,
        devices: &DeviceTable,
        from: DeviceIx,
        to: DeviceIx,
    ) -> Result<Arc<WaitValueWords>> {
        if Pair::between(devices.topology(), from, to).is_foreign() {
            return Err(Error::unsupported(
                "a table of wait-value words in a foreign context",
                "devices of the hub's own",
            ));
        }
        let slot = lock(&self.0).entry((from, to)).or_default().clone();
        slot.get_or_init(|| WaitValueWords::new(devices, from, to).map(Arc::new)).clone()
    }
}

impl WaitValueWords {
    fn new(devices: &DeviceTable, from: DeviceIx, to: DeviceIx) -> Result<WaitValueWords> {
        let pair = Pair::between(devices.topology(), from, to);
        let kind = shared_by(&pair).ok_or_else(|| {
            Error::unsupported(
                "a table of wait-value words",
                "memory that both devices see by a descriptor",
            )
        })?;
        let spec = AllocSpec {
            bytes: BYTES,
            align: WORD,
            memory_kind: MemoryKind::Exportable,
            access: Access::ReadWrite,
            host: HostAccess::default(),
            hint: None,
        };
        let near = devices.hal(to).allocate(&spec, None)?;
        let queue_state = devices.service_queue_state(to)?;
        queue_state.hal.fill(&*near, 0, BYTES, &[0])?;
        queue_state.note().wait(devices.timeout())?;
        let far =
            devices.hal(from).import(&Export::Fd(near.export_fd(kind)?), Access::ReadWrite)?;
        Ok(WaitValueWords { near, far, words: Mutex::default() })
    }

    /// Posts after all work of the sender's queue so far, and makes the receiver's queue wait for that.
    pub fn join(&self, sender: &Arc<QueueState>, receiver: &QueueState) -> Result<()> {
        let (offset, value) = self.post(sender)?;
        receiver.hal.wait_value(&*self.near, offset, value)
    }

    /// Holds the lock during the driver calls, because the memory is acquired and released as a whole.
    fn post(&self, sender: &Arc<QueueState>) -> Result<(usize, u32)> {
        let mut words = lock(&self.words);
        let (known, next) = &mut *words;
        let (offset, last) = match known.get(&sender.number) {
            // At the maximum the queue gets a new word: not every API's wait handles wrap-around.
            Some(word) if word.1 < u32::MAX => *word,
            _ if *next < BYTES => (std::mem::replace(next, *next + WORD), 0),
            _ => {
                return Err(Error::unsupported(
                    "another word in a table of wait-value words",
                    "fewer queues",
                ));
            }
        };
        let value = last + 1;
        sender.hal.reside(&*self.far, AccessState::Acquired)?;
        sender.hal.fill(&*self.far, offset, WORD, &value.to_ne_bytes())?;
        // From here on the value may be written.
        known.insert(sender.number, (offset, value));
        sender.hal.reside(&*self.far, AccessState::SharedRead)?;
        sender.hal.flush()?;
        Ok((offset, value))
    }
}

/// The kind of descriptor by which the sender can access the receiver's memory, unless that route was refuted.
pub(super) fn shared_by(pair: &Pair<'_>) -> Option<FdKind> {
    let routes = pair.topology.between(pair.receiver, pair.sender).iter();
    let usable = routes.filter(|route| route.verdict.state != VerdictState::Refuted);
    usable.map(|route| route.kind).find_map(|kind| match kind {
        RouteKind::OpaqueFd => Some(FdKind::OpaqueFd),
        RouteKind::DmaBuf => Some(FdKind::DmaBuf),
        _ => None,
    })
}
