//! Methods of devices and queues.

use crate::{
    ending::detached,
    error::{Fault, Result},
    kernel::PyKernel,
    types::{PyDevice, PyHub, PyQueue},
    wait,
};
use onebuf::Device;
use pyo3::{prelude::*, types::PyDict};
use std::hash::{DefaultHasher, Hash, Hasher};

#[pymethods]
impl PyDevice {
    /// The device's id, such as "opencl:0".
    #[getter]
    fn id(&self) -> &str {
        self.0.id()
    }

    /// The API: "host", "opencl", "cuda", "hip", "gl" or "vulkan".
    #[getter]
    fn api(&self) -> &'static str {
        self.0.info().api.0
    }

    /// The device's own name.
    #[getter]
    fn name(&self) -> &str {
        &self.0.info().name
    }

    /// The vendor of the driver; for OpenCL the platform's name.
    #[getter]
    fn platform(&self) -> &str {
        &self.0.info().platform
    }

    /// The driver's version.
    #[getter]
    fn driver(&self) -> &str {
        &self.0.info().driver
    }

    /// "cpu", "gpu", "accelerator" or "other".
    #[getter]
    fn kind(&self) -> String {
        self.0.info().kind.to_string()
    }

    /// The device's memory, in bytes.
    #[getter]
    fn memory_bytes(&self) -> u64 {
        self.0.info().memory_bytes
    }

    /// The hub that the device belongs to.
    #[getter]
    fn hub(&self) -> PyHub {
        PyHub(self.0.hub().clone())
    }

    /// The native handles that the device's objects are made with, by the name of their type: `cl_context`, `cl_device_id`, ….
    /// They are valid while the hub lives; `pyopencl.Context.from_int_ptr(…, retain=True)` adds a reference.
    #[getter]
    fn native_handles<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        let handles = PyDict::new(py);
        for (name, handle) in detached(py, || self.0.native_handles())? {
            handles.set_item(name, handle)?;
        }
        Ok(handles)
    }

    /// Compiles a source for this device, and returns one of its kernels; `name` may be left out if there is one alone.
    ///
    /// The kernel's parameters are read back from the compiler, and the arguments of each launch are compared with them. What
    /// the kernel does with its buffers is not checked: it must stay inside of them, as in C. With `each=True` launches are refused
    /// if a buffer has fewer elements than there are work-items.
    #[pyo3(signature = (source, name=None, *, options="", each=false))]
    fn kernel(
        &self,
        py: Python<'_>,
        source: &str,
        name: Option<&str>,
        options: &str,
        each: bool,
    ) -> Result<PyKernel> {
        PyKernel::build(py, &self.0, source, name, options, each)
    }

    /// Opens a further queue.
    fn queue(&self, py: Python<'_>) -> Result<PyQueue> {
        Ok(PyQueue(detached(py, || self.0.queue())?))
    }

    /// Waits until the work in the default queue is done.
    #[pyo3(signature = (timeout=None))]
    fn finish(&self, py: Python<'_>, timeout: Option<f64>) -> Result<()> {
        PyQueue(detached(py, || self.0.default_queue())?).finish(py, timeout)
    }

    fn __repr__(&self) -> String {
        format!("<onebuf.Device {} {}>", self.0.id(), self.0.info().name)
    }

    fn __str__(&self) -> &str {
        self.0.id()
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        let same = |other: &Device| other.hub().is(self.0.hub()) && other.index() == self.0.index();
        other.cast::<PyDevice>().is_ok_and(|other| same(&other.get().0))
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.0.id().hash(&mut hasher);
        hasher.finish()
    }
}

#[pymethods]
impl PyQueue {
    /// The queue's device.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice(self.0.device())
    }

    /// The native handle: a `cl_command_queue`, `CUstream` or `hipStream_t`.
    /// `pyopencl.CommandQueue.from_int_ptr(…, retain=True)` adds a reference.
    #[getter]
    fn int_ptr(&self) -> usize {
        self.0.raw()
    }

    /// Submits what was enqueued.
    fn flush(&self, py: Python<'_>) -> Result<()> {
        detached(py, || self.0.flush()).map_err(Fault::from)
    }

    /// Waits until the work in the queue is done. `Timeout` if that takes longer than `timeout` seconds.
    #[pyo3(signature = (timeout=None))]
    pub fn finish(&self, py: Python<'_>, timeout: Option<f64>) -> Result<()> {
        let timeout = timeout.map_or(Ok(self.0.hub().timeout()), wait::seconds)?;
        detached(py, || self.0.flush())?;
        wait::for_fence(py, &self.0.fence(), timeout)
    }

    fn __repr__(&self) -> String {
        format!("<onebuf.Queue of {}>", self.0.device().id())
    }
}
