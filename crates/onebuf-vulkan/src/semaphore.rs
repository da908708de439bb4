//! Binary semaphores for other APIs on the chip: only Vulkan creates semaphores that all of them can import.

use super::device::Context;
use onebuf_hal::{self as hal, Domain, Error, Result, locks::Arc};
use onebuf_sys::vulkan::vk;
use std::os::fd::{FromRawFd, OwnedFd};

const FD: vk::ExternalSemaphoreHandleTypeFlags = vk::ExternalSemaphoreHandleTypeFlags::OPAQUE_FD;

/// A semaphore, destroyed once.
#[derive(Debug)]
pub struct Semaphore {
    context: Arc<Context>,
    pub raw: vk::Semaphore,
}

impl Semaphore {
    /// Creates an unsignalled semaphore and its descriptor.
    pub(super) fn shared(context: Arc<Context>) -> Result<(Semaphore, OwnedFd)> {
        if !context.driver.info.caps.exports_semaphores {
            let what = format!("a semaphore of {} that others import", context.driver.info.name);
            return Err(Error::unsupported(what, "a driver with VK_KHR_external_semaphore_fd"));
        }
        let mut export = vk::ExportSemaphoreCreateInfo::default().handle_types(FD);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut export);
        // SAFETY: a live device that exports semaphores.
        let raw = context.driver.check(unsafe { context.table.create_semaphore(&info) })?;
        let own = Semaphore { context, raw };
        let fd = own.export()?;
        Ok((own, fd))
    }

    /// Creates a semaphore for this device alone.
    #[cfg(all(test, feature = "glsl", not(onebuf_shuttle)))]
    pub(super) fn plain(context: Arc<Context>) -> Result<Semaphore> {
        let info = vk::SemaphoreCreateInfo::default();
        // SAFETY: a live device.
        let raw = context.driver.check(unsafe { context.table.create_semaphore(&info) })?;
        Ok(Semaphore { context, raw })
    }

    fn export(&self) -> Result<OwnedFd> {
        let info = vk::SemaphoreGetFdInfoKHR::default().semaphore(self.raw).handle_type(FD);
        let Context { driver, table, .. } = &*self.context;
        // SAFETY: a live semaphore that was created as exportable.
        let fd = driver.check(unsafe { table.semaphore_fd(&info) })?;
        // SAFETY: a new descriptor that has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl hal::Semaphore for Semaphore {
    fn domain(&self) -> Domain {
        self.context.driver.domain
    }
}

impl Drop for Semaphore {
    fn drop(&mut self) {
        // SAFETY: created here, destroyed once; no work of this device uses it.
        unsafe { self.context.table.destroy_semaphore(self.raw) };
    }
}

/// Whether the driver creates semaphores that others can import by an opaque descriptor.
pub(super) fn is_exportable(properties: &vk::ExternalSemaphoreProperties<'_>) -> bool {
    let features = properties.external_semaphore_features;
    features.contains(vk::ExternalSemaphoreFeatureFlags::EXPORTABLE)
}

/// The query for the properties of such semaphores.
pub(super) fn question() -> vk::PhysicalDeviceExternalSemaphoreInfo<'static> {
    vk::PhysicalDeviceExternalSemaphoreInfo::default().handle_type(FD)
}
