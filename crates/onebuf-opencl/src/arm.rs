//! `cl_arm_import_memory`: dma-bufs and host pages in drivers of Arm's GPUs.
//!
//! Only version 1.1.0 and newer: before, no command but a kernel may use imported memory. The driver keeps dma-bufs consistent with
//! the host's view of them, by its own means; there are no calls that acquire or release them. No driver of the project's machines
//! declares the extension, so it has run with the stub driver only.

use super::{conv, device::Context};
use onebuf_hal::{Access, DeviceInfo, FdRange, HostRange, Result, locks::Arc};
use onebuf_sys::opencl::{ClMem, ClPlatform, OpenCl, OpenClExt, consts as cl};
use std::{ffi::c_void, os::fd::AsRawFd};

const EXTENSION: &str = "cl_arm_import_memory";
const DMA_BUFS: &str = "cl_arm_import_memory_dma_buf";
const HOST_PAGES: &str = "cl_arm_import_memory_host";
const CALL: &str = "clImportMemoryARM";
/// Version 1.1.0, as `cl_version` has it.
const SINCE: u32 = (1 << 22) | (1 << 12);

/// `cl_name_version`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct NameVersion {
    version: u32,
    name: [u8; 64],
}

impl NameVersion {
    /// Whether it is a version of the extension whose memory all commands can use.
    pub fn is_usable(&self) -> bool {
        let end = self.name.iter().position(|byte| *byte == 0).unwrap_or(self.name.len());
        self.name[..end] == *EXTENSION.as_bytes() && self.version >= SINCE
    }
}

/// Whether the device declares the extension, so that its version is worth asking for.
pub(super) fn is_declared(info: &DeviceInfo) -> bool {
    info.declares(EXTENSION)
}

/// Whether dma-bufs can be imported, given a usable version. A driver with the Khronos extension imports by that one.
pub(super) fn imports_dma_bufs(info: &DeviceInfo) -> bool {
    info.declares(DMA_BUFS) && !info.declares("cl_khr_external_memory")
}

/// Whether host pages can be imported, given a usable version.
pub(super) fn imports_host_pages(info: &DeviceInfo) -> bool {
    info.declares(HOST_PAGES)
}

/// The function, and what it imports.
#[derive(Clone)]
pub(super) struct Import {
    calls: Arc<OpenClExt>,
    pub dma_bufs: bool,
    pub host_pages: bool,
}

impl Import {
    /// The function of a platform; `None` if there is none, or nothing to import.
    ///
    /// # Safety
    /// A live platform; one of its devices has that description, and a usable version of the extension.
    pub unsafe fn of(cl: &OpenCl, platform: ClPlatform, info: &DeviceInfo) -> Option<Import> {
        let (dma_bufs, host_pages) = (imports_dma_bufs(info), imports_host_pages(info));
        if !dma_bufs && !host_pages {
            return None;
        }
        // SAFETY: the caller's promise.
        let calls = unsafe { cl.extensions(platform, &[EXTENSION]) };
        let calls = calls.has_import_memory_arm().then(|| Arc::new(calls))?;
        Some(Import { calls, dma_bufs, host_pages })
    }

    /// Imports a dma-buf from its begin. The specification does not say that the driver keeps a descriptor open, so the caller
    /// keeps the range's until the object is gone.
    pub fn dma_buf(&self, context: &Context, range: &FdRange, access: Access) -> Result<ClMem> {
        let mut number = range.fd.as_raw_fd();
        let list = [
            cl::CL_IMPORT_TYPE_ARM as isize,
            cl::CL_IMPORT_TYPE_DMA_BUF_ARM as isize,
            cl::CL_IMPORT_DMA_BUF_DATA_CONSISTENCY_WITH_HOST_ARM as isize,
            cl::CL_TRUE as isize,
            0,
        ];
        let at = (&raw mut number).cast();
        // SAFETY: the list ends with 0; the driver reads one descriptor number, which is a live descriptor's.
        unsafe { self.import(context, access, &list, at, range.allocation_bytes) }
    }

    /// Imports host pages in place. The driver refuses what it cannot map, and never copies.
    ///
    /// # Safety
    /// The pages stay mapped until the object is destroyed.
    pub unsafe fn host_pages(
        &self,
        context: &Context,
        range: &HostRange,
        access: Access,
    ) -> Result<ClMem> {
        let list = [cl::CL_IMPORT_TYPE_ARM as isize, cl::CL_IMPORT_TYPE_HOST_ARM as isize, 0];
        let at = range.pointer.as_ptr().cast();
        // SAFETY: the list ends with 0; the caller's promise.
        unsafe { self.import(context, access, &list, at, range.bytes) }
    }

    /// # Safety
    /// `list` ends with 0 and names the type of `memory`, which is valid for `bytes`.
    unsafe fn import(
        &self,
        context: &Context,
        access: Access,
        list: &[isize],
        memory: *mut c_void,
        bytes: usize,
    ) -> Result<ClMem> {
        let (driver, flags) = (&context.driver, conv::access(access));
        // Importing allocates nothing, so no status is reported as out of memory.
        // SAFETY: a live context of the function's platform, and the caller's promise.
        driver.slow(CALL, || unsafe {
            self.calls.import_memory_arm(context.raw, flags, list.as_ptr(), memory, bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, version: [u32; 3]) -> NameVersion {
        let mut row = NameVersion {
            version: version[0] << 22 | version[1] << 12 | version[2],
            name: [0; 64],
        };
        row.name[..name.len()].copy_from_slice(name.as_bytes());
        row
    }

    #[test]
    fn old_versions_and_other_names_are_not_used() {
        assert!(named(EXTENSION, [1, 1, 0]).is_usable() && named(EXTENSION, [2, 0, 0]).is_usable());
        for (name, version) in [(EXTENSION, [1, 0, 9]), (EXTENSION, [0; 3]), (DMA_BUFS, [1, 1, 0])]
        {
            assert!(!named(name, version).is_usable(), "{name} {version:?}");
        }
        let full = NameVersion { version: SINCE, name: [b'x'; 64] };
        assert!(!full.is_usable(), "a name without an end");
    }
}
