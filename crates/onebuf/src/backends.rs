//! The list of backends, and the entry points that discover devices with it.
//!
//! Only this module and `foreign` name backends.
//!
//! # Safety
//! The listed backends belong to this project and fulfil the contract of [`Backend`].

#![allow(unsafe_code)]

use onebuf_core::{Hub, HubBuilder};
use onebuf_cuda::{CudaLikeBackend, Flavor};
use onebuf_gl::GlBackend;
use onebuf_hal::{Backend, Result};
use onebuf_host::HostBackend;
use onebuf_opencl::OpenClBackend;
use onebuf_vulkan::VulkanBackend;

/// All backends of this library. OpenCL comes before those that depend on it: runtimes that are built on OpenCL, and OpenGL,
/// whose chips it identifies.
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

/// Discovers the installed drivers and loads cached verdicts. A missing API is reported, not an error. No process is started
/// and no experiment is made.
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

/// Configures a hub: which APIs it uses, from which libraries, and how it behaves.
///
/// ```
/// let hub = onebuf::builder().only(["opencl"]).build()?; // no other driver is loaded
/// assert!(hub.devices().iter().all(|device| ["host", "opencl"].contains(&device.info().api.0)));
/// # Ok::<(), onebuf::Error>(())
/// ```
pub fn builder() -> HubBuilder {
    // SAFETY: this library's backends fulfil the contract.
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
