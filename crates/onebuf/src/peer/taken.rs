//! What a peer makes of a device's memory that it was given: the same memory, on a device of its own of that chip.

use super::wire::{Grant, Kind};
use crate::{
    Buffer, BufferBuilder, Device, Error, Hub, Result,
    hal::{FdKind, FdRange, PhysicalId},
    sync::Arc,
    topology::DeviceIx,
};
use bytemuck::Pod;
use std::os::fd::OwnedFd;

/// By what sort of descriptor it comes; none for pages, and for what nobody imports.
pub(super) fn sort(kind: Kind) -> Option<FdKind> {
    match kind {
        Kind::OpaqueFd => Some(FdKind::OpaqueFd),
        Kind::DmaBuf => Some(FdKind::DmaBuf),
        Kind::HostPages | Kind::CudaIpc | Kind::HipIpc => None,
    }
}

/// The buffer, on the first device that takes it: those of the wish before all others, those of the owner's API
/// before those of other ones.
pub(super) fn buffer_on<T: Pod>(
    hub: &Hub,
    grant: &Grant,
    (file, sort): (OwnedFd, FdKind),
    wish: &BufferBuilder<'_, T>,
) -> Result<Buffer<T>> {
    let range = range(grant, file, sort)?;
    let chip =
        grant.uuid.ok_or_else(|| Error::refused("it does not say which chip's memory it is"))?;
    let mut outcome = Err(nobody(grant, chip));
    for device in candidates(hub, grant, sort, &wish.shape.devices) {
        outcome = wish.clone().build_imported(device, range.clone());
        match &outcome {
            Err(error @ (Error::Driver { .. } | Error::Unsupported { .. })) => {
                let id = &hub.topology().node(device).id;
                tracing::warn!(device = %id, %error, "it does not take the owner's memory");
                outcome = Err(Error::refused(format!("{id} does not take its memory: {error}")));
            }
            _ => break,
        }
    }
    let buffer = outcome?;
    buffer.core().arrive();
    Ok(buffer)
}

/// The bytes, which a grant that was heard has inside of its allocation.
fn range(grant: &Grant, fd: OwnedFd, kind: FdKind) -> Result<FdRange> {
    let fits = |number: u64| usize::try_from(number).map_err(|_| Error::refused("it is too large"));
    let [offset, bytes, allocation_bytes] =
        [fits(grant.offset)?, fits(grant.bytes)?, fits(grant.allocation_bytes)?];
    // The kernel knows how long a dma-buf is; the rest only the driver does.
    if kind == FdKind::DmaBuf {
        let there = rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0)).unwrap_or(0);
        if there < grant.allocation_bytes {
            let said = grant.allocation_bytes;
            return Err(Error::refused(format!("its dma-buf has {there} bytes, not {said}")));
        }
    }
    Ok(FdRange { fd: Arc::new(fd), kind, offset, bytes, allocation_bytes })
}

/// Devices of that chip that import such memory, the best first. Whoever names one means that one.
fn candidates(hub: &Hub, grant: &Grant, sort: FdKind, named: &[DeviceIx]) -> Vec<DeviceIx> {
    let chip = PhysicalId { uuid: grant.uuid, pci: None };
    let takes = |device: &Device| {
        let info = device.info();
        info.caps.imports.contains(&sort) && info.physical.same_chip(&chip)
    };
    let api = grant.device.split(':').next().unwrap_or_default();
    let mut all: Vec<Device> = hub.devices().into_iter().filter(takes).collect();
    all.sort_by_key(|device| device.info().api.0 != api);
    let all: Vec<_> = all.iter().map(Device::index).collect();
    let wanted: Vec<_> = all.iter().copied().filter(|device| named.contains(device)).collect();
    if wanted.is_empty() { all } else { wanted }
}

fn nobody(grant: &Grant, chip: [u8; 16]) -> Error {
    let uuid = PhysicalId { uuid: Some(chip), pci: None }.uuid_text().unwrap_or_default();
    Error::unsupported(
        format!("attaching to {} of {} on the chip {uuid}", grant.kind.name(), grant.device),
        "a device of this hub on that chip which imports such memory: see `onebuf devices`",
    )
}
