//! Launching kernels on queues.

use super::{Arg, Grid, Kernel};
use crate::{fence::Fence, queues::Queue};
use onebuf_hal::{Error, Result};
use std::time::{Duration, Instant};

impl Kernel {
    /// Launches the kernel on its device's [default queue](crate::Device::default_queue), as [`Queue::launch`] does.
    ///
    /// ```
    /// # use onebuf::{Access, Signature, Source, args};
    /// let hub = onebuf::discover()?;
    /// let add = Source::default().with_native("add", |args| {
    ///     let by = args.value::<u32>(1)?;
    ///     args.slice_mut::<u32>(0)?.iter_mut().for_each(|x| *x += by);
    ///     Ok(())
    /// });
    /// let takes = Signature::new().buffer::<u32>(Access::ReadWrite).value::<u32>();
    /// // SAFETY: the kernel stays in its slice.
    /// let add = unsafe { hub.host().program(&add)?.kernel("add", takes)? };
    /// let numbers = hub.buffer_from(&[1_u32, 2, 3]).build()?;
    /// add.launch([3], args![&numbers, 10_u32])?;
    /// assert_eq!(numbers.to_vec()?, [11, 12, 13]);
    /// # Ok::<(), onebuf::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Queue::launch`], and as for [`crate::Device::queue`] at the device's first launch.
    pub fn launch<'b>(&self, grid: impl Into<Grid>, args: impl AsRef<[Arg<'b>]>) -> Result<()> {
        self.device().default_queue()?.launch(self, grid, args)
    }
}

impl Queue {
    /// Launches a kernel with buffers, or with views that were taken on this queue. Of a buffer the launch takes the view that
    /// the parameter declares. That view, and views passed by value, as by [`args!`](crate::args), are released here.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], naming the argument, if an argument is missing, has the wrong type or kind, or is a view of
    /// another queue; the errors of [`crate::Buffer::write_on`] for a buffer. Nothing is launched then.
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
