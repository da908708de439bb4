//! The hub: this process's view of the machine.

use crate::{
    array::{PyBuffer, arrays},
    create::NewBuffer,
    dlpack,
    dtype::Dtype,
    ending::detached,
    error::{Fault, Result},
    foreign,
    given::{devices, policy},
    layout::{self, Layout},
    types::{PyDevice, PyHub, PyQueue},
    wait,
};
use onebuf::{CopyPolicy, Device, Hub, ProgramCache};
use pyo3::{
    prelude::*,
    types::{PyDict, PyList, PyString},
};

/// What the bytes that onebuf moved were moved for.
#[pyclass(frozen, module = "onebuf", name = "Ledger")]
pub(crate) struct PyLedger(Hub);

/// Finds the installed drivers and loads what `onebuf doctor` has proven. A missing API is a fact, not an error.
///
/// `only` and `without` are lists of APIs; `copies` is what is done about implied copies: "allow", "warn" or "forbid";
/// `timeout` is how long waits take at most, in seconds.
#[pyfunction]
#[pyo3(signature = (*, only=None, without=None, copies=None, timeout=None))]
pub(crate) fn discover(
    py: Python<'_>,
    only: Option<Vec<String>>,
    without: Option<Vec<String>>,
    copies: Option<&str>,
    timeout: Option<f64>,
) -> Result<PyHub> {
    // Drivers report the parameters of kernels that they have compiled, and not of binaries from a cache on disk.
    let mut builder = onebuf::builder().program_cache(ProgramCache::Memory);
    if let Some(apis) = only {
        builder = builder.only(apis);
    }
    if let Some(apis) = without {
        builder = builder.without(apis);
    }
    if let Some(copies) = copies {
        builder = builder.copies(policy(copies)?);
    }
    if let Some(timeout) = timeout {
        builder = builder.timeout(wait::seconds(timeout)?);
    }
    Ok(PyHub(detached(py, || builder.build())?))
}

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

    /// The APIs that could not be loaded, as dictionaries with `api`, `tried`, `reason` and `hint`.
    #[getter]
    fn unavailable<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        let json = serde_json::to_string(self.0.unavailable());
        loads(py, json.map_err(|why| Fault::invalid(why.to_string()))?)
    }

    /// A device by id ("opencl:1"), API ("opencl"), type ("gpu"), or a part of its name.
    fn device(&self, selector: &str) -> Result<PyDevice> {
        Ok(PyDevice(self.0.device(selector)?))
    }

    fn __getitem__(&self, selector: &str) -> Result<PyDevice> {
        self.device(selector)
    }

    /// Makes a buffer of zeroes that the devices in `share` access.
    ///
    /// `copies` is what is done about implied copies: "allow", "warn" or "forbid". With `trust_declared` routes that drivers
    /// declare are used although no experiment has proven them here. `memory_kind` forces one: "host_pages", "fine_svm",
    /// "mapped_device", "device", ….
    #[pyo3(signature = (shape, dtype=None, *, share=None, copies=None, name=None, memory_kind=None, trust_declared=false))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn empty<'py>(
        &self,
        py: Python<'py>,
        shape: &Bound<'py, PyAny>,
        dtype: Option<Bound<'py, PyAny>>,
        share: Option<Bound<'py, PyAny>>,
        copies: Option<String>,
        name: Option<String>,
        memory_kind: Option<&str>,
        trust_declared: bool,
    ) -> Result<PyBuffer> {
        let given = dtype.unwrap_or_else(|| PyString::new(py, "float32").into_any());
        let dtype = Dtype::parse(&given)?;
        let layout = Layout::dense(layout::shape(shape)?, dtype.size())?;
        NewBuffer { share, copies, name, memory_kind, trust_declared }
            .make(py, &self.0, layout, dtype)
    }

    /// Makes a buffer with a copy of an array: anything that NumPy takes.
    #[pyo3(signature = (data, dtype=None, *, share=None, copies=None, name=None, trust_declared=false))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn array<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        dtype: Option<Bound<'py, PyAny>>,
        share: Option<Bound<'py, PyAny>>,
        copies: Option<String>,
        name: Option<String>,
        trust_declared: bool,
    ) -> Result<Bound<'py, PyAny>> {
        let data = arrays(py)?.call_method1("source", (data, dtype))?;
        let (shape, dtype) = (data.getattr("shape")?, data.getattr("dtype")?);
        let made =
            self.empty(py, &shape, Some(dtype), share, copies, name, None, trust_declared)?;
        let made = Bound::new(py, made)?.into_any();
        made.call_method1("write", (data,))?;
        Ok(made)
    }

    /// Wraps the memory of another library's array, without a copy: NumPy, PyTorch, JAX, anything with `__dlpack__`. The devices
    /// in `share` access it by the best proven route.
    ///
    /// The producer keeps its array. While kernels may work on the buffer, use the array only as other guards could: not beside a
    /// writer. `Buffer.wait`, `read` and `map` bring what kernels wrote back to it.
    #[pyo3(signature = (x, *, share=None, copies=None, trust_declared=false))]
    #[expect(clippy::wrong_self_convention, reason = "the name that array libraries use")]
    fn from_dlpack<'py>(
        &self,
        py: Python<'py>,
        x: &Bound<'py, PyAny>,
        share: Option<Bound<'py, PyAny>>,
        copies: Option<String>,
        trust_declared: bool,
    ) -> Result<PyBuffer> {
        let devices = devices(&self.0, share.as_ref())?;
        let copies = copies.as_deref().map_or(Ok(self.0.copy_policy()), policy)?;
        dlpack::import(py, &self.0, x, &devices, copies, trust_declared)
    }

    /// Wraps a `pyopencl.Buffer` or `pyopencl.array.Array`, without a copy. The devices of its context access it, and those in
    /// `share` by the best proven route. `queue` is the `pyopencl.CommandQueue` of the owner's work so far: users of the buffer
    /// wait for it. A `pyopencl.Buffer` has no type: `shape` and `dtype` default to bytes.
    #[pyo3(signature = (x, shape=None, dtype=None, *, queue=None, share=None, copies=None, trust_declared=false))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    #[expect(clippy::wrong_self_convention, reason = "as `from_dlpack`")]
    fn from_pyopencl<'py>(
        &self,
        py: Python<'py>,
        x: &Bound<'py, PyAny>,
        shape: Option<Bound<'py, PyAny>>,
        dtype: Option<Bound<'py, PyAny>>,
        queue: Option<Bound<'py, PyAny>>,
        share: Option<Bound<'py, PyAny>>,
        copies: Option<String>,
        trust_declared: bool,
    ) -> Result<PyBuffer> {
        let devices = devices(&self.0, share.as_ref())?;
        let copies = copies.as_deref().map_or(Ok(self.0.copy_policy()), policy)?;
        let asked = foreign::Wrap { shape, dtype, queue, devices, copies, trust_declared };
        foreign::wrap(py, &self.0, x, asked)
    }

    /// Wraps a `pyopencl.CommandQueue`: launches of onebuf go into it, in order with those of its owner.
    fn wrap_queue(&self, py: Python<'_>, queue: &Bound<'_, PyAny>) -> Result<PyQueue> {
        foreign::queue(py, &self.0, queue)
    }

    /// Registers a `pyopencl.Context`, and returns its devices as devices of this hub.
    fn wrap_context(&self, py: Python<'_>, context: &Bound<'_, PyAny>) -> Result<Vec<PyDevice>> {
        foreign::context(py, &self.0, context)
    }

    /// Whether a buffer that these devices share would be used by all of them without a copy, on this machine, as far as it is
    /// proven. `onebuf doctor` proves it.
    #[pyo3(signature = (*devices, nbytes=1<<20, trust_declared=false))]
    fn zero_copy(
        &self,
        devices: &Bound<'_, pyo3::types::PyTuple>,
        nbytes: usize,
        trust_declared: bool,
    ) -> Result<bool> {
        let devices = crate::given::devices(&self.0, Some(devices.as_any()))?;
        let asked = self.0.buffer::<u8>(nbytes).shared_with(&devices);
        let plan = asked.copies(CopyPolicy::Forbid).trust_declared(trust_declared).plan();
        match plan {
            Ok(_) => Ok(true),
            Err(onebuf::Error::CopyForbidden { .. }) => Ok(false),
            Err(other) => Err(other.into()),
        }
    }

    /// Plans a buffer without making it: a dictionary, as `onebuf plan --json` prints it.
    #[pyo3(signature = (nbytes, *, share=None, copies=None, trust_declared=false))]
    fn plan<'py>(
        &self,
        py: Python<'py>,
        nbytes: usize,
        share: Option<Bound<'py, PyAny>>,
        copies: Option<&str>,
        trust_declared: bool,
    ) -> Result<Bound<'py, PyAny>> {
        let devices = devices(&self.0, share.as_ref())?;
        let copies = copies.map_or(Ok(self.0.copy_policy()), policy)?;
        let asked = self.0.buffer::<u8>(nbytes).shared_with(&devices).copies(copies);
        let plan = asked.trust_declared(trust_declared).plan()?;
        loads(py, plan.to_json(self.0.topology()).to_string())
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

/// JSON as Python objects.
fn loads(py: Python<'_>, json: String) -> Result<Bound<'_, PyAny>> {
    Ok(py.import("json")?.call_method1("loads", (json,))?)
}

#[pymethods]
impl PyLedger {
    /// Bytes of implied copies: staging, a driver's shadow copies, failover.
    #[getter]
    fn implied_bytes(&self) -> u64 {
        self.0.ledger().implied_bytes()
    }

    /// Bytes of reads, writes and copies that the caller asked for.
    #[getter]
    fn asked_bytes(&self) -> u64 {
        self.0.ledger().asked_bytes()
    }

    /// The traffic between each pair of devices: dictionaries with `from`, `to`, `cause`, `bytes`, `operations`.
    #[getter]
    fn entries<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for entry in self.0.ledger().entries() {
            let row = PyDict::new(py);
            let is_asked = entry.cause == onebuf::Cause::Asked;
            row.set_item("from", entry.from)?;
            row.set_item("to", entry.to)?;
            row.set_item("cause", if is_asked { "asked" } else { "implied" })?;
            row.set_item("bytes", entry.bytes)?;
            row.set_item("operations", entry.operations)?;
            list.append(row)?;
        }
        Ok(list)
    }

    fn __repr__(&self) -> String {
        self.0.ledger().to_string()
    }
}
