//! The ledger: every byte that was moved.

use crate::json::fields;
use onebuf::{Cause, Entry, Hub};
use pyo3::{prelude::*, types::PyDict};

/// What the bytes that onebuf moved were moved for.
#[pyclass(frozen, module = "onebuf", name = "Ledger")]
pub(crate) struct PyLedger(pub Hub);

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
    fn entries<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let row = |entry: &Entry| {
            let row = fields!(py; entry; from, to, bytes, operations);
            let is_asked = entry.cause == Cause::Asked;
            row.set_item("cause", if is_asked { "asked" } else { "implied" })?;
            Ok(row)
        };
        self.0.ledger().entries().iter().map(row).collect()
    }

    fn __repr__(&self) -> String {
        self.0.ledger().to_string()
    }
}
