//! ROCr, the HSA runtime under AMD's HIP and OpenCL: the owner of an address, and memory as a dma-buf.
//!
//! HIP's own queries do not recognise memory that OpenCL allocated. ROCr does, because both APIs allocate from it. An
//! address that a kernel reported is accepted only if ROCr confirms it.
//!
//! # Safety
//! [`Rocr`] holds one `hsa_init` for its lifetime, so every other call finds the runtime initialised.

#![allow(unsafe_code)]

use crate::NEVER_RUN;
use onebuf_hal::{
    AddressRange, Error, FdKind, FdRange, Result,
    locks::{Arc, Mutex, lock},
};
use onebuf_sys::{
    Probe,
    hsa::{Hsa, HsaRefused, HsaStatus, PointerInfo, PointerType},
};
use rustix::fs::SeekFrom;
use std::{
    collections::HashMap,
    ffi::c_void,
    os::fd::{BorrowedFd, OwnedFd},
};

/// The size of the allocation that identifies a device's agent.
const PROBE_BYTES: usize = 256;

/// A HIP device, as far as [`Rocr`] needs it.
pub trait HipDevice {
    /// HIP's number of the device.
    fn ordinal(&self) -> i32;

    /// Allocates device memory, passes its address to `inspect`, and frees it.
    fn with_allocation<T>(&self, bytes: usize, inspect: impl FnOnce(u64) -> T) -> Result<T>;
}

/// ROCr, initialised until this is dropped.
#[derive(Debug)]
pub struct Rocr {
    hsa: Hsa,
    /// The HSA agent of each HIP device.
    agents: Mutex<HashMap<i32, u64>>,
}

impl Rocr {
    /// Loads and initialises ROCr. If HIP has initialised it before, this only increments its reference count.
    ///
    /// # Errors
    /// Why the library cannot be loaded or initialised.
    pub fn open(
        library: Option<&str>,
        probe: Option<std::sync::Arc<Probe>>,
    ) -> Result<Rocr, String> {
        let hsa = Hsa::load(library, probe).map_err(|missing| missing.to_string())?;
        // SAFETY: `hsa_init` has no precondition; `Drop` calls `hsa_shut_down` once.
        unsafe { hsa.init() }.map_err(|refused| refused.to_string())?;
        Ok(Rocr { hsa, agents: Mutex::default() })
    }

    /// Whether ROCr exports memory as dma-bufs (ROCm 5.6 and newer).
    pub fn has_dmabuf(&self) -> bool {
        self.hsa.has_dmabuf()
    }

    fn info(&self, at: u64) -> Result<PointerInfo> {
        // SAFETY: ROCr is initialised, and the function accepts any address but null, which `check` refuses and no allocation has.
        unsafe { self.hsa.pointer_info(at as usize as *const c_void) }.map_err(refused)
    }

    /// Checks that ROCr reports these bytes as part of one allocation that the device owns.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with what ROCr reports instead; [`Error::Driver`] if the query fails.
    pub fn check(&self, device: &impl HipDevice, range: &AddressRange) -> Result<()> {
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
        match self.agent(device)? {
            own if own == info.owner => Ok(()),
            own => wrong(format!("its owner is agent {:#x}, the device is {own:#x}", info.owner)),
        }
    }

    /// Describes where the memory at this address lies, for `explain`. `None` if ROCr does not know the address.
    pub fn placement(&self, device: &impl HipDevice, at: u64) -> Option<String> {
        if at == 0 {
            return None;
        }
        let info = self.info(at).ok().filter(|info| info.kind == PointerType::HSA)?;
        let own = self.agent(device).ok()? == info.owner;
        let place =
            if own { "in the device's own memory" } else { "not in the device's own memory" };
        Some(format!("{place} ({NEVER_RUN})"))
    }

    /// The agent of a device: the owner of memory that the device allocates.
    fn agent(&self, device: &impl HipDevice) -> Result<u64> {
        let ordinal = device.ordinal();
        if let Some(agent) = lock(&self.agents).get(&ordinal) {
            return Ok(*agent);
        }
        let agent = device.with_allocation(PROBE_BYTES, |at| self.info(at))??.owner;
        lock(&self.agents).insert(ordinal, agent);
        Ok(agent)
    }

    /// Exports the block that these bytes lie in as a dma-buf. The block may contain other memory as well.
    ///
    /// # Safety
    /// The memory at `at` stays allocated during the call.
    ///
    /// # Errors
    /// [`Error::Unsupported`] before ROCm 5.6; [`Error::Driver`] if ROCr refuses.
    pub unsafe fn export(&self, at: u64, bytes: usize) -> Result<FdRange> {
        tracing::debug!("dma-buf of {bytes} bytes at {at:#x} by ROCr ({NEVER_RUN})");
        // SAFETY: ROCr is initialised; the caller keeps the memory allocated.
        let exported = unsafe { self.hsa.export_dmabuf(at as usize as *const c_void, bytes) };
        let (raw, offset) = exported.map_err(refused)?;
        // SAFETY: the descriptor is open until `close_dmabuf` below.
        let fd = unsafe { BorrowedFd::borrow_raw(raw) }.try_clone_to_owned();
        // ROCr closes its own descriptor; the caller gets the duplicate.
        // SAFETY: the descriptor is from `export_dmabuf`, and this is the only call that closes it.
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
    // The kernel knows the block's size. Importers need a size that includes at least the end of this memory.
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
        // SAFETY: balances the `hsa_init` of `open`.
        if let Err(why) = unsafe { self.hsa.shut_down() } {
            tracing::warn!("{why}");
        }
    }
}
