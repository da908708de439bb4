//! Exportable memory with its own address range, by the drivers' virtual memory management.
//!
//! Such memory consists of large pages, usually two megabytes, so that an export never exposes neighbouring memory.

use super::device::{Context, Driver};
use onebuf_hal::{Error, FdKind, FdRange, Result, locks::Arc};
use onebuf_sys::{
    Refused,
    cuda_like::{AccessDesc, AllocationHandle, AllocationProp, DevicePtr, Location, consts},
};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// An allocation, mapped at a reserved address.
#[derive(Debug)]
pub(super) struct Vmm {
    handle: AllocationHandle,
    pub at: DevicePtr,
    /// Size in whole pages.
    bytes: usize,
}

/// Whether the driver has every call that this module makes.
pub(super) fn is_there(driver: &onebuf_sys::cuda_like::CudaLike) -> bool {
    driver.has_allocation_granularity()
        && driver.has_create_allocation()
        && driver.has_release_allocation()
        && driver.has_reserve_address()
        && driver.has_free_address()
        && driver.has_map_allocation()
        && driver.has_unmap_allocation()
        && driver.has_set_access()
        && driver.has_export_allocation()
}

impl Vmm {
    /// The page size.
    pub fn page(driver: &Driver) -> Result<usize, Refused> {
        let prop = prop(driver);
        // SAFETY: properties of a device of this driver.
        let page = unsafe {
            driver.table.allocation_granularity(&raw const prop, consts::GRANULARITY_RECOMMENDED)?
        };
        Ok(page.max(1))
    }

    /// Allocates and maps memory. The context is current.
    pub fn new(driver: &Driver, bytes: usize) -> Result<Vmm, Refused> {
        let (table, prop) = (&driver.table, prop(driver));
        let bytes = bytes.next_multiple_of(Vmm::page(driver)?);
        // SAFETY: whole pages of the granularity for these properties.
        let handle = unsafe { table.create_allocation(bytes, &raw const prop, 0)? };
        Vmm::map(driver, handle, bytes).inspect_err(|_| release(driver, handle))
    }

    /// Imports a `Vmm` of another process, or of this one. The context is current; the caller keeps the descriptor. The
    /// driver refuses to map more bytes than the allocation has.
    pub fn import(driver: &Driver, fd: BorrowedFd<'_>, bytes: usize) -> Result<Vmm, Refused> {
        let number = std::ptr::without_provenance_mut(fd.as_raw_fd() as usize);
        // SAFETY: the API takes the descriptor in place of a pointer, and the descriptor is open.
        let handle = unsafe { driver.table.import_allocation(number, consts::HANDLE_POSIX_FD)? };
        Vmm::map(driver, handle, bytes).inspect_err(|_| release(driver, handle))
    }

    fn map(driver: &Driver, handle: AllocationHandle, bytes: usize) -> Result<Vmm, Refused> {
        let table = &driver.table;
        // SAFETY: whole pages, at any address.
        let at = unsafe { table.reserve_address(bytes, 0, DevicePtr(0), 0)? };
        let vmm = Vmm { handle, at, bytes };
        // SAFETY: a range that was just reserved, and an allocation of the same size.
        let mapped = unsafe { table.map_allocation(at, bytes, 0, handle, 0) };
        mapped.inspect_err(|_| vmm.free_address(driver))?;
        let access = AccessDesc { location: location(driver), flags: consts::ACCESS_READ_WRITE };
        // SAFETY: mapped just now.
        let allowed = unsafe { table.set_access(at, bytes, &raw const access, 1) };
        allowed.inspect_err(|_| {
            vmm.unmap(driver);
            vmm.free_address(driver);
        })?;
        Ok(vmm)
    }

    /// Gives kernels of another device access. For such memory, peer access between contexts has no effect.
    pub fn allow(&self, other: &Driver) -> Result<(), Refused> {
        let access = AccessDesc { location: location(other), flags: consts::ACCESS_READ_WRITE };
        // SAFETY: mapped, and the caller keeps it mapped during the call.
        unsafe { other.table.set_access(self.at, self.bytes, &raw const access, 1) }
    }

    /// Unmaps and frees the memory. The context is current, and no work uses it. Importers keep the physical memory
    /// alive.
    pub fn free(self, driver: &Driver) {
        self.unmap(driver);
        self.free_address(driver);
        release(driver, self.handle);
    }

    fn unmap(&self, driver: &Driver) {
        // SAFETY: mapped by `map`, unmapped once.
        driver.note(unsafe { driver.table.unmap_allocation(self.at, self.bytes) });
    }

    fn free_address(&self, driver: &Driver) {
        // SAFETY: reserved by `map`, freed once, with nothing mapped there.
        driver.note(unsafe { driver.table.free_address(self.at, self.bytes) });
    }

    /// Exports a descriptor, of which the first `bytes` are in use.
    pub fn export(&self, context: &Context, kind: FdKind, bytes: usize) -> Result<FdRange> {
        let fd = export(context, self.handle, kind)?;
        Ok(FdRange { fd, kind, offset: 0, bytes, allocation_bytes: self.bytes, memory_type: None })
    }

    /// Maps an allocation of the application, and adds a reference to it. The context is current.
    ///
    /// # Safety
    /// A live allocation of at least `bytes`.
    pub unsafe fn map_foreign(
        driver: &Driver,
        handle: AllocationHandle,
        bytes: usize,
    ) -> Result<Vmm, Refused> {
        let mapped = Vmm::map(driver, handle, bytes)?;
        let own = retain(driver, mapped.at).inspect_err(|_| {
            mapped.unmap(driver);
            mapped.free_address(driver);
        })?;
        Ok(Vmm { handle: own, ..mapped })
    }
}

/// Adds a reference to the allocation that is mapped at an address. The context is current.
pub(super) fn retain(driver: &Driver, at: DevicePtr) -> Result<AllocationHandle, Refused> {
    // SAFETY: the driver refuses an address where no allocation is mapped.
    unsafe { driver.table.retain_allocation(std::ptr::without_provenance_mut(at.0 as usize)) }
}

/// Exports a descriptor of an allocation.
pub(super) fn export(
    context: &Context,
    handle: AllocationHandle,
    kind: FdKind,
) -> Result<Arc<OwnedFd>> {
    let driver = &context.driver;
    if !driver.info.caps.exports.contains(&kind) {
        let what = format!("memory of {} as {kind}", driver.info.name);
        return Err(Error::unsupported(what, "a driver that exports such descriptors"));
    }
    let _current = context.enter()?;
    let mut fd = -1i32;
    // SAFETY: a live allocation, and a valid pointer for a descriptor.
    driver.check(unsafe {
        let (place, posix) = ((&raw mut fd).cast(), consts::HANDLE_POSIX_FD);
        driver.table.export_allocation(place, handle, posix, 0)
    })?;
    if fd < 0 {
        let what = format!("an export of memory of {}", driver.info.name);
        return Err(Error::unsupported(what, "a driver that returns a descriptor"));
    }
    // SAFETY: a new descriptor with no other owner.
    Ok(Arc::new(unsafe { OwnedFd::from_raw_fd(fd) }))
}

pub(super) fn release(driver: &Driver, handle: AllocationHandle) {
    // SAFETY: created by `new` or `import`, or retained; released once.
    driver.note(unsafe { driver.table.release_allocation(handle) });
}

fn location(driver: &Driver) -> Location {
    Location { kind: consts::LOCATION_DEVICE, id: driver.device }
}

fn prop(driver: &Driver) -> AllocationProp {
    AllocationProp {
        kind: consts::ALLOCATION_PINNED,
        handle_types: consts::HANDLE_POSIX_FD,
        location: location(driver),
        ..AllocationProp::default()
    }
}
