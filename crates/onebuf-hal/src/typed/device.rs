//! A device, as its backend implements it.
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

/// One API's view of one chip. Methods without a word of their own are those of [`Device`].
///
/// # Safety
/// The contract of [`Device`].
pub unsafe trait TypedDevice: Any + Send + Sync + fmt::Debug + Sized {
    /// The types of its API.
    type Types: ApiTypes<Device = Self>;

    /// What is known of it.
    fn info(&self) -> &DeviceInfo;

    /// New memory. The size, the memory kind, the alignment and the length of the contents have been checked against
    /// [`TypedDevice::info`].
    ///
    /// # Safety
    /// The specification and the contents are those that [`checks::allocation`](crate::checks::allocation) lets pass.
    unsafe fn allocate(
        &self,
        spec: &AllocSpec,
        contents: Option<&[u8]>,
    ) -> Result<<Self::Types as ApiTypes>::Memory>;

    /// A new queue. It is in order, unless the device's capabilities have out-of-order queues.
    fn queue(&self, spec: QueueSpec) -> Result<<Self::Types as ApiTypes>::Queue>;

    /// Compiles a program in the language that this device speaks.
    fn build(&self, source: &Source) -> Result<<Self::Types as ApiTypes>::Program>;

    /// Whether [`TypedDevice::build`] compiles: see [`Device::compiles`].
    fn compiles(&self) -> bool {
        false
    }

    /// The most bytes of host pages that are imported at a time; zero where there is no limit.
    fn import_host_limit(&self) -> u64 {
        self.info().caps.max_alloc_bytes
    }

    /// Host pages as memory. Asked where the capabilities say so, within [`TypedDevice::import_host_limit`].
    ///
    /// # Safety
    /// Pages that are valid while their owner lives, within the limit.
    unsafe fn import_host(
        &self,
        pages: &HostRange,
        access: Access,
    ) -> Result<<Self::Types as ApiTypes>::Memory> {
        let _ = (pages, access);
        Err(no_import(self.info(), "host pages"))
    }

    /// What a device without host pages lacks, for the error.
    fn host_pages_need(&self) -> &'static str {
        "a device that imports host pages"
    }

    /// Memory behind a descriptor of a sort that the capabilities list; the bytes lie inside the allocation.
    ///
    /// # Safety
    /// A descriptor of a sort that the capabilities list, and bytes inside its allocation.
    unsafe fn import_fd(
        &self,
        range: &FdRange,
        access: Access,
    ) -> Result<<Self::Types as ApiTypes>::Memory> {
        let _ = (range, access);
        Err(no_import(self.info(), "a descriptor"))
    }

    /// Memory at an address that kernels use as it is.
    ///
    /// # Safety
    /// Memory that is there while its owner lives.
    unsafe fn import_address(
        &self,
        range: &AddressRange,
        access: Access,
    ) -> Result<<Self::Types as ApiTypes>::Memory> {
        let _ = (range, access);
        Err(no_import(self.info(), "an address"))
    }

    /// Memory of another device of this backend.
    ///
    /// # Safety
    /// Memory of a device of this backend.
    unsafe fn import_peer(
        &self,
        memory: &<Self::Types as ApiTypes>::Memory,
        access: Access,
    ) -> Result<<Self::Types as ApiTypes>::Memory> {
        let _ = (memory, access);
        Err(no_import(self.info(), "memory of another device"))
    }

    /// Memory of another process, where the capabilities say so.
    ///
    /// # Safety
    /// A handle that the capabilities allow, and bytes inside its allocation.
    unsafe fn import_ipc(
        &self,
        range: &IpcRange,
        access: Access,
    ) -> Result<<Self::Types as ApiTypes>::Memory> {
        let _ = (range, access);
        Err(no_import(self.info(), "a handle of another process's memory"))
    }

    /// An object of an API that the capabilities list.
    ///
    /// # Safety
    /// An object of an API that the capabilities list, alive while its home is.
    unsafe fn import_object(
        &self,
        object: &ObjectRange,
        access: Access,
    ) -> Result<<Self::Types as ApiTypes>::Memory> {
        let _ = (object, access);
        Err(no_import(self.info(), "an object of another API"))
    }

    /// A descriptor of memory at an address that this device's runtime knows, whoever allocated it.
    fn descriptor(&self, of: &AddressRange) -> Result<FdRange> {
        Err(Error::unsupported(
            format!("a descriptor of memory at {:#x} on {}", of.address, self.info().name),
            "a runtime that exports what other APIs allocated",
        ))
    }

    /// A new binary semaphore, and the descriptor that other devices of the chip import it by.
    fn semaphore(&self) -> Result<(<Self::Types as ApiTypes>::Semaphore, OwnedFd)> {
        let what = format!("a semaphore of {} that others import", self.info().name);
        Err(Error::unsupported(what, "a driver that exports semaphores"))
    }

    /// Another device's semaphore, by its descriptor, which stays the caller's.
    fn import_semaphore(&self, fd: BorrowedFd<'_>) -> Result<<Self::Types as ApiTypes>::Semaphore> {
        let _ = fd;
        let what = format!("a semaphore of another device on {}", self.info().name);
        Err(Error::unsupported(what, "a driver that imports semaphores"))
    }

    /// Its native context: see [`Device::native_context`].
    fn native_context(&self) -> Result<NativeContext> {
        let what = format!("a context of {} for another API", self.info().name);
        Err(Error::unsupported(what, "a device whose objects others share"))
    }

    /// Another device whose objects it will be asked to share: see [`Device::will_share_with`].
    fn will_share_with(&self, other: &Arc<dyn Device>) {
        let _ = other;
    }

    /// This device as what a runtime of another API is built on: see [`Device::base_device`].
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

    /// The chip that another API's context is on: see [`Device::chip_of`].
    ///
    /// # Safety
    /// A live context that is current on this thread.
    unsafe fn chip_of(&self, context: ContextHandles) -> Option<PhysicalId> {
        let _ = context;
        None
    }

    /// The file behind pages of the host that this device allocated, for another process.
    fn page_file(&self, pages: &HostRange) -> Result<PageFile> {
        let _ = pages;
        Err(Error::unsupported(
            "sharing these pages",
            "pages that onebuf allocated, in a sealed memfd",
        ))
    }

    /// Another process's file as pages of the host: see [`Device::map_file`].
    fn map_file(&self, file: OwnedFd, bytes: usize) -> Result<HostRange> {
        let _ = (file, bytes);
        Err(Error::unsupported("pages of another process", "the host"))
    }

    /// Whether a program here that was asked for its binary loses what its variables in global memory begin with.
    fn forgets_variables(&self) -> bool {
        false
    }

    /// By what its driver's calls are watched, where they may hang.
    fn post(&self) -> Option<&Arc<Post>> {
        None
    }
}

/// An export that a device has no way to import.
#[cold]
fn no_import(info: &DeviceInfo, what: &str) -> Error {
    Error::unsupported(format!("{what} on {}", info.name), "host pages or a descriptor")
}
