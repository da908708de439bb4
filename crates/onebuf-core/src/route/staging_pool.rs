//! Host memory for copies, of the kind that a device transfers fastest.
//!
//! # The owner of a chunk
//! A chunk has one owner at any time, which alone may access or free its memory:
//! 1. The pool: the chunk is idle.
//! 2. A copy, which takes chunks from the pool (`ring`). While its threads fill or empty a chunk (`feed`), no transfer uses it.
//! 3. A driver, from the start of a transfer until its event has been seen complete. An error of a poll or a wait does not return
//!    the chunk, unless the event is known to be over. If a start fails, the copy keeps the chunk, by the contract of [`Queue`]; if
//!    it fails by a timeout, the chunk is leaked.
//! 4. The list `in_flight`. When a copy ends, also by an error or a timeout, the chunks that a driver still owns go there with
//!    their events. The pool takes a chunk back once its event is complete. When the pool is emptied, it waits for these events,
//!    at most for `LAST_WAIT`; a chunk whose transfer does not end is leaked.
//!
//! # Safety
//! A pinned chunk is driver memory that stays mapped at one address while the chunk lives, and that only its owner uses.

#![allow(unsafe_code)]

use onebuf_hal::{
    Access, AccessState, AllocSpec, Device, Event, Export, Hint, HostAccess, HostRange, Memory,
    MemoryKind, Queue, Result,
    locks::{Arc, Mutex, lock},
};
use std::{
    any::Any,
    mem,
    ptr::NonNull,
    time::{Duration, Instant},
};

/// The size of a chunk of ordinary memory, for devices that use the host's memory.
pub(crate) const CHUNK_BYTES: usize = 4 << 20;

/// Smaller copies to and from such devices do not use a kept chunk.
const WORTH_BYTES: usize = 256 << 10;

/// A chunk for copies between two devices is this many times as large as others, and fewer are kept.
pub(crate) const RELAY_PARTS: usize = 2;
const FEWER: usize = 4;

/// A small chunk has this part of a chunk's size.
const SMALL_PART: usize = 16;

/// A copy gets this many chunks even if others have all that the pool keeps.
const FEWEST: usize = 2;

/// The timeout for mapping a new chunk.
const MAP_WAIT: Duration = Duration::from_secs(10);

/// How long the pool waits for transfers in flight when it is emptied.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// The chunks of a device. Reused memory has its pages already.
#[derive(Debug, Default)]
pub(crate) struct StagingPool(Mutex<ChunkStock>);

#[derive(Debug, Default)]
struct ChunkStock {
    /// The chunks of each [`ChunkSize`].
    shelves: [ChunkShelf; ChunkSize::ALL.len()],
    in_flight: Vec<InFlight>,
}

/// The chunks of one size.
#[derive(Debug, Default)]
struct ChunkShelf {
    idle: Vec<StagingChunk>,
    /// The number of chunks that copies and drivers have.
    lent: usize,
}

/// A chunk that a driver may be using, although its copy has ended.
#[derive(Debug)]
struct InFlight {
    chunk: StagingChunk,
    event: Arc<dyn Event>,
    /// As of [`ChunkSpec::kept`].
    kept: usize,
}

/// What a copy asks of the pool.
pub(crate) struct ChunkSpec<'a> {
    pub device: &'a dyn Device,
    /// The hub's queue on the device.
    pub queue: &'a dyn Queue,
    /// Whether the device has memory of its own.
    pub pins: bool,
    /// The size of a large chunk.
    pub chunk_bytes: usize,
    /// The number of chunks of each size that the pool keeps.
    pub kept: usize,
}

impl StagingPool {
    /// Returns a chunk of at least `bytes` bytes, which are at most those of a relay's chunk. A chip with its own memory copies
    /// several times faster to and from memory that its driver allocated. If the driver cannot allocate it, ordinary memory is
    /// used. `None` if the copy `has` enough chunks to go on, and other copies have the rest.
    pub fn chunk(&self, spec: &ChunkSpec<'_>, bytes: usize, has: usize) -> Option<StagingChunk> {
        let pins =
            spec.pins && spec.device.info().caps.memory_kinds.contains(&MemoryKind::MappedDevice);
        if !pins && bytes < WORTH_BYTES {
            return Some(StagingChunk {
                guests: Vec::new(),
                memory: ChunkMemory::Plain(vec![0; bytes]),
                size: None,
            });
        }
        let size = match bytes {
            _ if pins && bytes <= spec.chunk_bytes / SMALL_PART => ChunkSize::Small,
            _ if bytes <= spec.chunk_bytes => ChunkSize::Large,
            _ => ChunkSize::Relay,
        };
        let mut stock = lock(&self.0);
        if !stock.in_flight.is_empty() {
            drop(stock);
            self.take_back();
            stock = lock(&self.0);
        }
        let shelf = &mut stock.shelves[size as usize];
        let idle = shelf.idle.pop();
        if idle.is_none() && has >= FEWEST && shelf.lent >= size.kept(spec.kept) {
            return None;
        }
        shelf.lent += 1;
        drop(stock);
        idle.or_else(|| Some(self.create(spec, pins, size)))
    }

    /// Whether so many large chunks can be lent without more than `kept` in all.
    pub fn has_room(&self, chunks: usize, kept: usize) -> bool {
        self.take_back();
        let stock = lock(&self.0);
        stock.shelves[ChunkSize::Large as usize].lent + chunks <= ChunkSize::Large.kept(kept)
    }

    /// Creates a chunk. Ordinary memory in place of pinned memory is not kept.
    fn create(&self, spec: &ChunkSpec<'_>, pins: bool, size: ChunkSize) -> StagingChunk {
        let bytes = match size {
            ChunkSize::Small => spec.chunk_bytes / SMALL_PART,
            ChunkSize::Large => spec.chunk_bytes,
            ChunkSize::Relay => spec.chunk_bytes * RELAY_PARTS,
        };
        if !pins {
            return StagingChunk {
                guests: Vec::new(),
                memory: ChunkMemory::Plain(vec![0; bytes]),
                size: Some(size),
            };
        }
        match Pinned::new(spec.device, spec.queue, bytes) {
            Ok(pinned) => StagingChunk {
                guests: Vec::new(),
                memory: ChunkMemory::Pinned(pinned),
                size: Some(size),
            },
            Err(error) => {
                tracing::debug!(%error, "a copy goes through ordinary memory");
                lock(&self.0).shelves[size as usize].lent -= 1;
                StagingChunk {
                    guests: Vec::new(),
                    memory: ChunkMemory::Plain(vec![0; bytes]),
                    size: None,
                }
            }
        }
    }

    /// Takes a chunk that no driver uses, and keeps it for the next copy unless there are `kept`.
    pub fn keep(&self, chunk: StagingChunk, kept: usize) {
        let Some(size) = chunk.size else { return };
        let mut stock = lock(&self.0);
        let shelf = &mut stock.shelves[size as usize];
        shelf.lent -= 1;
        if shelf.lent + shelf.idle.len() < size.kept(kept) {
            shelf.idle.push(chunk);
        }
    }

    /// Takes a chunk that a driver may use until the event is complete.
    pub fn keep_after(&self, chunk: StagingChunk, event: Arc<dyn Event>, kept: usize) {
        lock(&self.0).in_flight.push(InFlight { chunk, event, kept });
    }

    /// Leaks a chunk that a driver may use, without an event that reports the end.
    pub fn leak(&self, chunk: StagingChunk) {
        tracing::error!("a staging chunk was leaked: its transfer does not end");
        if let Some(size) = chunk.size {
            lock(&self.0).shelves[size as usize].lent -= 1;
        }
        mem::forget(chunk);
    }

    /// Takes back the chunks whose transfers have ended. Drivers are not called under the lock.
    fn take_back(&self) {
        let in_flight = mem::take(&mut lock(&self.0).in_flight);
        let (over, rest): (Vec<_>, Vec<_>) =
            in_flight.into_iter().partition(|one| is_over(&*one.event));
        lock(&self.0).in_flight.extend(rest);
        over.into_iter().for_each(|one| self.keep(one.chunk, one.kept));
    }

    /// Frees all chunks but those of copies that have not ended.
    pub fn clear(&self) {
        let start = Instant::now();
        let in_flight = mem::take(&mut lock(&self.0).in_flight);
        for InFlight { chunk, event, .. } in in_flight {
            let left = LAST_WAIT.saturating_sub(start.elapsed());
            match event.wait(left).is_ok() || event.is_over() {
                true => self.keep(chunk, 0),
                false => self.leak(chunk),
            }
        }
        for size in ChunkSize::ALL {
            let idle = mem::take(&mut lock(&self.0).shelves[size as usize].idle);
            drop(idle);
        }
    }
}

impl Drop for StagingPool {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Whether the work of an event has ended, with or without success. The poll also submits work that waits to be submitted.
pub(super) fn is_over(event: &dyn Event) -> bool {
    event.poll().unwrap_or_else(|_| event.is_over())
}

/// The sizes of chunks that are kept.
#[derive(Clone, Copy, Debug)]
enum ChunkSize {
    Small,
    Large,
    Relay,
}

impl ChunkSize {
    const ALL: [Self; 3] = [Self::Small, Self::Large, Self::Relay];

    /// How many chunks of this size are kept, if `kept` large ones are.
    fn kept(self, kept: usize) -> usize {
        if matches!(self, Self::Relay) { (kept / FEWER).max(FEWEST) } else { kept }
    }
}

/// Host memory for one copy at a time.
#[derive(Debug)]
pub(crate) struct StagingChunk {
    /// Other devices that were asked to import the memory.
    guests: Vec<Guest>,
    memory: ChunkMemory,
    /// `None` for memory that is not kept.
    size: Option<ChunkSize>,
}

/// The memory of a chunk.
#[derive(Debug)]
enum ChunkMemory {
    /// Ordinary memory.
    Plain(Vec<u8>),
    /// Memory that the device's driver allocated, and can transfer directly.
    Pinned(Pinned),
}

/// A device that was asked to import a chunk of another one.
#[derive(Debug)]
struct Guest {
    /// The address of the device, which tells it from others.
    device: usize,
    /// `None` if it cannot transfer the memory directly.
    import: Option<Arc<dyn Memory>>,
}

impl StagingChunk {
    /// Lets another device transfer the chunk directly, too; whether it can. The device is asked once. A transfer is right in any case:
    /// memory that a device has not pinned is only slower.
    pub fn share(&mut self, device: &dyn Device, queue: &dyn Queue) -> bool {
        let address = std::ptr::from_ref(device).addr();
        let asked = self.guests.iter().find(|guest| guest.device == address);
        if let Some(guest) = asked {
            return guest.import.is_some();
        }
        let ChunkMemory::Pinned(pinned) = &self.memory else { return false };
        let import = pinned.import(device, queue);
        let import = import.inspect_err(|error| tracing::debug!(%error, "a chunk is not shared"));
        let import = import.ok().filter(|import| import.pins_pages());
        self.guests.push(Guest { device: address, import });
        self.guests.last().is_some_and(|guest| guest.import.is_some())
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            ChunkMemory::Plain(bytes) => bytes,
            // SAFETY: the memory has `bytes` bytes, stays mapped, and has no other user; see the head of this file.
            ChunkMemory::Pinned(pinned) => unsafe {
                std::slice::from_raw_parts_mut(pinned.pointer.as_ptr(), pinned.bytes)
            },
        }
    }
}

/// Device memory that stays mapped.
#[derive(Debug)]
struct Pinned {
    pointer: NonNull<u8>,
    bytes: usize,
    memory: Arc<dyn Memory>,
}

// SAFETY: the pointer is to memory that this struct owns and that has no other user.
unsafe impl Send for Pinned {}
// SAFETY: only exclusive access reaches the memory.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Makes the memory known to another device, which keeps it while the import lives.
    fn import(&self, device: &dyn Device, queue: &dyn Queue) -> Result<Arc<dyn Memory>> {
        let owner: Arc<dyn Any + Send + Sync> = Arc::new(self.memory.clone());
        let range = HostRange { pointer: self.pointer, bytes: self.bytes, owner };
        let import = device.import(&Export::Host(range), Access::ReadWrite)?;
        release(device, queue, &*import)?;
        Ok(import)
    }

    fn new(device: &dyn Device, queue: &dyn Queue, bytes: usize) -> Result<Self> {
        let spec = AllocSpec {
            bytes,
            align: 64,
            memory_kind: MemoryKind::MappedDevice,
            access: Access::ReadWrite,
            host: HostAccess::ReadWrite,
            // Memory of the host, not of the chip.
            hint: Some(Hint::CpuPreferred),
        };
        let memory = device.allocate(&spec, None)?;
        release(device, queue, &*memory)?;
        let pointer = memory.host_pointer().ok_or_else(|| {
            onebuf_hal::Error::unsupported(
                "a pinned staging chunk",
                "driver memory that the host can map",
            )
        })?;
        // Initializes every byte before it is read as a slice.
        // SAFETY: mapped for writing, `bytes` long, and without another user.
        unsafe { pointer.write_bytes(0, bytes) };
        Ok(Self { pointer, bytes, memory })
    }
}

/// Gives memory to the host, and waits for that.
fn release(device: &dyn Device, queue: &dyn Queue, memory: &dyn Memory) -> Result<()> {
    queue.reside(memory, AccessState::Released)?;
    let limit = device.post().map_or(MAP_WAIT, |post| post.limit().min(MAP_WAIT));
    queue.mark()?.wait(limit)
}

#[cfg(test)]
mod tests;
