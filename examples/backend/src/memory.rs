//! Device memory, which the host cannot access, and imported host pages, which kernels use in place.

#![allow(unsafe_code)] // See the head of `lib.rs`.

use crate::{ALIGN_BYTES, backend::ToyBackend, device::Facts};
use onebuf_hal::{
    Access, AllocSpec, DeviceInfo, Domain, HostRange, MemoryKind, RawHandle, Result,
    typed::{AllocationPart, TypedMemory},
};
use std::{ptr::NonNull, sync::Arc};

#[derive(Clone)]
#[repr(align(64))]
struct Line([u8; ALIGN_BYTES]);

/// A memory object, or a region of one.
#[derive(Clone, Debug)]
pub struct ToyMemory {
    device: Arc<Facts>,
    /// The bytes and their owner. Only commands of queues access them.
    range: HostRange,
    /// `Device` for allocated memory, `HostPages` for imported memory.
    kind: MemoryKind,
    access: Access,
    is_part: bool,
}

impl ToyMemory {
    /// Allocates memory, filled with a pattern so that no caller relies on zeroes. `None` if there is not enough.
    pub(crate) fn allocate(device: &Arc<Facts>, spec: &AllocSpec, from: &[u8]) -> Option<Self> {
        let (count, mut lines) = (spec.bytes.div_ceil(ALIGN_BYTES), Vec::new());
        lines.try_reserve_exact(count).ok()?;
        lines.resize(count, Line([0xa5; ALIGN_BYTES]));
        for (line, from) in lines.iter_mut().zip(from.chunks(ALIGN_BYTES)) {
            line.0[..from.len()].copy_from_slice(from);
        }
        let pointer = NonNull::from(&mut *lines).cast();
        let range = HostRange { pointer, bytes: spec.bytes, owner: Arc::new(lines) };
        Some(Self { kind: MemoryKind::Device, ..Self::import(device, range, spec.access) })
    }

    pub(crate) fn import(device: &Arc<Facts>, range: HostRange, access: Access) -> Self {
        let (device, kind) = (device.clone(), MemoryKind::HostPages);
        Self { device, range, kind, access, is_part: false }
    }

    /// Returns a region that a command can own.
    pub(crate) fn cut(&self, offset: usize, bytes: usize) -> Result<Self> {
        Ok(Self { range: self.range.part(offset, bytes)?, is_part: true, ..self.clone() })
    }

    pub(crate) fn pointer(&self) -> NonNull<u8> {
        self.range.pointer
    }
}

// SAFETY: the range is valid while its owner lives, and this value holds the owner.
unsafe impl TypedMemory for ToyMemory {
    type Types = ToyBackend;

    fn domain(&self) -> Domain {
        self.device.domain
    }

    fn info(&self) -> &DeviceInfo {
        &self.device.info
    }

    fn bytes(&self) -> usize {
        self.range.bytes
    }

    fn memory_kind(&self) -> MemoryKind {
        self.kind
    }

    fn access(&self) -> Access {
        self.access
    }

    /// Two memory objects may share pages, so all memory of the process counts as one allocation.
    fn part(&self) -> AllocationPart {
        let start = self.range.pointer.addr().get();
        AllocationPart { allocation: 0, start, is_region: self.is_part }
    }

    fn host_pointer(&self) -> Option<NonNull<u8>> {
        (self.kind == MemoryKind::HostPages).then_some(self.range.pointer)
    }

    unsafe fn region(&self, offset: usize, bytes: usize, access: Access) -> Result<Self> {
        Ok(Self { access, ..self.cut(offset, bytes)? })
    }

    fn raw(&self) -> RawHandle {
        let address = self.range.pointer.addr().get();
        self.host_pointer().map_or(RawHandle::Object(address), |_| RawHandle::Address(address))
    }
}
