//! Pools: buffers that are used again.

use crate::{
    array::PyBuffer,
    create::{self, shaped},
    ending::detached,
    error::{Fault, Result},
    json::fields,
    options::{BufferOptions, OptionsFor},
    root::Root,
    types::PyHub,
    wait,
};
use onebuf::Pool;
use pyo3::{prelude::*, types::PyDict};
use std::time::Duration;

/// Buffers that are used again: memory, imports and plans are made once, and come back when the last reference to a buffer is gone.
///
/// The contents of a buffer are unspecified, unless it was asked for with `cleared`. `limit` is the most bytes that the pool holds.
#[pyclass(frozen, module = "onebuf", name = "Pool")]
pub(crate) struct PyPool {
    pool: Pool,
    hub: onebuf::Hub,
}

#[pymethods]
impl PyPool {
    #[new]
    #[pyo3(signature = (hub, limit=None))]
    fn new(hub: &Bound<'_, PyHub>, limit: Option<u64>) -> Self {
        let hub = hub.get().0.clone();
        let pool = match limit {
            Some(bytes) => Pool::with_limit(&hub, bytes),
            None => Pool::new(&hub),
        };
        Self { pool, hub }
    }

    /// The hub of its buffers.
    #[getter]
    fn hub(&self) -> PyHub {
        PyHub(self.hub.clone())
    }

    /// A buffer, new or used before; options as for `Hub.empty`. At the limit it waits up to `timeout` seconds for others to come back, else it
    /// raises `OutOfMemory` at once. `cleared` fills it with zeroes.
    #[pyo3(signature = (shape, dtype=None, *, cleared=false, timeout=None, **options))]
    fn empty<'py>(
        &self,
        py: Python<'py>,
        shape: &Bound<'py, PyAny>,
        dtype: Option<Bound<'py, PyAny>>,
        cleared: bool,
        timeout: Option<f64>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> Result<PyBuffer> {
        let (layout, dtype) = shaped(py, shape, dtype)?;
        let timeout = timeout.map_or(Ok(Duration::ZERO), wait::seconds)?;
        let options = BufferOptions::read(&self.hub, OptionsFor::New, options)?;
        let made = create::request(py, &self.hub, layout.bytes(), &options, |request| {
            let made = match timeout {
                Duration::ZERO => self.pool.get(&request)?,
                timeout => self.pool.get_while(&request, timeout, wait::go_on)?,
            };
            if cleared {
                made.fill(0)?;
            }
            Ok(made)
        })?;
        Ok(PyBuffer::new(Root::new(made, false), layout, dtype))
    }

    /// Makes buffers in advance; options as for `Hub.empty`.
    #[pyo3(signature = (count, shape, dtype=None, **options))]
    fn prepare<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        shape: &Bound<'py, PyAny>,
        dtype: Option<Bound<'py, PyAny>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> Result<()> {
        if count > 1 << 20 {
            return Err(Fault::invalid(format!("{count} buffers in advance: a million at most")));
        }
        let (layout, _) = shaped(py, shape, dtype)?;
        let options = BufferOptions::read(&self.hub, OptionsFor::New, options)?;
        create::request(py, &self.hub, layout.bytes(), &options, |request| {
            self.pool.prepare(&request, count)
        })
    }

    /// Frees idle buffers, the longest idle ones first, until idle ones have at most `keep` bytes. Returns how many bytes were freed.
    #[pyo3(signature = (keep=0))]
    fn trim(&self, py: Python<'_>, keep: u64) -> u64 {
        detached(py, || self.pool.trim(keep))
    }

    /// Counters, as a dictionary.
    #[getter]
    fn stats<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        let stats = detached(py, || self.pool.statistics());
        let all = fields!(py; stats;
            live_buffers, live_bytes, idle_buffers, idle_bytes, limit_bytes, hits, misses, made, freed, lost, peak_live_bytes, peak_held_bytes);
        all.set_item("fragmentation", stats.fragmentation())?;
        Ok(all)
    }

    fn __repr__(&self) -> String {
        let stats = self.pool.statistics();
        let (live, idle) = (stats.live_buffers, stats.idle_buffers);
        format!("<onebuf.Pool with {live} buffers in use and {idle} idle>")
    }
}
