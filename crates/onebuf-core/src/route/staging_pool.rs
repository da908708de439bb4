//! Host memory for copies, of the kind that a device transfers fastest.
//!
//! # Safety
//! A pinned chunk is driver memory that stays mapped at one address while the chunk lives, and that has no other user.

#![allow(unsafe_code)]

use onebuf_hal::{
    Access, AccessState, AllocSpec, Device, HostAccess, Memory, MemoryKind, Queue, Result,
    locks::{Arc, Mutex, lock},
};
use std::{ptr::NonNull, time::Duration};

/// The size of a chunk: large enough that the cost of a call is negligible, small enough to overlap transfers.
pub(crate) const CHUNK_BYTES: usize = 4 << 20;

/// Smaller copies do not use a pooled chunk.
const WORTH_BYTES: usize = 256 << 10;

/// The number of chunks that a device keeps.
const KEPT: usize = 4;

/// The timeout for mapping a new chunk.
const MAP_WAIT: Duration = Duration::from_secs(10);

/// A device's idle chunks. Reused memory has its pages already.
#[derive(Debug, Default)]
pub(crate) struct StagingPool(Mutex<Vec<StagingChunk>>);

impl StagingPool {
    /// Returns a chunk of at least `bytes` bytes, which are at most [`CHUNK_BYTES`]. A chip with its own memory copies several
    /// times faster to and from memory that its driver allocated. If the driver cannot allocate it, ordinary memory is used.
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

    /// Frees the idle chunks.
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

/// Host memory for one copy at a time.
#[derive(Debug)]
pub(crate) enum StagingChunk {
    /// Ordinary memory.
    Plain(Vec<u8>),
    /// Memory that the device's driver allocated, and can transfer directly.
    Pinned(Pinned),
}

impl StagingChunk {
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            StagingChunk::Plain(bytes) => bytes,
            // SAFETY: the memory has `CHUNK_BYTES` bytes, stays mapped, and has no other user; see the head of this file.
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

// SAFETY: the pointer is to memory that this struct owns and that has no other user.
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
            onebuf_hal::Error::unsupported(
                "a pinned staging chunk",
                "driver memory that the host can map",
            )
        })?;
        // Initializes every byte before it is read as a slice.
        // SAFETY: mapped for writing, `CHUNK_BYTES` long, and without another user.
        unsafe { pointer.write_bytes(0, CHUNK_BYTES) };
        Ok(Self { pointer, _memory: memory })
    }
}
