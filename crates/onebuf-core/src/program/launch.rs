//! What queues do with kernels.

use super::{Arg, Grid, Kernel};
use crate::{fence::Fence, queues::Queue};
use onebuf_hal::{Error, Result};
use std::time::{Duration, Instant};

impl Queue {
    /// Starts a kernel on the views given, which were taken on this queue. Given by value, as
    /// [`args!`](crate::args) makes them, they are released here.
    ///
    /// # Errors
    /// An argument that is missing, of the wrong type or kind, or a view of another queue is an
    /// [`Error::InvalidArgument`] that names it; nothing was started then.
    pub fn launch<'b>(
        &self,
        kernel: &Kernel,
        grid: impl Into<Grid>,
        args: impl AsRef<[Arg<'b>]>,
    ) -> Result<()> {
        kernel.launch_plain(self, grid.into(), args.as_ref())
    }

    /// Like [`Queue::launch`], and gives the point that this launch will have reached. On a queue opened
    /// for profiling, [`Fence::profile`] tells when it ran.
    ///
    /// # Errors
    /// As for [`Queue::launch`].
    pub fn launch_fenced<'b>(
        &self,
        kernel: &Kernel,
        grid: impl Into<Grid>,
        args: impl AsRef<[Arg<'b>]>,
    ) -> Result<Fence> {
        let event = kernel.launch_on(self, &grid.into(), args.as_ref(), true)?;
        let event = event.ok_or_else(|| Error::unsupported("a launch's own fence", "an event"))?;
        Ok(Fence::new(self.queue_state.at_event(event), self.hub.timeout()))
    }

    /// Launches once, waits, and tells how long that took: what a driver leaves to the first launch
    /// (compiling for a group size, moving the program to the chip) is over then. The kernel does run, on
    /// the arguments given.
    ///
    /// # Errors
    /// As for [`Queue::launch`], and [`Error::Timeout`].
    pub fn warm_up<'b>(
        &self,
        kernel: &Kernel,
        grid: impl Into<Grid>,
        args: impl AsRef<[Arg<'b>]>,
    ) -> Result<Duration> {
        let clock = Instant::now();
        self.launch(kernel, grid, args)?;
        self.finish()?;
        Ok(clock.elapsed())
    }
}
