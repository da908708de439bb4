//! The backends. They never see each other; only `route` joins two, through `hal`.

mod checks;
// Every call into a driver is unsafe; each says which fact makes it sound.
#[allow(unsafe_code)]
pub mod cuda_like;
pub mod fake;
mod host_signals;
// Every call into a driver is unsafe; each says which fact makes it sound.
#[allow(unsafe_code)]
pub mod gl;
pub mod host;
pub(crate) mod native;
mod patience;
// Every call into a driver is unsafe; each says which fact makes it sound.
#[allow(unsafe_code)]
pub mod opencl;
pub(crate) mod shaders;
// Every call into a driver is unsafe; each says which fact makes it sound.
#[allow(unsafe_code)]
pub mod vulkan;
