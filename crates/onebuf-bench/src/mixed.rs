//! The pipeline that the project is for: a Fourier transform on one device, a matrix product on another, one buffer
//! between them. `onebuf demo` shows it, `pipeline_<a>_<b>_us` measures it.
//!
//! ```text
//!   frame: channels x length ──fft, in place──► spectrum ──beams──► beams x length
//! ```
//!
//! No transposition is needed. A frame lies channel behind channel, which a library that counts by columns takes
//! for the matrix `X` of [length x channels]; the weights lie beam behind beam, `W` of [channels x beams]; and
//! `X W`, of [length x beams], lies beam behind beam again. In words of rows: beams = weights times spectrum.
//!
//! On OpenCL both stages are kernels of our own, elsewhere they are [`onebuf::libs`].

mod beams;
mod frame;
mod opencl;
mod reference;
mod shape;
mod spectrum;

pub use beams::Beams;
pub use frame::{Frame, Pipeline};
pub use reference::{Expected, weights};
pub use shape::Shape;
pub use spectrum::Spectrum;

use onebuf::Device;

/// Whether the stages are kernels of our own there.
fn has_kernels(device: &Device) -> bool {
    device.info().api.0 == "opencl"
}
