//! Objects of pyopencl: its buffers, queues and contexts, by their native handles.
//!
//! # Safety
//! The handles come from `int_ptr` of live objects of pyopencl, which the caller's references keep during the call. onebuf adds a
//! reference of its own to what it keeps.

use crate::{
    array::PyBuffer,
    dtype::Dtype,
    ending::detached,
    error::{Fault, Result},
    layout::{self, Layout},
    root::Root,
    types::{PyDevice, PyQueue},
};
use onebuf::{Access, CopyPolicy, Device, ForeignBufferInfo, Hub, prelude::*};
use pyo3::prelude::*;
use std::ffi::c_void;

/// How a buffer of pyopencl is wrapped.
pub(crate) struct Wrap<'py> {
    pub shape: Option<Bound<'py, PyAny>>,
    pub dtype: Option<Bound<'py, PyAny>>,
    pub queue: Option<Bound<'py, PyAny>>,
    pub devices: Vec<Device>,
    pub copies: CopyPolicy,
    pub trust_declared: bool,
}

/// The native handle of an object of pyopencl of one of these classes.
fn handle(py: Python<'_>, object: &Bound<'_, PyAny>, classes: &[&str]) -> Result<usize> {
    let module = py.import("pyopencl")?;
    let is = |name: &&str| module.getattr(*name).and_then(|class| object.is_instance(&class));
    if !classes.iter().any(|name| is(name).unwrap_or(false)) {
        let (have, want) = (object.get_type().name()?.to_string(), classes.join("` or `pyopencl."));
        return Err(Fault::invalid(format!("a {have} where a `pyopencl.{want}` is needed")));
    }
    Ok(object.getattr("int_ptr")?.extract()?)
}

/// Wraps a queue.
pub(crate) fn queue(py: Python<'_>, hub: &Hub, queue: &Bound<'_, PyAny>) -> Result<PyQueue> {
    let raw = handle(py, queue, &["CommandQueue"])?;
    // SAFETY: see the head of this file.
    Ok(PyQueue(detached(py, || unsafe { hub.wrap_queue(raw as *mut c_void) })?))
}

/// Registers a context.
pub(crate) fn context(
    py: Python<'_>,
    hub: &Hub,
    context: &Bound<'_, PyAny>,
) -> Result<Vec<PyDevice>> {
    let raw = handle(py, context, &["Context"])?;
    // SAFETY: see the head of this file.
    let context = detached(py, || unsafe { hub.foreign_context(raw as *mut c_void) })?;
    Ok(context.devices().into_iter().map(PyDevice).collect())
}

/// The memory object, and what an array of pyopencl says about it.
struct Source<'py> {
    memory: Bound<'py, PyAny>,
    offset: usize,
    shape: Option<Bound<'py, PyAny>>,
    dtype: Option<Bound<'py, PyAny>>,
    queue: Option<Bound<'py, PyAny>>,
}

fn source<'py>(x: &Bound<'py, PyAny>) -> Result<Source<'py>> {
    if !(x.hasattr("base_data")? && x.hasattr("queue")?) {
        return Ok(Source { memory: x.clone(), offset: 0, shape: None, dtype: None, queue: None });
    }
    let is_dense: bool = x.getattr("flags")?.getattr("c_contiguous")?.extract()?;
    if !is_dense {
        return Err(Fault::invalid("the array is not contiguous: copy it first"));
    }
    Ok(Source {
        memory: x.getattr("base_data")?,
        offset: x.getattr("offset")?.extract()?,
        shape: Some(x.getattr("shape")?),
        dtype: Some(x.getattr("dtype")?),
        queue: Some(x.getattr("queue")?).filter(|queue| !queue.is_none()),
    })
}

/// Wraps a buffer or an array.
pub(crate) fn wrap<'py>(
    py: Python<'py>,
    hub: &Hub,
    x: &Bound<'py, PyAny>,
    asked: Wrap<'py>,
) -> Result<PyBuffer> {
    let of = source(x)?;
    let raw = handle(py, &of.memory, &["Buffer", "MemoryObject", "PooledBuffer"])?;
    let dtype = asked.dtype.or(of.dtype).map(|dtype| Dtype::parse(&dtype)).transpose()?;
    let dtype = dtype.unwrap_or_else(Dtype::bytes_alone);
    let owners = asked.queue.or(of.queue).map(|given| queue(py, hub, &given)).transpose()?;
    // SAFETY: see the head of this file.
    let info = detached(py, || unsafe { ForeignBufferInfo::query(hub, raw as *mut c_void) })?;
    let shape = match asked.shape.or(of.shape) {
        Some(shape) => layout::shape(&shape)?,
        None => vec![(info.bytes - of.offset.min(info.bytes)) / dtype.size()],
    };
    let layout = Layout { offset: of.offset, ..Layout::dense(shape, dtype.size())? };
    if layout.span().end > info.bytes {
        let (have, want) = (info.bytes, layout.span().end);
        return Err(Fault::invalid(format!("the array needs {want} bytes, the cl_mem has {have}")));
    }
    let built = detached(py, || {
        let fence = owners.map(|queue| queue.0.fence());
        // SAFETY: a live buffer; the owner's work is declared by the queue, or done, as the documentation asks.
        let mut builder = unsafe { hub.wrap_buffer::<u8>(raw as *mut c_void) };
        builder = builder.shared_with(&asked.devices).copies(asked.copies);
        builder = builder.trust_declared(asked.trust_declared);
        if let Some(fence) = &fence {
            builder = builder.after(fence);
        }
        builder.build()
    })?;
    Ok(PyBuffer::new(Root::new(built, info.access == Access::Read), layout, dtype))
}
