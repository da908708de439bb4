//! What users depend on: the list of backends, and what joins a backend's foreign objects with a hub.
//!
//! Nothing else above `hal` names a backend.
//!
//! # Safety
//! The backends of the list are ours, and keep to the contract of [`Backend`].

#![allow(unsafe_code)]

use onebuf_core::{Hub, HubBuilder};
use onebuf_cuda::{CudaLikeBackend, Flavor};
use onebuf_gl::GlBackend;
use onebuf_hal::{Backend, Result};
use onebuf_host::HostBackend;
use onebuf_opencl::OpenClBackend;
use onebuf_vulkan::VulkanBackend;

/// Every backend of this library. OpenCL stands before those that ask it: runtimes that are built on it, and OpenGL, whose
/// chips it knows.
fn backends() -> Vec<Box<dyn Backend>> {
    vec![
        Box::new(HostBackend),
        Box::new(OpenClBackend),
        Box::new(CudaLikeBackend(Flavor::Cuda)),
        Box::new(CudaLikeBackend(Flavor::Hip)),
        Box::new(VulkanBackend),
        Box::new(GlBackend),
    ]
}

/// Finds what is installed and loads what experiments have shown before. A missing API is a fact,
/// not an error; nothing is spawned and nothing is tried.
///
/// ```
/// let hub = onebuf::discover()?;
/// assert!(hub.device("host").is_ok());
/// # Ok::<(), onebuf::Error>(())
/// ```
///
/// # Errors
/// As for [`HubBuilder::build`].
pub fn discover() -> Result<Hub> {
    builder().build()
}

/// A hub that is not the default one: says which APIs are used, from which libraries, and how the hub behaves.
///
/// ```
/// let hub = onebuf::builder().only(["opencl"]).build()?; // no other driver is loaded
/// assert!(hub.devices().iter().all(|device| ["host", "opencl"].contains(&device.info().api.0)));
/// # Ok::<(), onebuf::Error>(())
/// ```
pub fn builder() -> HubBuilder {
    // SAFETY: our own backends keep to the contract.
    unsafe { HubBuilder::new(backends()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_apis_and_libraries_are_unique() {
        let all = backends();
        let mut apis: Vec<_> = all.iter().map(|backend| backend.api()).collect();
        let mut libraries: Vec<_> =
            all.iter().flat_map(|backend| backend.libraries()).map(|one| one.name).collect();
        let driver = |backend: &dyn Backend| {
            backend.libraries().first().is_none_or(|first| first.name == backend.api().0)
        };
        assert!(
            all.iter().all(|backend| driver(&**backend)),
            "the driver's library has the API's name"
        );
        let counts = (apis.len(), libraries.len());
        apis.sort();
        apis.dedup();
        libraries.sort();
        libraries.dedup();
        assert_eq!((apis.len(), libraries.len()), counts);
    }
}
