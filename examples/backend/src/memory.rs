//! Memory of the device, which the host does not see; and host pages, which kernels use where they lie.

use crate::{API, device::ALIGN_BYTES};
use onebuf_hal::{
    Access, AccessState, AllocSpec, Domain, Error, Export, HostRange, Memory, MemoryKind, Queue,
    RawHandle, Result, checks,
};
use std::{ptr::NonNull, sync::Arc};

#[derive(Clone)]
#[repr(align(64))]
struct Line([u8; ALIGN_BYTES]);

/// A memory, or a part of one.
#[derive(Clone, Debug)]
pub(crate) struct ToyMemory {
    domain: Domain,
    /// The bytes and what keeps them. From now on only commands of queues touch them.
    range: HostRange,
    /// `Device` for our own, `HostPages` for imported ones.
    kind: MemoryKind,
    access: Access,
    is_part: bool,
}

impl ToyMemory {
    /// Fresh memory holds something, so that nobody relies on zeroes. None where there is not enough.
    pub(crate) fn allocate(domain: Domain, spec: &AllocSpec, contents: &[u8]) -> Option<Self> {
        let (count, mut lines) = (spec.bytes.div_ceil(ALIGN_BYTES), Vec::new());
        lines.try_reserve_exact(count).ok()?;
        lines.resize(count, Line([0xa5; ALIGN_BYTES]));
        for (line, from) in lines.iter_mut().zip(contents.chunks(ALIGN_BYTES)) {
            line.0[..from.len()].copy_from_slice(from);
        }
        let pointer = NonNull::from(&mut *lines).cast();
        let range = HostRange { pointer, bytes: spec.bytes, owner: Arc::new(lines) };
        Some(Self { domain, range, kind: MemoryKind::Device, access: spec.access, is_part: false })
    }

    pub(crate) fn import(domain: Domain, range: HostRange, access: Access) -> Self {
        Self { domain, range, kind: MemoryKind::HostPages, access, is_part: false }
    }

    /// The memory behind the trait, when it belongs to this domain.
    pub(crate) fn of(memory: &dyn Memory, domain: Domain) -> Result<&Self> {
        let own = memory.as_any().downcast_ref::<Self>().filter(|memory| memory.domain == domain);
        let want = || format!("memory of {API} {domain:?}");
        own.ok_or_else(|| Error::ForeignContext { have: format!("{memory:?}"), want: want() })
    }

    /// Some of the bytes, for a command to keep.
    pub(crate) fn part(&self, offset: usize, bytes: usize) -> Result<Self> {
        Ok(Self { range: self.range.part(offset, bytes)?, is_part: true, ..*self })
    }

    pub(crate) fn pointer(&self) -> NonNull<u8> {
        self.range.pointer
    }
}

impl Memory for ToyMemory {
    fn bytes(&self) -> usize {
        self.range.bytes
    }

    fn memory_kind(&self) -> MemoryKind {
        self.kind
    }

    fn host_pointer(&self) -> Option<NonNull<u8>> {
        (self.kind == MemoryKind::HostPages).then_some(self.range.pointer)
    }

    fn needs_access_state(&self) -> bool {
        false // memory that a driver maps for the host has one, which `Queue::reside` changes
    }

    fn access_state(&self) -> AccessState {
        AccessState::Acquired
    }

    fn export(&self, _queue: &dyn Queue) -> Result<Export> {
        let seen = self.host_pointer().map(|_| Export::Host(self.range.clone()));
        seen.ok_or_else(|| Error::unsupported(format!("export from {API}"), "host pages"))
    }

    fn region(&self, offset: usize, bytes: usize, access: Access) -> Result<Arc<dyn Memory>> {
        let Self { access: has, is_part, .. } = *self;
        let whole = checks::Whole { bytes: self.bytes(), access: has, align: ALIGN_BYTES, is_part };
        whole.check_region(offset, bytes, access)?;
        Ok(Arc::new(Self { access, ..self.part(offset, bytes)? }))
    }

    fn raw(&self) -> RawHandle {
        let address = self.range.pointer.addr().get();
        self.host_pointer().map_or(RawHandle::Object(address), |_| RawHandle::Address(address))
    }
}
