//! Modules: loaded from binaries and PTX, or compiled from text.

use super::{
    CUDA_C, HIP_C, PTX, compile,
    device::{Context, Driver},
    kernel::Kernel,
    target,
    users::Users,
};
use onebuf_hal::{
    self as hal, Error, Language, Result, Source,
    locks::Arc,
    packing::{self, Object, Packing},
};
use onebuf_sys::{
    Flavor, Refused,
    cuda_like::{CuModule, CuStatus, consts},
};
use std::{ffi::c_void, ptr};

/// Size of the buffer for the driver's error log.
const LOG_BYTES: usize = 8192;

/// A module, unloaded once, after the launches of its kernels. Those keep it alive.
#[derive(Debug)]
pub(super) struct RawModule {
    pub context: Arc<Context>,
    pub raw: CuModule,
    pub users: Users,
}

impl RawModule {
    /// Loads a module. The image ends with a zero byte, as PTX text must.
    fn new(context: Arc<Context>, image: &[u8]) -> Result<RawModule, (Refused, String)> {
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = [consts::JIT_ERROR_LOG_BUFFER, consts::JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        // The API takes the size itself in place of a pointer.
        let mut values: [*mut c_void; 2] =
            [log.as_mut_ptr().cast(), ptr::without_provenance_mut(LOG_BYTES)];
        // HIP accepts CUDA's options and ignores them.
        let count = context.driver.flavor().pick([2, 0]);
        // SAFETY: an image that ends with a zero, which the driver copies; `count` options and values, and a log buffer
        // of the given size. The context is current.
        let loaded = context.driver.post.watch("cuModuleLoadDataEx", || unsafe {
            let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
            context.table().load_module(image.as_ptr().cast(), count, options, values)
        });
        let len = log.iter().position(|byte| *byte == 0).unwrap_or(0);
        let raw = loaded
            .map_err(|refused| (refused, String::from_utf8_lossy(&log[..len]).into_owned()))?;
        Ok(RawModule { context, raw, users: Users::default() })
    }
}

impl Drop for RawModule {
    fn drop(&mut self) {
        let module = self.raw;
        self.context.free_later(&self.users.take(), move |context| {
            // SAFETY: loaded by `new`, unloaded once, and no launch of it is running.
            context.driver.note(unsafe { context.table().unload_module(module) });
        });
    }
}

/// A loaded program.
#[derive(Debug)]
pub struct Program {
    raw: Arc<RawModule>,
    /// The image it was loaded from, without the trailing zero.
    image: Vec<u8>,
    log: String,
    of_binary: bool,
    /// The parameter layout of each kernel, for an image compiled for another API.
    packing: Option<Vec<Packing>>,
}

impl Program {
    /// Builds a program from the first form that the device accepts, on the calling thread.
    pub(super) fn build(context: Arc<Context>, source: &Source) -> Result<Program> {
        let driver = context.driver.clone();
        let ptx = source.text(PTX).filter(|_| driver.flavor() == Flavor::Cuda);
        let text = source.text(language(&driver));
        let _current = context.enter()?;
        if let Some(binary) = &source.binary {
            match Program::load(&context, binary.to_vec(), String::new(), true) {
                // The binary may be for another device, so fall back to the source.
                Err(why) if ptx.is_some() || text.is_some() => {
                    tracing::debug!(device = %driver.info.name, "binary not used: {why}");
                }
                loaded => return loaded,
            }
        }
        match (ptx, text) {
            (Some(ptx), _) => Program::load(&context, ptx.into(), String::new(), false),
            (_, Some(text)) => {
                let compile::Compiled { image, log } =
                    driver.compiler.compile(&driver, text, &source.options)?;
                Program::load(&context, image, log, false)
            }
            _ => Err(no_usable_source(&driver, source)),
        }
    }

    fn load(
        context: &Arc<Context>,
        mut image: Vec<u8>,
        log: String,
        of_binary: bool,
    ) -> Result<Program> {
        if image.is_empty() {
            return Err(Error::invalid("a program's binary of no bytes"));
        }
        let packing = packing::read(&image)?;
        let loaded = match packing::object(&image) {
            Some(Object { target, code }) => {
                target::check(&context.driver, target)?;
                // Copied for alignment, because the driver reads words.
                RawModule::new(context.clone(), &[code, &[0]].concat())
            }
            None => {
                image.push(0);
                let loaded = RawModule::new(context.clone(), &image);
                image.pop();
                loaded
            }
        };
        match loaded {
            Ok(raw) => Ok(Program { raw: Arc::new(raw), image, log, of_binary, packing }),
            Err((refused, said)) => Err(misfit(&context.driver, refused, &said)),
        }
    }
}

fn language(driver: &Driver) -> Language {
    driver.flavor().pick([CUDA_C, HIP_C])
}

fn misfit(driver: &Driver, refused: Refused, log: &str) -> Error {
    let why = match refused.status {
        CuStatus::INVALID_IMAGE | CuStatus::INVALID_PTX => "not an image that this driver reads",
        CuStatus::NO_BINARY_FOR_GPU => "an image of another kind of device",
        CuStatus::UNSUPPORTED_PTX_VERSION => "PTX that is newer than this driver",
        _ => return super::conv::refused(&driver.table, refused, &driver.info.name),
    };
    let name = driver.table.error_name(refused.status);
    let log = format!("{} says {name}: {why}\n{log}", refused.call);
    Error::Build { device: driver.info.name.clone(), log }
}

fn no_usable_source(driver: &Driver, source: &Source) -> Error {
    let (device, has) = (&driver.info.name, source.forms());
    let ptx = driver.flavor().pick([", PTX", ""]);
    let needs = format!("its text in {}{ptx} or a binary of that device", language(driver).0);
    Error::unsupported(format!("a program for {device} from a source that has {has}"), needs)
}

impl hal::Program for Program {
    fn kernel(&self, name: &str, parameters: usize) -> Result<Arc<dyn hal::Kernel>> {
        let packed = self.packing.iter().flatten().find(|kernel| kernel.name == name);
        match (&self.packing, packed) {
            (Some(_), None) => Err(Error::invalid(format!("the program has no kernel `{name}`"))),
            _ => Ok(Arc::new(Kernel::new(&self.raw, packed.cloned(), name, parameters)?)),
        }
    }

    fn log(&self) -> &str {
        &self.log
    }

    fn binary(&self) -> Result<Vec<u8>> {
        Ok(self.image.clone())
    }

    fn image(&self) -> Option<&[u8]> {
        // Kernels with a packing take more parameters than their callers declare.
        self.packing.is_none().then_some(&self.image)
    }

    fn is_of_binary(&self) -> bool {
        self.of_binary
    }
}
