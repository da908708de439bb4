//! Where frames come from: memory, files, a signal that is computed, the network.
//!
//! A [`FrameSource`] fills the memory of one frame and says what came of it. [`Builder::feed`] makes one the source of a pipeline, and
//! gives it the ring's own memory wherever the host sees that: what comes by the network lies where kernels read it.
//! A function that fills a slice is a source too.
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

use super::{Builder, Filled};
use bytemuck::Pod;
use onebuf_core::Buffer;
use onebuf_hal::Result;

/// Something that fills one frame after the other.
pub trait FrameSource<T> {
    /// Fills all elements with the next frame, or says why not. Unless it says [`Filled::Frame`], what lies there then is
    /// nobody's; and the next call may be about other memory.
    ///
    /// # Errors
    /// The source's own; they stop the pipeline.
    fn fill(&mut self, frame: &mut [T]) -> Result<Filled>;
}

impl<T, F: FnMut(&mut [T]) -> Result<Filled>> FrameSource<T> for F {
    fn fill(&mut self, frame: &mut [T]) -> Result<Filled> {
        self(frame)
    }
}

impl<'f, S: Send + Sync> Builder<'f, S> {
    /// A source of the library, or one like them, and which buffer of a slot it fills: in place where the host sees that
    /// buffer, else by one upload, which the ledger counts as asked for.
    pub fn feed<T: Pod + Send>(
        self,
        mut source: impl FrameSource<T> + Send + 'f,
        buffer: impl Fn(&S) -> &Buffer<T> + Send + 'f,
    ) -> Self {
        let mut aside = Vec::new();
        self.source(move |slot, _| fill(&mut source, buffer(slot), &mut aside))
    }
}

/// One frame, in place where possible.
fn fill<T: Pod>(
    source: &mut impl FrameSource<T>,
    buffer: &Buffer<T>,
    aside: &mut Vec<T>,
) -> Result<Filled> {
    if buffer.maps_in_place(true) {
        let mut map = buffer.map_mut()?;
        let filled = source.fill(&mut map)?;
        map.unmap()?;
        return Ok(filled);
    }
    aside.resize(buffer.len(), T::zeroed());
    let filled = source.fill(aside)?;
    if filled == Filled::Frame {
        buffer.write(aside)?;
    }
    Ok(filled)
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests;
