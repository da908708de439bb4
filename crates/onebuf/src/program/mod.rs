//! Programs, kernels with declared signatures, and the arguments of a launch.

mod arg;
mod build;
mod grid;
mod kernel;
mod signature;

pub use arg::{Arg, IntoArg};
pub use build::Program;
pub use grid::Grid;
pub use kernel::Kernel;
pub use signature::{Call, Signature};
