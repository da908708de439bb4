//! Kernels that are functions of this process.

use super::API;
use onebuf_hal::{
    Kernel, Program, Result, Source,
    locks::Arc,
    native::{NativeCode, NativeProgram},
};

/// The native kernels of a source.
#[derive(Debug)]
pub(super) struct HostProgram(NativeProgram);

impl HostProgram {
    /// Fails where the source has no native kernel.
    pub(super) fn new(source: &Source) -> Result<Self> {
        NativeProgram::new(API.0, source).map(HostProgram)
    }
}

impl Program for HostProgram {
    fn kernel(&self, name: &str, parameters: usize) -> Result<Arc<dyn Kernel>> {
        Ok(Arc::new(HostKernel(self.0.find(name, parameters)?)))
    }
}

/// One of them.
#[derive(Debug)]
pub(super) struct HostKernel(pub(super) NativeCode);

impl Kernel for HostKernel {}
