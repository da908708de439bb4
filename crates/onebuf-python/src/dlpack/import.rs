//! Arrays of other libraries as buffers.
//!
//! # Safety
//! A consumed capsule's tensor stays valid until its deleter runs, which happens once, when [`Tensor`] is dropped: when neither onebuf nor
//! a driver uses the memory any more.

use super::{
    FRESH, FRESH_VERSIONED, USED, USED_VERSIONED,
    abi::{DlTensor, Managed, ManagedVersioned, READ_ONLY},
};
use crate::{
    array::PyBuffer,
    dtype::Dtype,
    ending::detached,
    error::{Fault, Result},
    layout::Layout,
    root::Root,
};
use onebuf::{Access, CopyPolicy, Device, Error, Hub, RouteKind};
use pyo3::{
    exceptions::PyTypeError,
    ffi,
    prelude::*,
    types::{PyCapsule, PyDict},
};
use std::{ffi::CStr, ptr::NonNull, sync::Arc};

/// A tensor that was taken over. Dropping it calls its deleter.
enum Tensor {
    Old(NonNull<Managed>),
    Versioned(NonNull<ManagedVersioned>),
}

// SAFETY: DLPack allows the deleter on any thread, and nothing else is done with the pointer.
unsafe impl Send for Tensor {}
// SAFETY: as above; nothing is changed through a reference.
unsafe impl Sync for Tensor {}

impl Tensor {
    /// Takes the tensor out of a capsule, which is renamed, as the protocol asks.
    fn take(capsule: &Bound<'_, PyAny>) -> Result<Self> {
        let capsule = capsule.cast::<PyCapsule>().map_err(PyErr::from)?.as_ptr();
        // SAFETY: a live capsule with one of these names, which DLPack reserves for its structures.
        unsafe {
            if let Some(tensor) = pointer(capsule, FRESH_VERSIONED, USED_VERSIONED) {
                return Ok(Tensor::Versioned(tensor.cast()));
            }
            let tensor = pointer(capsule, FRESH, USED);
            tensor.map(|tensor| Tensor::Old(tensor.cast())).ok_or_else(|| {
                Fault::invalid("`__dlpack__` returned a capsule that is no tensor, or was consumed")
            })
        }
    }

    /// The tensor's description, and whether it is read-only.
    fn get(&self) -> Result<(&DlTensor, bool)> {
        // SAFETY: see the head of this file.
        unsafe {
            match self {
                Tensor::Old(tensor) => Ok((&tensor.as_ref().tensor, false)),
                Tensor::Versioned(tensor) => {
                    // The place of everything but version, deleter and context may differ in another major version.
                    let major = tensor.as_ref().version.major;
                    if major != 1 {
                        return Err(Fault::invalid(format!(
                            "a tensor of DLPack {major}: 1 is known"
                        )));
                    }
                    Ok((&tensor.as_ref().tensor, tensor.as_ref().flags & READ_ONLY != 0))
                }
            }
        }
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: the deleter is called once, with its own structure.
        unsafe {
            match self {
                Tensor::Old(tensor) => {
                    if let Some(deleter) = tensor.as_ref().deleter {
                        deleter(tensor.as_ptr());
                    }
                }
                Tensor::Versioned(tensor) => {
                    if let Some(deleter) = tensor.as_ref().deleter {
                        deleter(tensor.as_ptr());
                    }
                }
            }
        }
    }
}

/// The pointer in a capsule of that name, which gets the other name.
///
/// # Safety
/// A live capsule.
unsafe fn pointer(
    capsule: *mut ffi::PyObject,
    name: &'static CStr,
    used: &'static CStr,
) -> Option<NonNull<std::ffi::c_void>> {
    // SAFETY: the caller's promise; the names are static.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, name.as_ptr()) == 0 {
            return None;
        }
        let found = NonNull::new(ffi::PyCapsule_GetPointer(capsule, name.as_ptr()))?;
        (ffi::PyCapsule_SetName(capsule, used.as_ptr()) == 0).then_some(found)
    }
}

/// Asks a producer for its capsule: by the arguments of version 1, and without them if it does not know those.
fn ask<'py>(py: Python<'py>, x: &Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>> {
    if !x.hasattr("__dlpack__")? {
        let name = x.get_type().name()?.to_string();
        return Err(Fault::invalid(format!("a {name} has no `__dlpack__`")));
    }
    if x.hasattr("__dlpack_device__")? {
        let (kind, number): (i32, i32) = x.call_method0("__dlpack_device__")?.extract()?;
        check_device(kind, number)?;
    }
    let arguments = PyDict::new(py);
    arguments.set_item("max_version", (1, 0))?;
    match x.call_method("__dlpack__", (), Some(&arguments)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => Ok(x.call_method0("__dlpack__")?),
        made => Ok(made?),
    }
}

/// Memory of the host is wrapped; the reason why other memory is not.
fn check_device(kind: i32, number: i32) -> Result<()> {
    let of = match kind {
        1 => return Ok(()),
        2 => "CUDA",
        4 => "OpenCL",
        10 => "ROCm",
        _ => "another kind of device",
    };
    let what = format!("wrapping a tensor of {of} (DLPack device type {kind}, number {number})");
    Err(Error::unsupported(what, "a tensor in the host's memory: this package wraps no other yet")
        .into())
}

/// Where the elements are, and their type.
fn describe(tensor: &DlTensor) -> Result<(NonNull<u8>, Layout, Dtype)> {
    check_device(tensor.device.kind, tensor.device.number)?;
    let dtype = Dtype::from_dlpack(tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes)?;
    let dims = usize::try_from(tensor.ndim).map_err(|_| Fault::invalid("a negative rank"))?;
    let numbers = |at: *mut i64| match dims > 0 && !at.is_null() {
        // SAFETY: the producer's structure has as many sizes and strides as dimensions, or null.
        true => unsafe { std::slice::from_raw_parts(at, dims) },
        false => &[],
    };
    let shape: Option<Vec<usize>> =
        numbers(tensor.shape).iter().map(|size| usize::try_from(*size).ok()).collect();
    let shape = shape.filter(|shape| shape.len() == dims);
    let shape = shape.ok_or_else(|| Fault::invalid("a tensor without a shape"))?;
    let dense = Layout::dense(shape, dtype.size())?;
    let strides = numbers(tensor.strides);
    let matches = |((size, stride), want): ((&usize, &i64), i64)| *size <= 1 || *stride == want;
    let pairs = dense.shape.iter().zip(strides).zip(dense.element_strides());
    if !strides.is_empty() && !pairs.into_iter().all(matches) {
        return Err(Fault::invalid(format!(
            "the array is not contiguous (strides {strides:?} for the shape {:?}): copy it first",
            dense.shape
        )));
    }
    let first = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize);
    let first = NonNull::new(first).ok_or_else(|| Fault::invalid("a tensor without memory"))?;
    Ok((first, dense, dtype))
}

/// The alignment that the library asks of memory which it uses in place.
const HOST_ALIGN: usize = 64;

/// Whether the array's library does not expect its contents to change, without saying so by the protocol: JAX.
fn is_immutable(x: &Bound<'_, PyAny>) -> Result<bool> {
    let module: String = x.get_type().getattr("__module__")?.extract().unwrap_or_default();
    Ok(module == "jax"
        || module == "jaxlib"
        || module.starts_with("jax.")
        || module.starts_with("jaxlib."))
}

/// Wraps the memory of another library's array.
pub(crate) fn import<'py>(
    py: Python<'py>,
    hub: &Hub,
    x: &Bound<'py, PyAny>,
    devices: &[Device],
    copies: CopyPolicy,
    trust_declared: bool,
) -> Result<PyBuffer> {
    let tensor = Tensor::take(&ask(py, x)?)?;
    let ((first, layout, dtype), read_only) = {
        let (tensor, read_only) = tensor.get()?;
        (describe(tensor)?, read_only)
    };
    let read_only = read_only || is_immutable(x)?;
    let bytes = layout.bytes();
    let at = first.as_ptr().addr();
    let build = move || {
        let access = if read_only { Access::Read } else { Access::ReadWrite };
        let builder = hub.buffer::<u8>(bytes).shared_with(devices).copies(copies);
        let mut builder = builder.trust_declared(trust_declared).access(access);
        let align = devices.iter().map(|device| device.info().caps.align_bytes).max().unwrap_or(1);
        let misplaced = !at.is_multiple_of(align.max(HOST_ALIGN));
        if misplaced && (copies != CopyPolicy::Forbid || devices.is_empty()) {
            // No device can use the memory in place: each gets a copy, which the ledger counts.
            builder = builder.route(RouteKind::Staged);
        }
        let first = NonNull::new(at as *mut u8).unwrap_or(NonNull::dangling());
        // SAFETY: the producer keeps the memory until the deleter, which dropping `tensor` calls. That the producer leaves it alone
        // while devices use it is the documented duty of the caller of `from_dlpack`.
        unsafe { builder.host_memory(first, Arc::new(tensor)) }.build()
    };
    Ok(PyBuffer::new(Root::new(detached(py, build)?, read_only), layout, dtype))
}
