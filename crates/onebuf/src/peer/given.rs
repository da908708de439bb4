//! What an owner gives: a descriptor of its memory, and what must be known of it.

use super::wire::{Grant, Kind};
use crate::{
    Buffer, Error, Result, Strategy,
    buffer::Core,
    hal::{FdKind, FdRange},
    hub::PageFile,
};
use bytemuck::Pod;
use std::os::fd::{AsFd, BorrowedFd};

/// A buffer's memory, while it is offered.
pub(super) enum Given {
    /// Host pages.
    Pages(PageFile),
    /// Memory of a device on that chip.
    Device { range: FdRange, chip: [u8; 16] },
}

impl Given {
    pub fn of(core: &Core) -> Result<Self> {
        if core.plan.strategy != Strategy::Exportable {
            return core.hub.page_file(&core.pages_for_peers()?).map(Given::Pages);
        }
        let node = core.hub.topology().node(core.plan.allocate_on);
        let chip = node.info.physical.uuid.ok_or_else(|| {
            let what = format!("sharing memory of {} with another process", node.id);
            Error::unsupported(
                what,
                "a driver that tells the chip's UUID, by which the other finds it",
            )
        })?;
        Ok(Given::Device { range: core.descriptor_for_peers()?, chip })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Given::Pages(file) => file.as_fd(),
            Given::Device { range, .. } => range.fd.as_fd(),
        }
    }

    /// The words that go with the descriptor.
    pub fn grant<T: Pod>(&self, buffer: &Buffer<T>, session: u64) -> Grant {
        let (kind, allocation_bytes, offset, uuid) = match self {
            Given::Pages(file) => (Kind::HostPages, file.bytes(), 0, None),
            Given::Device { range, chip } => {
                (range.kind.into(), range.allocation_bytes as u64, range.offset as u64, Some(*chip))
            }
        };
        Grant {
            kind,
            fds: 1,
            element_bytes: size_of::<T>() as u32,
            allocation_bytes,
            offset,
            bytes: buffer.size_bytes() as u64,
            base: 0,
            session,
            uuid,
            device: buffer.hub().topology().node(buffer.plan().allocate_on).id.clone(),
            handle: Vec::new(),
        }
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
