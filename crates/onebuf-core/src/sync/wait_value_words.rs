//! Numbers in memory that one device writes and another's queues wait for: the `wait_value` sync method.
//!
//! A table of wait-value words belongs to an ordered pair of devices. Its memory is the receiver's, imported by the sender, and each of
//! the sender's queues has a word of it. A queue posts by adding one to its word behind all its work; in order,
//! so a word that has come so far says that the work has.

use super::{Pair, wait_value};
use crate::{device_table::DeviceTable, queue_state::QueueState, topology::DeviceIx};
use onebuf_hal::{
    Access, AccessState, AllocSpec, Error, Export, FdKind, HostAccess, Memory, MemoryKind, Result,
    locks::{Arc, Mutex, lock},
};
use std::{collections::HashMap, sync::OnceLock};

/// What exportable memory has at least; so many queues can post.
const BYTES: usize = 2 << 20;
const WORD: usize = size_of::<u32>();

/// A queue's word in one table of wait-value words: which, and what was posted last.
type Words = HashMap<usize, (usize, u32)>;

/// Where one device's queues leave word for another's.
#[derive(Debug)]
pub(crate) struct WaitValueWords {
    /// As the receiver sees it.
    near: Arc<dyn Memory>,
    /// As the sender does.
    far: Arc<dyn Memory>,
    words: Mutex<(Words, usize)>,
}

/// A table of wait-value words, once somebody needed it; or why there is none.
type Slot = Arc<OnceLock<Result<Arc<WaitValueWords>>>>;

/// The tables of wait-value words of a hub, by sender and receiver.
#[derive(Debug, Default)]
pub(crate) struct WaitValueTable(Mutex<HashMap<(DeviceIx, DeviceIx), Slot>>);

impl WaitValueTable {
    /// The table of wait-value words between two devices; the first failure to make one stays the answer.
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
        let kind = shared_by(devices, from, to)?;
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

    /// Behind everything that the sender's queue was given, and makes the receiver's queue wait for it.
    pub fn join(&self, sender: &Arc<QueueState>, receiver: &QueueState) -> Result<()> {
        let (offset, value) = self.post(sender)?;
        receiver.hal.wait_value(&*self.near, offset, value)
    }

    /// The lock is held over the driver's calls: the memory is acquired and released whole.
    fn post(&self, sender: &Arc<QueueState>) -> Result<(usize, u32)> {
        let mut words = lock(&self.words);
        let (known, next) = &mut *words;
        let (offset, last) = match known.get(&sender.number) {
            // A word is used up: not every API's wait goes round with it.
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
        // From here on the number may be written.
        known.insert(sender.number, (offset, value));
        sender.hal.reside(&*self.far, AccessState::SharedRead)?;
        sender.hal.flush()?;
        Ok((offset, value))
    }
}

/// By which descriptor the sender can see the receiver's memory.
fn shared_by(devices: &DeviceTable, from: DeviceIx, to: DeviceIx) -> Result<FdKind> {
    let kind = wait_value::shared_by(&Pair::between(devices.topology(), from, to));
    kind.ok_or_else(|| {
        Error::unsupported(
            "a table of wait-value words",
            "memory that both devices see by a descriptor",
        )
    })
}
