//! Memory of another API or process, imported from a descriptor.

use super::{
    device::Driver,
    vmm::{self, Vmm},
};
use onebuf_hal::{Error, FdRange, Result};
use onebuf_sys::{
    Flavor, Refused,
    cuda_like::{
        AlignedFd, CudaLike, DevicePtr, ExternalBufferDesc, ExternalMemory, ExternalMemoryDesc,
        consts,
    },
};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};

/// An imported allocation, and the address of its memory.
#[derive(Debug)]
pub(super) struct External {
    held: Held,
    pub at: DevicePtr,
}

/// How the import holds the memory.
#[derive(Debug)]
enum Held {
    /// External memory, by the external-memory calls.
    Import(ExternalMemory),
    /// CUDA's own memory from another process, imported whole and mapped like a `Vmm` allocation.
    Pages(Vmm),
}

/// Whether the driver has every call that this module makes.
pub(super) fn is_there(table: &CudaLike) -> bool {
    table.has_import_external() && table.has_external_buffer() && table.has_destroy_external()
}

impl External {
    /// Imports the memory. The context is current. If the driver refuses its own memory as external memory, the import
    /// is tried as an allocation of its own; if that fails too, the first error is returned.
    pub fn import(driver: &Driver, range: &FdRange) -> Result<External> {
        let fd = range.fd.try_clone().map_err(|why| {
            Error::invalid(format!("the descriptor of the memory cannot be duplicated: {why}"))
        })?;
        driver.check(External::of_others(driver, range, fd).or_else(|refused| {
            if !(driver.table.has_import_allocation() && vmm::is_there(&driver.table)) {
                return Err(refused);
            }
            let imported = External::of_its_own(driver, range);
            imported.map_err(|again| {
                tracing::debug!(%again, "import as this API's own memory failed too");
                refused
            })
        }))
    }

    /// Imports external memory. The caller keeps the descriptor; the driver gets a duplicate, which CUDA owns after
    /// success and HIP never does.
    fn of_others(driver: &Driver, range: &FdRange, fd: OwnedFd) -> Result<External, Refused> {
        let desc = ExternalMemoryDesc {
            kind: consts::EXTERNAL_OPAQUE_FD,
            fd: AlignedFd(fd.as_raw_fd()),
            bytes: range.allocation_bytes as u64,
            ..ExternalMemoryDesc::default()
        };
        // SAFETY: an open descriptor; the driver refuses one of another kind.
        let memory = unsafe { driver.table.import_external(&raw const desc)? };
        if driver.flavor() == Flavor::Cuda {
            let _ = fd.into_raw_fd();
        }
        let desc = ExternalBufferDesc {
            offset: range.offset as u64,
            bytes: range.bytes as u64,
            ..ExternalBufferDesc::default()
        };
        // SAFETY: a live import, and a range inside it.
        let at = unsafe { driver.table.external_buffer(memory, &raw const desc) };
        let at = at.inspect_err(|_| destroy(driver, memory))?;
        Ok(External { held: Held::Import(memory), at })
    }

    fn of_its_own(driver: &Driver, range: &FdRange) -> Result<External, Refused> {
        let vmm = Vmm::import(driver, range.fd.as_fd(), range.allocation_bytes)?;
        let at = DevicePtr(vmm.at.0 + range.offset as u64);
        Ok(External { held: Held::Pages(vmm), at })
    }

    /// Frees the import. The context is current, and no work uses it.
    pub fn free(self, driver: &Driver) {
        match self.held {
            Held::Import(memory) => {
                // SAFETY: mapped by `of_others`, freed once by the call that the API requires for mapped buffers.
                driver.note(unsafe { driver.table.free(self.at) });
                destroy(driver, memory);
            }
            Held::Pages(vmm) => vmm.free(driver),
        }
    }
}

fn destroy(driver: &Driver, memory: ExternalMemory) {
    // SAFETY: imported by `of_others`, destroyed once, after its buffers.
    driver.note(unsafe { driver.table.destroy_external(memory) });
}
