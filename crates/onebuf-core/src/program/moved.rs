//! Kernels that run in the queues of a second device as well, since their program was grafted there.
//!
//! # Safety
//! A grafted kernel does what the kernel does that was declared in an unsafe call.

#![allow(unsafe_code)]

use super::{
    Kernel,
    graft::{OPENCL, check_target},
};
use crate::{
    Hub,
    device::Device,
    topology::{State, Verdict},
};
use onebuf_hal::{Error, Result};

impl Kernel {
    /// From now on it can be launched on queues of this device, too: its program is [grafted](crate::Program::graft)
    /// there. What it takes stays the same, and so does the code that launches it; the views are those of the queue.
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
    /// Those of [`Program::graft`](crate::Program::graft); [`Error::InvalidArgument`] where it was grafted on another device before.
    pub fn graft(&self, device: &Device) -> Result<()> {
        if self.grafted().get().is_none() {
            let program = self.program().graft(device)?;
            // SAFETY: who declared the kernel promised it of these arguments; what is not known to mean the same in the other
            // API, the rewriters refuse.
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

    /// As [`Kernel::graft`], where the doctor has proven that for these two devices. For what is done unasked, as by
    /// pipelines, whose stages are moved so.
    ///
    /// # Errors
    /// Why it was not: the doctor's verdict, or what cannot be grafted of the program. It still runs where it was built.
    pub fn graft_if_proven(&self, device: &Device) -> Result<(), String> {
        let own = self.device();
        let Verdict { state, why, .. } = own.hub().graft_verdict(own, device);
        match state {
            State::Proven => self.graft(device).map_err(|error| error.to_string()),
            State::Declared => Err(why),
            State::Refuted => Err(format!("refuted: {why}")),
        }
    }
}

impl Hub {
    /// Whether these are OpenCL's view of a chip and one of an API that may take OpenCL's programs, CUDA's or HIP's.
    /// What came of it: [`Hub::graft_verdict`].
    pub fn could_graft(&self, from: &Device, to: &Device) -> bool {
        let ours = from.hub().is(self) && to.hub().is(self);
        let same = from.info().physical.same_chip(&to.info().physical) || is_built_on(from, to);
        ours && same && from.info().api == OPENCL && check_target(to).is_ok()
    }
}

/// Whether one is a runtime over the other.
pub fn is_built_on(from: &Device, to: &Device) -> bool {
    to.info().caps.built_on.as_deref() == Some(from.id())
}
