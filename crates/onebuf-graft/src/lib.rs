//! Graft: OpenCL kernels in another API's stream.
//!
//! NVIDIA's OpenCL compiler generates PTX, which CUDA loads, but not unchanged: OpenCL passes launch parameters in
//! environment registers that CUDA does not fill, and local memory is passed differently. [`rewrite`] changes these
//! parts and refuses, with the line number, everything that it does not know to mean the same. `Program::graft` uses
//! it.
//!
//! | OpenCL's PTX | becomes |
//! |---|---|
//! | `.target …, texmode_independent` | without it |
//! | `%envreg0` to `2`: the group's offset, if the driver splits a launch | zero |
//! | `%envreg3` to `5`: the global offset; `%envreg9`: the number of dimensions | an additional parameter |
//! | `%envreg6` to `8`: the number of groups | `%nctaid` |
//! | a parameter `.ptr .shared` | an offset, to which the kernel adds the address of its dynamic memory |
//! | a parameter `.ptr .const`, and with it all constant memory of the module | read-only global memory |
//! | images, samplers, `printf`, every other environment register | refused |
//!
//! AMD's OpenCL compiler generates machine code, which HIP loads unchanged; a launch fills hidden arguments
//! differently, as described in the object's metadata: [`rewrite_code_object`], which is experimental and has never run
//! on hardware.
//!
//! A HIP runtime over OpenCL compiles SPIR-V, which OpenCL programs can be built from: [`rewrite_spirv`].
//!
//! This crate is pure: bytes in, bytes out, without devices.

#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
mod bounds_tests;
mod constants;
mod edits;
mod lex;
mod parse;
mod reflect;
mod registers;
mod rewrite;
#[doc(hidden)]
pub mod spirv;
#[cfg(test)]
mod tests;

use lex::Token;
use onebuf_hal::{Error, Result};
use std::fmt;

#[doc(hidden)]
pub use onebuf_experimental::{NEVER_RUN, code_object};
#[doc(hidden)]
pub use reflect::ptx_parameters;

/// Why a text is refused, and at which line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refusal {
    line: usize,
    why: String,
}

impl Refusal {
    fn new(line: usize, why: impl Into<String>) -> Self {
        Self { line, why: why.into() }
    }

    fn at(token: &Token<'_>, why: impl Into<String>) -> Self {
        Self::new(token.line, why)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

/// Rewrites PTX of NVIDIA's OpenCL compiler for CUDA. The result is for `Source::ptx`. It begins with comments that
/// describe how its kernels take their arguments.
///
/// ```
/// let ptx = "
/// .version 8.0
/// .target sm_90, texmode_independent
/// .address_size 64
/// .entry twice(.param .u64 .ptr .global .align 4 twice_param_0)
/// {
///     .reg .b32 %r<2>;
///     mov.u32 %r1, %envreg3;
///     ret;
/// }";
/// let grafted = onebuf_graft::rewrite(ptx)?;
/// assert!(!grafted.contains("texmode") && !grafted.contains("envreg"));
///
/// let images = ptx.replace("%envreg3", "%envreg30");
/// let refused = onebuf_graft::rewrite(&images).unwrap_err();
/// assert!(refused.to_string().contains("line 8"));
/// # Ok::<(), onebuf_hal::Error>(())
/// ```
///
/// # Errors
/// [`Error::Unsupported`] with the line that could not be rewritten.
pub fn rewrite(ptx: &str) -> Result<String> {
    rewrite::rewrite(ptx).map_err(|refusal| {
        Error::unsupported(
            format!("grafting this program (its PTX, {refusal})"),
            "its own device, where it runs as it is",
        )
    })
}

/// Experimental: never run on hardware. Rewrites a code object (version 3, 4 or 5) of AMD's OpenCL compiler for HIP.
///
/// The rewritten metadata makes a launch pass the arguments that HIP's runtime fills differently from OpenCL's. The
/// result is for `Source::binary` on a HIP device. It begins with comments that describe how its kernels take their
/// arguments. See `docs/graft.md`.
///
/// ```
/// let refused = onebuf_graft::rewrite_code_object(b"\x7fELF and no more").unwrap_err();
/// assert!(refused.to_string().contains("its code object: "));
/// ```
///
/// # Errors
/// [`Error::Unsupported`] with what is invalid, or not known to mean the same under HIP.
pub fn rewrite_code_object(object: &[u8]) -> Result<Vec<u8>> {
    code_object::rewrite(object).map_err(|why| {
        Error::unsupported(
            format!("grafting this program (its code object: {why})"),
            "its own device, where it runs as it is",
        )
    })
}

/// Wraps an OpenCL SPIR-V module for a HIP runtime over OpenCL (chipStar). The module stays unchanged. The result is
/// for `Source::binary` on such a device. It begins with comments that describe how its kernels take their arguments.
///
/// ```
/// let refused = onebuf_graft::rewrite_spirv(b"\x03\x02#\x07 and no more").unwrap_err();
/// assert!(refused.to_string().contains("its SPIR-V: "));
/// ```
///
/// # Errors
/// [`Error::Unsupported`] with what the runtime would not run as OpenCL does: images, samplers, `printf`, and values
/// whose size it computes wrong.
pub fn rewrite_spirv(module: &[u8]) -> Result<Vec<u8>> {
    spirv::rewrite(module).map_err(|why| {
        Error::unsupported(
            format!("grafting this program (its SPIR-V: {why})"),
            "its own device, where it runs as it is",
        )
    })
}

/// Tests of the parsers measure their allocations.
#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
#[global_allocator]
static ALLOCATOR: onebuf_hal::testing::meter::Counting = onebuf_hal::testing::meter::Counting;
