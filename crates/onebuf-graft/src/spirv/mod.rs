//! SPIR-V of OpenCL's, for a HIP runtime that is itself built on OpenCL (chipStar).
//!
//! The module stays as it is, in the kind of bundle that such a runtime loads, and goes to the same driver in the end. What
//! differs is the launch: local memory comes by no argument, every offset is zero, there are always three dimensions, and the
//! runtime computes the sizes of values itself. So each kernel's parameters are read, for its packing; what the runtime would
//! get wrong is refused.

#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
mod bounds_tests;
mod kernel;
mod module;
mod types;

use module::Module;
use onebuf_hal::packing;

/// How a bundle begins, and the name of the one thing in it.
const BUNDLE: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";
const ENTRY: &[u8] = b"hip-spirv64";
/// Where things in a bundle begin.
const ALIGN: usize = 16;

/// The image that HIP's backend loads: how the kernels take their arguments, and the bundle.
pub(super) fn rewrite(spirv: &[u8]) -> Result<Vec<u8>, String> {
    let words = module::words(spirv)?;
    let kernels = kernel::packings(&Module::read(&words)?, words.len())?;
    let mut image = packing::write(&kernels).into_bytes();
    image.extend(bundle(&words));
    Ok(image)
}

/// Whether a module has variables of its own in global memory.
pub fn has_variables(spirv: &[u8]) -> bool {
    let module = module::words(spirv).and_then(|words| Module::read(&words));
    module.is_ok_and(|module| module.has_variables)
}

/// A bundle of one module: magic, the number of entries, then of each its offset, size, and name.
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
