//! New buffers.

use crate::{
    array::PyBuffer,
    dtype::Dtype,
    ending::detached,
    error::Result,
    layout::{self, Layout},
    options::BufferOptions,
    root::Root,
};
use onebuf::{BufferBuilder, Hub};
use pyo3::{prelude::*, types::PyString};

/// Makes a buffer of zeroes.
pub(crate) fn buffer(
    py: Python<'_>,
    hub: &Hub,
    (layout, dtype): (Layout, Dtype),
    options: &BufferOptions,
) -> Result<PyBuffer> {
    let built = request(py, hub, layout.bytes(), options, |request| request.build())?;
    Ok(PyBuffer::new(Root::new(built, false), layout, dtype))
}

/// Calls a function with the request for a new buffer, without the interpreter.
pub(crate) fn request<R: Send>(
    py: Python<'_>,
    hub: &Hub,
    bytes: usize,
    options: &BufferOptions,
    with: impl FnOnce(BufferBuilder<'_, u8>) -> onebuf::Result<R> + Send,
) -> Result<R> {
    Ok(detached(py, || with(options.apply(hub.buffer::<u8>(bytes))?))?)
}

/// The type and the layout of a buffer.
pub(crate) fn shaped<'py>(
    py: Python<'py>,
    shape: &Bound<'py, PyAny>,
    dtype: Option<Bound<'py, PyAny>>,
) -> Result<(Layout, Dtype)> {
    let given = dtype.unwrap_or_else(|| PyString::new(py, "float32").into_any());
    let dtype = Dtype::parse(&given)?;
    Ok((Layout::dense(layout::shape(shape)?, dtype.size())?, dtype))
}
