//! Memory of another API or process, imported by a descriptor.

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

/// An imported allocation, and where the memory begins.
#[derive(Debug)]
pub(super) struct External {
    held: Held,
    pub at: DevicePtr,
}

/// By what it is held.
#[derive(Debug)]
enum Held {
    /// The API for memory of others.
    Import(ExternalMemory),
    /// The one for memory of CUDA's own, of another process: whole, and mapped like ours.
    Pages(Vmm),
}

/// Whether the driver has every call that is made here.
pub(super) fn is_there(table: &CudaLike) -> bool {
    table.has_import_external() && table.has_external_buffer() && table.has_destroy_external()
}

impl External {
    /// The context is current. A driver that does not take its own memory for others' is asked for it as its own;
    /// what it said at first is what the caller is told, where that fails, too.
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
                tracing::debug!(%again, "nor is it memory of this API's own");
                refused
            })
        }))
    }

    /// The descriptor itself stays the caller's: the driver gets a duplicate, which CUDA owns once it succeeded and
    /// HIP never does.
    fn of_others(driver: &Driver, range: &FdRange, fd: OwnedFd) -> Result<External, Refused> {
        let desc = ExternalMemoryDesc {
            kind: consts::EXTERNAL_OPAQUE_FD,
            fd: AlignedFd(fd.as_raw_fd()),
            bytes: range.allocation_bytes as u64,
            ..ExternalMemoryDesc::default()
        };
        // SAFETY: an open descriptor; a driver that finds it to be something else refuses.
        let memory = unsafe { driver.table.import_external(&raw const desc)? };
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
        let at = at.inspect_err(|_| destroy(driver, memory))?;
        Ok(External { held: Held::Import(memory), at })
    }

    fn of_its_own(driver: &Driver, range: &FdRange) -> Result<External, Refused> {
        let vmm = Vmm::import(driver, range.fd.as_fd(), range.allocation_bytes)?;
        let at = DevicePtr(vmm.at.0 + range.offset as u64);
        Ok(External { held: Held::Pages(vmm), at })
    }

    /// The context is current, and nobody uses it any more.
    pub fn free(self, driver: &Driver) {
        match self.held {
            Held::Import(memory) => {
                // SAFETY: mapped by `of_others`, freed once, as the API wants mapped buffers freed.
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
