//! OpenCL SPIR-V for a HIP runtime that is itself built on OpenCL (chipStar).
//!
//! The module stays unchanged inside the bundle format that such a runtime loads, and the same driver compiles it. Only
//! the launch differs: local memory is not an argument, every global offset is zero, there are always three dimensions,
//! and the runtime computes the sizes of values itself. So the rewriter reads each kernel's parameters for its packing,
//! and refuses modules that the runtime would handle wrongly.

#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
mod bounds_tests;
mod kernel;
mod module;
mod reflect;
mod types;

pub use reflect::parameters;

use module::SpirvModule;
use onebuf_hal::packing;

/// The magic number of a bundle, and the name of its one entry.
const BUNDLE: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";
const ENTRY: &[u8] = b"hip-spirv64";
/// The alignment of entries in a bundle.
const ALIGN: usize = 16;

/// Returns the image that the HIP backend loads: comments that describe how the kernels take their arguments, then the
/// bundle.
pub(super) fn rewrite(spirv: &[u8]) -> Result<Vec<u8>, String> {
    let words = module::words(spirv)?;
    let kernels = kernel::packings(&SpirvModule::read(&words)?, words.len())?;
    let mut image = packing::write(&kernels).into_bytes();
    image.extend(bundle(&words));
    Ok(image)
}

/// Whether a module has variables in global memory.
pub fn has_variables(spirv: &[u8]) -> bool {
    let module = module::words(spirv).and_then(|words| SpirvModule::read(&words));
    module.is_ok_and(|module| module.has_variables)
}

/// A bundle of one module: magic, the number of entries, then offset, size and name of each.
fn bundle(words: &[u32]) -> Vec<u8> {
    let head = BUNDLE.len() + 4 * size_of::<u64>() + ENTRY.len();
    let offset = head.next_multiple_of(ALIGN);
    let numbers = [1, offset, size_of_val(words), ENTRY.len()].map(|n| (n as u64).to_le_bytes());
    let mut bundle = [BUNDLE, &numbers.concat(), ENTRY].concat();
    bundle.resize(offset, 0);
    bundle.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    bundle
}

#[cfg(test)]
mod tests;
