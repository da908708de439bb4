//! Declared kernels, and launching them.
//!
//! # Safety
//! Every launch is checked against the signature that was declared in an unsafe call.

#![allow(unsafe_code)]

use super::{Arg, Call, Grid, Signature};
use crate::{
    Error, Result,
    device::Device,
    hal::{self, Event},
    queue::Queue,
    sync::{Arc, lock},
};
use std::fmt;

/// Kernels with more parameters cost an allocation per launch.
const FEW: usize = 8;

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

    /// Checks, and launches; gives the launch's own event when asked for one.
    pub(crate) fn launch_on(
        &self,
        queue: &Queue,
        grid: Grid,
        args: &[Arg<'_>],
        wants_event: bool,
    ) -> Result<Option<Arc<dyn Event>>> {
        self.check(queue, &grid, args)?;
        let params = &self.0.signature.params;
        let each = args.iter().zip(params).map(|(arg, param)| arg.to_hal(param));
        // Few arguments need no allocation.
        let (mut few, many) = ([hal::Arg::Local(0); FEW], &mut Vec::new());
        let hal_args = match few.get_mut(..args.len()) {
            Some(room) => {
                room.iter_mut().zip(each).for_each(|(to, from)| *to = from);
                room
            }
            None => {
                many.extend(each);
                &mut many[..]
            }
        };
        if queue.line.is_in_order() {
            return self.start(queue, &grid, hal_args, &[], wants_event);
        }
        let _turn = lock(&queue.line.launching);
        let mut after = Vec::new();
        args.iter().try_for_each(|arg| arg.collect_waits(&mut after))?;
        let event = self.start(queue, &grid, hal_args, &after, true)?;
        if let Some(event) = &event {
            args.iter().for_each(|arg| arg.launched(event));
        }
        Ok(event)
    }

    #[inline]
    fn start(
        &self,
        queue: &Queue,
        grid: &Grid,
        args: &[hal::Arg<'_>],
        after: &[Arc<dyn Event>],
        wants_event: bool,
    ) -> Result<Option<Arc<dyn Event>>> {
        // SAFETY: the signature, declared in an unsafe call, says that the kernel stays in bounds and
        // honours each access; `check` made sure that the arguments fit it.
        unsafe { queue.line.hal.launch(&*self.0.hal, &grid.0, args, after, wants_event) }
    }

    #[inline]
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
        if grid.has_offset() && !self.0.signature.offsets {
            return Err(Error::invalid(format!(
                "kernel `{name}` is launched with an offset: declare it with `Signature::offsets`"
            )));
        }
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
