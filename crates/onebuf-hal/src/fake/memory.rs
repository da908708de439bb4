//! Device memory, its host side, and the copies between the two.
//!
//! # Safety
//!
//! Only commands access the device's bytes, each under a [`Claim`](super::claim::Claim) of its range, so that no two threads
//! access the same bytes in conflict. This file accesses the host's bytes only in [`Block::move_to`] and when they are
//! imported: by the contract of `hal` no other code uses them then. Both stay allocated as long as the [`Block`], which each
//! command holds.

#![allow(unsafe_code)]

use super::{
    FakeBackend, Sharing,
    claim::Claims,
    heap::Heap,
    queue::FakeQueue,
    watch::{Live, Watch},
};
use crate::{
    Access, AccessState, AllocSpec, DeviceInfo, Domain, Error, Export, HostRange, MemoryKind,
    RawHandle, Result,
    locks::{Arc, Mutex, lock},
    native,
    typed::{AllocationPart, TypedMemory},
};
use std::{ops::Range, ptr::NonNull};

/// The contents of fresh device memory: not zero, so that no test relies on zeroes.
const DEVICE_POISON: u8 = 0xA5;

/// The contents of its host side: a different value, so that a missing hand-over shows.
const HOST_POISON: u8 = 0x5A;

/// A memory, shared by the commands that use it.
#[derive(Debug)]
pub(super) struct Block {
    memory_kind: MemoryKind,
    access: Access,
    bytes: usize,
    /// The bytes that kernels use; inside `own` or, if there is none, inside `host`.
    device: NonNull<u8>,
    own: Option<Heap>,
    host: Option<HostRange>,
    claims: Claims,
    /// The access state after all enqueued commands have run.
    enqueued: Mutex<AccessState>,
}

// SAFETY: the bytes behind `device` are accessed only under claims; everything else is `Send`.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// Allocates memory of the requested kind.
    pub(super) fn allocate(device: &str, spec: &AllocSpec) -> Result<Self> {
        let heap = |poison| Heap::new(device, spec.bytes, spec.align, poison);
        let (own, host) = match spec.memory_kind {
            MemoryKind::Device | MemoryKind::OnChip | MemoryKind::Exportable => {
                (Some(heap(DEVICE_POISON)?), None)
            }
            MemoryKind::MappedDevice | MemoryKind::CoarseSvm | MemoryKind::Managed => {
                (Some(heap(DEVICE_POISON)?), Some(heap(HOST_POISON)?))
            }
            MemoryKind::FineSvm | MemoryKind::HostPages => (None, Some(heap(HOST_POISON)?)),
        };
        let host = host.map(|heap| HostRange {
            pointer: heap.pointer(),
            bytes: spec.bytes,
            owner: Arc::new(heap),
        });
        Block::new(spec.memory_kind, spec.access, spec.bytes, own, host)
    }

    /// Imports host pages.
    pub(super) fn import(
        device: &str,
        sharing: Sharing,
        range: &HostRange,
        access: Access,
    ) -> Result<Self> {
        let own = match sharing {
            Sharing::No => {
                return Err(Error::unsupported("host pages on this fake device", "`Sharing`"));
            }
            Sharing::Alias => None,
            Sharing::Shadow => Some(Heap::new(device, range.bytes, 1, DEVICE_POISON)?),
        };
        let block =
            Block::new(MemoryKind::HostPages, access, range.bytes, own, Some(range.clone()))?;
        // As with `CL_MEM_USE_HOST_PTR`: the memory starts with the current contents of the pages.
        block.host_to_device();
        Ok(block)
    }

    /// Writes the initial contents.
    pub(super) fn initialise(&self, contents: &[u8]) -> Result<()> {
        // SAFETY: `device` has `bytes` bytes, and no other code uses the block yet.
        unsafe { native::initialise(self.device, self.bytes, contents) }
    }

    fn new(
        memory_kind: MemoryKind,
        access: Access,
        bytes: usize,
        own: Option<Heap>,
        host: Option<HostRange>,
    ) -> Result<Self> {
        let device = own.as_ref().map(Heap::pointer).or(host.as_ref().map(|host| host.pointer));
        let device =
            device.ok_or_else(|| Error::invalid("memory without a device or host side"))?;
        let enqueued = Mutex::new(AccessState::Acquired);
        Ok(Block { memory_kind, access, bytes, device, own, host, claims: Claims::new(), enqueued })
    }

    /// Address of the first byte on the device's side. Only the holder of a claim may access it.
    pub(super) fn device(&self) -> NonNull<u8> {
        self.device
    }

    pub(super) fn claims(&self) -> &Claims {
        &self.claims
    }

    /// The access state after all enqueued commands have run.
    pub(super) fn enqueued(&self) -> &Mutex<AccessState> {
        &self.enqueued
    }

    /// Whether host and device have separate bytes.
    pub(super) fn has_two_sides(&self) -> bool {
        self.own.is_some() && self.host.is_some()
    }

    /// Changes the access state, as a command: copies if the other side's bytes are newer.
    pub(super) fn move_to(&self, to: AccessState) -> Result<()> {
        let (from, dirty) = self.claims.place();
        let exclusive = from == AccessState::Released || to == AccessState::Released;
        let _claim = self.claims.of_move("fake_reside", 0..self.bytes, exclusive)?;
        // Kernels that only read have changed nothing. Without a copy, others can keep reading.
        let newer = dirty || self.access.writes();
        match (from, to) {
            (AccessState::Acquired, AccessState::SharedRead | AccessState::Released) if newer => {
                self.device_to_host();
            }
            (AccessState::Released, AccessState::SharedRead | AccessState::Acquired) => {
                self.host_to_device()
            }
            _ => {}
        }
        self.claims.moved(to);
        Ok(())
    }

    fn device_to_host(&self) {
        if let (Some(own), Some(host)) = (&self.own, &self.host) {
            // SAFETY: both have this size and are separate allocations. The caller has a claim on the device's bytes, and no
            // other code uses the host's while the device has the memory.
            unsafe { host.pointer.copy_from_nonoverlapping(own.pointer(), self.bytes) };
        }
    }

    fn host_to_device(&self) {
        if let (Some(own), Some(host)) = (&self.own, &self.host) {
            // SAFETY: as above; the caller has a claim, or no other code uses the block yet.
            unsafe { own.pointer().copy_from_nonoverlapping(host.pointer, self.bytes) };
        }
    }
}

/// A handle of a memory.
#[derive(Debug)]
pub struct FakeMemory {
    domain: Domain,
    info: Arc<DeviceInfo>,
    block: Arc<Block>,
    /// The bytes of the block that it covers.
    range: Range<usize>,
    access: Access,
    /// Whether it is a region of another memory.
    region: bool,
    watch: Watch,
    _live: Live,
}

impl FakeMemory {
    pub(super) fn new(domain: Domain, info: &Arc<DeviceInfo>, block: Block, watch: &Watch) -> Self {
        FakeMemory {
            domain,
            info: info.clone(),
            range: 0..block.bytes,
            access: block.access,
            region: false,
            block: Arc::new(block),
            watch: watch.clone(),
            _live: watch.object("mem", "fake_release_mem"),
        }
    }

    pub(super) fn block(&self) -> &Arc<Block> {
        &self.block
    }

    /// The bytes of the block that it covers.
    pub(super) fn range(&self) -> &Range<usize> {
        &self.range
    }
}

// SAFETY: host bytes stay at their address while the block lives, which this memory and every command on it hold.
unsafe impl TypedMemory for FakeMemory {
    type Types = FakeBackend;

    fn domain(&self) -> Domain {
        self.domain
    }

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn access(&self) -> Access {
        self.access
    }

    fn part(&self) -> AllocationPart {
        AllocationPart {
            allocation: Arc::as_ptr(&self.block).addr(),
            start: self.range.start,
            is_region: self.region,
        }
    }

    fn bytes(&self) -> usize {
        self.range.len()
    }

    fn memory_kind(&self) -> MemoryKind {
        self.block.memory_kind
    }

    fn host_pointer(&self) -> Option<NonNull<u8>> {
        let hidden = self.needs_access_state() && self.access_state() == AccessState::Acquired;
        let host = self.block.host.as_ref().filter(|_| !hidden)?;
        // SAFETY: the range lies inside the block.
        Some(unsafe { host.pointer.add(self.range.start) })
    }

    fn pins_pages(&self) -> bool {
        self.memory_kind() == MemoryKind::HostPages
    }

    fn is_read_from_map(&self) -> bool {
        self.memory_kind() == MemoryKind::MappedDevice
    }

    fn needs_access_state(&self) -> bool {
        self.block.has_two_sides()
    }

    fn access_state(&self) -> AccessState {
        *lock(&self.block.enqueued)
    }

    unsafe fn export(&self, _queue: &FakeQueue) -> Result<Export> {
        self.watch.call("fake_export")?;
        self.block.host.clone().map(Export::Host).ok_or_else(|| {
            Error::unsupported(format!("export of {} memory", self.memory_kind()), "a host side")
        })
    }

    fn region_align(&self) -> usize {
        1
    }

    unsafe fn region(&self, offset: usize, bytes: usize, access: Access) -> Result<FakeMemory> {
        self.watch.call("fake_region")?;
        Ok(FakeMemory {
            domain: self.domain,
            info: self.info.clone(),
            block: self.block.clone(),
            range: offset..offset + bytes,
            access,
            region: true,
            watch: self.watch.clone(),
            _live: self.watch.object("mem", "fake_release_mem"),
        })
    }

    fn raw(&self) -> RawHandle {
        use MemoryKind::{CoarseSvm, FineSvm, HostPages, Managed};
        let start = self.range.start;
        match (&self.block.host, self.block.memory_kind) {
            (Some(host), CoarseSvm | FineSvm | HostPages | Managed) => {
                RawHandle::Address(host.pointer.addr().get() + start)
            }
            _ => RawHandle::Object(self.block.device.addr().get() + start),
        }
    }
}
