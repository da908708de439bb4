//! Compiling programs.

use super::{
    OPENCL_C, conv,
    conv::Version,
    device::{Context, Driver},
    kernel::Kernel,
    log, query,
};
use crate::{Error, Result, hal, hal::Source, sync::Arc};
use onebuf_sys::{
    ClStatus,
    opencl::{ClProgram, consts as cl},
};
use std::{ffi::CString, ptr};

/// A `cl_program` that is released once. Its kernels keep it.
#[derive(Debug)]
pub(super) struct RawProgram {
    pub context: Arc<Context>,
    pub raw: ClProgram,
}

impl RawProgram {
    fn new(context: Arc<Context>, text: &str) -> Result<RawProgram> {
        let driver = &context.driver;
        let (string, length) = (text.as_ptr().cast(), text.len());
        // SAFETY: a live context; one string, whose length is given.
        let made =
            unsafe { driver.cl.create_program_with_source(context.raw, 1, &string, &length) };
        let raw = driver.check("clCreateProgramWithSource", made)?;
        Ok(RawProgram { context, raw })
    }

    fn driver(&self) -> &Arc<Driver> {
        &self.context.driver
    }

    fn build(&self, options: &str) -> Result<(), ClStatus> {
        // `Program::build` has refused a zero inside.
        let options = CString::new(options).unwrap_or_default();
        let driver = self.driver();
        let (device, options) = (&driver.device, options.as_ptr());
        // SAFETY: a live program of a context with this device. No callback, so it blocks.
        unsafe { driver.cl.build_program(self.raw, 1, device, options, None, ptr::null_mut()) }
    }

    fn log(&self) -> Result<String, ClStatus> {
        let (driver, what) = (self.driver(), cl::CL_PROGRAM_BUILD_LOG);
        let (program, device) = (self.raw, driver.device);
        query::text(|n, at, len| {
            // SAFETY: a live program and its device; `query` gives a place of the length it says.
            unsafe { driver.cl.get_program_build_info(program, device, what, n, at, len) }
        })
    }

    /// The kernels that there are; `None` where the driver cannot say.
    pub fn kernel_names(&self) -> Option<String> {
        let (driver, program) = (self.driver(), self.raw);
        if driver.version < Version::V1_2 {
            return None;
        }
        let names = query::text(|n, at, len| {
            // SAFETY: a live program; `query` gives a place of the length it says.
            unsafe { driver.cl.get_program_info(program, cl::CL_PROGRAM_KERNEL_NAMES, n, at, len) }
        });
        Some(names.ok()?.replace(';', ", "))
    }
}

impl Drop for RawProgram {
    fn drop(&mut self) {
        let driver = self.driver();
        // SAFETY: this struct owns one reference.
        driver.note("clReleaseProgram", unsafe { driver.cl.release_program(self.raw) });
    }
}

/// A program that was built.
#[derive(Debug)]
pub(super) struct Program {
    raw: Arc<RawProgram>,
    log: String,
}

impl Program {
    /// Compiles, on the calling thread.
    pub fn build(context: Arc<Context>, source: &Source) -> Result<Program> {
        let text = source.text(OPENCL_C).ok_or_else(|| no_text(&context.driver))?;
        if source.options.contains('\0') || text.contains('\0') {
            return Err(Error::invalid("a zero byte in a program's text or options"));
        }
        let raw = RawProgram::new(context, text)?;
        let built = raw.build(&source.options);
        let log = raw.log();
        match built {
            Ok(()) => Ok(Program { raw: Arc::new(raw), log: log.unwrap_or_default() }),
            Err(status) => Err(refused(status, log, text, source, raw.driver())),
        }
    }
}

fn no_text(driver: &Driver) -> Error {
    let what = format!("the program on {}", driver.info.name);
    Error::unsupported(what, format!("its text in {}", OPENCL_C.0))
}

fn refused(
    status: ClStatus,
    log: Result<String, ClStatus>,
    text: &str,
    source: &Source,
    driver: &Driver,
) -> Error {
    let device = driver.info.name.clone();
    let log = log.unwrap_or_else(|why| format!("(no log: {why})"));
    match status {
        ClStatus::BUILD_PROGRAM_FAILURE | ClStatus::COMPILE_PROGRAM_FAILURE => {
            Error::Build { device, log: log::with_source(&log, text) }
        }
        ClStatus::INVALID_BUILD_OPTIONS => {
            Error::Build { device, log: format!("options `{}`: {status}\n{log}", source.options) }
        }
        ClStatus::COMPILER_NOT_AVAILABLE => {
            Error::unsupported(format!("a program's text on {device}"), "a driver with a compiler")
        }
        _ => conv::status("clBuildProgram", status, &device),
    }
}

impl hal::Program for Program {
    fn kernel(&self, name: &str, parameters: usize) -> Result<Arc<dyn hal::Kernel>> {
        Ok(Arc::new(Kernel::new(&self.raw, name, parameters)?))
    }

    fn log(&self) -> &str {
        &self.log
    }
}
