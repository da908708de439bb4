//! Programs.

use super::{Origin, Source};
use crate::device::Device;
use onebuf_hal::{self as hal, Result, locks::Arc};
use std::{
    fmt,
    time::{Duration, Instant},
};

/// A program built for one device. Cheap to clone.
#[derive(Clone)]
pub struct Program {
    device: Device,
    hal: Arc<dyn hal::Program>,
    origin: Origin,
    build_time: Duration,
    /// The SPIR-V of its source. A driver cannot return it for a program that was loaded from disk.
    spirv: Option<Arc<Vec<u8>>>,
}

impl Device {
    /// Returns a program for this device: from the hub's memory, from the cache folder, or compiled now;
    /// [`Program::origin`] tells which. If several threads request the same program at the same time, one builds it for all.
    /// Failures are not cached. Programs that read files (`#include`, `-I`) are compiled each time, because the cache cannot
    /// detect changes of those files.
    ///
    /// # Errors
    /// [`onebuf_hal::Error::Build`] with the compiler's log and the source lines that it names;
    /// [`onebuf_hal::Error::Unsupported`] if the source has no form that this device accepts;
    /// [`onebuf_hal::Error::Timeout`] if another thread builds the same program for longer than the hub's timeout.
    pub fn program(&self, source: &Source) -> Result<Program> {
        Program::build(self, source)
    }
}

impl Program {
    fn build(device: &Device, source: &Source) -> Result<Self> {
        let start = Instant::now();
        let (hal, origin) = device.hub().programs().get(device, source.hal())?;
        let spirv = source.hal().spirv.as_deref().map(|module| Arc::new(module.to_vec()));
        Ok(Self { device: device.clone(), hal, origin, build_time: start.elapsed(), spirv })
    }

    /// The SPIR-V of its source.
    pub(super) fn spirv(&self) -> Option<&[u8]> {
        self.spirv.as_deref().map(Vec::as_slice)
    }

    /// The device that the program was built for.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The compiler's messages of the successful build.
    pub fn log(&self) -> &str {
        self.hal.log()
    }

    /// How the program was obtained: compiled, or from a cache.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// The duration of [`Device::program`]: compiling, loading or lookup, depending on [`Program::origin`], including the wait
    /// for another thread that built the same program.
    pub fn build_time(&self) -> Duration {
        self.build_time
    }

    /// Returns the device's binary of the program, for [`Source::binary`]. Other devices, and other versions of the driver,
    /// refuse it.
    ///
    /// ```
    /// # use onebuf::{Device, Program, Source};
    /// # fn again(device: &Device, program: &Program) -> onebuf::Result<()> {
    /// let kept = program.binary()?;
    /// let same = device.program(&Source::binary(kept))?; // nothing is compiled
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`onebuf_hal::Error::Unsupported`] on the host, if the driver returns no binary, and if the binary would not behave the
    /// same: programs with `global` variables, on PoCL.
    pub fn binary(&self) -> Result<Vec<u8>> {
        self.hal.binary()
    }

    /// Creates the driver's kernel objects in advance, instead of at their first use, and returns their number. On some drivers
    /// one takes most of a second. Returns 0 if the driver cannot list the kernels (before OpenCL 1.2), and on the host, which
    /// has none.
    ///
    /// Nothing is launched. A driver that compiles for a group size at the first launch (PoCL) still does so.
    ///
    /// # Errors
    /// The driver's errors when it creates a kernel.
    pub fn warm_up(&self) -> Result<usize> {
        self.hal.warm_up()
    }

    pub(super) fn hal(&self) -> &Arc<dyn hal::Program> {
        &self.hal
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program({})", self.device)
    }
}
