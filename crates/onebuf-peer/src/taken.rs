//! Imports the owner's device memory on a device of the same chip.
//!
//! The owner chooses the kind of memory and the chip. It must not choose the driver that reads its descriptor: only devices
//! that the caller named are used, and none whose driver trusts the contents of a file (`Caps::parses_fds`).

use super::{
    inside::{self, core},
    wire::{Grant, Kind},
};
use bytemuck::Pod;
use onebuf_core::{Buffer, BufferBuilder, Device, Hub, topology::DeviceIx};
use onebuf_hal::{
    DeviceInfo, Error, Export, FdKind, FdRange, IpcRange, PhysicalId, Result,
    descriptor::{self, Sort},
    locks::Arc,
};
use onebuf_socket::{Peer, close_aside};
use std::os::fd::OwnedFd;

/// The memory that the owner granted.
pub(super) enum Came {
    /// Host pages.
    Pages(OwnedFd),
    /// A device's memory.
    Device(Export),
}

/// Converts a grant and its descriptor. The number of descriptors was checked when the grant was decoded.
pub(super) fn sort(grant: &Grant, file: Option<OwnedFd>, owner: Peer) -> Result<Came> {
    let file = || file.ok_or_else(|| Error::refused("it sent no descriptor"));
    Ok(match grant.kind {
        Kind::HostPages => Came::Pages(memfd(file()?)?),
        Kind::OpaqueFd => Came::Device(Export::Fd(range(grant, file()?, FdKind::OpaqueFd)?)),
        Kind::DmaBuf => Came::Device(Export::Fd(range(grant, file()?, FdKind::DmaBuf)?)),
        Kind::CudaIpc | Kind::HipIpc => Came::Device(Export::Ipc(handle(grant, owner)?)),
    })
}

/// Checks that a descriptor is a memfd. Its size and seals are checked later.
fn memfd(fd: OwnedFd) -> Result<OwnedFd> {
    if rustix::fs::fcntl_get_seals(&fd).is_ok() {
        return Ok(fd);
    }
    close_aside(fd);
    Err(Error::refused("its fd is not a memfd"))
}

/// The API of an IPC handle; `None` for descriptors.
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
    let handle = handle.map_err(|_| Error::refused("its handle has the wrong length"))?;
    // The process id comes from the kernel, not from the owner.
    let (process, base) = (owner.pid, grant.base);
    let range = IpcRange { handle, process, base, allocation_bytes, offset, bytes };
    range.check_process()?;
    Ok(range)
}

/// Builds the buffer on the first requested device that imports the memory. Devices of the owner's API come first.
pub(super) fn buffer_on<T: Pod>(
    hub: &Hub,
    grant: &Grant,
    from: &Export,
    builder: &BufferBuilder<'_, T>,
) -> Result<Buffer<T>> {
    let chip =
        grant.uuid.ok_or_else(|| Error::refused("it does not say which chip the memory is on"))?;
    let mut outcome = Err(Error::refused("no device imports its memory"));
    for device in candidates(hub, grant, from, chip, builder.devices())? {
        outcome = inside::build_imported(builder.clone(), device, from);
        match &outcome {
            Err(error @ (Error::Driver { .. } | Error::Unsupported { .. })) => {
                let id = &hub.topology().node(device).id;
                tracing::warn!(device = %id, %error, "the device does not import the owner's memory");
                outcome = Err(Error::refused(format!("{id} does not import its memory: {error}")));
            }
            _ => break,
        }
    }
    let buffer = outcome?;
    core(&buffer).arrive();
    Ok(buffer)
}

/// The descriptor's range. The grant's decoder has checked that it lies inside the allocation. A descriptor that is not
/// memory of this kind never reaches a driver.
fn range(grant: &Grant, fd: OwnedFd, kind: FdKind) -> Result<FdRange> {
    let [offset, bytes, allocation_bytes] = numbers(grant)?;
    let wrong = match descriptor::check(&fd, kind, grant.allocation_bytes) {
        Ok(Sort::Memfd | Sort::Driver) => None,
        Ok(Sort::File) => Some("it is a regular file, which no driver exports".to_owned()),
        Err(why) => Some(why),
    };
    if let Some(why) = wrong {
        close_aside(fd);
        return Err(Error::refused(format!("its {}: {why}", grant.kind.name())));
    }
    Ok(FdRange { fd: Arc::new(fd), kind, offset, bytes, allocation_bytes, memory_type: None })
}

/// The grant's offset, size and allocation size.
fn numbers(grant: &Grant) -> Result<[usize; 3]> {
    let fits = |number: u64| {
        usize::try_from(number).map_err(|_| Error::refused("its buffer is too large"))
    };
    Ok([fits(grant.offset)?, fits(grant.bytes)?, fits(grant.allocation_bytes)?])
}

/// Whether a device declares that it imports such memory.
fn takes(info: &DeviceInfo, grant: &Grant, from: &Export) -> bool {
    match from {
        Export::Fd(range) => info.caps.imports.contains(&range.kind),
        Export::Ipc(_) => info.caps.ipc && api(grant.kind) == Some(info.api.0),
        Export::Host(_) | Export::Address(_) | Export::Peer(_) | Export::Object(_) => false,
    }
}

/// The named devices of that chip that import such memory, best first.
fn candidates(
    hub: &Hub,
    grant: &Grant,
    from: &Export,
    chip: [u8; 16],
    named: &[DeviceIx],
) -> Result<Vec<DeviceIx>> {
    let chip = PhysicalId { uuid: Some(chip), pci: None };
    let fits = |device: &Device| {
        let info = device.info();
        takes(info, grant, from) && info.physical.same_chip(&chip)
    };
    let api = grant.device.split(':').next().unwrap_or_default();
    let mut all: Vec<Device> = hub.devices().into_iter().filter(fits).collect();
    all.sort_by_key(|device| device.info().api.0 != api);
    let (parsing, all): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|device| device.info().caps.parses_fds);
    let wanted = |device: &&Device| named.contains(&device.index());
    let wished: Vec<_> = all.iter().filter(wanted).map(Device::index).collect();
    match parsing.iter().find(wanted).or(parsing.first()) {
        _ if !wished.is_empty() => Ok(wished),
        _ if !all.is_empty() => Err(unnamed(grant, &chip, &all)),
        Some(device) => Err(parses(grant, device)),
        None => Err(nobody(grant, &chip)),
    }
}

fn of_chip(grant: &Grant, chip: &PhysicalId) -> String {
    let uuid = chip.uuid_text().unwrap_or_default();
    format!("attaching to {} of {} on the chip {uuid}", grant.kind.name(), grant.device)
}

fn nobody(grant: &Grant, chip: &PhysicalId) -> Error {
    Error::unsupported(
        of_chip(grant, chip),
        "a device of this hub on that chip that imports such memory; see `onebuf devices`",
    )
}

fn unnamed(grant: &Grant, chip: &PhysicalId, fitting: &[Device]) -> Error {
    let ids: Vec<&str> = fitting.iter().map(Device::id).collect();
    let ids = ids.join(", ");
    Error::unsupported(
        of_chip(grant, chip),
        format!(
            "naming the device that imports it, because the owner must not choose a driver: one of {ids}, with \
             `shared_with` or `onebuf attach --devices`"
        ),
    )
}

fn parses(grant: &Grant, device: &Device) -> Error {
    Error::unsupported(
        format!("attaching to {} of another process on {device}", grant.kind.name()),
        "a driver that does not trust the contents of the owner's file, as this one does: a forged file could reach any \
         memory of this process. Host pages can be shared (`onebuf share --memory pages`)",
    )
}
