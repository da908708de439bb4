//! The buffer protocol: memory of a buffer as `memoryview` and NumPy see it.
//!
//! # Safety
//! A filled view points at memory that a [`HostUse`] in its `internal` field keeps mapped. The interpreter releases each view once,
//! and keeps the exporting object until then.

use crate::{
    array::PyBuffer,
    error::{Fault, export_error},
    root::HostUse,
};
use pyo3::{ffi, prelude::*};
use std::ffi::{c_int, c_void};

/// What a filled view needs until it is released.
struct Filled {
    shape: Vec<ffi::Py_ssize_t>,
    strides: Vec<ffi::Py_ssize_t>,
    _used: HostUse,
}

/// Fills in a view of a buffer, which is lent to the host until the view is released.
///
/// # Safety
/// `view` is null, or a view to fill in.
pub(crate) unsafe fn fill_of_buffer(
    owner: Bound<'_, PyBuffer>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    let py = owner.py();
    let buffer = owner.get();
    let lent =
        writable(buffer, flags).and_then(|write| buffer.lend(py, write, "the buffer protocol"));
    let (used, first) = lent.map_err(|fault| export_error(py, fault))?;
    // SAFETY: the caller's promise.
    unsafe { fill(owner.clone().into_any(), view, flags, buffer, used, first) }
}

/// Whether the view is for writing: if it is asked for, and where it is possible.
fn writable(buffer: &PyBuffer, flags: c_int) -> Result<bool, Fault> {
    let asked = flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE;
    Ok(asked || !buffer.root()?.read_only)
}

/// Fills in a view of mapped memory that begins at `first`.
///
/// # Safety
/// `view` is null, or a view to fill in; the memory is mapped while `used` lives.
pub(crate) unsafe fn fill(
    owner: Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
    of: &PyBuffer,
    used: HostUse,
    first: *mut u8,
) -> PyResult<()> {
    let py = owner.py();
    let refuse = |why: &str| Err(export_error(py, Fault::invalid(why)));
    if view.is_null() {
        return refuse("no view to fill in");
    }
    if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE && !used.writable {
        return refuse("the memory is mapped for reading");
    }
    let has = |wanted: c_int| flags & wanted == wanted;
    let wants_dense =
        !has(ffi::PyBUF_STRIDES) || has(ffi::PyBUF_C_CONTIGUOUS) || has(ffi::PyBUF_ANY_CONTIGUOUS);
    if wants_dense && !of.layout.is_dense() {
        return refuse("the array is not contiguous");
    }
    if has(ffi::PyBUF_F_CONTIGUOUS) && (of.layout.shape.len() > 1 || !of.layout.is_dense()) {
        return refuse("the array is not in Fortran's order");
    }
    let (shape, strides) = (&of.layout.shape, &of.layout.strides);
    let mut filled = Box::new(Filled {
        shape: shape.iter().map(|size| *size as ffi::Py_ssize_t).collect(),
        strides: strides.clone(),
        _used: used,
    });
    // SAFETY: a view to fill in, as the caller promises; what it points at is kept in its `internal`.
    unsafe {
        (*view).buf = first.cast();
        (*view).len = of.layout.bytes() as ffi::Py_ssize_t;
        (*view).itemsize = of.layout.item as ffi::Py_ssize_t;
        (*view).readonly = c_int::from(!filled._used.writable);
        (*view).ndim = shape.len() as c_int;
        (*view).format = if has(ffi::PyBUF_FORMAT) {
            of.dtype.format().as_ptr().cast_mut()
        } else {
            std::ptr::null_mut()
        };
        (*view).shape =
            if has(ffi::PyBUF_ND) { filled.shape.as_mut_ptr() } else { std::ptr::null_mut() };
        (*view).strides = if has(ffi::PyBUF_STRIDES) {
            filled.strides.as_mut_ptr()
        } else {
            std::ptr::null_mut()
        };
        (*view).suboffsets = std::ptr::null_mut();
        (*view).internal = Box::into_raw(filled).cast::<c_void>();
        (*view).obj = owner.into_ptr();
    }
    Ok(())
}

/// Ends a view.
///
/// # Safety
/// The view was filled in by [`fill`], and is released once.
pub(crate) unsafe fn release(view: *mut ffi::Py_buffer) {
    // SAFETY: `fill` stored the box, as the caller promises.
    unsafe {
        let filled = (*view).internal.cast::<Filled>();
        (*view).internal = std::ptr::null_mut();
        if !filled.is_null() {
            drop(Box::from_raw(filled));
        }
    }
}
