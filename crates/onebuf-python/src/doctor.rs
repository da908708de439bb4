//! What `onebuf._doctor` calls: experiments between two devices.

use crate::{
    ending::detached,
    error::Result,
    json::objects,
    types::{PyDevice, PyHub},
};
use onebuf::{
    Device,
    doctor::{DEFAULT_REACH, Doctor, GraftVerdict},
    topology::Route,
};
use pyo3::prelude::*;
use serde_json::json;
use std::path::PathBuf;

/// Adds these functions to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(_doctor, module)?)
}

/// Tries the routes from one device to another that have no verdict yet, and whether programs can be grafted. The rows are as
/// `onebuf doctor --json` prints them.
#[pyfunction]
#[pyo3(signature = (hub, start, end, helper, *, fresh=false, reach=None, cache=None))]
#[expect(clippy::too_many_arguments, reason = "called by `onebuf.doctor` alone")]
pub(crate) fn _doctor<'py>(
    py: Python<'py>,
    hub: &Bound<'py, PyHub>,
    start: &Bound<'py, PyDevice>,
    end: &Bound<'py, PyDevice>,
    helper: PathBuf,
    fresh: bool,
    reach: Option<u64>,
    cache: Option<PathBuf>,
) -> Result<Bound<'py, PyAny>> {
    let hub = hub.get().0.clone();
    let (from, to) = (start.get().0.index(), end.get().0.index());
    let told = detached(py, || -> onebuf::Result<_> {
        let mut doctor = Doctor::new(helper)?.fresh(fresh).reach(reach.unwrap_or(DEFAULT_REACH));
        if let Some(folder) = cache {
            doctor = doctor.cache(folder);
        }
        let between = |route: &Route| (route.from, route.to) == (from, to);
        let found = doctor.run_where(&hub, between, &mut |_| ())?;
        let these = |one: &Device, other: &Device| (one.index(), other.index()) == (from, to);
        let grafts = doctor.grafts(&hub, these, &mut |_| ())?;
        let id = |device| hub.topology().node(device).id.as_str();
        let row = |graft: &GraftVerdict| {
            let GraftVerdict { from, to, verdict } = graft;
            json!({ "from": id(*from), "to": id(*to), "state": verdict.state, "why": verdict.why })
        };
        let saved = found.cached.not_saved.is_none() && grafts.cached.not_saved.is_none();
        let troubles = [&found.cached, &grafts.cached].map(|cached| {
            cached
                .not_read
                .iter()
                .chain(&cached.not_saved)
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        });
        Ok(json!({
            "routes": found.to_json(),
            "grafts": grafts.found.iter().map(row).collect::<Vec<_>>(),
            "experiments": found.experiments,
            "saved": saved,
            "warnings": troubles.concat(),
        }))
    })?;
    objects(py, &told)
}
