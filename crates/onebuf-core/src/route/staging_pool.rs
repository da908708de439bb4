//! Host memory for copies, of the kind that a device copies fastest to and from.
//!
//! # Safety
//! A chunk of the driver's is memory that stays mapped, at one address, as long as the chunk lives, and that
//! nobody else has.

#![allow(unsafe_code)]

use onebuf_hal::{
    Access, AccessState, AllocSpec, Device, HostAccess, Memory, MemoryKind, Queue, Result,
    locks::{Arc, Mutex, lock},
};
use std::{ptr::NonNull, time::Duration};

/// Bytes of one chunk: large enough that per-call costs vanish, small enough to overlap.
pub(crate) const CHUNK_BYTES: usize = 4 << 20;

/// Copies smaller than this are not worth a chunk that is kept.
const WORTH_BYTES: usize = 256 << 10;

/// How many chunks a device keeps for the next copy.
const KEPT: usize = 4;

/// How long making a chunk may take.
const MAP_WAIT: Duration = Duration::from_secs(10);

/// A device's chunks between two copies: memory that was used before needs no pages.
#[derive(Debug, Default)]
pub(crate) struct StagingPool(Mutex<Vec<StagingChunk>>);

impl StagingPool {
    /// A chunk of at least so many bytes, [`CHUNK_BYTES`] at most. A chip with memory of its own copies
    /// several times faster to memory that its driver allocated; a driver that gives none makes the copy
    /// slower, not impossible.
    pub fn chunk(&self, device: &dyn Device, queue: &dyn Queue, bytes: usize) -> StagingChunk {
        if bytes < WORTH_BYTES {
            return StagingChunk::Plain(vec![0; bytes]);
        }
        if let Some(kept) = lock(&self.0).pop() {
            return kept;
        }
        let caps = &device.info().caps;
        if caps.unified_memory || !caps.memory_kinds.contains(&MemoryKind::MappedDevice) {
            return StagingChunk::Plain(vec![0; CHUNK_BYTES]);
        }
        match Pinned::new(device, queue) {
            Ok(pinned) => StagingChunk::Pinned(pinned),
            Err(error) => {
                tracing::debug!(%error, "a copy goes through ordinary memory");
                StagingChunk::Plain(vec![0; CHUNK_BYTES])
            }
        }
    }

    /// Frees what is kept.
    pub fn clear(&self) {
        let kept = std::mem::take(&mut *lock(&self.0));
        drop(kept);
    }

    /// Keeps a chunk for the next copy.
    pub fn keep(&self, mut chunk: StagingChunk) {
        let mut kept = lock(&self.0);
        if chunk.bytes_mut().len() == CHUNK_BYTES && kept.len() < KEPT {
            kept.push(chunk);
        }
    }
}

/// Host memory that is one copy's alone.
#[derive(Debug)]
pub(crate) enum StagingChunk {
    /// Ordinary memory.
    Plain(Vec<u8>),
    /// Memory that a device's driver allocated, and can copy to and from without a detour.
    Pinned(Pinned),
}

impl StagingChunk {
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            StagingChunk::Plain(bytes) => bytes,
            // SAFETY: as long as it was made, mapped, and ours alone; see the head of this file.
            StagingChunk::Pinned(pinned) => unsafe {
                std::slice::from_raw_parts_mut(pinned.pointer.as_ptr(), CHUNK_BYTES)
            },
        }
    }
}

/// Device memory that stays mapped.
#[derive(Debug)]
pub(crate) struct Pinned {
    pointer: NonNull<u8>,
    _memory: Arc<dyn Memory>,
}

// SAFETY: the pointer is to memory that this struct keeps, and that nobody else uses.
unsafe impl Send for Pinned {}

impl Pinned {
    fn new(device: &dyn Device, queue: &dyn Queue) -> Result<Self> {
        let spec = AllocSpec {
            bytes: CHUNK_BYTES,
            align: 64,
            memory_kind: MemoryKind::MappedDevice,
            access: Access::ReadWrite,
            host: HostAccess::ReadWrite,
            hint: None,
        };
        let memory = device.allocate(&spec, None)?;
        queue.reside(&*memory, AccessState::Released)?;
        let limit = device.post().map_or(MAP_WAIT, |post| post.limit().min(MAP_WAIT));
        queue.mark()?.wait(limit)?;
        let pointer = memory.host_pointer().ok_or_else(|| {
            onebuf_hal::Error::unsupported("a chunk of the driver's", "memory that it maps")
        })?;
        // Every byte has been written before it is read as a slice of bytes.
        // SAFETY: mapped for writing, as long as said, and nobody else's.
        unsafe { pointer.write_bytes(0, CHUNK_BYTES) };
        Ok(Self { pointer, _memory: memory })
    }
}
