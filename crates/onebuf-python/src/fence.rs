//! Fences: points that work reaches.

use crate::{
    ending::{detached, enter},
    error::Result,
    json::fields,
    types::PyFence,
    wait,
};
use onebuf::prelude::*;
use pyo3::{
    prelude::*,
    types::{PyDict, PyList},
};

#[pymethods]
impl PyFence {
    /// Whether the work is done. Raises the error of work that failed.
    #[getter]
    fn done(&self, py: Python<'_>) -> Result<bool> {
        Ok(detached(py, || self.fence.is_done())?)
    }

    /// Waits until the work is done. `Timeout` if that takes longer than `timeout` seconds; the work goes on.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> Result<()> {
        let timeout = timeout.map_or(Ok(self.timeout), wait::seconds)?;
        wait::for_fence(py, &self.fence, timeout)
    }

    /// How the hand-over that the fence comes from was ordered: "semaphore", "event", …. "host_wait" if only the host waits for it.
    #[getter]
    fn sync_method(&self) -> String {
        self.fence.sync_method().to_string()
    }

    /// When the device ran the work, by its own clock in nanoseconds: a dictionary with `queued_ns`, `submitted_ns`, `started_ns`
    /// and `ended_ns`. For the fence of one launch (`k(…, fence=True)`) that is done, on a queue with `profiling`.
    fn profile<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        let profile = detached(py, || self.fence.profile())?;
        Ok(fields!(py; profile; queued_ns, submitted_ns, started_ns, ended_ns))
    }

    /// The `pyopencl.Event`s that must complete before the fence is reached: `wait_for=` of pyopencl's calls. Empty if it is known to be reached.
    fn pyopencl_events<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyList>> {
        let _inside = enter(py);
        let class = py.import("pyopencl")?.getattr("Event")?;
        let events = PyList::empty(py);
        for event in detached(py, || self.fence.cl_events())? {
            // The reference is pyopencl's from here on.
            let raw = event.into_raw()?.addr();
            events.append(class.call_method1("from_int_ptr", (raw, false))?)?;
        }
        Ok(events)
    }

    fn __repr__(&self) -> String {
        match self.fence.is_done() {
            Ok(true) => "<onebuf.Fence, reached>".into(),
            Ok(false) => "<onebuf.Fence>".into(),
            Err(_) => "<onebuf.Fence of work that failed>".into(),
        }
    }
}
