//! Methods of devices and queues.

use crate::{
    compile::{Code, Compiled, Source},
    ending::detached,
    error::{Fault, Result},
    json::fields,
    kernel::PyKernel,
    types::{PyDevice, PyFence, PyHub, PyQueue},
    wait,
};
use onebuf::{Device, QueueOrder, QueueSpec};
use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict},
};
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

    /// The version of the API that the device has.
    #[getter]
    fn version(&self) -> &str {
        &self.0.info().version
    }

    /// The UUID of the chip, by which devices of two APIs are known to be one; None if the driver does not say.
    #[getter]
    fn uuid(&self) -> Option<String> {
        self.0.info().physical.uuid_text()
    }

    /// The PCI address, such as "0000:01:00.0".
    #[getter]
    fn pci(&self) -> Option<String> {
        self.0.info().physical.pci.map(|pci| pci.to_string())
    }

    /// What the device can do: onebuf's words, such as "host_pointer" and "out_of_order", and the names of the driver's extensions.
    #[getter]
    fn features(&self) -> Vec<String> {
        let info = self.0.info();
        let words = info.caps.words().into_iter().map(str::to_owned);
        words.chain(info.extensions.iter().cloned()).collect()
    }

    /// Sizes and numbers that the driver states: a dictionary. What is not known is None.
    #[getter]
    fn limits<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let caps = &self.0.info().caps;
        let all = fields!(py; caps;
            align_bytes, compute_units, local_memory_bytes, max_group_size, max_group_sizes, max_loop_iterations);
        all.set_item("max_buffer_bytes", caps.max_alloc_bytes)?;
        Ok(all)
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
    ///
    /// `parameters` declares them for drivers that do not report them: "const float*", "uint", …. OpenGL and Vulkan take a compute shader in
    /// GLSL: a buffer is the storage block whose binding is its index, all values together are one `std140` block at the first one's index.
    ///
    /// A source in bytes is SPIR-V, or a binary of the same driver (`Kernel.binary`). `language` names another one than the device's own:
    /// "opencl_c", "cuda_c", "hip_c", "glsl", "ptx", "spirv", "binary".
    #[pyo3(signature = (source, name=None, *, options="", each=false, parameters=None, language=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn kernel(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        name: Option<&str>,
        options: &str,
        each: bool,
        parameters: Option<Vec<String>>,
        language: Option<&str>,
    ) -> Result<PyKernel> {
        let (text, bytes);
        let code = match source.cast::<PyBytes>() {
            Ok(given) => {
                bytes = given.as_bytes();
                Code::Bytes(bytes)
            }
            Err(_) => {
                text = source.extract::<String>()?;
                Code::Text(&text)
            }
        };
        let parameters = parameters.as_deref();
        let source = Source { code, language, name, options, each, parameters };
        Ok(PyKernel::new(Compiled::native(py, &self.0, &source)?))
    }

    /// Opens a further queue. With `out_of_order` only the buffers order its launches; with `profiling` their fences have times.
    #[pyo3(signature = (*, out_of_order=false, profiling=false))]
    fn queue(&self, py: Python<'_>, out_of_order: bool, profiling: bool) -> Result<PyQueue> {
        let open = || match (out_of_order, profiling) {
            // With a trace, by the devices' clocks if that was asked for.
            (false, false) => self.0.queue(),
            (false, true) => self.0.queue_with(QueueSpec::default().profiled()),
            (true, false) => self.0.queue_with(QueueSpec::out_of_order()),
            (true, true) => self.0.queue_with(QueueSpec::out_of_order().profiled()),
        };
        Ok(PyQueue(detached(py, open)?))
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

    /// Whether the queue's launches may overtake each other.
    #[getter]
    fn out_of_order(&self) -> bool {
        self.0.spec().order == QueueOrder::OutOfOrder
    }

    /// Whether the fences of its launches have times.
    #[getter]
    fn profiling(&self) -> bool {
        self.0.spec().profiling
    }

    /// The point that is reached when the work so far is done.
    fn fence(&self, py: Python<'_>) -> PyFence {
        PyFence::new(detached(py, || self.0.fence()), self.0.hub())
    }

    /// Makes work that is enqueued from now on wait for a fence, on the device where the drivers allow it. Returns the sync method.
    fn wait_for(&self, py: Python<'_>, fence: &Bound<'_, PyFence>) -> Result<String> {
        let fence = fence.get();
        Ok(detached(py, || self.0.wait_for(&fence.fence))?.to_string())
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
