//! Programs: a SPIR-V module, or GLSL that is compiled to one for each kernel.

use super::{
    device::{Context, Driver},
    glsl,
    kernel::{Kernel, RawKernel},
    spirv::Module,
};
use onebuf_hal::{self as hal, Error, Result, Source, locks::Arc};
use onebuf_sys::vulkan::vk;

/// A program of checked modules. A kernel's pipeline is created when the kernel is looked up.
#[derive(Debug)]
pub struct Program {
    context: Arc<Context>,
    modules: Vec<KernelModule>,
}

/// One module, and the kernel that it belongs to.
#[derive(Debug)]
struct KernelModule {
    /// The name of a shader given as text; `None` for a module with named entry points.
    kernel: Option<String>,
    module: Module,
}

impl Program {
    /// Builds a program from the first form of the source that the device accepts, on the calling thread.
    pub(super) fn build(context: Arc<Context>, source: &Source) -> Result<Program> {
        let driver = &context.driver;
        let newest = newest_spirv(driver.limits.api);
        let modules = match source.module()? {
            Some(bytes) => {
                let module =
                    Module::of_bytes(bytes, newest).map_err(|why| refused(driver, &why))?;
                vec![KernelModule { kernel: None, module }]
            }
            None if source.shaders.is_empty() => return Err(no_usable_source(driver, source)),
            None => {
                let shaders = source.shaders.iter().map(|shader| {
                    let words = glsl::compile(driver, &shader.name, &shader.text)?;
                    let module = Module::new(words, newest).map_err(|why| refused(driver, &why))?;
                    Ok(KernelModule { kernel: Some(shader.name.to_string()), module })
                });
                shaders.collect::<Result<_>>()?
            }
        };
        Ok(Program { context, modules })
    }

    /// Finds the module that has the kernel, and the name of its entry point.
    fn find(&self, kernel: &str) -> Option<(&Module, &str)> {
        let mut forms = self.modules.iter();
        forms.find_map(|form| match &form.kernel {
            Some(name) => (name == kernel).then_some((&form.module, glsl::MAIN)),
            None => form.module.entry(kernel).map(|entry| (&form.module, entry.name.as_str())),
        })
    }

    fn names(&self) -> String {
        let names = self.modules.iter().flat_map(|form| match &form.kernel {
            Some(name) => vec![name.as_str()],
            None => form.module.entries.iter().map(|entry| entry.name.as_str()).collect(),
        });
        names.collect::<Vec<_>>().join("`, `")
    }
}

/// The newest minor version of SPIR-V that a version of the API accepts.
fn newest_spirv(api: u32) -> u32 {
    if api >= vk::API_VERSION_1_3 { 6 } else { 5 }
}

fn refused(driver: &Driver, why: &str) -> Error {
    Error::Build { device: driver.info.name.clone(), log: format!("no SPIR-V module: {why}") }
}

fn no_usable_source(driver: &Driver, source: &Source) -> Error {
    let (device, has) = (&driver.info.name, source.forms());
    let what = format!("a program for {device} from a source that has {has}");
    Error::unsupported(what, "its kernels in GLSL, or a SPIR-V module of compute shaders")
}

impl hal::Program for Program {
    fn kernel(&self, name: &str, parameters: usize) -> Result<Arc<dyn hal::Kernel>> {
        let Some((module, entry)) = self.find(name) else {
            let has = self.names();
            return Err(Error::invalid(format!("no kernel `{name}`: the program has `{has}`")));
        };
        let raw = RawKernel::new(self.context.clone(), module, entry, name, parameters)?;
        Ok(Arc::new(Kernel { raw: Arc::new(raw) }))
    }
}
