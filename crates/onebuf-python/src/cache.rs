//! What `onebuf.cache` calls: the folder of verdicts.

use crate::{ending::detached, error::Result, json::objects};
use onebuf::cache;
use pyo3::prelude::*;
use std::path::PathBuf;

/// Adds these functions to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(cache_folder, module)?)?;
    module.add_function(wrap_pyfunction!(cache_contents, module)?)?;
    module.add_function(wrap_pyfunction!(cache_clear, module)?)
}

/// The user's cache folder, where `onebuf doctor` keeps its verdicts.
#[pyfunction]
pub(crate) fn cache_folder() -> Result<PathBuf> {
    Ok(cache::user_folder()?)
}

fn chosen(folder: Option<PathBuf>) -> Result<PathBuf> {
    folder.map_or_else(cache_folder, Ok)
}

/// What a cache folder has: a dictionary with the numbers of `verdicts` (None if their file cannot be used) and `programs`, and the `bytes` of all.
#[pyfunction]
#[pyo3(signature = (folder=None))]
pub(crate) fn cache_contents(py: Python<'_>, folder: Option<PathBuf>) -> Result<Bound<'_, PyAny>> {
    let folder = chosen(folder)?;
    objects(py, &detached(py, || cache::contents(&folder))?)
}

/// Removes the verdicts and programs of a cache folder; returns what it had.
#[pyfunction]
#[pyo3(signature = (folder=None))]
pub(crate) fn cache_clear(py: Python<'_>, folder: Option<PathBuf>) -> Result<Bound<'_, PyAny>> {
    let folder = chosen(folder)?;
    objects(py, &detached(py, || cache::clear(&folder))?)
}
