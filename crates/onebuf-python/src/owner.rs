//! Streams and queues of the library that owns wrapped memory, and the order of its work with onebuf's.

use crate::{
    ending::detached,
    error::{Fault, Result},
    foreign, given,
    root::Root,
    stream::{self, NamedStream, has_streams},
    types::{PyFence, PyQueue},
};
use onebuf::{Fence, Queue};
use pyo3::{intern, prelude::*};

/// A queue over the stream that the caller names.
pub(crate) fn queue(
    py: Python<'_>,
    root: &Root,
    given: &Bound<'_, PyAny>,
    device: Option<&Bound<'_, PyAny>>,
) -> Result<Queue> {
    if let Ok(queue) = given.cast::<PyQueue>() {
        return Ok(queue.get().0.clone());
    }
    let hub = root.buffer.hub();
    if given.hasattr(intern!(py, "int_ptr"))? {
        return Ok(foreign::queue(py, hub, given)?.0);
    }
    let device = match device {
        Some(device) => given::device(hub, device)?,
        None => {
            let mut all = root.devices().iter();
            all.find(|device| has_streams(device)).cloned().ok_or_else(|| {
                Fault::invalid("the buffer is not shared with a CUDA or HIP device")
            })?
        }
    };
    match NamedStream::of_caller(given)? {
        NamedStream::Handle(handle) => stream::wrap(py, &device, handle),
        NamedStream::Unordered => Err(Fault::invalid("a stream is needed")),
    }
}

/// Says that the owner's work until a fence, or in a stream so far, comes before the buffer's next user.
pub(crate) fn until(
    py: Python<'_>,
    root: &Root,
    given: &Bound<'_, PyAny>,
    device: Option<&Bound<'_, PyAny>>,
    writes: bool,
) -> Result<()> {
    let note = |fence: &Fence| match writes {
        true => root.buffer.written_until(fence),
        false => root.buffer.read_until(fence),
    };
    if let Ok(fence) = given.cast::<PyFence>() {
        root.check_free(false)?;
        let fence = &fence.get().fence;
        return Ok(detached(py, || note(fence))?);
    }
    let queue = queue(py, root, given, device)?;
    root.check_kernel(&queue.device(), writes)?;
    Ok(detached(py, || note(&queue.fence()))?)
}
