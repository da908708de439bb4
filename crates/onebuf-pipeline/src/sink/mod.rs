//! Where frames go: memory, files, the network.
//!
//! A [`Sink`] is given one frame after the other. [`Builder::drain`] makes one the sink of a pipeline, and gives it the ring's own memory
//! wherever the host sees that. A function that takes a slice and the frame's number is a sink too.

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

/// Something that takes one frame after the other.
pub trait Sink<T> {
    /// Takes a frame with this number: see [`Work::frame`](super::Work::frame).
    ///
    /// # Errors
    /// The sink's own; they stop the pipeline.
    fn take(&mut self, frame: &[T], number: u64) -> Result<()>;
}

impl<T, F: FnMut(&[T], u64) -> Result<()>> Sink<T> for F {
    fn take(&mut self, frame: &[T], number: u64) -> Result<()> {
        self(frame, number)
    }
}

impl<'f, S: Send + Sync> Builder<'f, S> {
    /// A sink of the library, or one like them, and which buffer of a slot it takes: in place where the host sees that buffer,
    /// else by one download, which the ledger counts as asked for.
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
