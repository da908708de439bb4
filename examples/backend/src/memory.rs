//! Memory of the device, which the host does not see; and host pages, which kernels use where they lie.

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

/// A memory, or a part of one.
#[derive(Clone, Debug)]
pub struct ToyMemory {
    device: Arc<Facts>,
    /// The bytes and what keeps them. From now on only commands of queues touch them.
    range: HostRange,
    /// `Device` for our own, `HostPages` for imported ones.
    kind: MemoryKind,
    access: Access,
    is_part: bool,
}

impl ToyMemory {
    /// Fresh memory holds something, so that nobody relies on zeroes. None where there is not enough.
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

    /// Some of the bytes, for a command to keep.
    pub(crate) fn cut(&self, offset: usize, bytes: usize) -> Result<Self> {
        Ok(Self { range: self.range.part(offset, bytes)?, is_part: true, ..self.clone() })
    }

    pub(crate) fn pointer(&self) -> NonNull<u8> {
        self.range.pointer
    }
}

// SAFETY: the range is there while its owner lives, which this holds.
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

    /// Two memories may be of the same pages: all of the process's memory is one allocation.
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
