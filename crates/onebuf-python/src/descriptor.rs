//! Memory by file descriptors, in and out.
//!
//! # Safety
//! The caller vouches for a descriptor that is imported, as the documentation of `Hub.import_fd` asks.

use crate::{
    array::PyBuffer,
    dtype::Dtype,
    ending::detached,
    error::{Fault, Result},
    given::word,
    json::{fields, objects},
    layout::Layout,
    options::BufferOptions,
    root::Root,
};
use onebuf::{Device, FdKind, Hub};
use pyo3::{prelude::*, types::PyDict};
use std::{
    os::fd::{BorrowedFd, IntoRawFd},
    sync::Arc,
};

/// A descriptor, and which bytes of its memory are wanted.
pub(crate) struct Descriptor<'k> {
    pub fd: i32,
    pub device: Device,
    pub kind: &'k str,
    pub allocation_bytes: Option<usize>,
    pub offset: usize,
    pub options: BufferOptions,
}

/// Imports the memory.
pub(crate) fn buffer(
    py: Python<'_>,
    hub: &Hub,
    (layout, dtype): (Layout, Dtype),
    asked: &Descriptor<'_>,
) -> Result<PyBuffer> {
    let kind: FdKind = word("kind", asked.kind)?;
    let (bytes, offset) = (layout.bytes(), asked.offset);
    let whole = asked.allocation_bytes.unwrap_or_else(|| offset.saturating_add(bytes));
    if asked.fd < 0 {
        return Err(Fault::invalid(format!("{} is no file descriptor", asked.fd)));
    }
    // SAFETY: not −1; open during the call, which duplicates it, as the caller vouches.
    let fd = unsafe { BorrowedFd::borrow_raw(asked.fd) };
    let built = detached(py, || {
        // SAFETY: see the head of this file.
        let builder = unsafe { hub.import::<u8>(fd, kind, whole) }.range(offset, bytes);
        let builder = builder.shared_with(&asked.options.share).copies(asked.options.copies);
        builder.build(&asked.device)
    })?;
    Ok(PyBuffer::new(Root::new(built, false), layout, dtype))
}

/// Exports a buffer's memory. The caller closes the descriptor.
pub(crate) fn export<'py>(
    py: Python<'py>,
    root: &Arc<Root>,
    kind: &str,
) -> Result<Bound<'py, PyDict>> {
    let kind: FdKind = word("kind", kind)?;
    root.check_free(true)?;
    let exported = detached(py, || root.buffer.export(kind))?;
    let all = fields!(py; exported; offset, bytes, allocation_bytes);
    all.set_item("kind", objects(py, &exported.kind)?)?;
    all.set_item("fd", exported.fd.into_raw_fd())?;
    Ok(all)
}
