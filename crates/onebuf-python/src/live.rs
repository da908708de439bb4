//! The live view: `onebuf top` in another terminal shows the program.

use crate::{
    ending::detached,
    error::{Fault, Result},
    pipeline::PyPipeline,
};
use onebuf::live::Published;
use pyo3::{prelude::*, types::PyTuple};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lets `onebuf top` of the same user watch a hub, until `close`, the end of a `with` block, or the last reference: made by `Hub.publish`.
#[pyclass(frozen, module = "onebuf", name = "Published")]
pub(crate) struct PyPublished {
    /// Empty after `close`.
    open: Mutex<Option<Published>>,
    path: String,
}

impl PyPublished {
    pub fn new(published: Published) -> Self {
        let path = published.path().display().to_string();
        Self { open: Mutex::new(Some(published)), path }
    }

    fn open(&self) -> MutexGuard<'_, Option<Published>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyPublished {
    /// The path of the socket.
    #[getter]
    fn path(&self) -> &str {
        &self.path
    }

    /// Shows a pipeline, too. One of the same name is replaced.
    fn pipeline(&self, name: String, pipeline: &Bound<'_, PyAny>) -> Result<()> {
        let line = pipeline.getattr("_line").and_then(|line| Ok(line.cast_into::<PyPipeline>()?));
        let line = line.map_err(|_| Fault::invalid("an `onebuf.Pipeline` is needed"))?;
        match &*self.open() {
            Some(open) => open.pipeline(name, line.get().handle()),
            None => return Err(Fault::invalid("the hub is not published any more")),
        }
        Ok(())
    }

    /// Ends the live view.
    fn close(&self, py: Python<'_>) {
        let open = self.open().take();
        detached(py, || drop(open));
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        format!("<onebuf.Published at {}>", self.path)
    }
}
