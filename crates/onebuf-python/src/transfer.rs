//! Reads and writes that go on while the caller does something else.

use crate::{
    array::arrays,
    dtype::Dtype,
    ending::{detached, enter},
    error::{Fault, Result},
    host_bytes::PyHostBytes,
    wait,
};
use onebuf::Pending;
use pyo3::{prelude::*, types::PyTuple};
use std::{
    sync::{Mutex, MutexGuard, PoisonError, TryLockError},
    time::Duration,
};

/// A read or a write in progress: `Buffer.read_async()`, `Buffer.write_async(data)`.
#[pyclass(frozen, module = "onebuf", name = "Transfer")]
pub(crate) struct PyTransfer {
    /// Locked while a thread waits.
    state: Mutex<TransferState>,
    /// The array of a read.
    array: Option<(Vec<usize>, Dtype)>,
    timeout: Duration,
}

/// How far a transfer is.
pub(crate) enum TransferState {
    Runs(Pending<u8>),
    /// A read that was made at once, because the host has the buffer.
    Read(Vec<u8>),
    /// What `wait` returns from now on.
    Ended(Py<PyAny>),
}

impl PyTransfer {
    pub fn new(
        state: TransferState,
        array: Option<(Vec<usize>, Dtype)>,
        timeout: Duration,
    ) -> Self {
        Self { state: Mutex::new(state), array, timeout }
    }

    fn state(&self) -> Result<MutexGuard<'_, TransferState>> {
        match self.state.try_lock() {
            Ok(state) => Ok(state),
            Err(TryLockError::Poisoned(state)) => Ok(state.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(Fault::busy("another thread waits for this transfer"))
            }
        }
    }

    /// What the caller of `wait` gets.
    fn result(&self, py: Python<'_>, bytes: Vec<u8>) -> Result<Py<PyAny>> {
        let Some((shape, dtype)) = &self.array else { return Ok(py.None()) };
        let (shape, dtype) = (PyTuple::new(py, shape)?, dtype.numpy(py)?);
        let bytes = Py::new(py, PyHostBytes::new(bytes))?;
        Ok(arrays(py)?.call_method1("over", (bytes, shape, dtype))?.unbind())
    }
}

#[pymethods]
impl PyTransfer {
    /// Whether the transfer is done.
    #[getter]
    fn done(&self, py: Python<'_>) -> Result<bool> {
        let state = self.state()?;
        match &*state {
            TransferState::Runs(pending) => Ok(detached(py, || pending.is_done())?),
            TransferState::Read(_) | TransferState::Ended(_) => Ok(true),
        }
    }

    /// Waits for the transfer. Returns the array of a read, and None for a write. `Timeout` if that takes longer than `timeout` seconds; the
    /// transfer goes on.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> Result<Py<PyAny>> {
        let _inside = enter(py);
        let timeout = timeout.map_or(Ok(self.timeout), wait::seconds)?;
        let mut state = self.state()?;
        let bytes = match &mut *state {
            TransferState::Runs(pending) => {
                wait::patient(py, timeout, |slice| pending.wait(slice))?
            }
            TransferState::Read(bytes) => std::mem::take(bytes),
            TransferState::Ended(result) => return Ok(result.clone_ref(py)),
        };
        let result = self.result(py, bytes)?;
        *state = TransferState::Ended(result.clone_ref(py));
        Ok(result)
    }

    fn __repr__(&self) -> &'static str {
        match &self.array {
            Some(_) => "<onebuf.Transfer: a read>",
            None => "<onebuf.Transfer: a write>",
        }
    }
}

/// The end of a transfer waits for it.
impl Drop for PyTransfer {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let TransferState::Runs(pending) =
            std::mem::replace(state, TransferState::Read(Vec::new()))
        {
            let _ = Python::try_attach(|py| detached(py, || drop(pending)));
        }
    }
}
