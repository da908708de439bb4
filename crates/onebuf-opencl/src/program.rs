//! Compiling programs.

use super::{
    OPENCL_C, binaries, conv,
    conv::Version,
    device::{Context, Driver},
    kernel::{Kernel, parameters},
    log, query, reflect,
    slots::RawKernel,
};
use onebuf_hal::{
    self as hal, Error, Result, Source,
    locks::{Arc, Mutex, lock},
};
use onebuf_sys::{
    ClStatus,
    opencl::{ClProgram, consts as cl},
};
use std::{ffi::CString, ptr};

/// The extension that provides the call of OpenCL 2.1 on older drivers.
const IL_EXTENSION: &str = "cl_khr_il_program";

/// A `cl_program`, released once. Its kernels keep it alive.
#[derive(Debug)]
pub(super) struct RawProgram {
    pub context: Arc<Context>,
    pub raw: ClProgram,
}

impl RawProgram {
    fn of_text(context: Arc<Context>, text: &str) -> Result<RawProgram> {
        let driver = &context.driver;
        let (string, length) = (text.as_ptr().cast(), text.len());
        // SAFETY: a live context; one string, whose length is given.
        let made =
            unsafe { driver.cl.create_program_with_source(context.raw, 1, &string, &length) };
        let raw = driver.check("clCreateProgramWithSource", made)?;
        Ok(RawProgram { context, raw })
    }

    /// Creates a program from an intermediate language, by the call of OpenCL 2.1 or the extension's. `il_versions` lists a
    /// language only if one of them exists.
    fn of_il(context: Arc<Context>, il: &[u8]) -> Result<RawProgram> {
        let driver = &context.driver;
        let (at, bytes) = (il.as_ptr().cast(), il.len());
        let raw = if has_core_il(driver) {
            // SAFETY: a live context of 2.1 or newer; the length is given.
            let made = unsafe { driver.cl.create_program_with_il(context.raw, at, bytes) };
            driver.check("clCreateProgramWithIL", made)?
        } else {
            // SAFETY: the device declares the extension, so its platform has the call, and the look-up of
            // OpenCL 1.2 that the extension requires (clover, which is 1.1, has both); then as above.
            let made = unsafe {
                let calls = driver.cl.extensions(driver.platform, &[IL_EXTENSION]);
                calls.create_program_with_il(context.raw, at, bytes)
            };
            driver.check("clCreateProgramWithILKHR", made)?
        };
        Ok(RawProgram { context, raw })
    }

    fn of_binary(context: Arc<Context>, binary: &[u8]) -> Result<RawProgram, ClStatus> {
        let (driver, raw) = (&context.driver, context.raw);
        let (device, at, bytes) = (&driver.device, binary.as_ptr(), binary.len());
        let mut verdict = ClStatus::SUCCESS;
        // SAFETY: a live context and its device; one binary, whose length is given; one verdict.
        let made = unsafe {
            let cl = &driver.cl;
            cl.create_program_with_binary(raw, 1, device, &bytes, &at, &raw mut verdict.0)
        };
        let program = RawProgram { raw: made?, context };
        verdict.ok().map(|()| program)
    }

    fn driver(&self) -> &Arc<Driver> {
        &self.context.driver
    }

    fn build(&self, options: &str) -> Result<(), ClStatus> {
        // `Program::build` has refused zero bytes.
        let options = CString::new(options).unwrap_or_default();
        let driver = self.driver();
        let (device, options) = (&driver.device, options.as_ptr());
        // SAFETY: a live program of a context with this device. No callback, so it blocks.
        let build = || unsafe {
            driver.cl.build_program(self.raw, 1, device, options, None, ptr::null_mut())
        };
        driver.post.watch("clBuildProgram", build)
    }

    fn log(&self) -> Result<String, ClStatus> {
        let (driver, what) = (self.driver(), cl::CL_PROGRAM_BUILD_LOG);
        let (program, device) = (self.raw, driver.device);
        query::text(|n, at, len| {
            // SAFETY: a live program and its device; `query` passes a buffer of the stated length.
            unsafe { driver.cl.get_program_build_info(program, device, what, n, at, len) }
        })
    }

    /// The names of the program's kernels; `None` if the driver cannot report them.
    pub fn kernel_names(&self) -> Option<String> {
        let (driver, program) = (self.driver(), self.raw);
        if driver.version < Version::V1_2 {
            return None;
        }
        let names = query::text(|n, at, len| {
            // SAFETY: a live program; `query` passes a buffer of the stated length.
            unsafe { driver.cl.get_program_info(program, cl::CL_PROGRAM_KERNEL_NAMES, n, at, len) }
        });
        Some(names.ok()?.replace(';', ", "))
    }

    /// The size of its variables in global memory; zero if the driver cannot report it.
    fn variable_bytes(&self) -> usize {
        let (driver, what) = (self.driver(), cl::CL_PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE);
        let (program, device) = (self.raw, driver.device);
        let bytes = query::value(|n, at, len| {
            // SAFETY: a live program and its device; `query` passes a buffer of the stated length.
            unsafe { driver.cl.get_program_build_info(program, device, what, n, at, len) }
        });
        bytes.unwrap_or_default()
    }

    /// The program's binary; empty if the driver has none.
    fn binary(&self) -> Result<Vec<u8>, ClStatus> {
        // SAFETY: a live program.
        let binaries = unsafe { binaries::of(&self.driver().cl, self.raw) }?;
        // One device per context, so one binary.
        Ok(binaries.into_iter().next().unwrap_or_default())
    }
}

impl Drop for RawProgram {
    fn drop(&mut self) {
        let driver = self.driver();
        // SAFETY: this struct owns one reference.
        driver.note("clReleaseProgram", unsafe { driver.cl.release_program(self.raw) });
    }
}

/// A built program.
#[derive(Debug)]
pub struct Program {
    raw: Arc<RawProgram>,
    log: String,
    of_binary: bool,
    /// The kernels that [`hal::Program::warm_up`] created. Kept, because a driver may discard its preparations with the last
    /// kernel.
    warm: Mutex<Vec<RawKernel>>,
}

impl Program {
    /// Builds a program from the first form of the source that the device accepts, on the calling thread.
    pub(super) fn build(context: Arc<Context>, source: &Source) -> Result<Program> {
        let text = source.text(OPENCL_C);
        if source.options.contains('\0') || text.is_some_and(|text| text.contains('\0')) {
            return Err(Error::invalid("a zero byte in a program's text or options"));
        }
        let module = source.module()?;
        if let Some(binary) = &source.binary {
            match Self::load(context.clone(), binary, source) {
                // The binary may be another device's: the source is used instead.
                Err(why) if module.is_some() || text.is_some() => {
                    tracing::debug!(device = %context.driver.info.name, "binary not used: {why}");
                }
                loaded => return loaded,
            }
        }
        match (module, text) {
            (Some(il), _) if takes_spirv(&context.driver) => {
                Self::finish(RawProgram::of_il(context, il)?, "", source)
            }
            (_, Some(text)) => Self::finish(RawProgram::of_text(context, text)?, text, source),
            _ => Err(no_usable_source(&context.driver, source)),
        }
    }

    fn load(context: Arc<Context>, binary: &[u8], source: &Source) -> Result<Program> {
        if binary.is_empty() {
            return Err(Error::invalid("a program's binary of no bytes"));
        }
        let device = context.driver.info.name.clone();
        let raw = RawProgram::of_binary(context, binary).map_err(|status| match status {
            ClStatus::INVALID_BINARY | ClStatus::INVALID_VALUE => {
                let log = format!("{status}: not a binary of this device and driver");
                Error::Build { device, log }
            }
            _ => conv::status("clCreateProgramWithBinary", status, &device),
        })?;
        Ok(Program { of_binary: true, ..Self::finish(raw, "", source)? })
    }

    fn finish(mut raw: RawProgram, text: &str, source: &Source) -> Result<Program> {
        let options = options(raw.driver(), text, &source.options);
        let mut built = raw.build(&options);
        let mut log = raw.log();
        // If a kernel has no parameters, NVIDIA's compiler (580.159) makes a text of the added option that its assembler refuses.
        // The driver then reports no parameters.
        let of_assembler = |log: &String| log.contains(ASSEMBLER);
        if built == Err(ClStatus::BUILD_PROGRAM_FAILURE)
            && options != source.options
            && log.as_ref().is_ok_and(of_assembler)
        {
            raw = RawProgram::of_text(raw.context.clone(), text)?;
            built = raw.build(&source.options);
            log = raw.log();
        }
        match built {
            Ok(()) => {
                let (raw, log) = (Arc::new(raw), log.unwrap_or_default());
                Ok(Program { raw, log, of_binary: false, warm: Mutex::default() })
            }
            Err(status) => Err(refused(status, log, text, source, raw.driver())),
        }
    }
}

/// The name of NVIDIA's assembler in its messages.
const ASSEMBLER: &str = "ptxas";

/// The caller's options. A text is compiled so that the driver reports the parameters of its kernels.
fn options(driver: &Driver, text: &str, given: &str) -> String {
    let adds = !text.is_empty() && reflect::is_there(driver) && !given.contains(reflect::OPTION);
    if adds { format!("{given} {}", reflect::OPTION).trim_start().to_owned() } else { given.into() }
}

fn has_core_il(driver: &Driver) -> bool {
    driver.version >= Version::V2_1 && driver.cl.has_create_program_with_il()
}

/// Whether the device compiles SPIR-V. Discovery lists a language only if a call accepts it.
fn takes_spirv(driver: &Driver) -> bool {
    driver.info.caps.il_versions.iter().any(|name| name.starts_with("SPIR-V"))
}

fn no_usable_source(driver: &Driver, source: &Source) -> Error {
    let (device, has) = (&driver.info.name, source.forms());
    let spirv = if takes_spirv(driver) { ", SPIR-V" } else { "" };
    let needs = format!("its text in {}{spirv} or a binary of that device", OPENCL_C.0);
    Error::unsupported(format!("a program for {device} from a source that has {has}"), needs)
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
        let kernel = Arc::new(Kernel::new(&self.raw, name, parameters)?);
        self.raw.context.ids.add_kernel(&kernel, self.raw.driver().quirks);
        Ok(kernel)
    }

    fn log(&self) -> &str {
        &self.log
    }

    fn binary(&self) -> Result<Vec<u8>> {
        let driver = self.raw.driver();
        if driver.quirks.forgets_variables && self.raw.variable_bytes() > 0 {
            let what = "the binary of a program that has variables in global memory";
            let needs = "a driver that initialises them after a binary query; this one does not";
            return Err(Error::unsupported(what, needs));
        }
        let binary = driver.check("clGetProgramInfo", self.raw.binary())?;
        if binary.is_empty() {
            let what = format!("a program's binary on {}", driver.info.name);
            return Err(Error::unsupported(what, "a driver that returns program binaries"));
        }
        Ok(binary)
    }

    fn is_of_binary(&self) -> bool {
        self.of_binary
    }

    fn warm_up(&self) -> Result<usize> {
        let mut warm = lock(&self.warm);
        if warm.is_empty() {
            let names = self.raw.kernel_names().unwrap_or_default();
            let names = names.split(", ").filter(|name| !name.is_empty());
            *warm = names.map(|name| RawKernel::new(&self.raw, name)).collect::<Result<_>>()?;
        }
        Ok(warm.len())
    }

    fn kernels(&self) -> Result<Vec<(String, usize)>> {
        let names = self.raw.kernel_names().unwrap_or_default();
        let names = names.split(", ").filter(|name| !name.is_empty());
        let parameters = |name: &str| {
            let kernel = RawKernel::new(&self.raw, name)?;
            Ok((name.to_owned(), parameters(self.raw.driver(), kernel.raw)?))
        };
        names.map(parameters).collect()
    }
}
