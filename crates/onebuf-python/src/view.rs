//! Views: one device has the buffer for the duration of a `with` block.
//!
//! # Safety
//! A guard borrows the queue and the buffer behind the `Arc`s that [`Held`] keeps and drops last.

use crate::{
    array::{Piece, PyBuffer},
    dlpack::{self, Asked, Target},
    ending::detached,
    error::{Fault, Result, export_error},
    lend::DeviceUse,
    root::{HostUse, Region, Root},
    stream::{Borrower, has_streams},
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
/// are ordered after what was enqueued on that queue until then. On a CUDA or HIP device other libraries get the memory by DLPack:
/// their streams are ordered with the view's queue, both ways, and what they keep of it stays lent after the block.
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
    /// On a CUDA or HIP device, whose streams other libraries use.
    Lent(DeviceUse, Queue),
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
}

/// Asks the view of a guard.
macro_rules! of_guard {
    ($guard:expr, $view:ident => $ask:expr) => {
        match $guard {
            DeviceGuard::Read($view) => $ask,
            DeviceGuard::Write($view) => $ask,
        }
    };
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
        // A view that needs no driver call would not notice, and its handles are of the parent's driver.
        if onebuf_sys::fork::is_child() {
            return Err(Error::forked(self.device.id()).into());
        }
        if self.is_host() {
            let (used, first) = buffer.lend(py, self.write, "a view of the host")?;
            return Ok(Held::Host(used, first.addr()));
        }
        if has_streams(&self.device) {
            let queue = detached(py, || {
                self.queue.clone().map_or_else(|| self.device.lending_queue(), Ok)
            })?;
            let (root, borrower) = (buffer.root()?, Borrower::own(queue.clone()));
            let own = Some(queue.clone());
            let lent = root.lend_to(py, &self.device, own, self.write, "a view", borrower)?;
            return Ok(Held::Lent(lent, queue));
        }
        let piece = buffer.piece()?;
        piece.root().check_kernel(&self.device, self.write)?;
        piece.root().settle_for(py, self.device.index(), self.write)?;
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

    /// Where a consumer gets the memory.
    fn target(&self) -> Result<Target> {
        match self.is_host() {
            true => Ok(Target::Host),
            false if has_streams(&self.device) => Ok(Target::Device(self.device.clone())),
            false => {
                let what = format!("DLPack from a view on {}", self.device.id());
                Err(Error::unsupported(what, "a view on the host, on CUDA or on HIP").into())
            }
        }
    }

    fn has_none(&self, what: &str, needs: &str) -> Fault {
        Error::unsupported(format!("{what} of a view on {}", self.device.id()), needs).into()
    }

    /// What the guard of a running block gives.
    fn raw(&self) -> Result<RawHandle> {
        match &*self.state() {
            Some(Held::Host(_, at)) => Ok(RawHandle::Address(*at)),
            Some(Held::Lent(lent, _)) => {
                Ok(RawHandle::Address(lent.address + self.buffer.get().layout.offset))
            }
            Some(Held::Device(held)) => Ok(of_guard!(&held.guard, view => view.raw())?),
            None => Err(ended()),
        }
    }
}

fn ended() -> Fault {
    Fault::invalid("the view is used inside of its `with` block")
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
            Some(Held::Lent(_, queue)) => Ok(Some(PyQueue(queue.clone()))),
            Some(Held::Host(..)) => Ok(None),
            None => Err(ended()),
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

    /// The name of the OpenGL buffer, on an OpenGL device.
    #[getter]
    fn gl_name(&self) -> Result<u32> {
        match &*self.state() {
            Some(Held::Device(held)) => Ok(of_guard!(&held.guard, view => view.gl_name())?),
            Some(_) => Err(self.has_none("an OpenGL name", "a view on an OpenGL device")),
            None => Err(ended()),
        }
    }

    /// The `VkBuffer`, and the byte at which the array begins in it, on a Vulkan device.
    #[getter]
    fn vk_buffer(&self) -> Result<(u64, u64)> {
        match &*self.state() {
            Some(Held::Device(held)) => Ok(of_guard!(&held.guard, view => view.vk_buffer())?),
            Some(_) => Err(self.has_none("a VkBuffer", "a view on a Vulkan device")),
            None => Err(ended()),
        }
    }

    /// How the view's queue was ordered after earlier work: "same_queue", "semaphore", "event", …. None on the host, and on CUDA and HIP, where
    /// other streams are ordered.
    #[getter]
    fn sync_method(&self) -> Result<Option<String>> {
        match &*self.state() {
            Some(Held::Device(held)) => {
                Ok(Some(of_guard!(&held.guard, view => view.sync_method()).to_string()))
            }
            Some(_) => Ok(None),
            None => Err(ended()),
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

    /// The description that CuPy, numba and PyTorch read, on a CUDA device. The stream is the view's queue. Synchronise the
    /// consumer's stream, or make that queue wait for it, before the block ends: nothing else says when the consumer is done.
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
        match buffer.layout.is_dense() {
            true => facts.set_item("strides", py.None())?,
            false => facts.set_item("strides", PyTuple::new(py, &buffer.layout.strides)?)?,
        }
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
        let made = self.target().and_then(|target| {
            self.raw()?;
            let asked = Asked { stream, max_version, dl_device, copy };
            if dl_device.is_some_and(|asked| asked != target.dlpack()) && copy != Some(true) {
                let what = format!("an export of a view on {} to another device", self.device.id());
                return Err(Error::unsupported(
                    what,
                    "a view on that device, or the buffer itself",
                )
                .into());
            }
            dlpack::export(self.buffer.get(), py, target, self.write, asked)
        });
        made.map_err(|fault| export_error(py, fault))
    }

    fn __dlpack_device__(&self, py: Python<'_>) -> PyResult<(i32, i32)> {
        let target = self.target().map_err(|fault| export_error(py, fault))?;
        Ok(target.dlpack())
    }

    fn __repr__(&self) -> String {
        let runs = if self.state().is_some() { "" } else { ", not taken" };
        format!("<onebuf.View on {}{runs}>", self.device.id())
    }
}
