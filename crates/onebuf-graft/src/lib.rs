//! Graft: OpenCL kernels in another API's stream.
//!
//! NVIDIA's OpenCL compiler makes PTX, which CUDA loads, but not as it is: what OpenCL tells a kernel of its
//! launch by registers of its own, CUDA does not, and local memory comes by another way. [`rewrite`] changes
//! what differs and refuses, with the line, what it does not know to be the same. `Program::graft` does the
//! whole.
//!
//! | OpenCL's PTX | becomes |
//! |---|---|
//! | `.target …, texmode_independent` | without it |
//! | `%envreg0` to `2`: the group's offset, where a launch is cut into several | zero |
//! | `%envreg3` to `5`: the global offset; `%envreg9`: the number of dimensions | a parameter behind the others |
//! | `%envreg6` to `8`: the number of groups | `%nctaid` |
//! | a parameter `.ptr .shared` | an offset, to which the kernel adds the address of its dynamic memory |
//! | a parameter `.ptr .const`, and with it all constant memory of the module | global memory that is only read |
//! | images, samplers, `printf`, every other register of the environment | refused |
//!
//! AMD's OpenCL compiler makes machine code, which HIP loads as it is; what differs is how a launch fills the
//! arguments, and that stands in the object's notes: [`rewrite_code_object`].
//!
//! A HIP runtime over OpenCL compiles SPIR-V, which OpenCL programs can be made from: [`rewrite_spirv`].
//!
//! This part is pure: it knows nothing of devices and runs anywhere.

#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
mod bounds_tests;
#[doc(hidden)]
pub mod code_object;
mod constants;
mod edits;
mod lex;
mod parse;
mod registers;
mod rewrite;
#[doc(hidden)]
pub mod spirv;
#[cfg(test)]
mod tests;

use lex::Token;
use onebuf_hal::{Error, Result};
use std::fmt;

/// What is said of HIP beside every verdict.
#[doc(hidden)]
pub const UNTRIED: &str = "; grafting on HIP has not been run on hardware by its authors";

/// Why a text is not rewritten, and where.
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

/// Makes PTX that CUDA runs of what NVIDIA's OpenCL compiler made. The result is for `Source::ptx`; it
/// begins with comments that say how its kernels take their arguments.
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

/// Makes an image that HIP runs of what AMD's OpenCL compiler made, a code object of version 3, 4 or 5: its notes
/// are changed so that a launch passes what HIP's runtime would fill otherwise than OpenCL's. The result is for
/// `Source::binary` on a HIP device; it begins with comments that say how its kernels take their arguments.
///
/// This has never run on an AMD GPU: see `docs/graft.md`.
///
/// ```
/// let refused = onebuf_graft::rewrite_code_object(b"\x7fELF and no more").unwrap_err();
/// assert!(refused.to_string().contains("its code object: "));
/// ```
///
/// # Errors
/// [`Error::Unsupported`] with what of it is not known to mean the same, or does not hold together.
pub fn rewrite_code_object(object: &[u8]) -> Result<Vec<u8>> {
    code_object::rewrite(object).map_err(|why| {
        Error::unsupported(
            format!("grafting this program (its code object: {why})"),
            "its own device, where it runs as it is",
        )
    })
}

/// Makes an image that a HIP runtime over OpenCL (chipStar) runs of a SPIR-V module for OpenCL. The module stays as it is; the
/// result is for `Source::binary` on such a device, and begins with comments that say how its kernels take their arguments.
///
/// ```
/// let refused = onebuf_graft::rewrite_spirv(b"\x03\x02#\x07 and no more").unwrap_err();
/// assert!(refused.to_string().contains("its SPIR-V: "));
/// ```
///
/// # Errors
/// [`Error::Unsupported`] with what the runtime would not run as OpenCL does: images, samplers, `printf`, and values of which
/// it gets the size wrong.
pub fn rewrite_spirv(module: &[u8]) -> Result<Vec<u8>> {
    spirv::rewrite(module).map_err(|why| {
        Error::unsupported(
            format!("grafting this program (its SPIR-V: {why})"),
            "its own device, where it runs as it is",
        )
    })
}

/// Tests of parsers measure what they allocate.
#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
#[global_allocator]
static ALLOCATOR: onebuf_hal::testing::meter::Counting = onebuf_hal::testing::meter::Counting;
