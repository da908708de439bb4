//! The pipeline that the project is for: a sensor array's channels are aligned, windowed and transformed on one device,
//! made into beams by a matrix product on another, one buffer between them. `onebuf demo` shows it,
//! `pipeline_<a>_<b>_us` of `onebuf bench` measures it.
//!
//! ```text
//!   frame: channels x length ──delay, window, fft, in place──► spectrum ──beams──► beams x length ──► detections
//! ```
//!
//! No transposition is needed. A frame lies channel behind channel, which a library that counts by columns takes
//! for the matrix `X` of [length x channels]; the weights lie beam behind beam, `W` of [channels x beams]; and
//! `X W`, of [length x beams], lies beam behind beam again. In words of rows: beams = weights times spectrum.
//!
//! On OpenCL each stage is a kernel of our own, or two for long channels. Elsewhere they are [`onebuf::libs`], with a kernel of ours before the
//! transform.

#![deny(unsafe_code)]

mod adaptive;
mod beams;
mod delay;
mod detect;
mod farrow;
mod frame;
mod opencl;
mod pass;
mod reference;
mod setup;
mod shape;
mod spectrum;
mod stockham;
mod transform;

pub use adaptive::Adapted;
pub use beams::Beams;
pub use detect::{Detection, THRESHOLD, detect};
pub use farrow::{Interpolator, Place};
pub use frame::{Frame, Pipeline};
pub use reference::Expected;
pub use setup::{Setup, cable, direction, phase, signal};
pub use shape::Shape;
pub use spectrum::Spectrum;
pub use transform::Transform;
