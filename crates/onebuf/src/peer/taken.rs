//! What a peer makes of a device's memory that it was given: the same memory, on a device of its own of that chip.

use super::{
    socket::Peer,
    wire::{Grant, Kind},
};
use crate::{
    Buffer, BufferBuilder, Device, Error, Hub, Result,
    hal::{DeviceInfo, Export, FdKind, FdRange, IpcRange, PhysicalId},
    sync::Arc,
    topology::DeviceIx,
};
use bytemuck::Pod;
use std::os::fd::OwnedFd;

/// What was given.
pub(super) enum Came {
    /// Host pages.
    Pages(OwnedFd),
    /// A device's memory.
    Device(Export),
}

/// By what it comes. How many descriptors a kind has was checked when the grant was heard.
pub(super) fn sort(grant: &Grant, file: Option<OwnedFd>, owner: Peer) -> Result<Came> {
    let file = || file.ok_or_else(|| Error::refused("it sent no descriptor"));
    Ok(match grant.kind {
        Kind::HostPages => Came::Pages(file()?),
        Kind::OpaqueFd => Came::Device(Export::Fd(range(grant, file()?, FdKind::OpaqueFd)?)),
        Kind::DmaBuf => Came::Device(Export::Fd(range(grant, file()?, FdKind::DmaBuf)?)),
        Kind::CudaIpc | Kind::HipIpc => Came::Device(Export::Ipc(handle(grant, owner)?)),
    })
}

/// The API whose handle it is; any for descriptors.
fn api(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::CudaIpc => Some("cuda"),
        Kind::HipIpc => Some("hip"),
        Kind::HostPages | Kind::OpaqueFd | Kind::DmaBuf => None,
    }
}

fn handle(grant: &Grant, owner: Peer) -> Result<IpcRange> {
    let [offset, bytes, allocation_bytes] = numbers(grant)?;
    let handle = grant.handle.as_slice().try_into();
    let handle = handle.map_err(|_| Error::refused("its handle has another length"))?;
    // Which process it is the kernel says, and not the owner.
    let (process, base) = (owner.pid, grant.base);
    let range = IpcRange { handle, process, base, allocation_bytes, offset, bytes };
    range.check_process()?;
    Ok(range)
}

/// The buffer, on the first device that takes it: those of the wish before all others, those of the owner's API
/// before those of other ones.
pub(super) fn buffer_on<T: Pod>(
    hub: &Hub,
    grant: &Grant,
    from: &Export,
    wish: &BufferBuilder<'_, T>,
) -> Result<Buffer<T>> {
    let chip =
        grant.uuid.ok_or_else(|| Error::refused("it does not say which chip's memory it is"))?;
    let mut outcome = Err(nobody(grant, chip));
    for device in candidates(hub, grant, from, &wish.shape.devices) {
        outcome = wish.clone().build_imported(device, from);
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
    let [offset, bytes, allocation_bytes] = numbers(grant)?;
    // The kernel knows how long a dma-buf is; the rest only the driver does.
    if kind == FdKind::DmaBuf {
        let there = rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0)).unwrap_or(0);
        if there < grant.allocation_bytes {
            let said = grant.allocation_bytes;
            return Err(Error::refused(format!("its dma-buf has {there} bytes, not {said}")));
        }
    }
    Ok(FdRange { fd: Arc::new(fd), kind, offset, bytes, allocation_bytes, memory_type: None })
}

/// Its offset, length and allocation.
fn numbers(grant: &Grant) -> Result<[usize; 3]> {
    let fits = |number: u64| usize::try_from(number).map_err(|_| Error::refused("it is too large"));
    Ok([fits(grant.offset)?, fits(grant.bytes)?, fits(grant.allocation_bytes)?])
}

/// Whether a device says that it takes such memory.
fn takes(info: &DeviceInfo, grant: &Grant, from: &Export) -> bool {
    match from {
        Export::Fd(range) => info.caps.imports.contains(&range.kind),
        Export::Ipc(_) => info.caps.ipc && api(grant.kind) == Some(info.api.0),
        Export::Host(_) | Export::Address(_) | Export::Peer(_) | Export::Object(_) => false,
    }
}

/// Devices of that chip that import such memory, the best first. Whoever names one means that one.
fn candidates(hub: &Hub, grant: &Grant, from: &Export, named: &[DeviceIx]) -> Vec<DeviceIx> {
    let chip = PhysicalId { uuid: grant.uuid, pci: None };
    let fits = |device: &Device| {
        let info = device.info();
        takes(info, grant, from) && info.physical.same_chip(&chip)
    };
    let api = grant.device.split(':').next().unwrap_or_default();
    let mut all: Vec<Device> = hub.devices().into_iter().filter(fits).collect();
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
