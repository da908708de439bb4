//! Sources: memory, files, a synthetic signal, the network.
//!
//! A [`FrameSource`] fills the memory of one frame and reports the outcome. [`Builder::feed`] makes it the source of a pipeline;
//! it fills the slots' own memory where the host can map it, so network data lands where kernels read it. A function that
//! fills a slice is also a source.
//!
//! ```
//! use onebuf::{pipeline::{Pipeline, sink, source}};
//!
//! # fn main() -> onebuf::Result<()> {
//! let hub = onebuf::discover()?;
//! let mut out = Vec::new();
//! let report = Pipeline::builder(2, |_| hub.buffer::<f32>(4).build())
//!     .feed(source::Memory::new(vec![1.0; 8]).times(3), |slot| slot)
//!     .drain(sink::Memory::new(&mut out), |slot| slot)
//!     .build()?
//!     .run()?;
//! assert_eq!((report.frames, out), (6, vec![1.0; 24]));
//! # Ok(())
//! # }
//! ```

mod file;
mod memory;
mod npy;
#[cfg(any(test, feature = "testing"))]
mod synthetic;
mod tcp;
mod turns;
mod udp;

pub use file::File;
pub use memory::Memory;
pub use npy::Npy;
#[cfg(any(test, feature = "testing"))]
pub use synthetic::{Synthetic, Wave};
pub use tcp::Tcp;
pub use udp::{Arrival, Udp, UdpCounts, UdpMeter};

use super::{
    Builder, Filled,
    host_side::{HostEnd, Towards},
};
use bytemuck::Pod;
use onebuf_core::Buffer;
use onebuf_hal::{Result, locks::lock};

/// Produces one frame after another.
pub trait FrameSource<T> {
    /// Fills all elements with the next frame, or reports why it did not. Unless it returns [`Filled::Frame`], the contents
    /// of `frame` are unspecified and the next call may pass other memory.
    ///
    /// # Errors
    /// The source's own errors. They stop the pipeline.
    fn fill(&mut self, frame: &mut [T]) -> Result<Filled>;
}

impl<T, F: FnMut(&mut [T]) -> Result<Filled>> FrameSource<T> for F {
    fn fill(&mut self, frame: &mut [T]) -> Result<Filled> {
        self(frame)
    }
}

impl<'f, S: Send + Sync> Builder<'f, S> {
    /// Sets a [`FrameSource`] and selects which buffer of a slot it fills. The source fills the buffer in place if the host can
    /// map it. Otherwise it fills pinned memory, and a queue of its own uploads that, while the source fills the next and the
    /// stages process earlier frames; the ledger counts the upload as an explicit copy. [`Pipeline::explain`](super::Pipeline::explain)
    /// says which.
    pub fn feed<T: Pod + Send>(
        self,
        mut source: impl FrameSource<T> + Send + 'f,
        buffer: impl Fn(&S) -> &Buffer<T> + Send + 'f,
    ) -> Self {
        let end = HostEnd::new(Towards::Device, self.depth, buffer);
        let explained = end.clone();
        let builder = self.source(move |slot, _| {
            let (end, buffer) = &mut *lock(&end);
            let fill = |frame: &mut [T]| source.fill(frame);
            end.fill(buffer(slot), fill, |filled| *filled == Filled::Frame)
        });
        builder.end(0, move |slot| {
            let (end, buffer) = &mut *lock(&explained);
            end.explain(buffer(slot))
        })
    }
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests;
