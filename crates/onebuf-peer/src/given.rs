//! The owner's memory: its descriptor or handle, and the grant that describes it.

use super::wire::{Grant, Kind};
use bytemuck::Pod;
use onebuf_core::{
    Buffer,
    internals::{Core, page_file},
};
use onebuf_hal::{DeviceInfo, Error, FdKind, FdRange, IpcRange, MemoryKind, PageFile, Result};
use std::os::fd::{AsFd, BorrowedFd};

/// The memory of an offered buffer.
pub(super) enum Given {
    /// Host pages.
    Pages(PageFile),
    /// Device memory that is exported as a descriptor, on this chip.
    Device { range: FdRange, chip: [u8; 16] },
    /// Device memory that is exported as an IPC handle.
    Handle { kind: Kind, range: IpcRange, chip: [u8; 16] },
}

impl Given {
    pub fn of(core: &Core) -> Result<Self> {
        let node = core.hub.topology().node(core.plan.allocate_on);
        let kind = ipc(&node.info).filter(|_| core.plan.memory_kind == MemoryKind::Device);
        if core.plan.memory_kind != MemoryKind::Exportable && kind.is_none() {
            return page_file(&core.hub, &core.pages_for_peers()?).map(Given::Pages);
        }
        let chip = node.info.physical.uuid.ok_or_else(|| {
            let what = format!("sharing memory of {} with another process", node.id);
            Error::unsupported(
                what,
                "a driver that reports the chip's UUID, by which the peer finds its device",
            )
        })?;
        match kind {
            None => Ok(Given::Device { range: core.descriptor_for_peers()?, chip }),
            Some(kind) => Ok(Given::Handle { kind, range: core.handle_for_peers()?, chip }),
        }
    }

    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Given::Pages(pages) => vec![pages.file.as_fd()],
            Given::Device { range, .. } => vec![range.fd.as_fd()],
            Given::Handle { .. } => Vec::new(),
        }
    }

    /// The IPC handle and the allocation's address; empty for descriptors.
    fn handle(&self) -> (Vec<u8>, u64) {
        match self {
            Given::Handle { range, .. } => (range.handle.to_vec(), range.base),
            Given::Pages(_) | Given::Device { .. } => (Vec::new(), 0),
        }
    }

    /// The message that describes the memory.
    pub fn grant<T: Pod>(&self, buffer: &Buffer<T>, element_bytes: u32, session: u64) -> Grant {
        let (kind, allocation_bytes, offset, uuid) = match self {
            Given::Pages(file) => (Kind::HostPages, file.bytes, 0, None),
            Given::Device { range, chip } => {
                (range.kind.into(), range.allocation_bytes as u64, range.offset as u64, Some(*chip))
            }
            Given::Handle { kind, range, chip } => {
                (*kind, range.allocation_bytes as u64, range.offset as u64, Some(*chip))
            }
        };
        let (handle, base) = self.handle();
        Grant {
            kind,
            fds: self.fds().len() as u8,
            element_bytes,
            allocation_bytes,
            offset,
            bytes: buffer.size_bytes() as u64,
            base,
            session,
            uuid,
            device: buffer.hub().topology().node(buffer.plan().allocate_on).id.clone(),
            handle,
        }
    }
}

/// The kind of IPC handle for a device's plain memory.
fn ipc(info: &DeviceInfo) -> Option<Kind> {
    match info.api.0 {
        _ if !info.caps.ipc => None,
        "cuda" => Some(Kind::CudaIpc),
        "hip" => Some(Kind::HipIpc),
        _ => None,
    }
}

impl From<FdKind> for Kind {
    fn from(kind: FdKind) -> Self {
        match kind {
            FdKind::OpaqueFd => Kind::OpaqueFd,
            FdKind::DmaBuf => Kind::DmaBuf,
        }
    }
}
