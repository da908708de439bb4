//! DLPack's C exchange API: functions that a class of arrays offers besides `__dlpack__`. They describe an array without making an object, and
//! they never synchronise.
//!
//! # Safety
//! The table is found in a capsule whose name DLPack reserves for it, and exists as long as the process. Its functions are called with
//! the interpreter attached. What they say about an array is valid while the array lives.

use crate::{
    described::{Described, STRIDED},
    dl_abi::{DlDevice, DlTensor, DlType, DlVersion},
    dtype::Dtype,
};
use pyo3::{
    intern,
    prelude::*,
    types::{PyCapsule, PyType},
};
use std::{
    ffi::{CStr, c_int, c_void},
    ptr::null_mut,
};

const NAME: &CStr = c"dlpack_exchange_api";

/// The table of version 1.
#[repr(C)]
struct Table {
    version: DlVersion,
    /// The table of an older version.
    previous: *const Table,
    allocator: Option<unsafe extern "C" fn()>,
    managed_from_python: Option<unsafe extern "C" fn()>,
    managed_to_python: Option<unsafe extern "C" fn()>,
    view: Option<unsafe extern "C" fn(*mut c_void, *mut DlTensor) -> c_int>,
    stream: Option<unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int>,
}

const _: () = assert!(size_of::<Table>() == 56);

/// The exchange functions of a class of arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exchange(usize);

impl Exchange {
    /// The functions of a class, if it has those that are used here.
    pub fn of(class: &Bound<'_, PyType>) -> Option<Self> {
        let py = class.py();
        let capsule = class.getattr_opt(intern!(py, "__dlpack_c_exchange_api__")).ok()??;
        let capsule = capsule.cast::<PyCapsule>().ok()?;
        let table = capsule.pointer_checked(Some(NAME)).ok()?;
        let mut at = table.as_ptr().cast::<Table>().cast_const();
        // SAFETY: see the head of this file. The first fields of a table are those of every version.
        unsafe {
            while !at.is_null() && (*at).version.major != 1 {
                at = (*at).previous;
            }
            let complete = !at.is_null() && (*at).view.is_some() && (*at).stream.is_some();
            complete.then(|| Self(at.addr()))
        }
    }

    fn table(self) -> &'static Table {
        // SAFETY: see the head of this file.
        unsafe { &*(self.0 as *const Table) }
    }

    /// An array's description.
    fn view(self, array: &Bound<'_, PyAny>) -> PyResult<DlTensor> {
        let mut tensor = DlTensor {
            data: null_mut(),
            device: DlDevice { kind: 0, number: 0 },
            ndim: 0,
            dtype: DlType { code: 0, bits: 0, lanes: 0 },
            shape: null_mut(),
            strides: null_mut(),
            byte_offset: 0,
        };
        // SAFETY: an array of this class, and a structure to fill in.
        let status =
            self.table().view.map(|view| unsafe { view(array.as_ptr().cast(), &raw mut tensor) });
        match status {
            Some(0) => Ok(tensor),
            _ => Err(PyErr::fetch(array.py())),
        }
    }

    /// DLPack's device type and number of an array.
    pub fn device(self, array: &Bound<'_, PyAny>) -> PyResult<(i32, i32)> {
        self.view(array).map(|tensor| (tensor.device.kind, tensor.device.number))
    }

    /// The stream that the library uses now.
    pub fn stream(self, py: Python<'_>, (kind, number): (i32, i32)) -> PyResult<usize> {
        let mut stream = null_mut();
        // SAFETY: a place for the result.
        let status = self.table().stream.map(|ask| unsafe { ask(kind, number, &raw mut stream) });
        match status {
            Some(0) => Ok(stream.addr()),
            _ => Err(PyErr::fetch(py)),
        }
    }

    /// An array for a kernel, or why a kernel cannot use it.
    pub fn describe(self, array: &Bound<'_, PyAny>) -> PyResult<Result<Described, String>> {
        let tensor = self.view(array)?;
        let dims = usize::try_from(tensor.ndim).unwrap_or(0);
        let numbers = |at: *mut i64| match dims > 0 && !at.is_null() {
            // SAFETY: as many sizes and strides as dimensions, or null, while the array lives.
            true => unsafe { std::slice::from_raw_parts(at, dims) },
            false => &[],
        };
        let (shape, strides) = (numbers(tensor.shape), numbers(tensor.strides));
        let mut elements = 1i64;
        let mut is_dense = true;
        for at in (0..shape.len()).rev() {
            is_dense &= shape[at] <= 1 || strides.get(at).is_none_or(|stride| *stride == elements);
            elements = elements.saturating_mul(shape[at]);
        }
        if !is_dense && elements != 0 {
            return Ok(Err(STRIDED.to_owned()));
        }
        let DlType { code, bits, lanes } = tensor.dtype;
        let dtype = match Dtype::from_dlpack(code, bits, lanes) {
            Ok(dtype) => dtype,
            Err(why) => return Ok(Err(crate::param::text(why))),
        };
        let address = tensor.data.addr().wrapping_add(tensor.byte_offset as usize);
        let elements = usize::try_from(elements).unwrap_or(0);
        Ok(Ok(Described { address, elements, dtype, read_only: false }))
    }
}
