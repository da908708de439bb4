//! Bytes of Python objects, and bytes for Python.
//!
//! # Safety
//! The memory of a [`PyHostBytes`] neither moves nor is freed while its object lives, and only Python reads and writes it.

use crate::error::{Fault, Result};
use pyo3::{buffer::PyUntypedBuffer, ffi, prelude::*};
use std::{cell::UnsafeCell, ffi::c_int};

/// The bytes of a contiguous Python object, which stay where they are while this lives.
pub(crate) struct Bytes {
    view: PyUntypedBuffer,
}

impl Bytes {
    pub fn of(object: &Bound<'_, PyAny>, bytes: usize, write: bool) -> Result<Self> {
        let view = PyUntypedBuffer::get(object)?;
        if !view.is_c_contiguous() || (write && view.readonly()) {
            return Err(Fault::invalid(
                "the array must be C-contiguous, and writable to be read into",
            ));
        }
        if view.len_bytes() != bytes {
            let have = view.len_bytes();
            return Err(Fault::invalid(format!(
                "an array of {have} bytes where {bytes} are needed"
            )));
        }
        Ok(Self { view })
    }

    /// The first byte's address.
    pub fn at(&self) -> usize {
        self.view.buf_ptr().addr()
    }

    /// A copy.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copied = vec![0u8; self.view.len_bytes()];
        let (from, to) = (self.view.buf_ptr().cast::<u8>(), copied.as_mut_ptr());
        // SAFETY: the view has that many contiguous bytes while it lives; the vector is new.
        unsafe { from.copy_to_nonoverlapping(to, copied.len()) };
        copied
    }
}

/// Memory that the library has filled, which NumPy uses in place.
#[pyclass(frozen, module = "onebuf", name = "_HostBytes")]
pub(crate) struct PyHostBytes(UnsafeCell<Vec<u8>>);

// SAFETY: the vector itself does not change; its bytes are Python's.
unsafe impl Sync for PyHostBytes {}

impl PyHostBytes {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(UnsafeCell::new(bytes))
    }
}

#[pymethods]
impl PyHostBytes {
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes = slf.get().0.get();
        // SAFETY: the interpreter passes a view to fill in, which keeps the object; see the head of this file.
        let status = unsafe {
            let (at, len) = ((*bytes).as_mut_ptr(), (*bytes).len());
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), at.cast(), len as isize, 0, flags)
        };
        if status == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
