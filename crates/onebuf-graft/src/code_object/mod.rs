//! AMD's code objects: what OpenCL compiled, for HIP to load.
//!
//! HIP's runtime reads the same notes as OpenCL's and fills what a kernel's launch tells it, but not all as OpenCL
//! would: every offset is zero, there are always three dimensions, and an argument of local memory is four bytes,
//! whatever was asked for. So the notes are changed: those arguments become plain values, which the launch passes.
//! The code itself stays as it is, and so does every length in the file.

#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
mod bounds_tests;
mod elf;
mod kernel;
mod msgpack;
mod patch;

use elf::Object;
use onebuf_hal::packing::{self, Packing};

/// How an object begins, and what others wrap one in.
const ELF: &[u8] = b"\x7fELF";
const WRAPPED: [&[u8]; 3] = [b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB", b"BC\xc0\xde"];

/// Whether a binary may be an object: then `rewrite` says what it is not.
pub fn is_one(binary: &[u8]) -> bool {
    WRAPPED.iter().chain([&ELF]).any(|magic| binary.starts_with(magic))
}

/// The image that HIP's backend loads: how the kernels take their arguments, and the object.
pub(super) fn rewrite(object: &[u8]) -> Result<Vec<u8>, String> {
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
