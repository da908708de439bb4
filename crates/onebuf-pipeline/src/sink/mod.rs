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

use super::Builder;
use bytemuck::Pod;
use onebuf_core::Buffer;
use onebuf_hal::Result;

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
    /// it; otherwise each frame costs one download, which the ledger counts as an explicit copy.
    pub fn drain<T: Pod + Send>(
        self,
        mut sink: impl Sink<T> + Send + 'f,
        buffer: impl Fn(&S) -> &Buffer<T> + Send + 'f,
    ) -> Self {
        let mut aside = Vec::new();
        self.sink(move |slot, frame| {
            let buffer = buffer(slot);
            if buffer.maps_in_place(false) {
                return sink.take(&buffer.map()?, frame);
            }
            aside.resize(buffer.len(), T::zeroed());
            buffer.read(&mut aside)?;
            sink.take(&aside, frame)
        })
    }
}
