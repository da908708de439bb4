//! Sources, and the programs built of them.
//!
//! # Safety
//! A kernel is declared in one unsafe call; every launch is checked against that declaration.

#![allow(unsafe_code)]

use super::{Kernel, Signature};
use crate::{
    Result,
    device::Device,
    hal::{self, NativeArgs, NativeKernel, Source},
    sync::Arc,
};
use std::{borrow::Cow, fmt};

impl Source {
    /// A program in OpenCL C.
    pub fn opencl_c(text: impl Into<Cow<'static, str>>) -> Self {
        Self::default().with_opencl_c(text)
    }

    /// Adds the program in OpenCL C, for devices that speak it.
    pub fn with_opencl_c(mut self, text: impl Into<Cow<'static, str>>) -> Self {
        self.texts.push((crate::backend::opencl::OPENCL_C, text.into()));
        self
    }

    /// Adds a kernel as a Rust function, for the host: called once for a whole launch.
    pub fn with_native(
        mut self,
        name: impl Into<Cow<'static, str>>,
        run: impl Fn(&mut NativeArgs<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.native.push(NativeKernel { name: name.into(), run: Arc::new(run) });
        self
    }

    /// Options for the compiler, such as `-cl-fast-relaxed-math`.
    pub fn with_options(mut self, options: impl Into<String>) -> Self {
        self.options = options.into();
        self
    }
}

/// A program built for one device.
#[derive(Clone)]
pub struct Program {
    device: Device,
    hal: Arc<dyn hal::Program>,
}

impl Program {
    pub(crate) fn build(device: &Device, source: &Source) -> Result<Self> {
        let hal = device.hub().hal(device.index()).build(source)?;
        Ok(Self { device: device.clone(), hal })
    }

    /// The device it was built for.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What the compiler said although it succeeded.
    pub fn log(&self) -> &str {
        self.hal.log()
    }

    /// A kernel of this program, and what it does with its parameters.
    ///
    /// # Safety
    /// For every launch whose arguments fit the signature and pass its requirement, the kernel stays
    /// inside the buffers given, reads only those declared for reading and writes only those declared
    /// for writing, and ends.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] when there is no such kernel, or its number of parameters differs.
    pub unsafe fn kernel(&self, name: &str, signature: Signature) -> Result<Kernel> {
        let hal = self.hal.kernel(name, signature.params.len())?;
        Ok(Kernel::new(name, &self.device, hal, signature))
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program({})", self.device)
    }
}
