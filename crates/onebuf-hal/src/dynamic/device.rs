//! Implements the object-safe device trait for every typed device.
//!
//! # Safety
//! The typed trait has the contract of the object-safe one. The conditions of typed methods on their arguments are checked here
//! before each call.

#![allow(unsafe_code)]

use crate::{
    self as hal, Access, AddressRange, AllocSpec, BaseDevice, ContextHandles, DeviceInfo, Error,
    Export, FdRange, HostRange, LayeredHandles, NativeContext, PageFile, PhysicalId, QueueOrder,
    QueueSpec, Result, SharedSemaphore, Source, checks,
    locks::Arc,
    typed::{ApiTypes, TypedDevice},
    watchdog::Post,
};
use std::os::fd::{BorrowedFd, OwnedFd};

// SAFETY: the contract of `TypedDevice`.
unsafe impl<D: TypedDevice> hal::Device for D {
    fn info(&self) -> &DeviceInfo {
        TypedDevice::info(self)
    }

    fn allocate(&self, spec: &AllocSpec, contents: Option<&[u8]>) -> Result<Arc<dyn hal::Memory>> {
        checks::allocation(TypedDevice::info(self), spec, contents)?;
        // SAFETY: `checks::allocation` accepted the arguments.
        Ok(Arc::new(unsafe { TypedDevice::allocate(self, spec, contents) }?))
    }

    fn import(&self, export: &Export, access: Access) -> Result<Arc<dyn hal::Memory>> {
        Ok(Arc::new(import(self, export, access)?))
    }

    fn descriptor(&self, of: &AddressRange) -> Result<FdRange> {
        checks::bytes(TypedDevice::info(self), of.bytes)?;
        TypedDevice::descriptor(self, of)
    }

    fn semaphore(&self) -> Result<SharedSemaphore> {
        let (own, fd) = TypedDevice::semaphore(self)?;
        Ok(SharedSemaphore { own: Arc::new(own), fd })
    }

    fn import_semaphore(&self, fd: BorrowedFd<'_>) -> Result<Arc<dyn hal::Semaphore>> {
        Ok(Arc::new(TypedDevice::import_semaphore(self, fd)?))
    }

    fn native_handles(&self) -> Result<Vec<(&'static str, usize)>> {
        TypedDevice::native_handles(self)
    }

    fn native_context(&self) -> Result<NativeContext> {
        TypedDevice::native_context(self)
    }

    fn will_share_with(&self, other: &Arc<dyn hal::Device>) {
        TypedDevice::will_share_with(self, other);
    }

    unsafe fn base_device(
        self: Arc<Self>,
        layered: &LayeredHandles,
    ) -> Option<Result<Arc<dyn BaseDevice>>> {
        // SAFETY: the caller upholds the same contract.
        unsafe { TypedDevice::base_device(self, layered) }
    }

    unsafe fn chip_of(&self, context: ContextHandles) -> Option<PhysicalId> {
        // SAFETY: the caller upholds the same contract.
        unsafe { TypedDevice::chip_of(self, context) }
    }

    fn page_file(&self, pages: &HostRange) -> Result<PageFile> {
        TypedDevice::page_file(self, pages)
    }

    fn map_file(&self, file: OwnedFd, bytes: usize) -> Result<HostRange> {
        TypedDevice::map_file(self, file, bytes)
    }

    fn forgets_variables(&self) -> bool {
        TypedDevice::forgets_variables(self)
    }

    fn post(&self) -> Option<&Arc<Post>> {
        TypedDevice::post(self)
    }

    fn queue(&self, spec: QueueSpec) -> Result<Arc<dyn hal::Queue>> {
        let info = TypedDevice::info(self);
        if spec.order == QueueOrder::OutOfOrder && !info.caps.out_of_order {
            let what = format!("an out-of-order queue on {}", info.name);
            return Err(Error::unsupported(
                what,
                "a device that has them, or several in-order queues",
            ));
        }
        Ok(Arc::new(TypedDevice::queue(self, spec)?))
    }

    fn build(&self, source: &Source) -> Result<Arc<dyn hal::Program>> {
        Ok(Arc::new(TypedDevice::build(self, source)?))
    }

    fn compiles(&self) -> bool {
        TypedDevice::compiles(self)
    }
}

/// Imports memory, if the device's capabilities include this kind of export.
fn import<D: TypedDevice>(
    device: &D,
    export: &Export,
    access: Access,
) -> Result<<D::Types as ApiTypes>::Memory> {
    let info = TypedDevice::info(device);
    match export {
        Export::Host(_) if !info.caps.imports_host_pages => {
            let what = format!("host pages on {}", info.name);
            Err(Error::unsupported(what, device.host_pages_need()))
        }
        Export::Host(range) => {
            checks::bytes_within(info, range.bytes, device.import_host_limit())?;
            // SAFETY: the pages are valid by the contract of `HostRange`; their size was checked.
            unsafe { device.import_host(range, access) }
        }
        Export::Fd(range) => {
            range.check_for(info)?;
            checks::bytes(info, range.bytes)?;
            // SAFETY: the kind of descriptor and the range were just checked.
            unsafe { device.import_fd(range, access) }
        }
        Export::Address(range) => {
            checks::bytes(info, range.bytes)?;
            // SAFETY: the memory exists while its owner lives, by the contract of `AddressRange`.
            unsafe { device.import_address(range, access) }
        }
        Export::Peer(memory) => match memory.as_any().downcast_ref() {
            // SAFETY: the downcast shows that the memory belongs to this backend.
            Some(memory) => unsafe { device.import_peer(memory, access) },
            None => Err(Error::ForeignContext {
                have: "memory of another backend".to_owned(),
                want: format!("{} device {}", info.api, info.name),
            }),
        },
        Export::Ipc(range) => {
            range.check_for(info)?;
            checks::bytes(info, range.allocation_bytes)?;
            // SAFETY: the capability and the range were just checked.
            unsafe { device.import_ipc(range, access) }
        }
        Export::Object(object) => {
            object.check_for(info)?;
            checks::bytes(info, object.bytes)?;
            // SAFETY: the API was just checked; the range keeps the object's home alive.
            unsafe { device.import_object(object, access) }
        }
    }
}
