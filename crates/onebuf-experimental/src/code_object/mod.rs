//! AMD code objects: OpenCL kernels compiled to machine code, rewritten so that HIP can load and launch them.
//!
//! HIP and OpenCL read the same metadata but fill hidden arguments differently. HIP passes zero for every global offset, always passes three
//! dimensions, and reserves four bytes for each local-memory argument, whatever size the launch requests. The rewriter turns these
//! arguments into plain values that the launch passes. Machine code and all lengths in the file stay unchanged.

#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
mod bounds_tests;
mod elf;
mod kernel;
mod msgpack;
mod patch;

use elf::Object;
use onebuf_hal::packing::{self, Packing};

/// Magic numbers of a code object, and of containers that may hold one.
const ELF: &[u8] = b"\x7fELF";
const WRAPPED: [&[u8]; 3] = [b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB", b"BC\xc0\xde"];

/// Whether a binary begins like a code object or a container of one. [`rewrite`] gives the reason if it is not usable.
pub fn is_one(binary: &[u8]) -> bool {
    WRAPPED.iter().chain([&ELF]).any(|magic| binary.starts_with(magic))
}

/// Rewrites a code object into the image that the HIP backend loads: comments that describe how the kernels take their
/// arguments, then the object.
///
/// # Errors
/// What is invalid in the object, or not known to mean the same under HIP.
pub fn rewrite(object: &[u8]) -> Result<Vec<u8>, String> {
    if WRAPPED.iter().any(|magic| object.starts_with(magic)) {
        return Err(
            "it is a bundle or bitcode, where one device's finished object is needed".into()
        );
    }
    let Object { version, metadata } = elf::read(object)?;
    let document = object.get(metadata.clone()).ok_or("its metadata ends outside of it")?;
    let root = msgpack::read(document)?;
    let program = kernel::read(&root, version)?;
    let mut code = object.to_vec();
    for argument in program.kernels.iter().flat_map(|kernel| &kernel.passed) {
        let (at, bytes) = patch::as_value(argument, document)?;
        code[metadata.start + at.start..metadata.start + at.end].copy_from_slice(&bytes);
    }
    let kernels: Vec<Packing> = program.kernels.into_iter().map(|kernel| kernel.packing).collect();
    let mut image = packing::write_for(program.target, &kernels).into_bytes();
    image.extend(code);
    Ok(image)
}
