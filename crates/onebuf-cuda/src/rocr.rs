//! ROCr, the runtime under AMD's HIP and OpenCL alike: whose memory an address is, and memory as a dma-buf.
//!
//! HIP's own calls do not know what OpenCL allocated. ROCr does, because both allocate there. An address that
//! came out of a kernel is believed only when ROCr says the same of it.

use super::device::Context;
use onebuf_hal::{
    AddressRange, Error, FdKind, FdRange, Result,
    locks::{Arc, Mutex, lock},
};
use onebuf_sys::{
    Probe,
    cuda_like::DevicePtr,
    hsa::{Hsa, HsaRefused, HsaStatus, PointerInfo, PointerType},
};
use rustix::fs::SeekFrom;
use std::{
    collections::HashMap,
    ffi::c_void,
    os::fd::{BorrowedFd, OwnedFd},
};

/// What is allocated to learn which agent a device is.
const TASTE_BYTES: usize = 256;

/// ROCr, started for as long as this lives.
#[derive(Debug)]
pub(super) struct Rocr {
    hsa: Hsa,
    /// Which agent each device of HIP's is.
    agents: Mutex<HashMap<i32, u64>>,
}

impl Rocr {
    /// Loads it and starts it, which only counts where HIP has done so before; or says why not.
    pub fn open(
        library: Option<&str>,
        probe: Option<std::sync::Arc<Probe>>,
    ) -> Result<Rocr, String> {
        let hsa = Hsa::load(library, probe).map_err(|missing| missing.to_string())?;
        // SAFETY: needs nothing, and is taken back once, in `Drop`.
        unsafe { hsa.init() }.map_err(|refused| refused.to_string())?;
        Ok(Rocr { hsa, agents: Mutex::default() })
    }

    /// Whether it exports memory: since ROCm 5.6.
    pub fn has_dmabuf(&self) -> bool {
        self.hsa.has_dmabuf()
    }

    fn info(&self, at: u64) -> Result<PointerInfo> {
        // SAFETY: started; any address but null may be asked about, and memory of ours never lies there.
        unsafe { self.hsa.pointer_info(at as usize as *const c_void) }.map_err(refused)
    }

    /// Whether these bytes are one allocation in the memory of the context's own device.
    pub fn check(&self, context: &Context, range: &AddressRange) -> Result<()> {
        let AddressRange { address, bytes, .. } = *range;
        let wrong = |why: String| {
            let what = format!("the address {address:#x} of {bytes} bytes: {why}");
            Err(Error::unsupported(what, "memory that ROCr knows as this device's own"))
        };
        if address == 0 {
            return wrong("null".to_owned());
        }
        let info = self.info(address)?;
        if info.kind != PointerType::HSA {
            let kind = info.kind.0;
            return wrong(format!("ROCr did not allocate it (its type there is {kind}, not 1)"));
        }
        let end = address.checked_add(bytes as u64);
        let has_end = info.agent_base.checked_add(info.bytes as u64);
        if address < info.agent_base || end.is_none() || end > has_end {
            let (base, has) = (info.agent_base, info.bytes);
            return wrong(format!("ROCr knows {has} bytes from {base:#x} on"));
        }
        match self.agent(context)? {
            own if own == info.owner => Ok(()),
            own => wrong(format!("its owner is agent {:#x}, the device is {own:#x}", info.owner)),
        }
    }

    /// Where the memory lies, as far as that can be told.
    pub fn placement(&self, context: &Context, at: u64) -> Option<&'static str> {
        let info = self.info(at).ok().filter(|info| info.kind == PointerType::HSA)?;
        let own = self.agent(context).ok()? == info.owner;
        Some(if own { "in the device's own memory" } else { "not in the device's own memory" })
    }

    /// Which agent the context's device is: the owner of memory that it allocates.
    fn agent(&self, context: &Context) -> Result<u64> {
        let device = context.driver.device;
        if let Some(agent) = lock(&self.agents).get(&device) {
            return Ok(*agent);
        }
        let _current = context.enter()?;
        // SAFETY: the context is current.
        let taste = context.driver.check(unsafe { context.table().alloc(TASTE_BYTES) })?;
        let info = self.info(taste.0);
        // SAFETY: allocated above, and used by nobody.
        context.driver.note(unsafe { context.table().free(taste) });
        let agent = info?.owner;
        lock(&self.agents).insert(device, agent);
        Ok(agent)
    }

    /// A descriptor of the block that these bytes lie in. The block may hold other memory as well.
    pub fn export(&self, DevicePtr(at): DevicePtr, bytes: usize) -> Result<FdRange> {
        // SAFETY: started; memory that its holder keeps meanwhile.
        let exported = unsafe { self.hsa.export_dmabuf(at as usize as *const c_void, bytes) };
        let (raw, offset) = exported.map_err(refused)?;
        // SAFETY: open until it is closed below.
        let fd = unsafe { BorrowedFd::borrow_raw(raw) }.try_clone_to_owned();
        // What it opened, it closes; ours is the duplicate.
        // SAFETY: from `export_dmabuf`, closed once.
        if let Err(why) = unsafe { self.hsa.close_dmabuf(raw) } {
            tracing::warn!("{why}");
        }
        let fd = fd.map_err(|why| {
            Error::invalid(format!("the descriptor of the memory cannot be duplicated: {why}"))
        })?;
        described(fd, offset, bytes)
    }
}

fn described(fd: OwnedFd, offset: u64, bytes: usize) -> Result<FdRange> {
    let offset = usize::try_from(offset).unwrap_or(usize::MAX);
    let end = offset.checked_add(bytes).ok_or_else(|| {
        Error::invalid(format!("a dma-buf with {bytes} bytes at offset {offset}"))
    })?;
    // How large the kernel says that the block is; importers want to know at least up to our end.
    let block = rustix::fs::seek(&fd, SeekFrom::End(0)).unwrap_or(0);
    let allocation_bytes = end.max(usize::try_from(block).unwrap_or(0));
    Ok(FdRange {
        fd: Arc::new(fd),
        kind: FdKind::DmaBuf,
        offset,
        bytes,
        allocation_bytes,
        memory_type: None,
    })
}

fn refused(HsaRefused { call, status }: HsaRefused) -> Error {
    if status == HsaStatus::NOT_LOADED {
        return Error::unsupported(call, "ROCm 5.6 or newer");
    }
    let name = status.name().unwrap_or("unknown").to_owned();
    Error::Driver { api: "hsa", call, code: status.0, name }
}

impl Drop for Rocr {
    fn drop(&mut self) {
        // SAFETY: takes back the start of `open`, once.
        if let Err(why) = unsafe { self.hsa.shut_down() } {
            tracing::warn!("{why}");
        }
    }
}
