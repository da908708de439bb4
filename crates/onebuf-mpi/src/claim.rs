//! What the MPI library says of device memory.
//!
//! # Safety
//! The library is asked on the thread that calls MPI, while MPI is initialised.

#![allow(unsafe_code)]

use onebuf_sys::mpi::Mpi;
use std::fmt;

/// What the MPI library says of device memory: whether it takes addresses of CUDA or HIP devices. `None` if it has no function that says
/// so. It is a claim: onebuf gives device memory to a library only after an experiment
/// ([`World::use_device_memory`](crate::World::use_device_memory)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuClaim {
    /// Of CUDA devices.
    pub cuda: Option<bool>,
    /// Of HIP devices.
    pub hip: Option<bool>,
}

impl GpuClaim {
    /// Asks the library, on the thread that calls it.
    pub(crate) fn of(mpi: &Mpi) -> Self {
        // SAFETY: the communication thread, after MPI was initialised.
        unsafe { Self { cuda: mpi.claims_cuda(), hip: mpi.claims_hip() } }
    }
}

/// A sentence, such as `it says that it takes memory of CUDA devices, and none of HIP devices`.
impl fmt::Display for GpuClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |takes: bool| {
            let all = [("CUDA", self.cuda), ("HIP", self.hip)].into_iter();
            let names: Vec<&str> =
                all.filter(|(_, said)| *said == Some(takes)).map(|(name, _)| name).collect();
            (!names.is_empty()).then(|| names.join(" and "))
        };
        match (of(true), of(false)) {
            (None, None) => f.write_str("it does not say whether it takes memory of devices"),
            (Some(some), None) => write!(f, "it says that it takes memory of {some} devices"),
            (None, Some(none)) => write!(f, "it says that it takes no memory of {none} devices"),
            (Some(some), Some(none)) => {
                write!(
                    f,
                    "it says that it takes memory of {some} devices, and none of {none} devices"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::GpuClaim;

    #[test]
    fn a_claim_is_a_sentence() {
        let said = |cuda, hip| GpuClaim { cuda, hip }.to_string();
        assert!(said(None, None).contains("does not say"));
        assert!(said(Some(false), Some(false)).ends_with("no memory of CUDA and HIP devices"));
        assert!(said(Some(true), None).ends_with("takes memory of CUDA devices"));
        assert!(
            said(Some(false), Some(true)).ends_with("of HIP devices, and none of CUDA devices")
        );
    }
}
