//! Streams of other libraries: how Python names them, and queues over them.
//!
//! # Safety
//! A stream that a library names is alive during the call, and outlives the arrays that it uses the memory by, as the documentation
//! asks. The streams of PyTorch live as long as the process; a stream of CuPy is kept by a reference to its object.

use crate::{
    ending::detached,
    error::{Fault, Result},
    later::Kept,
};
use onebuf::{Device, Queue, prelude::*, topology::DeviceIx};
use pyo3::{
    intern,
    prelude::*,
    sync::PyOnceLock,
    types::{PyInt, PyTuple},
};
use std::{
    ffi::c_void,
    sync::{Mutex, PoisonError},
};

/// CUDA's number of the default stream of each thread.
const PER_THREAD: usize = 2;
/// The default stream, which synchronises with other streams.
const DEFAULT: usize = 0;

/// A stream, as a consumer or a caller names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamedStream {
    /// The consumer orders its work itself.
    Unordered,
    /// A native handle; the default stream is 0.
    Handle(usize),
}

impl NamedStream {
    /// The `stream` of the DLPack protocol, for a device of that API.
    pub fn of_dlpack(given: Option<&Bound<'_, PyAny>>, api: &str) -> Result<Self> {
        let Some(given) = given.filter(|given| !given.is_none()) else {
            return Ok(NamedStream::Handle(DEFAULT));
        };
        let number: i64 = given.extract().map_err(|_| {
            Fault::invalid("`stream` is None, -1, or the number of a stream of the device")
        })?;
        match (api, number) {
            (_, -1) => Ok(NamedStream::Unordered),
            ("cuda", 0) => Err(Fault::invalid(
                "`stream` 0 is ambiguous on CUDA: 1 is the default stream, 2 that of each thread",
            )),
            ("cuda", 1) => Ok(NamedStream::Handle(DEFAULT)),
            ("hip", 1 | 2) => {
                Err(Fault::invalid(format!("`stream` {number} does not exist on ROCm: use 0")))
            }
            (_, ..-1) => Err(Fault::invalid(format!("`stream` {number}: no stream"))),
            (_, number) => Ok(NamedStream::Handle(number as usize)),
        }
    }

    /// A stream that the caller names: a number, or an object of PyTorch, CuPy, numba or `cuda.core`.
    pub fn of_caller(given: &Bound<'_, PyAny>) -> Result<Self> {
        let py = given.py();
        if given.is_instance_of::<PyInt>() {
            return number(given);
        }
        for name in [intern!(py, "cuda_stream"), intern!(py, "ptr")] {
            if let Some(found) = given.getattr_opt(name)? {
                return number(&found);
            }
        }
        if let Some(protocol) = given.getattr_opt(intern!(py, "__cuda_stream__"))? {
            let told = if protocol.is_callable() { protocol.call0()? } else { protocol };
            return number(&told.cast::<PyTuple>().map_err(PyErr::from)?.get_item(1)?);
        }
        if let Some(handle) = given.getattr_opt(intern!(py, "handle"))? {
            let value = handle.getattr_opt(intern!(py, "value"))?.unwrap_or(handle);
            return if value.is_none() { Ok(NamedStream::Handle(DEFAULT)) } else { number(&value) };
        }
        Err(Fault::invalid(
            "a stream is a number, or an object with `cuda_stream`, `ptr` or `__cuda_stream__`",
        ))
    }
}

fn number(given: &Bound<'_, PyAny>) -> Result<NamedStream> {
    let number: usize = given
        .extract()
        .map_err(|_| Fault::invalid("the number of a stream is an integer that is not negative"))?;
    Ok(NamedStream::Handle(if number == 1 { DEFAULT } else { number }))
}

/// Whether a device's streams are CUDA's or HIP's.
pub(crate) fn has_streams(device: &Device) -> bool {
    matches!(device.info().api.0, "cuda" | "hip")
}

/// The stream of a library that uses a buffer, and what keeps it alive.
pub(crate) struct Borrower {
    /// `None` if its work is ordered by the library itself.
    pub queue: Option<Queue>,
    /// Whether the end of its work is found on the default stream: the stream is unknown, or belongs to one thread.
    pub by_default: bool,
    /// The native handle of a stream that is not of one thread.
    pub handle: Option<usize>,
    /// Whether the stream exists as long as this.
    pub stays: bool,
    _keeps: Option<Kept>,
}

impl Borrower {
    /// A queue of onebuf's own.
    pub fn own(queue: Queue) -> Self {
        Self { queue: Some(queue), by_default: false, handle: None, stays: false, _keeps: None }
    }

    /// The stream that a consumer names, as a queue. `last` has the queue of the last one.
    pub fn named(
        py: Python<'_>,
        device: &Device,
        named: NamedStream,
        last: &Mutex<Option<(DeviceIx, usize, Queue)>>,
    ) -> Result<Self> {
        let NamedStream::Handle(handle) = named else {
            return Ok(Self {
                queue: None,
                by_default: true,
                handle: None,
                stays: false,
                _keeps: None,
            });
        };
        let is_of_thread = handle == PER_THREAD && device.info().api.0 == "cuda";
        let key = (device.index(), handle);
        let known = last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let queue = match known {
            Some((ix, at, queue)) if (ix, at) == key && !is_of_thread => queue,
            _ => wrap(py, device, handle)?,
        };
        let used = (key.0, key.1, queue.clone());
        *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(used);
        let (stays, keeps) = match handle {
            DEFAULT => (true, None),
            _ if is_of_thread => (false, None),
            _ if is_torchs(py, device, handle) => (true, None),
            _ => match current_of_cupy(py, handle) {
                Some(kept) => (true, Some(Kept::new(kept))),
                None => (false, None),
            },
        };
        let handle = (!is_of_thread).then_some(handle);
        Ok(Self { queue: Some(queue), by_default: is_of_thread, handle, stays, _keeps: keeps })
    }
}

/// A queue over a native stream of the device.
pub(crate) fn wrap(py: Python<'_>, device: &Device, handle: usize) -> Result<Queue> {
    // SAFETY: see the head of this file.
    Ok(detached(py, || unsafe { device.hub().wrap_stream(device, handle as *mut c_void) })?)
}

/// A queue over the default stream, which waits for all streams of other code that synchronise with it.
pub(crate) fn default(device: &Device) -> Result<Queue> {
    // SAFETY: the default stream always exists.
    Ok(unsafe { device.hub().wrap_stream(device, DEFAULT as *mut c_void) }?)
}

/// Whether it is PyTorch's current stream. PyTorch never destroys its streams.
fn is_torchs(py: Python<'_>, device: &Device, handle: usize) -> bool {
    static ASK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let number = device.id().rsplit(':').next().and_then(|number| number.parse::<i32>().ok());
    let ask = || {
        let find = || loaded(py, "torch")?.getattr("_C")?.getattr("_cuda_getCurrentRawStream");
        let ask = ASK.get_or_try_init(py, || Ok::<_, PyErr>(find()?.unbind()))?;
        ask.bind(py).call1((number,))?.extract::<usize>()
    };
    ask().is_ok_and(|current| current == handle)
}

/// CuPy's object of its current stream, if that has this handle: CuPy destroys a stream with its object.
fn current_of_cupy(py: Python<'_>, handle: usize) -> Option<Py<PyAny>> {
    static ASK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let find = || loaded(py, "cupy")?.getattr("cuda")?.getattr("get_current_stream");
    let ask = ASK.get_or_try_init(py, || Ok::<_, PyErr>(find()?.unbind())).ok()?;
    let stream = ask.bind(py).call0().ok()?;
    let pointer: usize = stream.getattr(intern!(py, "ptr")).ok()?.extract().ok()?;
    (pointer == handle).then(|| stream.unbind())
}

/// A module, if it was imported.
fn loaded<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import(intern!(py, "sys"))?.getattr(intern!(py, "modules"))?.get_item(name)
}
