//! The demonstration pipeline: channels of a sensor array are aligned, windowed and transformed on one device, and
//! formed into beams by a matrix product on another, with one buffer between them. `onebuf demo` shows it,
//! `pipeline_<a>_<b>_us` of `onebuf bench` measures it.
//!
//! ```text
//!   frame: channels x length ──delay, window, fft, in place──► spectrum ──beams──► beams x length ──► detections
//! ```
//!
//! No transposition is needed. A frame is stored one channel after another, which is the column-major matrix `X` of
//! [length x channels]; the weights are stored one beam after another, `W` of [channels x beams]; and `X W`, of [length
//! x beams], is again one beam after another. In row-major terms: beams = weights times spectrum.
//!
//! On OpenCL each stage is one of our kernels, or two for long channels and for products on GPUs. Elsewhere stages use
//! [`onebuf::libs`], with one of our kernels before the transform; CUDA and HIP without a library of matrix products have a kernel for
//! those, too. Where OpenCL's kernels can be grafted, a measurement decides
//! between them and the library, once for each shape.

#![deny(unsafe_code)]

mod adaptive;
mod beams;
mod choice;
mod delay;
mod detect;
mod dialect;
mod farrow;
mod frame;
mod opencl;
mod pass;
mod reference;
mod setup;
mod shape;
mod spectrum;
mod stockham;
mod thin;
mod transform;

pub use adaptive::Adapted;
pub use beams::Beams;
pub use detect::{Detection, THRESHOLD, detect};
pub use farrow::{Interpolator, Place};
pub use frame::{Frame, Pipeline};
pub use reference::{Expected, transform_of};
pub use setup::{Setup, cable, direction, phase, signal};
pub use shape::Shape;
pub use spectrum::Spectrum;
pub use transform::Transform;
