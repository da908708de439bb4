//! Work that blocks until it is released, so that tests can observe waits without a clock.

use onebuf::{
    Access, Device, Error, Fence, IntoArg, Kernel, Queue, Result, Signature, Source, args,
};
use std::{
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

/// Limits how long work is held, so that a failing test ends.
const LIMIT: Duration = Duration::from_secs(20);

/// A kernel for devices whose queues have their own thread, such as the fake devices: see [`Held::works_on`]. Each launch waits
/// for one [`Held::let_go`], then adds one to each element. Dropping this value releases all launches.
#[derive(Debug)]
pub struct Held {
    kernel: Kernel,
    go: mpsc::Sender<()>,
}

impl Held {
    /// Builds the kernel.
    pub fn new(device: &Device) -> Result<Self> {
        let (go, gone) = mpsc::channel();
        let gone = Mutex::new(gone);
        let source = Source::default().with_native("held", move |args| {
            let gone = gone.lock().unwrap_or_else(PoisonError::into_inner);
            if gone.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
                return Err(Error::timeout("held work that was never released", LIMIT));
            }
            args.slice_mut::<u32>(0)?.iter_mut().for_each(|x| *x = x.wrapping_add(1));
            Ok(())
        });
        let signature = Signature::new().buffer::<u32>(Access::ReadWrite);
        // SAFETY: the kernel touches only the elements of its argument.
        let kernel = unsafe { device.program(&source)?.kernel("held", signature)? };
        Ok(Self { kernel, go })
    }

    /// Whether a device can be held: its kernels are functions of this process and run on a thread of the queue.
    pub fn works_on(device: &Device) -> bool {
        let (tell, told) = mpsc::channel();
        let source = Source::default().with_native("tell", move |_| {
            // The receiver is gone if the launch was abandoned.
            let _ = tell.send(thread::current().id());
            Ok(())
        });
        let told = || -> Result<_> {
            let signature = Signature::new().buffer::<u32>(Access::ReadWrite);
            // SAFETY: the kernel touches nothing.
            let kernel = unsafe { device.program(&source)?.kernel("tell", signature)? };
            let (queue, buffer) = (device.queue()?, device.hub().buffer::<u32>(1));
            let buffer = buffer.shared_with([device]).build()?;
            queue.launch(&kernel, [1], args![buffer.write_on(&queue)?])?;
            queue.finish()?;
            Ok(told.recv_timeout(LIMIT).ok())
        };
        told().ok().flatten().is_some_and(|thread| thread != thread::current().id())
    }

    /// Enqueues a launch on a view of that queue.
    pub fn launch<'b>(&self, queue: &Queue, view: impl IntoArg<'b>) -> Result<()> {
        queue.launch(&self.kernel, [1], args![view])
    }

    /// Releases one launch.
    ///
    /// # Panics
    /// If the kernel no longer exists.
    pub fn let_go(&self) {
        self.go.send(()).expect("the kernel is alive as long as this");
    }
}

/// Whether the work is still held. It gets a moment in which it must not continue. On a very slow machine the answer may
/// wrongly be `true`, but never wrongly `false`.
pub fn is_held(fence: &Fence) -> bool {
    matches!(fence.wait(Duration::from_millis(50)), Err(Error::Timeout { .. }))
}
