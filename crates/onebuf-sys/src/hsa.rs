//! Experimental: never run on hardware. ROCr, the HSA runtime under AMD's HIP and OpenCL: pointer queries and dma-buf export.
//!
//! HIP and OpenCL on one AMD GPU share one process-wide ROCr and one address space, but neither API can describe
//! a pointer of the other. ROCr can. This table is used by `onebuf-experimental` only. It was tested with the real library
//! without a GPU, with its headers, and with a stub.
//!
//! # Safety
//!
//! Each method has the contract of the C function it names; see the [crate page](crate#safety).

use std::ffi::{CStr, c_void};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::loader::{self, Loaded, Missing, as_function, library_of};
use crate::probe::Probe;

mod types;

// 32-bit processes never load the library.
#[cfg(all(test, target_pointer_width = "64"))]
mod tests;

pub use types::{HsaRefused, HsaStatus, PointerInfo, PointerType};

const SONAMES: &[&str] = &["libhsa-runtime64.so.1", "libhsa-runtime64.so"];
const HINT: &str = "it comes with ROCm (on Debian or Ubuntu: apt install libhsa-runtime64-1)";

type Init = unsafe extern "C" fn() -> i32;
type Info = unsafe extern "C" fn(
    *const c_void,
    *mut PointerInfo,
    Option<unsafe extern "C" fn(usize) -> *mut c_void>,
    *mut u32,
    *mut *mut u64,
) -> i32;
type Export = unsafe extern "C" fn(*const c_void, usize, *mut i32, *mut u64) -> i32;
type Close = unsafe extern "C" fn(i32) -> i32;

const EXPORT: &str = "hsa_amd_portable_export_dmabuf";
const CLOSE: &str = "hsa_amd_portable_close_dmabuf";

/// The symbol table of ROCr.
pub struct Hsa {
    probe: Option<Arc<Probe>>,
    init: Init,
    shut_down: Init,
    pointer_info: Info,
    /// Both were added in ROCm 5.6.
    dmabuf: Option<(Export, Close)>,
}

impl Hsa {
    /// Opens the library and looks up its symbols. Calls nothing in it.
    ///
    /// `library` is a path, a soname, or `none`. Without it the environment variable `ONEBUF_HSA_LIB` applies, and then the
    /// usual names are tried. Every call goes through `probe`, if there is one.
    pub fn load(library: Option<&str>, probe: Option<Arc<Probe>>) -> Result<Self, Missing> {
        loader::require_64_bits("hsa")?;
        let loaded = loader::open("hsa", library, "ONEBUF_HSA_LIB", SONAMES, HINT)?;
        Self::resolve(&loaded, probe)
            .map_err(|lacking| Missing::incomplete("hsa", loaded, &lacking, HINT))
    }

    /// Returns the table, or the required names that were not found.
    fn resolve(loaded: &Loaded, probe: Option<Arc<Probe>>) -> Result<Self, Vec<&'static str>> {
        let required = [c"hsa_init", c"hsa_shut_down", c"hsa_amd_pointer_info"];
        let [Some(init), Some(shut_down), Some(info)] = required.map(|name| loaded.symbol(name))
        else {
            let lacking = required.into_iter().filter(|name| loaded.symbol(name).is_none());
            return Err(lacking.filter_map(|name| name.to_str().ok()).collect());
        };
        let find = |name: &CStr| loaded.symbol(name);
        let dmabuf = find(c"hsa_amd_portable_export_dmabuf")
            .zip(find(c"hsa_amd_portable_close_dmabuf"))
            // SAFETY: the prototypes are those of ROCr's headers; the library is never closed.
            .map(|(export, close)| unsafe { (as_function(export), as_function(close)) });
        // SAFETY: as above.
        let (init, shut_down, pointer_info) =
            unsafe { (as_function(init), as_function(shut_down), as_function(info)) };
        Ok(Self { probe, init, shut_down, pointer_info, dmabuf })
    }

    /// The path of the loaded library.
    pub fn library(&self) -> Option<PathBuf> {
        library_of(self.init as *const c_void)
    }

    /// Whether memory can be exported (ROCm 5.6 and newer).
    pub fn has_dmabuf(&self) -> bool {
        self.dmabuf.is_some()
    }

    /// `hsa_init`, which is reference-counted: HIP and OpenCL call it as well.
    ///
    /// # Safety
    ///
    /// The contract of the C function.
    pub unsafe fn init(&self) -> Result<(), HsaRefused> {
        let call = "hsa_init";
        self.enter(call)?;
        // SAFETY: the caller keeps the C function's contract.
        HsaRefused::unless_ok(call, unsafe { (self.init)() })?;
        self.count("hsa", 1);
        Ok(())
    }

    /// `hsa_shut_down`: undoes one `hsa_init`. The call is made even if it is chosen to fail.
    ///
    /// # Safety
    ///
    /// The contract of the C function.
    pub unsafe fn shut_down(&self) -> Result<(), HsaRefused> {
        let call = "hsa_shut_down";
        let chosen = self.enter(call);
        // SAFETY: the caller keeps the C function's contract.
        let done = HsaRefused::unless_ok(call, unsafe { (self.shut_down)() });
        if done.is_ok() {
            self.count("hsa", -1);
        }
        chosen.and(done)
    }

    /// `hsa_amd_pointer_info`, without the list of agents. An unknown pointer returns [`PointerType::UNKNOWN`], not an
    /// error.
    ///
    /// # Safety
    ///
    /// The contract of the C function; the pointer may be any address but null.
    pub unsafe fn pointer_info(&self, at: *const c_void) -> Result<PointerInfo, HsaRefused> {
        let call = "hsa_amd_pointer_info";
        self.enter(call)?;
        let (mut info, none) = (PointerInfo::default(), std::ptr::null_mut());
        // SAFETY: the caller keeps the C function's contract; `info` contains its size.
        let status =
            unsafe { (self.pointer_info)(at, &raw mut info, None, none, std::ptr::null_mut()) };
        HsaRefused::unless_ok(call, status)?;
        Ok(info)
    }

    /// `hsa_amd_portable_export_dmabuf`: returns a new fd of the block that contains these bytes, and their offset in
    /// it, which is often not 0. Close it with [`close_dmabuf`](Self::close_dmabuf), or with `close`, which does the
    /// same.
    ///
    /// # Safety
    ///
    /// The contract of the C function.
    pub unsafe fn export_dmabuf(
        &self,
        at: *const c_void,
        bytes: usize,
    ) -> Result<(i32, u64), HsaRefused> {
        let call = EXPORT;
        let (export, _) = self.dmabuf.ok_or(HsaRefused { call, status: HsaStatus::NOT_LOADED })?;
        self.enter(call)?;
        let (mut fd, mut offset) = (-1, 0);
        // SAFETY: the caller keeps the C function's contract; the pointers are valid for both results.
        let status = unsafe { export(at, bytes, &raw mut fd, &raw mut offset) };
        HsaRefused::unless_ok(call, status)?;
        if fd < 0 {
            return Err(HsaRefused { call, status: HsaStatus::NO_FD });
        }
        self.count("dmabuf", 1);
        Ok((fd, offset))
    }

    /// `hsa_amd_portable_close_dmabuf`. The call is made even if it is chosen to fail.
    ///
    /// # Safety
    ///
    /// The contract of the C function: the fd is from [`export_dmabuf`](Self::export_dmabuf), and open.
    pub unsafe fn close_dmabuf(&self, fd: i32) -> Result<(), HsaRefused> {
        let call = CLOSE;
        let (_, close) = self.dmabuf.ok_or(HsaRefused { call, status: HsaStatus::NOT_LOADED })?;
        let chosen = self.enter(call);
        // SAFETY: the caller keeps the C function's contract.
        let done = HsaRefused::unless_ok(call, unsafe { close(fd) });
        if done.is_ok() {
            self.count("dmabuf", -1);
        }
        chosen.and(done)
    }

    /// Asks the probe, if there is one, whether to fail this call.
    fn enter(&self, call: &'static str) -> Result<(), HsaRefused> {
        let Some(probe) = &self.probe else { return Ok(()) };
        probe.enter(call).map_err(|code| HsaRefused { call, status: HsaStatus(code) })
    }

    fn count(&self, kind: &'static str, change: i64) {
        if let Some(probe) = &self.probe {
            probe.count(kind, change);
        }
    }
}

impl fmt::Debug for Hsa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hsa({:?})", self.library())
    }
}
