//! Programs in both directions. Neither library gives its `CUmodule` away, so what passes is the image: PTX or a binary.

use cudarc::{driver::CudaContext, driver::CudaModule, nvrtc::Ptx};
use onebuf::{Error, Program, Result, Source};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

/// Programs of onebuf as modules of cudarc.
pub trait CudarcDeviceExt {
    /// Loads a program of onebuf that was built for CUDA (from CUDA C, PTX, or grafted from OpenCL) as a module of cudarc.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a program of another API; those of [`Program::binary`]; the driver's error.
    fn load_program(&self, program: &Program) -> Result<Arc<CudaModule>>;
}

impl CudarcDeviceExt for Arc<CudaContext> {
    fn load_program(&self, program: &Program) -> Result<Arc<CudaModule>> {
        let device = program.device();
        if device.info().api.0 != "cuda" {
            return Err(Error::invalid(format!("a program of {device} in a context of CUDA")));
        }
        let image = program.binary()?;
        // cudarc ends a text with a zero byte, and panics at one inside.
        let ptx = match std::str::from_utf8(&image).map(|text| text.trim_end_matches('\0')) {
            Ok(text) if !text.contains('\0') => Ptx::from_src(text),
            _ => Ptx::from_binary(image),
        };
        self.load_module(ptx).map_err(|why| Error::Driver {
            api: "cuda",
            call: "cuModuleLoadData",
            code: why.0 as i32,
            name: format!("{why:?}"),
        })
    }
}

/// The source of a program of onebuf, from what cudarc's nvrtc compiled or read.
///
/// # Errors
/// [`Error::InvalidArgument`] for a binary and for a file that cannot be read.
pub fn ptx_source(ptx: &Ptx) -> Result<Source> {
    // cudarc panics at what is no text.
    catch_unwind(AssertUnwindSafe(|| ptx.to_src()))
        .map(Source::ptx)
        .map_err(|_| Error::invalid("a cudarc::nvrtc::Ptx that is no text"))
}
