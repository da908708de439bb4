//! Maps: the memory in place, as a NumPy array inside a `with` block.

use crate::{
    array::{PyBuffer, arrays},
    ending::{detached, enter},
    error::{Fault, Result},
    protocol,
    root::HostUse,
};
use pyo3::{ffi, prelude::*, types::PyTuple};
use std::{
    ffi::c_int,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

/// A buffer's memory in place, for the host. `with buffer.map() as a:` gives a NumPy-like array that ends with the block.
#[pyclass(frozen, module = "onebuf", name = "Map")]
pub(crate) struct PyMap {
    buffer: Py<PyBuffer>,
    write: bool,
    state: Mutex<MapState>,
    /// Views of the memory that were not released yet.
    views: AtomicUsize,
}

#[derive(Default)]
struct MapState {
    /// The host's use, while the block runs.
    used: Option<HostUse>,
    /// A weak reference to the array of the block, which itself refers to this.
    array: Option<Py<PyAny>>,
    over: bool,
}

impl PyMap {
    pub fn new(buffer: Py<PyBuffer>, write: bool) -> Self {
        Self { buffer, write, state: Mutex::default(), views: AtomicUsize::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, MapState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyMap {
    fn __enter__<'py>(slf: &Bound<'py, Self>) -> Result<Bound<'py, PyAny>> {
        let (py, map) = (slf.py(), slf.get());
        let _inside = enter(py);
        let was_entered = {
            let state = map.state();
            state.used.is_some() || state.over
        };
        if was_entered {
            return Err(Fault::invalid("a map is used once: call `map()` again"));
        }
        let (used, _) = map.buffer.get().lend(py, map.write, "a map")?;
        map.state().used = Some(used);
        let made = arrays(py)?.call_method1("mapped", (slf,));
        match made.and_then(|made| made.extract::<(Bound<'py, PyAny>, Py<PyAny>)>()) {
            Ok((array, weak)) => {
                map.state().array = Some(weak);
                Ok(array)
            }
            Err(error) => {
                map.state().used = None;
                Err(error.into())
            }
        }
    }

    /// Ends the array. What was made from it inside of the block and is still there keeps the memory mapped, and is an error.
    #[pyo3(signature = (*error))]
    fn __exit__(&self, py: Python<'_>, error: &Bound<'_, PyTuple>) -> Result<bool> {
        let _inside = enter(py);
        let (used, array) = {
            let mut state = self.state();
            state.over = true;
            (state.used.take(), state.array.take())
        };
        let Some(used) = used else { return Ok(false) };
        if let Some(array) = array.map(|weak| weak.call0(py)).transpose()?
            && !array.is_none(py)
        {
            array.call_method0(py, "_end")?;
        }
        detached(py, || used.close())?;
        match self.views.load(Ordering::Acquire) {
            1.. if error.iter().all(|part| part.is_none()) => Err(Fault::busy(
                "arrays or memoryviews that were made from the map still use it, so the buffer stays with the host: \
                 drop them before the block ends, or copy",
            )),
            _ => Ok(false),
        }
    }

    /// Whether the block runs.
    #[getter]
    fn is_open(&self) -> bool {
        self.state().used.is_some()
    }

    /// How many users of the host the buffer has, this map included.
    #[getter]
    fn host_users(&self) -> Result<usize> {
        Ok(self.buffer.get().root()?.host_users())
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let (py, map) = (slf.py(), slf.get());
        let refuse = |fault| crate::error::export_error(py, fault);
        if !map.is_open() {
            return Err(refuse(Fault::invalid("the map has ended")));
        }
        let buffer = map.buffer.get();
        let lent = buffer.lend(py, map.write, "an array that was made from a map");
        let (used, first) = lent.map_err(refuse)?;
        // SAFETY: the interpreter passes a view to fill in; the memory is mapped while `used` lives.
        unsafe { protocol::fill(slf.clone().into_any(), view, flags, buffer, used, first) }?;
        map.views.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: the interpreter passes a view that `__getbuffer__` filled in.
        unsafe { protocol::release(view) };
        self.views.fetch_sub(1, Ordering::AcqRel);
    }
}
