//! The address space that AMD's HIP and OpenCL share, and where OpenCL memory lies in it.
//!
//! Both APIs allocate from ROCr, so kernels of one can use addresses of the other. Coarse-grained SVM lies in the device's own
//! memory if its context has one device, and in host memory otherwise. Fine-grained SVM lies in host memory.

use crate::NEVER_RUN;
use onebuf_hal::{AddressSpace, DeviceInfo, DeviceKind, MemoryKind};

/// The address space of AMD's runtimes.
pub const ROCR: AddressSpace = AddressSpace::Runtime("ROCr");

/// The platform name of AMD's OpenCL.
const AMD_PLATFORM: &str = "AMD Accelerated Parallel Processing";

/// Whether an OpenCL device is a GPU whose driver allocates from ROCr.
pub fn is_over_rocr(info: &DeviceInfo) -> bool {
    info.kind == DeviceKind::Gpu && info.platform == AMD_PLATFORM && info.driver.contains("HSA")
}

/// Whether memory of this kind, in an OpenCL context of this many devices, is SVM that has moved to host memory.
pub fn is_svm_on_the_host(kind: MemoryKind, devices_in_context: u32) -> bool {
    kind == MemoryKind::CoarseSvm && devices_in_context > 1
}

/// Where OpenCL memory of this kind lies, as text for `explain`.
pub fn describe(kind: MemoryKind, devices_in_context: u32) -> String {
    let (own, host) = ("in the device's own memory", "in host memory");
    let place = match kind {
        MemoryKind::CoarseSvm => match devices_in_context {
            1 => format!("{own}: coarse grain, and one device in the context"),
            n => format!("{host}: {n} devices in the context"),
        },
        MemoryKind::FineSvm => format!("{host}: fine grain"),
        MemoryKind::Device => own.to_owned(),
        _ => host.to_owned(),
    };
    format!("{place} ({NEVER_RUN})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_description_says_that_it_is_experimental() {
        for kind in [MemoryKind::CoarseSvm, MemoryKind::FineSvm, MemoryKind::Device] {
            for devices in [1, 2] {
                let text = describe(kind, devices);
                assert!(text.ends_with("(experimental: never run on hardware)"), "{text}");
            }
        }
    }

    #[test]
    fn coarse_svm_is_on_the_device_in_a_context_of_one() {
        assert!(describe(MemoryKind::CoarseSvm, 1).starts_with("in the device's own memory"));
        assert!(describe(MemoryKind::CoarseSvm, 2).starts_with("in host memory"));
        assert!(!is_svm_on_the_host(MemoryKind::CoarseSvm, 1));
        assert!(is_svm_on_the_host(MemoryKind::CoarseSvm, 2));
        assert!(!is_svm_on_the_host(MemoryKind::Device, 2));
    }
}
