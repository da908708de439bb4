//! Traces: what happened when.

use crate::{
    ending::detached,
    error::{Fault, Result},
    json::objects,
    wait,
};
use onebuf::{
    Cause, Hub,
    topology::DeviceIx,
    trace::{Clock, Event, Trace},
};
use pyo3::prelude::*;
use serde_json::{Value, json};
use std::{path::PathBuf, time::Duration};

/// The launches, hand-overs, waits and copies of a hub, and the stages of its pipelines, with their times.
///
/// `onebuf.discover(trace=True)` records it. `save` writes a file that https://ui.perfetto.dev opens. Times are in seconds since the hub was made.
#[pyclass(frozen, module = "onebuf", name = "Trace")]
pub(crate) struct PyTrace {
    pub trace: Trace,
    pub hub: Hub,
}

impl PyTrace {
    fn id(&self, device: DeviceIx) -> &str {
        &self.hub.topology().node(device).id
    }

    fn row(&self, event: &Event) -> Value {
        let id = |device: Option<DeviceIx>| device.map(|device| self.id(device));
        json!({
            "what": event.what.name(),
            "name": event.name,
            "device": self.id(event.device),
            "queue": event.queue,
            "part": event.part,
            "start": event.start.as_secs_f64(),
            "end": event.end.as_secs_f64(),
            "clock": if event.clock == Clock::Device { "device" } else { "host" },
            "from": id(event.from),
            "from_queue": event.from_queue,
            "to": id(event.to),
            "bytes": event.bytes,
            "route": event.route,
            "sync": event.sync_method,
            "buffer": event.buffer,
            "cause": event.cause.map(|cause| if cause == Cause::Asked { "asked" } else { "implied" }),
            "frame": event.frame,
            "failed": event.failed,
            "why": event.why,
        })
    }
}

#[pymethods]
impl PyTrace {
    /// Writes the events to a file in the Trace Event format. Work that a device has not finished yet has only the host's times.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        Ok(detached(py, || self.trace.save(path))?)
    }

    /// The events, in the order in which they ended: dictionaries. What does not apply is None.
    fn events<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        let rows: Vec<Value> =
            detached(py, || self.trace.events().iter().map(|event| self.row(event)).collect());
        objects(py, &rows)
    }

    /// Deletes all events.
    fn clear(&self, py: Python<'_>) {
        detached(py, || self.trace.clear());
    }

    /// How many events were overwritten by later ones.
    #[getter]
    fn dropped(&self) -> u64 {
        self.trace.dropped()
    }

    /// The current time on the clock of the events.
    #[getter]
    fn now(&self) -> f64 {
        self.trace.now().as_secs_f64()
    }

    /// Queries the device times of completed work now. The trace does so occasionally, which takes time.
    fn catch_up(&self, py: Python<'_>) {
        detached(py, || self.trace.catch_up());
    }

    /// Where the time between two moments went: a dictionary with the `total`, the `work` of devices by their own clocks, and
    /// the causes of `idle` time, in seconds. Needs `discover(trace_devices=True)`.
    #[pyo3(signature = (start=0.0, end=None))]
    fn account<'py>(
        &self,
        py: Python<'py>,
        start: f64,
        end: Option<f64>,
    ) -> Result<Bound<'py, PyAny>> {
        let start = wait::seconds(start)?;
        let end = end.map_or(Ok(self.trace.now()), wait::seconds)?;
        if end < start {
            return Err(Fault::invalid("`end` is before `start`"));
        }
        let account = detached(py, || self.trace.account([start..end]));
        let seconds = |time: &Duration| time.as_secs_f64();
        let work = account.work.iter().map(|((device, name), time)| {
            json!({ "device": self.id(*device), "name": name, "seconds": seconds(time) })
        });
        let idle = account.idle.iter();
        let idle = idle.map(|(cause, time)| (cause.to_string(), json!(seconds(time))));
        objects(
            py,
            &json!({
                "total": seconds(&account.total),
                "work": work.collect::<Vec<_>>(),
                "idle": idle.collect::<serde_json::Map<_, _>>(),
            }),
        )
    }

    fn __repr__(&self) -> String {
        format!("<onebuf.Trace of {} events>", self.trace.events().len())
    }
}
