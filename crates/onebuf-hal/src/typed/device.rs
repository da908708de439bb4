//! The device trait that a backend implements.
//!
//! # Safety
//! The unsafe trait and methods are contracts for backends.

#![allow(unsafe_code)]

use super::ApiTypes;
use crate::{
    Access, AddressRange, AllocSpec, BaseDevice, ContextHandles, Device, DeviceInfo, Error,
    FdRange, HostRange, IpcRange, LayeredHandles, NativeContext, ObjectRange, PageFile, PhysicalId,
    QueueSpec, Result, Source, locks::Arc, watchdog::Post,
};
use std::{
    any::Any,
    fmt,
    os::fd::{BorrowedFd, OwnedFd},
};

/// One API's view of one chip. [`Device`] documents the methods in full.
///
/// # Safety
/// The contract of [`Device`].
pub unsafe trait TypedDevice: Any + Send + Sync + fmt::Debug + Sized {
    /// The types of its API.
    type Types: ApiTypes<Device = Self>;

    /// The device's description.
    fn info(&self) -> &DeviceInfo;

    /// Allocates memory. The size, the memory kind, the alignment and the length of the contents have been checked against
    /// [`TypedDevice::info`].
    ///
    /// # Safety
    /// [`checks::allocation`](crate::checks::allocation) accepts the specification and the contents.
    unsafe fn allocate(
        &self,
        spec: &AllocSpec,
        contents: Option<&[u8]>,
    ) -> Result<<Self::Types as ApiTypes>::Memory>;

    /// Opens a queue. An out-of-order queue is requested only if the device's capabilities include them.
    fn queue(&self, spec: QueueSpec) -> Result<<Self::Types as ApiTypes>::Queue>;

    /// Builds a program from the first form of the source that this device supports.
    fn build(&self, source: &Source) -> Result<<Self::Types as ApiTypes>::Program>;

    /// Whether [`TypedDevice::build`] compiles: see [`Device::compiles`].
    fn compiles(&self) -> bool {
        false
    }

    /// The largest range of host pages that can be imported; zero if there is no limit.
    fn import_host_limit(&self) -> u64 {
        self.info().caps.max_alloc_bytes
    }

    /// Imports host pages. Called only if the capabilities include it, within [`TypedDevice::import_host_limit`].
    ///
    /// # Safety
    /// The pages are valid while their owner lives, and within the limit.
    unsafe fn import_host(
        &self,
        pages: &HostRange,
        access: Access,
    ) -> Result<<Self::Types as ApiTypes>::Memory> {
        let _ = (pages, access);
        Err(no_import(self.info(), "host pages"))
    }

    /// What the device would need to import host pages, for the error message.
    fn host_pages_need(&self) -> &'static str {
        "a device that imports host pages"
    }

    /// Imports memory behind a descriptor.
    ///
    /// # Safety
    /// The capabilities list this kind of descriptor, and the bytes lie inside the allocation.
    unsafe fn import_fd(
        &self,
        range: &FdRange,
        access: Access,
    ) -> Result<<Self::Types as ApiTypes>::Memory> {
        let _ = (range, access);
        Err(no_import(self.info(), "a descriptor"))
    }

    /// Imports memory at a device address.
    ///
    /// # Safety
    /// The memory exists while its owner lives.
    unsafe fn import_address(
        &self,
        range: &AddressRange,
        access: Access,
    ) -> Result<<Self::Types as ApiTypes>::Memory> {
        let _ = (range, access);
        Err(no_import(self.info(), "an address"))
    }

    /// Imports memory of another device of this backend.
    ///
    /// # Safety
    /// The memory belongs to a device of this backend.
    unsafe fn import_peer(
        &self,
        memory: &<Self::Types as ApiTypes>::Memory,
        access: Access,
    ) -> Result<<Self::Types as ApiTypes>::Memory> {
        let _ = (memory, access);
        Err(no_import(self.info(), "memory of another device"))
    }

    /// Imports memory of another process. Called only if the capabilities include it.
    ///
    /// # Safety
    /// The capabilities allow such handles, and the bytes lie inside the allocation.
    unsafe fn import_ipc(
        &self,
        range: &IpcRange,
        access: Access,
    ) -> Result<<Self::Types as ApiTypes>::Memory> {
        let _ = (range, access);
        Err(no_import(self.info(), "a handle of another process's memory"))
    }

    /// Imports an object of another API.
    ///
    /// # Safety
    /// The capabilities list the object's API, and the object is alive while its home is.
    unsafe fn import_object(
        &self,
        object: &ObjectRange,
        access: Access,
    ) -> Result<<Self::Types as ApiTypes>::Memory> {
        let _ = (object, access);
        Err(no_import(self.info(), "an object of another API"))
    }

    /// Exports a descriptor for memory at an address that this device's runtime knows, even if another API allocated it.
    fn descriptor(&self, of: &AddressRange) -> Result<FdRange> {
        Err(Error::unsupported(
            format!("a descriptor of memory at {:#x} on {}", of.address, self.info().name),
            "a runtime that exports what other APIs allocated",
        ))
    }

    /// Creates a binary semaphore, and the descriptor by which other devices of the chip import it.
    fn semaphore(&self) -> Result<(<Self::Types as ApiTypes>::Semaphore, OwnedFd)> {
        let what = format!("a semaphore of {} that others import", self.info().name);
        Err(Error::unsupported(what, "a driver that exports semaphores"))
    }

    /// Imports another device's semaphore by its descriptor. The caller keeps the descriptor.
    fn import_semaphore(&self, fd: BorrowedFd<'_>) -> Result<<Self::Types as ApiTypes>::Semaphore> {
        let _ = fd;
        let what = format!("a semaphore of another device on {}", self.info().name);
        Err(Error::unsupported(what, "a driver that imports semaphores"))
    }

    /// Returns its native context: see [`Device::native_context`].
    fn native_context(&self) -> Result<NativeContext> {
        let what = format!("a context of {} for another API", self.info().name);
        Err(Error::unsupported(what, "a device whose objects others share"))
    }

    /// Returns the native handles, each with the name of its type: see [`Device::native_handles`].
    fn native_handles(&self) -> Result<Vec<(&'static str, usize)>> {
        Ok(Vec::new())
    }

    /// Announces a device whose objects this one will import: see [`Device::will_share_with`].
    fn will_share_with(&self, other: &Arc<dyn Device>) {
        let _ = other;
    }

    /// Returns this device as the base of a layered runtime: see [`Device::base_device`].
    ///
    /// # Safety
    /// As for [`Device::base_device`].
    unsafe fn base_device(
        self: Arc<Self>,
        layered: &LayeredHandles,
    ) -> Option<Result<Arc<dyn BaseDevice>>> {
        let _ = layered;
        None
    }

    /// The physical id of another API's context, if it is this device's: see [`Device::chip_of`].
    ///
    /// # Safety
    /// The context is live and current on this thread.
    unsafe fn chip_of(&self, context: ContextHandles) -> Option<PhysicalId> {
        let _ = context;
        None
    }

    /// The file behind host pages that this device allocated, so that another process can map it.
    fn page_file(&self, pages: &HostRange) -> Result<PageFile> {
        let _ = pages;
        Err(Error::unsupported(
            "sharing these pages",
            "pages that onebuf allocated, in a sealed memfd",
        ))
    }

    /// Maps another process's file as host pages: see [`Device::map_file`].
    fn map_file(&self, file: OwnedFd, bytes: usize) -> Result<HostRange> {
        let _ = (file, bytes);
        Err(Error::unsupported("pages of another process", "the host"))
    }

    /// Whether exporting a program's binary on this device loses the initial values of the program's global variables.
    fn forgets_variables(&self) -> bool {
        false
    }

    /// The watchdog's record of this device, if its driver calls may block.
    fn post(&self) -> Option<&Arc<Post>> {
        None
    }
}

/// The error for an export that the device cannot import.
#[cold]
fn no_import(info: &DeviceInfo, what: &str) -> Error {
    Error::unsupported(format!("{what} on {}", info.name), "host pages or a descriptor")
}
