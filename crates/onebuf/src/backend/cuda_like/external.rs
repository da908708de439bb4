//! Memory of another API or process, imported by a descriptor.

use super::device::Driver;
use crate::{Error, Result, hal::FdRange};
use onebuf_sys::{
    Flavor,
    cuda_like::{
        AlignedFd, CudaLike, DevicePtr, ExternalBufferDesc, ExternalMemory, ExternalMemoryDesc,
        consts,
    },
};
use std::os::fd::{AsRawFd, IntoRawFd};

/// An imported allocation, and where it is seen.
#[derive(Debug)]
pub(super) struct External {
    memory: ExternalMemory,
    pub at: DevicePtr,
}

/// Whether the driver has every call that is made here.
pub(super) fn is_there(table: &CudaLike) -> bool {
    table.has_import_external() && table.has_external_buffer() && table.has_destroy_external()
}

impl External {
    /// The context is current. The descriptor itself stays the caller's: the driver gets a duplicate, which
    /// CUDA owns once it succeeded and HIP never does.
    pub fn import(driver: &Driver, range: &FdRange) -> Result<External> {
        let fd = range.fd.try_clone().map_err(|why| {
            Error::invalid(format!("the descriptor of the memory cannot be duplicated: {why}"))
        })?;
        let desc = ExternalMemoryDesc {
            kind: consts::EXTERNAL_OPAQUE_FD,
            fd: AlignedFd(fd.as_raw_fd()),
            bytes: range.allocation_bytes as u64,
            ..ExternalMemoryDesc::default()
        };
        // SAFETY: an open descriptor; a driver that finds it to be something else refuses.
        let memory = driver.check(unsafe { driver.table.import_external(&raw const desc) })?;
        if driver.flavor() == Flavor::Cuda {
            let _ = fd.into_raw_fd();
        }
        let desc = ExternalBufferDesc {
            offset: range.offset as u64,
            bytes: range.bytes as u64,
            ..ExternalBufferDesc::default()
        };
        // SAFETY: a live import, and a range inside of it.
        let at = unsafe { driver.table.external_buffer(memory, &raw const desc) };
        let at = driver.check(at.inspect_err(|_| destroy(driver, memory)))?;
        Ok(External { memory, at })
    }

    /// The context is current, and nobody uses it any more.
    pub fn free(self, driver: &Driver) {
        // SAFETY: mapped by `import`, freed once, as the API wants mapped buffers freed.
        driver.note(unsafe { driver.table.free(self.at) });
        destroy(driver, self.memory);
    }
}

fn destroy(driver: &Driver, memory: ExternalMemory) {
    // SAFETY: imported by `import`, destroyed once, after its buffers.
    driver.note(unsafe { driver.table.destroy_external(memory) });
}
