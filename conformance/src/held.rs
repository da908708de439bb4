//! Work that does not end before it is let go: how tests see what waits for what without a clock.

use onebuf::{Access, Device, IntoArg, Kernel, Queue, Result, Signature, Source, args};
use std::sync::{Mutex, PoisonError, mpsc};

/// A kernel for devices whose queues have a thread of their own, as the fake ones have. Each launch waits
/// for one [`Held::let_go`], then adds one to each element. Dropping this lets all of them go.
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
            // An error is the drop of the other end: nobody holds it any more.
            let _ = gone.lock().unwrap_or_else(PoisonError::into_inner).recv();
            args.slice_mut::<u32>(0)?.iter_mut().for_each(|x| *x = x.wrapping_add(1));
            Ok(())
        });
        let signature = Signature::new().buffer::<u32>(Access::ReadWrite);
        // SAFETY: it touches the elements it is given, and no others.
        let kernel = unsafe { device.program(&source)?.kernel("held", signature)? };
        Ok(Self { kernel, go })
    }

    /// Enqueues a launch on a view of that queue.
    pub fn launch<'b>(&self, queue: &Queue, view: impl IntoArg<'b>) -> Result<()> {
        queue.launch(&self.kernel, [1], args![view])
    }

    /// Lets one launch go on.
    ///
    /// # Panics
    /// When no device can be waiting any more.
    pub fn let_go(&self) {
        self.go.send(()).expect("the kernel is alive as long as this");
    }
}
