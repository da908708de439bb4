//! Launching kernels on queues.

use super::{Arg, Grid, Kernel};
use crate::{fence::Fence, queues::Queue};
use onebuf_hal::{Error, Result};
use std::time::{Duration, Instant};

impl Queue {
    /// Launches a kernel with views that were taken on this queue. Views passed by value, as by
    /// [`args!`](crate::args), are released here.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], naming the argument, if an argument is missing, has the wrong type or kind, or is a view of
    /// another queue. Nothing is launched then.
    pub fn launch<'b>(
        &self,
        kernel: &Kernel,
        grid: impl Into<Grid>,
        args: impl AsRef<[Arg<'b>]>,
    ) -> Result<()> {
        kernel.launch_plain(self, grid.into(), args.as_ref())
    }

    /// Like [`Queue::launch`], and returns the fence that this launch reaches. On a profiling queue, [`Fence::profile`] has the
    /// launch's times.
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

    /// Launches the kernel once, waits, and returns how long that took. Afterwards the work that a driver defers to the first
    /// launch is done (compiling for a group size, loading the program onto the chip). The kernel does run, on the given
    /// arguments.
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
