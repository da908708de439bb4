//! Kernels that also run in the queues of a second device, onto which their program was grafted.
//!
//! # Safety
//! A grafted kernel has the behaviour of the kernel that was declared in an unsafe call.

#![allow(unsafe_code)]

use super::{
    Kernel,
    graft::{OPENCL, check_target},
};
use crate::{
    Hub,
    device::Device,
    topology::{Verdict, VerdictState},
};
use onebuf_hal::{Error, Result};

impl Kernel {
    /// Makes the kernel launchable on queues of this device, too, by [grafting](crate::Program::graft) its program there. Its
    /// arguments and the code that launches it stay the same; views are taken on the queue of the launch.
    ///
    /// ```
    /// # use onebuf::{Buffer, Hub, Kernel, Result, args};
    /// # fn run(hub: &Hub, twice: &Kernel, x: &Buffer<f32>) -> Result<()> {
    /// let cuda = hub.device("cuda:0")?;
    /// twice.graft(&cuda)?; // it was declared for opencl:0
    /// for queue in [hub.device("opencl:0")?.queue()?, cuda.queue()?] {
    ///     queue.launch(twice, [1024], args![x.write_on(&queue)?])?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Program::graft`](crate::Program::graft); [`Error::InvalidArgument`] if the kernel was grafted onto another device
    /// before.
    pub fn graft(&self, device: &Device) -> Result<()> {
        if self.grafted().get().is_none() {
            let program = self.program().graft(device)?;
            // SAFETY: the declaration of the kernel covers these arguments, and the rewriters refuse code that is not known to
            // have the same meaning in the other API.
            let grafted = unsafe { program.kernel(self.name(), self.signature().clone()) }?;
            self.grafted().get_or_init(|| grafted);
        }
        let is_it = |at: &&Device| at.hub().is(device.hub()) && at.index() == device.index();
        match self.grafted().get().map(Kernel::device) {
            Some(at) if !is_it(&at) => Err(Error::invalid(format!(
                "kernel `{}` is grafted on {at} already, and cannot be on {device} as well",
                self.name()
            ))),
            _ => Ok(()),
        }
    }

    /// Grafts like [`Kernel::graft`] if the doctor has proven it for these two devices. Meant for automatic grafting, such as of
    /// a pipeline's stages.
    ///
    /// # Errors
    /// The reason why it was not grafted: the doctor's verdict, or what cannot be grafted of the program. The kernel still runs
    /// where it was built.
    pub fn graft_if_proven(&self, device: &Device) -> Result<(), String> {
        let own = self.device();
        let Verdict { state, why, .. } = own.hub().graft_verdict(own, device);
        match state {
            VerdictState::Proven => self.graft(device).map_err(|error| error.to_string()),
            VerdictState::Declared => Err(why),
            VerdictState::Refuted => Err(format!("refuted: {why}")),
        }
    }
}

impl Hub {
    /// Whether `from` is OpenCL's view of a chip, and `to` a view of it by an API that may accept OpenCL programs (CUDA or HIP).
    /// [`Hub::graft_verdict`] has the doctor's result.
    pub fn could_graft(&self, from: &Device, to: &Device) -> bool {
        let ours = from.hub().is(self) && to.hub().is(self);
        let same = from.info().physical.same_chip(&to.info().physical) || is_built_on(from, to);
        ours && same && from.info().api == OPENCL && check_target(to).is_ok()
    }
}

/// Whether `to` is a runtime built on `from`.
pub fn is_built_on(from: &Device, to: &Device) -> bool {
    to.info().caps.built_on.as_deref() == Some(from.id())
}
