//! Kernels: functions of this process. A driver's backend compiles a text of the source here.

use onebuf_hal::{Kernel, Program, Result, native};
use std::sync::Arc;

/// The native kernels of a source.
#[derive(Debug)]
pub(crate) struct ToyProgram(pub(crate) native::NativeProgram);

/// One of them.
#[derive(Debug)]
pub(crate) struct ToyKernel(pub(crate) native::NativeCode);

impl Program for ToyProgram {
    fn kernel(&self, name: &str, parameters: usize) -> Result<Arc<dyn Kernel>> {
        Ok(Arc::new(ToyKernel(self.0.find(name, parameters)?)))
    }
}

impl Kernel for ToyKernel {}
