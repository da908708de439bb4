//! Sinks: memory, files, the network.
//!
//! A [`Sink`] receives one frame after another. [`Builder::drain`] makes it the sink of a pipeline; it reads the slots' own
//! memory where the host can map it. A function that takes a slice and the frame's number is also a sink.

mod file;
mod memory;
mod npy;
mod udp;

pub use file::File;
pub use memory::Memory;
pub use npy::Npy;
#[cfg(any(test, feature = "testing"))]
pub use udp::Faults;
pub use udp::{Udp, UdpSent, UdpSentMeter};

use super::{
    Builder,
    host_side::{HostEnd, Towards},
};
use bytemuck::Pod;
use onebuf_core::Buffer;
use onebuf_hal::{Result, locks::lock};

/// Consumes one frame after another.
pub trait Sink<T> {
    /// Takes the frame with this number; see [`Work::frame`](super::Work::frame).
    ///
    /// # Errors
    /// The sink's own errors. They stop the pipeline.
    fn take(&mut self, frame: &[T], number: u64) -> Result<()>;
}

impl<T, F: FnMut(&[T], u64) -> Result<()>> Sink<T> for F {
    fn take(&mut self, frame: &[T], number: u64) -> Result<()> {
        self(frame, number)
    }
}

impl<'f, S: Send + Sync> Builder<'f, S> {
    /// Sets a [`Sink`] and selects which buffer of a slot it reads. The sink reads the buffer in place if the host can map
    /// it. Otherwise a queue of its own downloads each frame to pinned memory, which the ledger counts as an explicit copy.
    pub fn drain<T: Pod + Send>(
        self,
        mut sink: impl Sink<T> + Send + 'f,
        buffer: impl Fn(&S) -> &Buffer<T> + Send + 'f,
    ) -> Self {
        let end = HostEnd::new(Towards::Host, self.depth, buffer);
        let explained = end.clone();
        let builder = self.sink(move |slot, number| {
            let (end, buffer) = &mut *lock(&end);
            end.take(buffer(slot), |frame| sink.take(frame, number))
        });
        builder.end(1, move |slot| {
            let (end, buffer) = &mut *lock(&explained);
            end.explain(buffer(slot))
        })
    }
}
