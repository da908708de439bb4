//! Programs and kernels of the fake device: functions of this process.

use super::{
    API,
    watch::{Live, Watch},
};
use crate::{
    Domain, Kernel, Program, Result, Source,
    locks::Arc,
    native::{NativeCode, NativeProgram},
};

/// The native kernels of a source.
#[derive(Debug)]
pub struct FakeProgram {
    native: NativeProgram,
    watch: Watch,
    _live: Live,
}

impl FakeProgram {
    /// Fails if the source has no native kernel.
    pub(super) fn new(domain: Domain, source: &Source, watch: &Watch) -> Result<Self> {
        Ok(FakeProgram {
            native: NativeProgram::new(domain, API.0, source)?,
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

/// A native kernel of the program.
#[derive(Debug)]
pub struct FakeKernel {
    pub(super) code: NativeCode,
    _live: Live,
}

impl Kernel for FakeKernel {
    fn domain(&self) -> Domain {
        self.code.domain()
    }

    fn name(&self) -> &str {
        self.code.name()
    }

    fn parameters(&self) -> usize {
        self.code.parameters()
    }
}
