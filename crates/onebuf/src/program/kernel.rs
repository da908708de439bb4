//! Declared kernels, and launching them.
//!
//! # Safety
//! Every launch is checked against the signature that was declared in an unsafe call.

#![allow(unsafe_code)]

use super::{Arg, Call, Grid, Signature};
use crate::{Error, Result, device::Device, hal, queue::Queue, sync::Arc};
use std::fmt;

struct Shared {
    name: String,
    device: Device,
    hal: Arc<dyn hal::Kernel>,
    signature: Signature,
}

/// A declared kernel. Launching it is safe; see [`Queue::launch`]. Cheap to clone.
#[derive(Clone)]
pub struct Kernel(Arc<Shared>);

impl Kernel {
    pub(super) fn new(
        name: &str,
        device: &Device,
        hal: Arc<dyn hal::Kernel>,
        signature: Signature,
    ) -> Self {
        Self(Arc::new(Shared { name: name.into(), device: device.clone(), hal, signature }))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The device it was built for.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    pub(crate) fn launch_on(&self, queue: &Queue, grid: Grid, args: &[Arg<'_>]) -> Result<()> {
        self.check(queue, &grid, args)?;
        let params = &self.0.signature.params;
        let hal_args: Vec<hal::Arg<'_>> =
            args.iter().zip(params).map(|(arg, param)| arg.to_hal(param)).collect();
        // SAFETY: the signature, declared in an unsafe call, says that the kernel stays in bounds and
        // honours each access; `check` made sure that the arguments fit it.
        unsafe { queue.line.hal.launch(&*self.0.hal, &grid.0, &hal_args, &[], false) }.map(|_| ())
    }

    fn check(&self, queue: &Queue, grid: &Grid, args: &[Arg<'_>]) -> Result<()> {
        let name = &self.0.name;
        let mine = &self.0.device;
        if !(mine.hub().is(&queue.hub) && mine.index() == queue.line.device) {
            let its = queue.device();
            return Err(Error::invalid(format!(
                "kernel `{name}` was built for {mine}, the queue is of {its}: build the program for {its} too"
            )));
        }
        let params = &self.0.signature.params;
        if params.len() != args.len() {
            return Err(Error::invalid(format!(
                "kernel `{name}` takes {} arguments, {} were given",
                params.len(),
                args.len()
            )));
        }
        grid.check(name)?;
        for (index, (param, arg)) in params.iter().zip(args).enumerate() {
            arg.check(queue, param).map_err(|why| {
                Error::invalid(format!("argument {index} of kernel `{name}`: {why}"))
            })?;
        }
        match &self.0.signature.require {
            Some(require) => require(&Call { grid, args }).map_err(|why| {
                Error::invalid(format!("kernel `{name}` refuses this launch: {why}"))
            }),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({} on {}, {:?})", self.0.name, self.0.device, self.0.signature)
    }
}
