//! Arrays of other libraries as buffers.
//!
//! # Safety
//! A consumed capsule's tensor stays valid until its deleter runs, which happens once, when [`Tensor`] is dropped: when neither onebuf nor
//! a driver uses the memory any more.

use super::{
    CPU, CUDA, CUDA_HOST, CUDA_MANAGED, FRESH, FRESH_VERSIONED, ROCM, ROCM_HOST, USED,
    USED_VERSIONED,
};
use crate::{
    array::PyBuffer,
    cuda_array::{self, Foreign},
    dl_abi::{DlTensor, Managed, ManagedVersioned, READ_ONLY},
    dtype::Dtype,
    ending::{detached, enter},
    error::{Fault, Result},
    known,
    layout::{self, Layout},
    options::BufferOptions,
    root::Root,
    tensor::{self, Kind},
};
use onebuf::{Access, CopyPolicy, Device, Error, Hub, Queue, RouteKind};
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

/// Where an array's memory is.
enum ImportPlace {
    Host,
    Device(Device),
}

impl ImportPlace {
    /// The place of DLPack's device type and number in a hub, or the reason why such memory is not wrapped.
    fn of(hub: &Hub, kind: i32, number: i32) -> Result<Self> {
        let (of, id) = match kind {
            _ if kind == CPU.0 => return Ok(ImportPlace::Host),
            // The host's pages.
            CUDA_HOST | ROCM_HOST => return Ok(ImportPlace::Host),
            CUDA | CUDA_MANAGED => ("CUDA", format!("cuda:{number}")),
            ROCM => ("ROCm", format!("hip:{number}")),
            4 => ("OpenCL", String::new()),
            _ => ("another kind of device", String::new()),
        };
        let what =
            format!("wrapping a tensor of {of} (DLPack device type {kind}, number {number})");
        if id.is_empty() {
            let needs = "a tensor in memory of the host, of CUDA or of ROCm";
            return Err(Error::unsupported(what, needs).into());
        }
        match hub.device(&id) {
            Ok(device) => Ok(ImportPlace::Device(device)),
            Err(why) => {
                Err(Error::unsupported(what, format!("the device {id} in the hub: {why}")).into())
            }
        }
    }
}

/// Asks a producer for its capsule: by the arguments of version 1, and without them if it does not know those. `stream` waits for the
/// producer's work.
fn ask<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    stream: Option<usize>,
) -> Result<Bound<'py, PyAny>> {
    let arguments = PyDict::new(py);
    if let Some(stream) = stream {
        arguments.set_item("stream", stream)?;
    }
    let older = arguments.copy()?;
    arguments.set_item("max_version", (1, 0))?;
    match x.call_method("__dlpack__", (), Some(&arguments)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            Ok(x.call_method("__dlpack__", (), Some(&older))?)
        }
        made => Ok(made?),
    }
}

/// Where the elements are, and their type.
fn describe(tensor: &DlTensor) -> Result<(NonNull<u8>, Layout, Dtype)> {
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

/// Whether the array is JAX's, which does not expect its contents to change, and does not say so by the protocol.
fn is_jaxs(x: &Bound<'_, PyAny>) -> Result<bool> {
    let module: String = x.get_type().getattr("__module__")?.extract().unwrap_or_default();
    Ok(["jax", "jaxlib"].contains(&module.split('.').next().unwrap_or_default()))
}

/// Whether an array of JAX has no memory any more. Tracers do not know.
fn is_deleted(x: &Bound<'_, PyAny>) -> bool {
    let told = x.call_method0("is_deleted").and_then(|told| told.is_truthy());
    told.unwrap_or(false)
}

/// The buffer that a tensor of PyTorch or an array of CuPy on a device is a part of, if it is one's.
fn known_tensor(hub: &Hub, x: &Bound<'_, PyAny>) -> Result<Option<PyBuffer>> {
    let kind = tensor::kind(x)?;
    if !matches!(kind, Kind::Torch(_) | Kind::Cupy | Kind::Exchanged(_)) {
        return Ok(None);
    }
    if tensor::place(x, kind, || Ok(hub.clone()))? == Some(tensor::Place::Host) {
        return Ok(None);
    }
    // What is wrong with the array is found, and said, by the protocol.
    let Ok(found) = tensor::describe(x, kind) else { return Ok(None) };
    let bytes = found.elements * found.dtype.size();
    if bytes == 0 {
        return Ok(None);
    }
    let Some((root, start)) = known::find(hub, found.address..found.address + bytes)? else {
        return Ok(None);
    };
    if root.is_wrapped {
        // The producer may have written it again: the protocol orders that.
        return Ok(None);
    }
    let shape = layout::shape(&x.getattr("shape")?)?;
    let layout =
        Layout { offset: found.address - start, ..Layout::dense(shape, found.dtype.size())? };
    Ok(Some(PyBuffer::new(root, layout, found.dtype)))
}

/// Wraps the memory of another library's array.
pub(crate) fn import<'py>(
    py: Python<'py>,
    hub: &Hub,
    x: &Bound<'py, PyAny>,
    options: &BufferOptions,
) -> Result<PyBuffer> {
    let _inside = enter(py);
    if !x.hasattr("__dlpack__")? {
        if x.hasattr("__cuda_array_interface__")? {
            return cuda_array::wrap(py, hub, x, options);
        }
        let name = x.get_type().name()?.to_string();
        return Err(Fault::invalid(format!("a {name} has no `__dlpack__`")));
    }
    if let Some(known) = known_tensor(hub, x)? {
        return Ok(known);
    }
    if is_jaxs(x)? && is_deleted(x) {
        return Err(Fault::invalid("JAX has deleted the array, or given its memory away"));
    }
    let place = match x.hasattr("__dlpack_device__")? {
        true => {
            let (kind, number) = x.call_method0("__dlpack_device__")?.extract()?;
            ImportPlace::of(hub, kind, number)?
        }
        false => ImportPlace::Host,
    };
    // The producer makes this stream wait for its work.
    let queue = match &place {
        ImportPlace::Host => None,
        ImportPlace::Device(device) => Some(detached(py, || device.lending_queue())?),
    };
    let tensor = Tensor::take(&ask(py, x, queue.as_ref().map(Queue::raw))?)?;
    let ((first, layout, dtype), read_only, device) = {
        let (tensor, read_only) = tensor.get()?;
        (describe(tensor)?, read_only, tensor.device)
    };
    match (place, ImportPlace::of(hub, device.kind, device.number)?) {
        (ImportPlace::Host, ImportPlace::Host) => {}
        (ImportPlace::Device(said), ImportPlace::Device(is)) if said.index() == is.index() => {
            let (address, read_only) = (first.as_ptr().addr(), read_only || is_jaxs(x)?);
            let (device, keeps) = (said, tensor);
            let foreign = Foreign { device, address, layout, dtype, read_only, options, keeps };
            return foreign.buffer(py, hub, queue);
        }
        _ => {
            return Err(Fault::invalid(
                "`__dlpack__` returned memory of another device than `__dlpack_device__`",
            ));
        }
    }
    let read_only = read_only || is_jaxs(x)?;
    let bytes = layout.bytes();
    let at = first.as_ptr().addr();
    let build = move || {
        let access = if read_only { Access::Read } else { Access::ReadWrite };
        let mut builder = options.apply(hub.buffer::<u8>(bytes))?.access(access);
        let devices = &options.share;
        let align = devices.iter().map(|device| device.info().caps.align_bytes).max().unwrap_or(1);
        let misplaced = !at.is_multiple_of(align.max(HOST_ALIGN));
        if misplaced && (options.copies != CopyPolicy::Forbid || devices.is_empty()) {
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
