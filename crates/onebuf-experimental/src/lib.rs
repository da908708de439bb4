//! Experimental: code that has never run on hardware. All of it is for AMD GPUs.
//!
//! | module | what it does | users |
//! |---|---|---|
//! | [`code_object`] | rewrites a code object of AMD's OpenCL compiler so that HIP can launch its kernels | `onebuf-graft` |
//! | [`rocr`] | queries ROCr (the HSA runtime) for the owner of an address, and exports memory as a dma-buf | `onebuf-cuda` |
//! | [`placement`] | which OpenCL devices share ROCr's address space, and where their memory lies | `onebuf-opencl`, `onebuf-cuda` |
//!
//! # What has been tested
//!
//! - Code objects: files built by hand for versions 3 to 5, output of clang where it is installed, 4000 corrupted files, and launches over a
//!   stub of HIP that reads the metadata as ROCm's sources do (`conformance/tests/graft/amd`).
//! - ROCr: stub libraries of HIP, OpenCL and HSA that behave as AMD's sources do (`conformance/tests/address`). The real ROCr 5.2.3
//!   was loaded without a GPU; layouts and prototypes were compared with the headers of 5.2.3 and 6.3.
//!
//! # What is missing
//!
//! A run of the conformance suite and of `onebuf doctor` on an AMD GPU with ROCm 5.6 or newer. Every assumption about AMD's
//! runtimes here comes from their published sources.
//!
//! # How users see it
//!
//! Nothing here is used unless the doctor has proven it on the machine, or the caller requests it. Texts that report such a path
//! (`Buffer::explain`, verdicts of the doctor, log messages) contain [`NEVER_RUN`]. When a part has run on hardware, move it to the
//! crate that uses it and remove the remark.

#![deny(unsafe_code)]

pub mod code_object;
pub mod placement;
pub mod rocr;

/// The remark that accompanies every use of this crate in `explain`, in verdicts and in the log.
pub const NEVER_RUN: &str = "experimental: never run on hardware";

/// Tests of the parsers measure their allocations.
#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
#[global_allocator]
static ALLOCATOR: onebuf_hal::testing::meter::Counting = onebuf_hal::testing::meter::Counting;
