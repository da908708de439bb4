//! Plain device memory shared with another process by an IPC handle, for memory without a descriptor.
//!
//! A handle covers a whole allocation, and drivers place small allocations together in a block of two megabytes, which
//! would be exposed whole. So only whole blocks are exported.

use super::device::{Context, Driver};
use onebuf_hal::{Error, IpcRange, Result};
use onebuf_sys::{
    Refused,
    cuda_like::{CudaLike, DevicePtr, IpcHandle, consts},
};

/// The process of a handle that the application passes: nothing says which.
pub(super) const UNKNOWN_PROCESS: u32 = 0;

/// Size of the drivers' blocks.
const BLOCK_BYTES: usize = 2 << 20;

/// Whether the driver has every call that this module makes.
pub(super) fn is_there(table: &CudaLike) -> bool {
    table.has_ipc_handle()
        && table.has_open_ipc()
        && table.has_close_ipc()
        && table.has_address_range()
}

/// Exports an IPC handle of an allocation of `bytes`.
pub(super) fn export(context: &Context, at: DevicePtr, bytes: usize) -> Result<IpcRange> {
    let (driver, what) = (&context.driver, format!("{bytes} bytes in another process"));
    if !driver.info.caps.ipc {
        return Err(Error::unsupported(what, "a driver with handles for other processes"));
    }
    if !bytes.is_multiple_of(BLOCK_BYTES) {
        let needs = "a multiple of 2 MiB, since a smaller allocation shares its block with others, or `Exportable` memory";
        return Err(Error::unsupported(what, needs));
    }
    let _current = context.enter()?;
    let (base, allocation_bytes) = driver.check(extent(&driver.table, at))?;
    if base != at || allocation_bytes < bytes {
        let needs = "an allocation of its own, which the driver says this is not";
        return Err(Error::unsupported(what, needs));
    }
    // SAFETY: the base of a live allocation.
    let IpcHandle(handle) = driver.check(unsafe { driver.table.ipc_handle(at) })?;
    let process = std::process::id();
    Ok(IpcRange { handle, process, base: base.0, allocation_bytes, offset: 0, bytes })
}

/// Returns base and size of the allocation that contains an address. The context is current.
fn extent(table: &CudaLike, at: DevicePtr) -> Result<(DevicePtr, usize), Refused> {
    let (mut base, mut bytes) = (DevicePtr(0), 0);
    // SAFETY: valid pointers for the results; the driver refuses unknown addresses.
    unsafe { table.address_range(&raw mut base, &raw mut bytes, at)? };
    Ok((base, bytes))
}

/// An allocation of another process.
#[derive(Debug)]
pub(super) struct Opened {
    pub base: DevicePtr,
}

impl Opened {
    /// Opens the handle. The context is current. The driver must confirm the size that the exporter sent.
    pub fn open(driver: &Driver, range: &IpcRange) -> Result<Opened> {
        let flags = consts::IPC_LAZY_ENABLE_PEER_ACCESS;
        // SAFETY: the driver refuses invalid handles and handles of this process.
        let base =
            driver.check(unsafe { driver.table.open_ipc(IpcHandle(range.handle), flags) })?;
        let opened = Opened { base };
        match driver.check(extent(&driver.table, base)) {
            Ok((at, bytes)) if at == base && bytes >= range.allocation_bytes => Ok(opened),
            Ok((_, bytes)) => {
                opened.free(driver);
                Err(too_small(range, bytes))
            }
            Err(why) => {
                opened.free(driver);
                Err(why)
            }
        }
    }

    /// Closes the handle. The context is current, and no work uses the memory.
    pub fn free(self, driver: &Driver) {
        // SAFETY: opened by `open`, closed once.
        driver.note(unsafe { driver.table.close_ipc(self.base) });
    }
}

/// The error for an allocation of another process that is smaller than the caller, or the other process, said.
fn too_small(range: &IpcRange, bytes: usize) -> Error {
    let (said, offset) = (range.allocation_bytes, range.offset);
    if range.process == UNKNOWN_PROCESS {
        let wanted = range.bytes;
        return Error::invalid(format!(
            "{wanted} bytes at {offset} of another process's memory: its allocation has {bytes} bytes"
        ));
    }
    let what = format!("an IPC handle of {bytes} bytes that was announced with {said}");
    Error::unsupported(what, "a handle of the announced size")
}
