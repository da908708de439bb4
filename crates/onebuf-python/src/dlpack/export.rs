//! Buffers for other libraries.
//!
//! # Safety
//! A capsule owns a boxed [`Exported`], whose first field is the structure that the consumer gets. Exactly one of the capsule's destructor
//! (of a capsule that was not consumed) and the structure's deleter frees the box. Neither calls the interpreter's functions for
//! objects of Python, so the deleter may run on any thread, without the interpreter, and after it has ended.

use super::{
    CPU, FRESH, FRESH_VERSIONED,
    abi::{DlDevice, DlTensor, DlType, DlVersion, IS_COPIED, Managed, ManagedVersioned, READ_ONLY},
};
use crate::{
    array::PyBuffer,
    ending::detached,
    error::{Fault, Result},
    layout::Layout,
    root::HostUse,
};
use onebuf::Error;
use pyo3::{ffi, prelude::*, types::PyCapsule};
use std::{
    ffi::c_void,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::{NonNull, null_mut},
};

/// The arguments of `__dlpack__`.
pub(crate) struct Asked<'py> {
    pub stream: Option<Bound<'py, PyAny>>,
    pub max_version: Option<(u32, u32)>,
    pub dl_device: Option<(i32, i32)>,
    pub copy: Option<bool>,
}

/// What keeps the exported memory.
enum Memory {
    Lent(#[expect(dead_code, reason = "kept for its drop")] HostUse),
    Copied(#[expect(dead_code, reason = "kept for its drop")] Box<[u64]>),
}

/// An exported tensor; `M` is the structure of its version.
#[repr(C)]
struct Exported<M> {
    managed: M,
    shape: Box<[i64]>,
    strides: Box<[i64]>,
    memory: Memory,
}

/// The version that is exported if the consumer takes it.
const VERSION: DlVersion = DlVersion { major: 1, minor: 0 };

/// A capsule with the buffer's memory.
pub(crate) fn export<'py>(
    buffer: &PyBuffer,
    py: Python<'py>,
    asked: Asked<'py>,
) -> Result<Bound<'py, PyAny>> {
    check(&asked)?;
    let versioned = asked.max_version.is_some_and(|(major, _)| major >= VERSION.major);
    let copies = asked.copy == Some(true);
    let read_only = buffer.root()?.read_only && !copies;
    if read_only && !versioned {
        let what = "a read-only buffer for a consumer of DLPack before version 1";
        return Err(
            Error::unsupported(what, "one that asks with `max_version`, or `copy=True`").into()
        );
    }
    let (memory, data, layout) = memory(buffer, py, copies, read_only)?;
    let flags = if read_only { READ_ONLY } else { 0 } | if copies { IS_COPIED } else { 0 };
    match versioned {
        true => capsule(
            py,
            buffer,
            memory,
            &layout,
            FRESH_VERSIONED,
            destroy_versioned,
            |tensor| {
                let deleter = Some(delete_versioned as unsafe extern "C" fn(_));
                ManagedVersioned { version: VERSION, context: null_mut(), deleter, flags, tensor }
            },
            data,
        ),
        false => capsule(
            py,
            buffer,
            memory,
            &layout,
            FRESH,
            destroy,
            |tensor| Managed { tensor, context: null_mut(), deleter: Some(delete) },
            data,
        ),
    }
}

/// Refuses devices and streams that the host does not have.
fn check(asked: &Asked<'_>) -> Result<()> {
    if asked.dl_device.is_some_and(|device| device != CPU) {
        let what = format!("an export to the DLPack device {:?}", asked.dl_device.unwrap_or(CPU));
        return Err(Error::unsupported(what, "the host, which is device (1, 0)").into());
    }
    match &asked.stream {
        Some(stream) if !stream.is_none() && !stream.extract::<i64>().is_ok_and(|at| at == -1) => {
            Err(Fault::invalid("`stream` must be None for memory of the host"))
        }
        _ => Ok(()),
    }
}

/// The memory to export, the address of the first element, and where the elements lie.
fn memory(
    buffer: &PyBuffer,
    py: Python<'_>,
    copies: bool,
    read_only: bool,
) -> Result<(Memory, *mut c_void, Layout)> {
    if buffer.layout.strides.iter().any(|stride| *stride < 0) {
        // Consumers compute the size of the memory from sizes and strides.
        return Err(Fault::invalid("the array has a negative stride: reverse it in the consumer"));
    }
    if !copies {
        let (used, first) = buffer.lend(py, !read_only, "a DLPack consumer")?;
        return Ok((Memory::Lent(used), first.cast(), buffer.layout.clone()));
    }
    if !buffer.layout.is_dense() {
        return Err(Fault::invalid("the buffer is not contiguous: copy it by `read`"));
    }
    let (root, range) = (buffer.root()?, buffer.layout.span());
    root.settle(py, false)?;
    let mut copied = vec![0u64; range.len().div_ceil(8)].into_boxed_slice();
    let at = copied.as_mut_ptr();
    let to = at.addr();
    // SAFETY: the box has at least that many bytes.
    detached(py, || unsafe { root.read(range, to as *mut u8) })?;
    let layout = Layout { offset: 0, ..buffer.layout.clone() };
    Ok((Memory::Copied(copied), at.cast(), layout))
}

#[expect(clippy::too_many_arguments, reason = "the parts of one structure")]
fn capsule<'py, M>(
    py: Python<'py>,
    buffer: &PyBuffer,
    memory: Memory,
    layout: &Layout,
    name: &'static std::ffi::CStr,
    destructor: unsafe extern "C" fn(*mut ffi::PyObject),
    make: impl FnOnce(DlTensor) -> M,
    data: *mut c_void,
) -> Result<Bound<'py, PyAny>> {
    let mut shape: Box<[i64]> = layout.shape.iter().map(|size| *size as i64).collect();
    let mut strides = layout.element_strides().into_boxed_slice();
    let (code, bits) = buffer.dtype.dlpack();
    let tensor = DlTensor {
        data,
        device: DlDevice { kind: CPU.0, number: CPU.1 },
        ndim: layout.shape.len() as i32,
        dtype: DlType { code, bits, lanes: 1 },
        shape: shape.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let exported = Box::new(Exported { managed: make(tensor), shape, strides, memory });
    let raw = NonNull::from(Box::leak(exported));
    // SAFETY: the pointer is the box's, which the destructor frees unless a consumer renames the capsule.
    let made = unsafe {
        PyCapsule::new_with_pointer_and_destructor(py, raw.cast(), name, Some(destructor))
    };
    match made {
        Ok(made) => Ok(made.into_any()),
        Err(error) => {
            // SAFETY: no capsule has it.
            drop(unsafe { Box::from_raw(raw.as_ptr()) });
            Err(error.into())
        }
    }
}

/// # Safety
/// `managed` is null, or the first field of a boxed [`Exported`] that is freed once.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: the caller's promise.
    unsafe { free::<Managed>(managed.cast()) }
}

/// Frees what was exported. Nothing unwinds into the consumer's code.
///
/// # Safety
/// As for [`delete`].
unsafe fn free<M>(exported: *mut Exported<M>) {
    if !exported.is_null() {
        // SAFETY: the caller's promise.
        let exported = unsafe { Box::from_raw(exported) };
        let _ = catch_unwind(AssertUnwindSafe(|| drop(exported)));
    }
}

/// # Safety
/// As for [`delete`].
unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: the caller's promise.
    unsafe { free::<ManagedVersioned>(managed.cast()) }
}

/// Frees a tensor that was not consumed.
///
/// # Safety
/// A capsule of this file.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: the caller's promise; a consumed capsule has another name.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, FRESH.as_ptr()) != 0 {
            delete(ffi::PyCapsule_GetPointer(capsule, FRESH.as_ptr()).cast());
        }
    }
}

/// # Safety
/// As for [`destroy`].
unsafe extern "C" fn destroy_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: as for `destroy`.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, FRESH_VERSIONED.as_ptr()) != 0 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, FRESH_VERSIONED.as_ptr()).cast());
        }
    }
}
