//! Compiling kernels, natively or for a CUDA or HIP device by grafting.
//!
//! # Safety
//! As for `kernel`: kernels are trusted.

use crate::{
    declared,
    ending::detached,
    error::{Fault, Result},
    param::Param,
};
use onebuf::{
    Device, Error, Kernel, Program, Signature, reflect::ReflectedKernel, topology::VerdictState,
};
use pyo3::prelude::*;

/// The code of kernels.
#[derive(Clone, Copy)]
pub(crate) enum Code<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
}

/// The first word of SPIR-V, in both byte orders.
const SPIRV: [[u8; 4]; 2] = [[3, 2, 0x23, 7], [7, 0x23, 2, 3]];

/// A kernel's code, and how it is compiled.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub code: Code<'a>,
    /// The language, if the caller names it.
    pub language: Option<&'a str>,
    pub name: Option<&'a str>,
    pub options: &'a str,
    pub each: bool,
    /// The parameters as the caller declares them, for devices whose driver does not list them.
    pub parameters: Option<&'a [String]>,
}

/// A compiled kernel, and what is known about its parameters.
pub(crate) struct Compiled {
    pub kernel: Kernel,
    pub device: Device,
    pub params: Vec<Param>,
    /// What the compiler made, which is for another device if it was grafted.
    pub program: Program,
    pub each: bool,
}

impl Source<'_> {
    /// The language that the caller names, or else that of the device; of bytes by their first word.
    fn language(&self, device: &Device) -> &str {
        match (self.language, self.code, device.info().api.0) {
            (Some(named), ..) => named,
            (_, Code::Bytes(bytes), _) if SPIRV.iter().any(|word| bytes.starts_with(word)) => {
                "spirv"
            }
            (_, Code::Bytes(_), _) => "binary",
            (_, _, "gl" | "vulkan") => "glsl",
            (_, _, "cuda") => "cuda_c",
            (_, _, "hip") => "hip_c",
            _ => "opencl_c",
        }
    }

    /// The library's source.
    fn made(&self, device: &Device) -> Result<onebuf::Source> {
        use onebuf::Source;
        Ok(match (self.language(device), self.code) {
            ("opencl_c", Code::Text(text)) => Source::opencl_c(text.to_owned()),
            ("cuda_c", Code::Text(text)) => Source::cuda_c(text.to_owned()),
            ("hip_c", Code::Text(text)) => Source::hip_c(text.to_owned()),
            ("ptx", Code::Text(text)) => Source::ptx(text.to_owned()),
            // A text of GLSL is one kernel, whose name is free.
            ("glsl", Code::Text(text)) => {
                Source::glsl(self.name.unwrap_or("main").to_owned(), text.to_owned())
            }
            ("spirv", Code::Bytes(bytes)) => Source::spirv(bytes.to_owned()),
            ("binary", Code::Bytes(bytes)) => Source::binary(bytes.to_owned()),
            (named, code) => {
                let what = if matches!(code, Code::Text(_)) { "a text" } else { "bytes" };
                return Err(Fault::invalid(format!(
                    "{what} in the language {named:?}: \"opencl_c\", \"cuda_c\", \"hip_c\", \"glsl\" and \"ptx\" are texts, \"spirv\" and \"binary\" are bytes"
                )));
            }
        })
    }
}

impl Compiled {
    /// Compiles for the device by its own compiler.
    pub fn native(py: Python<'_>, device: &Device, source: &Source<'_>) -> Result<Self> {
        let made = source.made(device)?.with_options(source.options);
        let program = detached(py, || device.program(&made))?;
        Self::of(py, &program, &program, source)
    }

    /// Compiles OpenCL C by the OpenCL device of the same chip, and grafts it onto the CUDA or HIP device.
    pub fn grafted(py: Python<'_>, device: &Device, source: &Source<'_>) -> Result<Self> {
        let hub = device.hub();
        let all = hub.devices();
        let from = all.iter().find(|from| hub.could_graft(from, device)).ok_or_else(|| {
            let what = format!("an OpenCL kernel on {}", device.id());
            Error::unsupported(what, "an OpenCL driver for the same chip, which compiles it")
        })?;
        let verdict = hub.graft_verdict(from, device);
        if verdict.state == VerdictState::Refuted {
            let what = format!("an OpenCL kernel of {} on {}", from.id(), device.id());
            return Err(Error::unsupported(
                what,
                format!("a driver whose kernels can be grafted: {}", verdict.why),
            )
            .into());
        }
        let made = source.made(from)?.with_options(source.options);
        let program = detached(py, || from.program(&made))?;
        let moved = detached(py, || program.graft(device))?;
        Self::of(py, &program, &moved, source)
    }

    /// Declares the kernel as the compiler reports it, and looks it up in the program that runs.
    fn of(py: Python<'_>, reported: &Program, runs: &Program, source: &Source<'_>) -> Result<Self> {
        let device = runs.device();
        let (name, params): (String, Vec<Param>) = match source.parameters {
            Some(declared) => {
                (declared_name(py, reported, source.name, device)?, declared::params(declared)?)
            }
            None => {
                let found = choose(detached(py, || reported.kernels())?, source.name, device)?;
                let params = found.parameters.into_iter().enumerate();
                let params = params.map(|(index, param)| Param::new(index, &found.name, param));
                (found.name.clone(), params.collect::<Result<_>>()?)
            }
        };
        let signature = params.iter().fold(Signature::new(), |all, param| param.declare(all));
        let mut signature = signature.offsets();
        if source.each {
            signature = signature.require(for_each(&params));
        }
        // SAFETY: see the head of this file.
        let kernel = detached(py, || unsafe { runs.kernel(&name, signature) })?;
        let (program, each) = (reported.clone(), source.each);
        Ok(Self { kernel, device: device.clone(), params, program, each })
    }
}

/// The name of a kernel whose parameters the caller declares.
fn declared_name(
    py: Python<'_>,
    reported: &Program,
    name: Option<&str>,
    device: &Device,
) -> Result<String> {
    if let Some(name) = name {
        return Ok(name.to_owned());
    }
    if matches!(device.info().api.0, "gl" | "vulkan") {
        return Ok("main".to_owned());
    }
    match detached(py, || reported.kernels()) {
        Ok(kernels) if !kernels.is_empty() => Ok(choose(kernels, None, device)?.name),
        _ => Err(Fault::invalid(format!(
            "the driver of {} does not list the kernels of a source: name the kernel",
            device.id()
        ))),
    }
}

/// The kernel of that name, or the only one.
fn choose(
    mut kernels: Vec<ReflectedKernel>,
    name: Option<&str>,
    device: &Device,
) -> Result<ReflectedKernel> {
    if kernels.is_empty() && device.info().api.0 == "opencl" {
        return Err(Fault::invalid(
            "the program has no kernel, or its driver does not list them: then declare the `parameters`, and name it",
        ));
    }
    if kernels.is_empty() {
        let what = format!("kernels on {}", device.id());
        let needs = "their `parameters`, because its driver does not list them; `onebuf.kernel` runs sources in OpenCL C on CUDA and \
                     HIP devices, too";
        return Err(Error::unsupported(what, needs).into());
    }
    let at = match name {
        Some(name) => kernels.iter().position(|known| known.name == name),
        None => (kernels.len() == 1).then_some(0),
    };
    if let Some(at) = at {
        return Ok(kernels.swap_remove(at));
    }
    let all: Vec<_> = kernels.into_iter().map(|kernel| kernel.name).collect();
    let all = all.join(", ");
    Err(Fault::invalid(match name {
        Some(name) => format!("no kernel `{name}` in the source, which has {all}"),
        None => format!("the source has several kernels: name one of {all}"),
    }))
}

/// Requires an element for each work-item of every buffer.
fn for_each(
    params: &[Param],
) -> impl Fn(&onebuf::Call<'_>) -> std::result::Result<(), String> + use<> {
    let sizes: Vec<Option<usize>> = params.iter().map(Param::each_bytes).collect();
    move |call| {
        // Work-item i of a launch with an offset is the one after it.
        let ends = call.global().into_iter().zip(call.offset());
        let items = ends.fold(1, |all: usize, (size, first)| all.saturating_mul(size + first));
        for (index, bytes) in sizes.iter().enumerate() {
            let Some(bytes) = bytes else { continue };
            let have = call.len(index) / bytes;
            if have < items {
                return Err(format!("argument {index} has {have} elements for {items} work-items"));
            }
        }
        Ok(())
    }
}
