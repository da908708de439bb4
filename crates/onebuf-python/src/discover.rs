//! Finding the installed drivers.

use crate::{
    ending::detached,
    error::{Fault, Result},
    given::word,
    types::PyHub,
    wait,
};
use onebuf::{HubBuilder, ProgramCache, Verdicts, libs::Library, prelude::*};
use pyo3::{prelude::*, types::PyBool};
use std::{collections::BTreeMap, path::PathBuf};

/// Events that `trace=True` keeps.
const EVENTS: usize = 1 << 16;

/// Finds the installed drivers and loads what `onebuf doctor` has proven. A missing API is a fact, not an error.
///
/// `only` and `without` are lists of APIs; `copies` is what is done about implied copies: "allow", "warn" or "forbid"; `timeout` is how long
/// waits take at most, in seconds. `libraries` names other files to load: `{"opencl": "libOpenCL.so.1", "cublas": "none"}`; "none" switches
/// one off. `cache` is another folder of verdicts than the user's, and `verdicts=False` uses none. `managed_memory` allows
/// `memory_kind="managed"`. `trace` is a number of events that `Hub.trace` keeps, or True; with `trace_devices` launches are recorded by the devices' clocks, too.
#[pyfunction]
#[pyo3(signature = (*, only=None, without=None, copies=None, timeout=None, libraries=None, cache=None, verdicts=true, managed_memory=None, trace=None, trace_devices=false))]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn discover(
    py: Python<'_>,
    only: Option<Vec<String>>,
    without: Option<Vec<String>>,
    copies: Option<&str>,
    timeout: Option<f64>,
    libraries: Option<BTreeMap<String, String>>,
    cache: Option<PathBuf>,
    verdicts: bool,
    managed_memory: Option<bool>,
    trace: Option<Bound<'_, PyAny>>,
    trace_devices: bool,
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
        builder = builder.copies(word("copies", copies)?);
    }
    if let Some(timeout) = timeout {
        builder = builder.timeout(wait::seconds(timeout)?);
    }
    for (name, path) in libraries.into_iter().flatten() {
        builder = library(builder, &name, path);
    }
    if let Some(folder) = cache {
        builder = builder.cache(folder);
    }
    if !verdicts {
        builder = builder.verdicts(Verdicts::default());
    }
    if let Some(allow) = managed_memory {
        builder = builder.managed_memory(allow);
    }
    builder = traced(builder, trace, trace_devices)?;
    Ok(PyHub(detached(py, || builder.build())?))
}

/// Another file for a library. Names that are not known are refused when the hub is built.
fn library(builder: HubBuilder, name: &str, path: String) -> HubBuilder {
    let which = match name {
        "cublas" => Library::CuBlas,
        "cufft" => Library::CuFft,
        "cusolver" => Library::CuSolver,
        "rocblas" => Library::RocBlas,
        "rocfft" => Library::RocFft,
        "rocsolver" => Library::RocSolver,
        _ => return builder.library(name, path),
    };
    builder.math_library(which, path)
}

fn traced(
    builder: HubBuilder,
    trace: Option<Bound<'_, PyAny>>,
    devices: bool,
) -> Result<HubBuilder> {
    let events = match &trace {
        Some(given) => match given.cast::<PyBool>() {
            Ok(given) => usize::from(given.is_true()) * EVENTS,
            Err(_) => given.extract()?,
        },
        None => 0,
    };
    match (events, devices) {
        (0, false) => Ok(builder),
        (0, true) => Err(Fault::invalid("`trace_devices` without `trace`")),
        (events, false) => Ok(builder.trace(events)),
        (events, true) => Ok(builder.trace(events).trace_devices()),
    }
}
