//! Copies that need no NumPy array of the caller's: transfers in the background, fills, copies between buffers.

use crate::{
    array::{PyBuffer, arrays},
    ending::{detached, enter},
    error::{Fault, Result},
    host_bytes::Bytes,
    root::Root,
    transfer::{PyTransfer, TransferState},
};
use onebuf::bridge::{self, Crossing};
use pyo3::{prelude::*, types::PyTuple};
use std::{ops::Range, sync::Arc};

/// The buffer and the bytes of a contiguous array.
fn dense(array: &PyBuffer) -> Result<(Arc<Root>, Range<usize>)> {
    if !array.layout.is_dense() {
        return Err(Fault::invalid("the array is not contiguous: use `read` and `write`"));
    }
    Ok((array.root()?, array.layout.span()))
}

/// Starts a read.
pub(crate) fn read_async(py: Python<'_>, array: &PyBuffer) -> Result<PyTransfer> {
    let (root, range) = dense(array)?;
    let into = vec![0u8; range.len()];
    let state = match root.is_leased() {
        true => TransferState::Read(read_now(py, &root, range, into)?),
        false => {
            root.check_free(false)?;
            TransferState::Runs(detached(py, || root.buffer.read_async(range, into))?)
        }
    };
    let made_of = (array.layout.shape.clone(), array.dtype);
    Ok(PyTransfer::new(state, Some(made_of), root.buffer.hub().timeout()))
}

/// Reads by the map that the host has.
fn read_now(
    py: Python<'_>,
    root: &Arc<Root>,
    range: Range<usize>,
    mut into: Vec<u8>,
) -> Result<Vec<u8>> {
    // SAFETY: the vector has as many bytes as the range.
    detached(py, || unsafe { root.read(range, into.as_mut_ptr()) }.map(|()| into))
}

/// Starts a write.
pub(crate) fn write_async(
    py: Python<'_>,
    array: &PyBuffer,
    data: &Bound<'_, PyAny>,
) -> Result<PyTransfer> {
    let _inside = enter(py);
    let (root, range) = dense(array)?;
    let shape = PyTuple::new(py, &array.layout.shape)?;
    let from = arrays(py)?.call_method1("given", (data, shape, array.dtype.numpy(py)?))?;
    let from = Bytes::of(&from, range.len(), false)?.to_vec();
    let timeout = root.buffer.hub().timeout();
    if root.is_leased() {
        // SAFETY: the vector has as many bytes as the range.
        detached(py, || unsafe { root.write(range, from.as_ptr()) })?;
        return Ok(PyTransfer::new(TransferState::Ended(py.None()), None, timeout));
    }
    root.check_free(true)?;
    let pending = detached(py, || root.buffer.write_async(range, from))?;
    Ok(PyTransfer::new(TransferState::Runs(pending), None, timeout))
}

/// Sets all elements to one value on the device. Returns false where that is not possible: several values, other strides, memory that the host has.
pub(crate) fn fill(py: Python<'_>, array: &PyBuffer, value: &Bound<'_, PyAny>) -> Result<bool> {
    let _inside = enter(py);
    let root = array.root()?;
    let range = array.layout.span();
    let fits = array.layout.is_dense() && range.start.is_multiple_of(array.layout.item);
    if !fits || root.is_leased() {
        return Ok(false);
    }
    let bytes = arrays(py)?.call_method1("element", (value, array.dtype.numpy(py)?))?;
    let Some(pattern) = bytes.extract::<Option<Vec<u8>>>()? else { return Ok(false) };
    root.check_free(true)?;
    root.settle(py, true)?;
    detached(py, || root.buffer.fill_pattern(range, &pattern))?;
    Ok(true)
}

/// Copies all elements.
pub(crate) fn copy(py: Python<'_>, from: &PyBuffer, to: &PyBuffer) -> Result<Crossing> {
    if (from.dtype, &from.layout.shape) != (to.dtype, &to.layout.shape) {
        let (from, to) =
            ((from.dtype.name(), &from.layout.shape), (to.dtype.name(), &to.layout.shape));
        return Err(Fault::invalid(format!(
            "a copy of {from:?} to {to:?}: type and shape must be the same"
        )));
    }
    let ((source, range), (target, place)) = (dense(from)?, dense(to)?);
    source.check_free(false)?;
    target.check_free(true)?;
    source.settle(py, false)?;
    target.settle(py, true)?;
    Ok(detached(py, || bridge::copy(&*source.buffer, range, &*target.buffer, place.start))?)
}
