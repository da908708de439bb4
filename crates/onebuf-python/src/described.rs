//! An array of another library as a kernel needs it.

use crate::dtype::Dtype;

/// An array that a kernel can use.
pub(crate) struct Described {
    pub address: usize,
    pub elements: usize,
    pub dtype: Dtype,
    pub read_only: bool,
}

/// Why a kernel does not take an array.
pub(crate) const STRIDED: &str =
    "the array is not contiguous: pass a copy, such as `x.contiguous()`";
