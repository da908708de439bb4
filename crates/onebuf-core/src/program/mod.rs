//! Programs, kernels with declared signatures, and the arguments of a launch.

mod arg;
mod build;
mod cache;
mod graft;
mod grid;
mod kernel;
mod launch;
mod moved;
mod once;
mod param;
mod reflect;
mod signature;
mod source;
mod store;

pub use arg::{Arg, IntoArg};
pub use build::Program;
pub(crate) use cache::Programs;
pub use cache::{Origin, ProgramCache};
pub use graft::{check_target as check_graft_target, graft_first, graft_spirv};
pub use grid::Grid;
pub use kernel::Kernel;
pub use moved::is_built_on;
pub use reflect::ReflectedKernel;
pub use signature::{Call, Signature};
pub use source::Source;
pub(crate) use store::Store;
