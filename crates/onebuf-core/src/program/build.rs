//! Programs, as callers hold them.
//!
//! # Safety
//! A kernel is declared in one unsafe call; every launch is checked against that declaration.

#![allow(unsafe_code)]

use super::{Kernel, Origin, Signature, Source};
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
    /// What its author gave in that form. Of a program that comes from disk no driver would tell.
    spirv: Option<Arc<Vec<u8>>>,
}

impl Device {
    /// A program for this device: remembered by the hub, loaded from the cache folder, or compiled now;
    /// [`Program::origin`] says which. Threads that ask for the same program at the same time get one, which
    /// one of them builds. A failure is not remembered. Programs that read files (`#include`, `-I`) are
    /// compiled each time, as nothing here would notice that a file changed.
    ///
    /// # Errors
    /// [`onebuf_hal::Error::Build`] with the compiler's log and the source lines it speaks of;
    /// [`onebuf_hal::Error::Unsupported`] when the source has no form that this device takes;
    /// [`onebuf_hal::Error::Timeout`] when another thread is building the same for longer than the hub waits.
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

    /// The SPIR-V that its source had.
    pub(super) fn spirv(&self) -> Option<&[u8]> {
        self.spirv.as_deref().map(Vec::as_slice)
    }

    /// The device it was built for.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What the compiler said although it succeeded.
    pub fn log(&self) -> &str {
        self.hal.log()
    }

    /// How it came to be: compiled, or remembered.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// How long [`Device::program`] took for it: compiling, loading or looking up, whichever
    /// [`Program::origin`] says, and waiting for another thread that built the same.
    pub fn build_time(&self) -> Duration {
        self.build_time
    }

    /// The device's own binary of it, for [`Source::binary`]. Another device, or another version of the
    /// driver, refuses it.
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
    /// [`onebuf_hal::Error::Unsupported`] on the host, where the driver gives none away, and where the program would not be the
    /// same afterwards: one that has `global` variables, on PoCL.
    pub fn binary(&self) -> Result<Vec<u8>> {
        self.hal.binary()
    }

    /// Creates now what the first use of each kernel would create, and returns how many kernels that
    /// were: on some drivers one takes most of a second. 0 where the driver cannot list them (before
    /// OpenCL 1.2), and on the host, where there is nothing to do.
    ///
    /// It launches nothing. A driver that compiles for a group size at the first launch (PoCL) still
    /// does so then.
    ///
    /// # Errors
    /// Those of the driver when it creates a kernel.
    pub fn warm_up(&self) -> Result<usize> {
        self.hal.warm_up()
    }

    /// A kernel of this program, and what it does with its parameters.
    ///
    /// # Safety
    /// For every launch whose arguments fit the signature and pass its requirement, the kernel stays
    /// inside the buffers given, reads only those declared for reading and writes only those declared
    /// for writing, and ends.
    ///
    /// # Errors
    /// [`onebuf_hal::Error::InvalidArgument`] when there is no such kernel, or its number of parameters differs.
    pub unsafe fn kernel(&self, name: &str, signature: Signature) -> Result<Kernel> {
        let hal = self.hal.kernel(name, signature.params.len())?;
        Ok(Kernel::new(name, self, hal, signature))
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program({})", self.device)
    }
}
