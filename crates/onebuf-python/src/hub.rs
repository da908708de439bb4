//! The hub: this process's view of the machine.

use crate::{
    array::{PyBuffer, arrays},
    create::{self, shaped},
    cuda_array, descriptor, dlpack,
    ending::{detached, enter},
    error::Result,
    foreign,
    given::{device, devices},
    json::objects,
    ledger::PyLedger,
    live::PyPublished,
    options::{BufferOptions, OptionsFor},
    trace::PyTrace,
    types::{PyDevice, PyFence, PyHub, PyQueue},
};
use onebuf::{CopyPolicy, Device, Error, prelude::*};
use pyo3::{
    prelude::*,
    types::{PyDict, PyTuple},
};

#[pymethods]
impl PyHub {
    /// The devices that were found, the host first.
    #[getter]
    fn devices(&self) -> Vec<PyDevice> {
        self.0.devices().into_iter().map(PyDevice).collect()
    }

    /// The CPU's device.
    #[getter]
    fn host(&self) -> PyDevice {
        PyDevice(self.0.host())
    }

    /// Every byte that onebuf moved.
    #[getter]
    fn ledger(&self) -> PyLedger {
        PyLedger(self.0.clone())
    }

    /// How long waits take at most, in seconds.
    #[getter]
    fn timeout(&self) -> f64 {
        self.0.timeout().as_secs_f64()
    }

    /// What is done about implied copies unless a buffer says otherwise: "allow", "warn" or "forbid".
    #[getter]
    fn copies<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        objects(py, &self.0.copy_policy())
    }

    /// The APIs that could not be loaded, as dictionaries with `api`, `tried`, `reason` and `hint`.
    #[getter]
    fn unavailable<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        objects(py, &self.0.unavailable())
    }

    /// Problems that did not stop discovery, one sentence each.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.0.notes().iter().map(ToString::to_string).collect()
    }

    /// What happened so far; None unless the hub was discovered with `trace`.
    #[getter]
    fn trace(&self) -> Option<PyTrace> {
        self.0.trace().map(|trace| PyTrace { trace, hub: self.0.clone() })
    }

    /// A device by id ("opencl:1"), API ("opencl"), type ("gpu"), or a part of its name.
    fn device(&self, selector: &str) -> Result<PyDevice> {
        Ok(PyDevice(self.0.device(selector)?))
    }

    /// Every device that matches, in the way of `device`.
    fn select(&self, selector: &str) -> Vec<PyDevice> {
        self.0.select(selector).into_iter().map(PyDevice).collect()
    }

    fn __getitem__(&self, selector: &str) -> Result<PyDevice> {
        self.device(selector)
    }

    /// Makes a buffer of zeroes.
    ///
    /// Options: `share` names the devices that access it. `copies` is what is done about implied copies: "allow", "warn" or "forbid". With
    /// `trust_declared` routes that drivers declare are used although no experiment has proven them here. `name` is for messages and
    /// traces. These force a choice: `memory_kind` ("host_pages", "fine_svm", "mapped_device", "device", …), `route` ("staged", "host_pointer", …),
    /// `sync` ("semaphore", "event", …), `allocate_on` (a device), `align` (bytes), `hint` ("coherent", "cpu_preferred", "gpu_preferred",
    /// "streaming"), `access` of kernels and `host_access` ("read", "write", "read_write"; the host's also "none"), `cl_flags` (OpenCL's bits
    /// for these), `raw_addresses`.
    #[pyo3(signature = (shape, dtype=None, **options))]
    fn empty<'py>(
        &self,
        py: Python<'py>,
        shape: &Bound<'py, PyAny>,
        dtype: Option<Bound<'py, PyAny>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> Result<PyBuffer> {
        let options = BufferOptions::read(&self.0, OptionsFor::New, options)?;
        create::buffer(py, &self.0, shaped(py, shape, dtype)?, &options)
    }

    /// Makes a buffer with a copy of an array: anything that NumPy takes. Options as for `empty`.
    #[pyo3(signature = (data, dtype=None, **options))]
    fn array<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        dtype: Option<Bound<'py, PyAny>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> Result<Bound<'py, PyAny>> {
        let _inside = enter(py);
        let data = arrays(py)?.call_method1("source", (data, dtype))?;
        let (shape, dtype) = (data.getattr("shape")?, data.getattr("dtype")?);
        let made = self.empty(py, &shape, Some(dtype), options)?;
        let made = Bound::new(py, made)?.into_any();
        made.call_method1("write", (data,))?;
        Ok(made)
    }

    /// Wraps the memory of another library's array, without a copy: NumPy, PyTorch, CuPy, JAX, anything with `__dlpack__`, on the host, on
    /// CUDA or on ROCm. Users of the buffer wait for the producer's work so far. An array over a buffer's own memory is a part of that buffer.
    ///
    /// Options: the devices in `share` access it by the best proven route; `copies`, `trust_declared`, `name`, `route` and `raw_addresses` as for `empty`.
    ///
    /// The producer keeps its array. While kernels may work on the buffer, use the array only as other guards could: not beside a
    /// writer. `Buffer.wait`, `read` and `map` bring what kernels wrote back to it.
    #[pyo3(signature = (x, **options))]
    #[expect(clippy::wrong_self_convention, reason = "the name that array libraries use")]
    fn from_dlpack<'py>(
        &self,
        py: Python<'py>,
        x: &Bound<'py, PyAny>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> Result<PyBuffer> {
        let options = BufferOptions::read(&self.0, OptionsFor::Wrapped, options)?;
        dlpack::import(py, &self.0, x, &options)
    }

    /// Wraps an array that describes itself by `__cuda_array_interface__`, version 2 or 3, without a copy: numba, CuPy, PyTorch. Users of the
    /// buffer wait for the work in the stream that the array names. Options as for `from_dlpack`.
    #[pyo3(signature = (x, **options))]
    #[expect(clippy::wrong_self_convention, reason = "as `from_dlpack`")]
    fn from_cuda_array<'py>(
        &self,
        py: Python<'py>,
        x: &Bound<'py, PyAny>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> Result<PyBuffer> {
        let options = BufferOptions::read(&self.0, OptionsFor::Wrapped, options)?;
        cuda_array::wrap(py, &self.0, x, &options)
    }

    /// Wraps a `pyopencl.Buffer`, a `pyopencl.SVMAllocation` or a `pyopencl.array.Array`, without a copy. The devices of its context access it, and
    /// those in `share`. `queue` is the `pyopencl.CommandQueue` of the owner's work so far: users of the buffer wait for it. A buffer has no type:
    /// `shape` and `dtype` default to bytes. Options as for `from_dlpack`.
    #[pyo3(signature = (x, shape=None, dtype=None, *, queue=None, **options))]
    #[expect(clippy::wrong_self_convention, reason = "as `from_dlpack`")]
    fn from_pyopencl<'py>(
        &self,
        py: Python<'py>,
        x: &Bound<'py, PyAny>,
        shape: Option<Bound<'py, PyAny>>,
        dtype: Option<Bound<'py, PyAny>>,
        queue: Option<Bound<'py, PyAny>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> Result<PyBuffer> {
        let options = BufferOptions::read(&self.0, OptionsFor::Wrapped, options)?;
        foreign::wrap(py, &self.0, x, foreign::Wrap { shape, dtype, queue, options })
    }

    /// Imports memory that another program, API or library exported as a file descriptor, as a buffer on `device`. `kind` is "opaque_fd" or
    /// "dma_buf", `allocation_bytes` the size of the whole allocation, `offset` the first byte of the array. The descriptor is duplicated.
    /// `share`, `copies` as for `empty`.
    ///
    /// Drivers trust such a descriptor: import only from programs that you trust. Nothing orders work with the exporter's: `free` the buffer, and
    /// `finish` the queues that used it, before the exporter goes on.
    #[pyo3(signature = (fd, device, shape, dtype=None, *, kind="opaque_fd", allocation_bytes=None, offset=0, **options))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn import_fd<'py>(
        &self,
        py: Python<'py>,
        fd: i32,
        device: &Bound<'py, PyAny>,
        shape: &Bound<'py, PyAny>,
        dtype: Option<Bound<'py, PyAny>>,
        kind: &str,
        allocation_bytes: Option<usize>,
        offset: usize,
        options: Option<&Bound<'py, PyDict>>,
    ) -> Result<PyBuffer> {
        let options = BufferOptions::read(&self.0, OptionsFor::Shared, options)?;
        let device = self::device(&self.0, device)?;
        let asked = descriptor::Descriptor { fd, device, kind, allocation_bytes, offset, options };
        descriptor::buffer(py, &self.0, shaped(py, shape, dtype)?, &asked)
    }

    /// Wraps a `pyopencl.CommandQueue`: launches of onebuf go into it, in order with those of its owner.
    fn wrap_queue(&self, py: Python<'_>, queue: &Bound<'_, PyAny>) -> Result<PyQueue> {
        foreign::queue(py, &self.0, queue)
    }

    /// Wraps a `pyopencl.Event`, a `UserEvent` too, as a fence: queues wait for it, and `Buffer.written_until` orders a buffer after it.
    fn wrap_event(&self, py: Python<'_>, event: &Bound<'_, PyAny>) -> Result<PyFence> {
        foreign::event(py, &self.0, event)
    }

    /// Registers a `pyopencl.Context`, and returns its devices as devices of this hub.
    fn wrap_context(&self, py: Python<'_>, context: &Bound<'_, PyAny>) -> Result<Vec<PyDevice>> {
        foreign::context(py, &self.0, context)
    }

    /// Whether a buffer that these devices share would be used by all of them without a copy, on this machine, as far as it is
    /// proven. `onebuf doctor` proves it.
    #[pyo3(signature = (*devices, nbytes=1048576, trust_declared=false))]
    fn zero_copy(
        &self,
        devices: &Bound<'_, PyTuple>,
        nbytes: usize,
        trust_declared: bool,
    ) -> Result<bool> {
        let devices = self::devices(&self.0, devices)?;
        let asked = self.0.buffer::<u8>(nbytes).shared_with(&devices);
        let plan = asked.copies(CopyPolicy::Forbid).trust_declared(trust_declared).plan();
        match plan {
            Ok(_) => Ok(true),
            Err(Error::CopyForbidden { .. }) => Ok(false),
            Err(other) => Err(other.into()),
        }
    }

    /// Plans a buffer without making it: a dictionary, as `onebuf plan --json` prints it. Options as for `empty`.
    #[pyo3(signature = (nbytes, **options))]
    fn plan<'py>(
        &self,
        py: Python<'py>,
        nbytes: usize,
        options: Option<&Bound<'py, PyDict>>,
    ) -> Result<Bound<'py, PyAny>> {
        let options = BufferOptions::read(&self.0, OptionsFor::New, options)?;
        let plan = create::request(py, &self.0, nbytes, &options, |request| request.plan())?;
        objects(py, &plan.to_json(self.0.topology()))
    }

    /// The routes between the devices, with the verdicts that plans use: dictionaries with `from`, `to`, `kind`, `guaranteed`, `state`,
    /// `zero_copy`, `why` and measurements.
    fn routes<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        Ok(objects(py, &self.0.topology().to_json())?.get_item("routes")?)
    }

    /// The verdict on running OpenCL kernels of the device `start` on the CUDA or HIP device `end`; None if these two could not do it.
    fn graft_verdict<'py>(
        &self,
        py: Python<'py>,
        start: &Bound<'py, PyAny>,
        end: &Bound<'py, PyAny>,
    ) -> Result<Option<Bound<'py, PyAny>>> {
        let (start, end) = (device(&self.0, start)?, device(&self.0, end)?);
        let possible = self.0.could_graft(&start, &end);
        possible.then(|| objects(py, &self.0.graft_verdict(&start, &end))).transpose()
    }

    /// Lets `onebuf top NAME` watch this hub, while the returned object is open. Buffers that exist already are not listed.
    fn publish(&self, py: Python<'_>, name: &str) -> Result<PyPublished> {
        Ok(PyPublished::new(detached(py, || self.0.publish(name))?))
    }

    fn __repr__(&self) -> String {
        let devices = self.0.devices();
        let lines = devices.iter().map(|one| format!("\n  {:<10} {}", one.id(), one.info().name));
        format!("<onebuf.Hub with {} devices>{}", devices.len(), lines.collect::<String>())
    }

    /// A table of the devices, for notebooks.
    fn _repr_html_(&self) -> String {
        let cell = |text: &str| format!("<td>{}</td>", escaped(text));
        let row = |one: &Device| {
            let info = one.info();
            let cells = [one.id(), info.api.0, &info.name, &info.driver].map(cell).concat();
            format!("<tr>{cells}</tr>")
        };
        let rows: String = self.0.devices().iter().map(row).collect();
        format!(
            "<table><tr><th>device</th><th>API</th><th>name</th><th>driver</th></tr>{rows}</table>"
        )
    }
}

/// Text that a page shows as it is.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
