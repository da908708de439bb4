//! Objects of pyopencl: its buffers, queues and contexts, by their native handles.
//!
//! # Safety
//! The handles come from `int_ptr` of live objects of pyopencl, which the caller's references keep during the call. onebuf adds a
//! reference of its own to what it keeps.

use crate::{
    array::PyBuffer,
    dtype::Dtype,
    ending::{detached, enter},
    error::{Fault, Result},
    layout::{self, Layout},
    options::BufferOptions,
    root::Root,
    types::{PyDevice, PyFence, PyQueue},
};
use onebuf::{Access, ForeignBufferInfo, ForeignContext, Hub, prelude::*};
use pyo3::prelude::*;
use std::{ffi::c_void, num::NonZeroUsize, ptr::NonNull};

/// How a buffer of pyopencl is wrapped.
pub(crate) struct Wrap<'py> {
    pub shape: Option<Bound<'py, PyAny>>,
    pub dtype: Option<Bound<'py, PyAny>>,
    pub queue: Option<Bound<'py, PyAny>>,
    pub options: BufferOptions,
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
    let _inside = enter(py);
    let raw = handle(py, queue, &["CommandQueue"])?;
    // SAFETY: see the head of this file.
    Ok(PyQueue(detached(py, || unsafe { hub.wrap_queue(raw as *mut c_void) })?))
}

/// Wraps an event.
pub(crate) fn event(py: Python<'_>, hub: &Hub, event: &Bound<'_, PyAny>) -> Result<PyFence> {
    let _inside = enter(py);
    let raw = handle(py, event, &["Event"])?;
    // SAFETY: see the head of this file.
    let fence = detached(py, || unsafe { hub.wrap_event(raw as *mut c_void) })?;
    Ok(PyFence::new(fence, hub))
}

/// Registers a context.
pub(crate) fn context(
    py: Python<'_>,
    hub: &Hub,
    context: &Bound<'_, PyAny>,
) -> Result<Vec<PyDevice>> {
    let _inside = enter(py);
    let raw = handle(py, context, &["Context"])?;
    // SAFETY: see the head of this file.
    let context = detached(py, || unsafe { hub.foreign_context(raw as *mut c_void) })?;
    Ok(context.devices().into_iter().map(PyDevice).collect())
}

/// The memory object, and what an array of pyopencl says about it.
struct PyOpenClSource<'py> {
    memory: Bound<'py, PyAny>,
    offset: usize,
    shape: Option<Bound<'py, PyAny>>,
    dtype: Option<Bound<'py, PyAny>>,
    queue: Option<Bound<'py, PyAny>>,
}

fn source<'py>(x: &Bound<'py, PyAny>) -> Result<PyOpenClSource<'py>> {
    if !(x.hasattr("base_data")? && x.hasattr("queue")?) {
        return Ok(PyOpenClSource {
            memory: x.clone(),
            offset: 0,
            shape: None,
            dtype: None,
            queue: None,
        });
    }
    let is_dense: bool = x.getattr("flags")?.getattr("c_contiguous")?.extract()?;
    if !is_dense {
        return Err(Fault::invalid("the array is not contiguous: copy it first"));
    }
    Ok(PyOpenClSource {
        memory: x.getattr("base_data")?,
        offset: x.getattr("offset")?.extract()?,
        shape: Some(x.getattr("shape")?),
        dtype: Some(x.getattr("dtype")?),
        queue: Some(x.getattr("queue")?).filter(|queue| !queue.is_none()),
    })
}

/// Memory of pyopencl: an object of OpenCL, or shared virtual memory in a context.
enum PyOpenClMemory {
    Object(usize),
    Svm { context: ForeignContext, at: NonZeroUsize, keeps: Py<PyAny> },
}

/// The memory behind an object of pyopencl, its size, and what kernels may do with it.
fn memory(
    py: Python<'_>,
    hub: &Hub,
    of: &Bound<'_, PyAny>,
    queue: Option<&Bound<'_, PyAny>>,
) -> Result<(PyOpenClMemory, usize, Access)> {
    let Some(at) = of.getattr_opt("svm_ptr")?.filter(|at| !at.is_none()) else {
        let raw = handle(py, of, &["Buffer", "MemoryObject", "PooledBuffer"])?;
        // SAFETY: see the head of this file.
        let info = detached(py, || unsafe { ForeignBufferInfo::query(hub, raw as *mut c_void) })?;
        return Ok((PyOpenClMemory::Object(raw), info.bytes, info.access));
    };
    let queue = queue.ok_or_else(|| {
        Fault::invalid(
            "shared virtual memory needs the `queue` of its owner, whose context it is in",
        )
    })?;
    let raw = handle(py, &queue.getattr("context")?, &["Context"])?;
    // SAFETY: see the head of this file.
    let context = detached(py, || unsafe { hub.foreign_context(raw as *mut c_void) })?;
    let at = NonZeroUsize::new(at.extract()?);
    let at = at.ok_or_else(|| Fault::invalid("shared virtual memory that was released"))?;
    let memory = PyOpenClMemory::Svm { context, at, keeps: of.clone().unbind() };
    Ok((memory, of.getattr("size")?.extract()?, Access::ReadWrite))
}

/// Wraps a buffer, an array, or shared virtual memory.
pub(crate) fn wrap<'py>(
    py: Python<'py>,
    hub: &Hub,
    x: &Bound<'py, PyAny>,
    asked: Wrap<'py>,
) -> Result<PyBuffer> {
    let _inside = enter(py);
    let of = source(x)?;
    let owners = asked.queue.or(of.queue);
    let (memory, bytes, access) = memory(py, hub, &of.memory, owners.as_ref())?;
    let dtype = asked.dtype.or(of.dtype).map(|dtype| Dtype::parse(&dtype)).transpose()?;
    let dtype = dtype.unwrap_or_else(Dtype::bytes_alone);
    let owners = owners.map(|given| queue(py, hub, &given)).transpose()?;
    let shape = match asked.shape.or(of.shape) {
        Some(shape) => layout::shape(&shape)?,
        None => vec![(bytes - of.offset.min(bytes)) / dtype.size()],
    };
    let layout = Layout { offset: of.offset, ..Layout::dense(shape, dtype.size())? };
    if layout.span().end > bytes {
        let want = layout.span().end;
        return Err(Fault::invalid(format!(
            "the array needs {want} bytes, its memory has {bytes}"
        )));
    }
    let built = detached(py, || {
        let fence = owners.map(|queue| queue.0.fence());
        // SAFETY: live memory; the owner's work is declared by the queue, or done, as the documentation asks. The object of shared virtual
        // memory is kept.
        let builder = unsafe {
            match memory {
                PyOpenClMemory::Object(raw) => hub.wrap_buffer::<u8>(raw as *mut c_void),
                PyOpenClMemory::Svm { context, at, keeps } => {
                    let first = NonNull::new_unchecked(at.get() as *mut u8);
                    hub.wrap_svm::<u8>(&context, first, bytes).owned(move |_| drop(keeps))
                }
            }
        };
        let mut builder = asked.options.apply_to_wrap(builder);
        if let Some(fence) = &fence {
            builder = builder.after(fence);
        }
        builder.build()
    })?;
    Ok(PyBuffer::new(Root::new(built, access == Access::Read), layout, dtype))
}
