//! Kernels that are functions of this process.

use super::{
    API,
    watch::{Live, Watch},
};
use crate::{
    Kernel, Program, Result, Source,
    locks::Arc,
    native::{NativeCode, NativeProgram},
};

/// The native kernels of a source.
#[derive(Debug)]
pub(super) struct FakeProgram {
    native: NativeProgram,
    watch: Watch,
    _live: Live,
}

impl FakeProgram {
    /// Fails where the source has no native kernel.
    pub(super) fn new(source: &Source, watch: &Watch) -> Result<Self> {
        Ok(FakeProgram {
            native: NativeProgram::new(API.0, source)?,
            watch: watch.clone(),
            _live: watch.object("program", "fake_release_program"),
        })
    }
}

impl Program for FakeProgram {
    fn kernel(&self, name: &str, parameters: usize) -> Result<Arc<dyn Kernel>> {
        self.watch.call("fake_kernel")?;
        Ok(Arc::new(FakeKernel {
            code: self.native.find(name, parameters)?,
            _live: self.watch.object("kernel", "fake_release_kernel"),
        }))
    }
}

/// One of them.
#[derive(Debug)]
pub(super) struct FakeKernel {
    pub(super) code: NativeCode,
    _live: Live,
}

impl Kernel for FakeKernel {}
