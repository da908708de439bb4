//! Views: one device has the buffer for the duration of a `with` block.
//!
//! # Safety
//! A guard borrows the queue and the buffer behind the `Arc`s that [`Held`] keeps and drops last.

use crate::{
    array::{Piece, PyBuffer},
    ending::detached,
    error::{Fault, Result, export_error},
    root::{HostUse, Region, Root},
    types::{PyDevice, PyQueue},
};
use onebuf::{Device, Error, Queue, ReadView, WriteView, hal::RawHandle};
use pyo3::{
    prelude::*,
    types::{PyDict, PyTuple},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One device has the buffer for the duration of a `with` block: other libraries may enqueue work on it there.
///
/// `with x.on(device) as v:` takes the view: the device's queue is ordered after earlier work. When the block ends, later users
/// are ordered after what was enqueued on that queue until then.
#[pyclass(frozen, module = "onebuf", name = "View")]
pub(crate) struct PyView {
    buffer: Py<PyBuffer>,
    device: Device,
    queue: Option<Queue>,
    write: bool,
    state: Mutex<Option<Held>>,
}

/// What a view holds while its block runs.
enum Held {
    Host(#[expect(dead_code, reason = "kept for its drop")] HostUse, usize),
    Device(Guarded),
}

/// A device's guard, dropped first.
struct Guarded {
    guard: DeviceGuard,
    queue: Arc<Queue>,
    _piece: Piece,
}

enum DeviceGuard {
    Read(ReadView<'static, u8>),
    Write(WriteView<'static, u8>),
}

impl DeviceGuard {
    /// # Safety
    /// The guard is dropped before the queue and the piece.
    unsafe fn take(piece: &Piece, queue: &Arc<Queue>, write: bool) -> Result<Self> {
        // SAFETY: both stay in place behind their `Arc`s, and outlive the guard as the caller promises.
        let queue: &'static Queue = unsafe { &*Arc::as_ptr(queue) };
        Ok(match piece {
            Piece::Whole(root) => {
                // SAFETY: as above.
                let root: &'static Root = unsafe { &*Arc::as_ptr(root) };
                match write {
                    true => DeviceGuard::Write(root.buffer.write_on(queue)?),
                    false => DeviceGuard::Read(root.buffer.read_on(queue)?),
                }
            }
            Piece::Part(region, _) => {
                // SAFETY: as above.
                let region: &'static Region = unsafe { &*Arc::as_ptr(region) };
                match write {
                    true => DeviceGuard::Write(region.part.write_on(queue)?),
                    false => DeviceGuard::Read(region.part.read_on(queue)?),
                }
            }
        })
    }

    fn raw(&self) -> Result<RawHandle> {
        Ok(match self {
            DeviceGuard::Read(view) => view.raw()?,
            DeviceGuard::Write(view) => view.raw()?,
        })
    }
}

impl PyView {
    pub fn new(
        buffer: Py<PyBuffer>,
        device: Device,
        queue: Option<Queue>,
        write: bool,
    ) -> Result<Self> {
        if queue.as_ref().is_some_and(|queue| queue.device().index() != device.index()) {
            return Err(Fault::invalid(format!(
                "the queue is of another device than {}",
                device.id()
            )));
        }
        Ok(Self { buffer, device, queue, write, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, Option<Held>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_host(&self) -> bool {
        self.device.info().api.0 == "host"
    }

    fn take(&self, py: Python<'_>) -> Result<Held> {
        let buffer = self.buffer.get();
        if self.is_host() {
            let (used, first) = buffer.lend(py, self.write, "a view of the host")?;
            return Ok(Held::Host(used, first.addr()));
        }
        let piece = buffer.piece()?;
        piece.root().check_kernel(&self.device, self.write)?;
        let taken = detached(py, || {
            let queue = match &self.queue {
                Some(queue) => queue.clone(),
                None => self.device.default_queue()?,
            };
            let queue = Arc::new(queue);
            // SAFETY: the fields of `Guarded` are dropped in this order.
            let guard = unsafe { DeviceGuard::take(&piece, &queue, self.write)? };
            Ok::<_, Fault>(Guarded { guard, queue, _piece: piece })
        });
        taken.map(Held::Device)
    }

    /// What the guard of a running block gives.
    fn raw(&self) -> Result<RawHandle> {
        match &*self.state() {
            Some(Held::Host(_, at)) => Ok(RawHandle::Address(*at)),
            Some(Held::Device(held)) => held.guard.raw(),
            None => Err(Fault::invalid("the view is used inside of its `with` block")),
        }
    }
}

#[pymethods]
impl PyView {
    fn __enter__<'py>(slf: Bound<'py, Self>) -> Result<Bound<'py, Self>> {
        let view = slf.get();
        if view.state().is_some() {
            return Err(Fault::invalid("the view's block runs already"));
        }
        let held = view.take(slf.py())?;
        *view.state() = Some(held);
        Ok(slf)
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> bool {
        let held = self.state().take();
        detached(py, || drop(held));
        false
    }

    /// The buffer, with its shape and type.
    #[getter]
    fn buffer<'py>(&self, py: Python<'py>) -> Bound<'py, PyBuffer> {
        self.buffer.bind(py).clone()
    }

    /// The device that has the buffer.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice(self.device.clone())
    }

    /// The queue that the view was taken on; `None` for the host.
    #[getter]
    fn queue(&self) -> Result<Option<PyQueue>> {
        match &*self.state() {
            Some(Held::Device(held)) => Ok(Some(PyQueue((*held.queue).clone()))),
            Some(Held::Host(..)) => Ok(None),
            None => Err(Fault::invalid("the view is used inside of its `with` block")),
        }
    }

    /// The `cl_mem`, for OpenCL code that enqueues on the view's queue: `pyopencl.MemoryObject.from_int_ptr(v.cl_mem, retain=True)`.
    #[getter]
    fn cl_mem(&self) -> Result<usize> {
        match self.raw()? {
            RawHandle::Object(handle) if self.device.info().api.0 == "opencl" => Ok(handle),
            _ => Err(Error::unsupported(
                "a cl_mem of this view",
                "an OpenCL device, and memory that is not shared virtual memory",
            )
            .into()),
        }
    }

    /// The address that the host, or kernels on the view's queue, use.
    #[getter]
    fn address(&self) -> Result<usize> {
        match self.raw()? {
            RawHandle::Address(address) => Ok(address),
            RawHandle::Object(_) => Err(Error::unsupported(
                "an address of this view",
                "memory that the device addresses",
            )
            .into()),
        }
    }

    /// The description that CuPy, numba and PyTorch read, on a CUDA device. The stream is the view's queue.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let absent = |why: String| pyo3::exceptions::PyAttributeError::new_err(why);
        if self.device.info().api.0 != "cuda" {
            return Err(absent(format!("a view on {} has no CUDA array", self.device.id())));
        }
        let (buffer, address) = (self.buffer.get(), self.address()?);
        let stream = self.queue()?.map_or(0, |queue| queue.0.raw());
        let facts = PyDict::new(py);
        facts.set_item("version", 3)?;
        facts.set_item("shape", PyTuple::new(py, &buffer.layout.shape)?)?;
        facts.set_item("typestr", buffer.dtype.descr())?;
        facts.set_item("data", (address, !self.write))?;
        facts.set_item("strides", py.None())?;
        facts.set_item("stream", if stream == 0 { 1 } else { stream })?;
        Ok(facts)
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let refuse = |fault| export_error(py, fault);
        if !self.is_host() {
            let what = format!("DLPack from a view on {}", self.device.id());
            return Err(refuse(Error::unsupported(what, "a view on the host").into()));
        }
        self.raw().map_err(refuse)?;
        let asked = crate::dlpack::Asked { stream, max_version, dl_device, copy };
        crate::dlpack::export(self.buffer.get(), py, asked).map_err(refuse)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        crate::dlpack::CPU
    }

    fn __repr__(&self) -> String {
        let runs = if self.state().is_some() { "" } else { ", not taken" };
        format!("<onebuf.View on {}{runs}>", self.device.id())
    }
}
