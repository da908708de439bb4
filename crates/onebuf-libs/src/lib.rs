//! Math libraries on views: matrix products, Fourier transforms, linear systems.
//!
//! The same call works on every device. A host queue computes on the CPU (crates `gemm` and `rustfft`, behind the cargo
//! feature `cpu-libs`, off by default). A CUDA queue calls cuBLAS, cuFFT and cuSOLVER; a HIP queue calls rocBLAS, rocFFT and
//! rocSOLVER. These are loaded at first use. Nothing is copied: the library gets the addresses of the views and runs on the
//! queue's own stream, so fences cover its work like a kernel's.
//!
//! **Matrices are column-major everywhere**, as in BLAS: element (i, j) lies at `i + j * ld`. Transforms are not
//! normalised: forward and back multiplies by the length.
//!
//! ```
//! # #[cfg(not(feature = "cpu-libs"))] fn main() {}
//! # #[cfg(feature = "cpu-libs")] fn main() -> onebuf::Result<()> {
//! use onebuf::{Complex32, libs::{Blas, Fft, Fft1d, Gemm}};
//!
//! let hub = onebuf::discover()?;
//! let device = hub.device("cuda").unwrap_or_else(|_| hub.host());
//! let queue = device.queue()?;
//! let make = |len| hub.buffer::<Complex32>(len).shared_with([&device]).build();
//! let (signal, weights, beams) = (make(8 * 64)?, make(64 * 2)?, make(8 * 2)?);
//! signal.write(&[Complex32::ONE; 8 * 64])?;
//! weights.write(&[Complex32::I; 64 * 2])?;
//!
//! Fft::on(&queue)?.transform(&Fft1d::forward(8, 64), &mut signal.write_on(&queue)?)?;
//! let product = Gemm::new(8, 2, 64); // [8 x 64] times [64 x 2]
//! let (x, w) = (signal.read_on(&queue)?, weights.read_on(&queue)?);
//! Blas::on(&queue)?.gemm(&product, &x, &w, &mut beams.write_on(&queue)?)?;
//!
//! assert_eq!(beams.to_vec()?[0], Complex32::new(0.0, 8.0 * 64.0)); // waits for both
//! # Ok(()) }
//! ```
//!
//! Sizes, leading dimensions and the views' queues are checked before the library is called. Two mistakes do not even
//! compile: writing through a read view, and an output that is also an input:
//!
//! ```compile_fail,E0308
//! # use onebuf::{libs::{Fft, Fft1d}, Complex32};
//! # let hub = onebuf::discover()?; let queue = hub.host().queue()?;
//! # let x = hub.buffer::<Complex32>(8).build()?;
//! let mut view = x.read_on(&queue)?;
//! Fft::on(&queue)?.transform(&Fft1d::forward(8, 1), &mut view)?; // only reads
//! # Ok::<(), onebuf::Error>(())
//! ```
//!
//! ```compile_fail,E0502
//! # use onebuf::{libs::{Fft, Fft1d}, Complex32};
//! # let hub = onebuf::discover()?; let queue = hub.host().queue()?;
//! # let x = hub.buffer::<Complex32>(8).build()?;
//! let mut view = x.write_on(&queue)?;
//! Fft::on(&queue)?.transform_into(&Fft1d::forward(8, 1), &view, &mut view)?; // output is input
//! # Ok::<(), onebuf::Error>(())
//! ```

#![deny(unsafe_code)]

mod blas;
#[cfg(feature = "cpu-libs")]
mod cpu;
mod engine;
mod fft;
mod libraries;
mod native;
mod number;
mod operand;
mod solver;

pub use blas::{Blas, Gemm, Op};
pub use fft::{Direction, Fft, Fft1d};
pub use libraries::{HubBuilderLibs, Library};
pub use number::{Number, Sample};
pub use operand::Operand;
pub use solver::{Columns, Lu, Solver, Square};

use onebuf_core::{
    Queue,
    observe::{Timed, What},
};
use onebuf_hal::{Event, Result, locks::Arc};

/// Runs a library call and records it like a launch.
fn told<T>(queue: &Queue, name: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    let (before, began) = (mark(queue), queue.tracer().begin(What::Launch));
    let done = call();
    let timed = before.zip(mark(queue)).map(|(before, after)| Timed::between(before, after));
    queue.record_timed(began, timed, |event| {
        event.name = name.into();
        event.failed = done.is_err();
    });
    done
}

/// A marker at the queue's current point, for a trace. `None` without a trace, on the host, or if the device has no
/// timestamps.
fn mark(queue: &Queue) -> Option<Arc<dyn Event>> {
    let native = operand::native(queue);
    let timed = queue.spec().profiling && queue.tracer().has_observer() && native.raw() != 0;
    timed.then(|| native.mark().ok()).flatten()
}
