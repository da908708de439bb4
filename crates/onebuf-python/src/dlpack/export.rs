//! Buffers for other libraries.
//!
//! # Safety
//! A capsule owns a boxed [`Exported`], whose first field is the structure that the consumer gets. Exactly one of the capsule's destructor
//! (of a capsule that was not consumed) and the structure's deleter frees the box. Neither calls the interpreter's functions for
//! objects of Python, so the deleter may run on any thread, without the interpreter, and after it has ended.

use super::{CPU, CUDA, FRESH, FRESH_VERSIONED, ROCM};
use crate::{
    array::PyBuffer,
    dl_abi::{
        DlDevice, DlTensor, DlType, DlVersion, IS_COPIED, Managed, ManagedVersioned, READ_ONLY,
    },
    ending::detached,
    error::{Fault, Result},
    layout::Layout,
    lend::DeviceUse,
    root::{HostUse, Root},
    stream::{Borrower, NamedStream, has_streams},
};
use onebuf::{Access, Device, Error, bridge};
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
    OnDevice(#[expect(dead_code, reason = "kept for its drop")] DeviceUse),
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

/// Where a consumer gets the memory.
#[derive(Clone)]
pub(crate) enum Target {
    Host,
    Device(Device),
}

impl Target {
    /// The target that a consumer gets if it names none: the first CUDA or HIP device that the buffer is shared with, else the host.
    pub fn default_of(buffer: &PyBuffer) -> Result<Self> {
        let root = buffer.root()?;
        let device = root.devices().iter().find(|device| has_streams(device));
        Ok(device.cloned().map_or(Target::Host, Target::Device))
    }

    /// The target of DLPack's device type and number.
    fn of_dlpack(buffer: &PyBuffer, (kind, number): (i32, i32)) -> Result<Self> {
        let api = match kind {
            _ if (kind, number) == CPU => return Ok(Target::Host),
            CUDA => "cuda",
            ROCM => "hip",
            _ => {
                let what = format!("an export to the DLPack device ({kind}, {number})");
                let needs = "the host (1, 0), a CUDA device (2, n) or a ROCm device (10, n)";
                return Err(Error::unsupported(what, needs).into());
            }
        };
        let id = format!("{api}:{number}");
        let root = buffer.root()?;
        let found = root.devices().iter().find(|device| device.id() == id);
        found.cloned().map(Target::Device).ok_or_else(|| {
            Fault::invalid(format!(
                "the buffer is not shared with the device {id}: name it in `share`"
            ))
        })
    }

    /// DLPack's device type and number.
    pub fn dlpack(&self) -> (i32, i32) {
        let Target::Device(device) = self else { return CPU };
        let kind = if device.info().api.0 == "hip" { ROCM } else { CUDA };
        let number = device.id().rsplit(':').next().and_then(|number| number.parse().ok());
        (kind, number.unwrap_or(0))
    }
}

/// A capsule with the buffer's memory. `target` is where the consumer gets it if it names no device, `write` whether it may write.
pub(crate) fn export<'py>(
    buffer: &PyBuffer,
    py: Python<'py>,
    target: Target,
    write: bool,
    asked: Asked<'py>,
) -> Result<Bound<'py, PyAny>> {
    let target = match asked.dl_device {
        Some(device) => Target::of_dlpack(buffer, device)?,
        None => target,
    };
    let stream = match &target {
        Target::Host => check_host_stream(&asked).map(|()| NamedStream::Unordered)?,
        Target::Device(device) => {
            NamedStream::of_dlpack(asked.stream.as_ref(), device.info().api.0)?
        }
    };
    let versioned = asked.max_version.is_some_and(|(major, _)| major >= VERSION.major);
    let copies = asked.copy == Some(true);
    let read_only = (buffer.root()?.read_only || !write) && !copies;
    if read_only && !versioned {
        let what = "a read-only buffer for a consumer of DLPack before version 1";
        return Err(
            Error::unsupported(what, "one that asks with `max_version`, or `copy=True`").into()
        );
    }
    let (memory, data, layout) = match &target {
        Target::Host => memory(buffer, py, copies, read_only)?,
        Target::Device(device) => device_memory(buffer, py, device, stream, copies, read_only)?,
    };
    let place = target.dlpack();
    let flags = if read_only { READ_ONLY } else { 0 } | if copies { IS_COPIED } else { 0 };
    match versioned {
        true => capsule(
            py,
            buffer,
            place,
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
            place,
            memory,
            &layout,
            FRESH,
            destroy,
            |tensor| Managed { tensor, context: null_mut(), deleter: Some(delete) },
            data,
        ),
    }
}

/// Refuses streams, which the host does not have.
fn check_host_stream(asked: &Asked<'_>) -> Result<()> {
    match &asked.stream {
        Some(stream) if !stream.is_none() && !stream.extract::<i64>().is_ok_and(|at| at == -1) => {
            Err(Fault::invalid("`stream` must be None for memory of the host"))
        }
        _ => Ok(()),
    }
}

/// Refuses what consumers cannot express, and what cannot be copied.
fn check_layout(layout: &Layout, copies: bool) -> Result<()> {
    if layout.strides.iter().any(|stride| *stride < 0) {
        // Consumers compute the size of the memory from sizes and strides.
        return Err(Fault::invalid("the array has a negative stride: reverse it in the consumer"));
    }
    if copies && !layout.is_dense() {
        return Err(Fault::invalid("the buffer is not contiguous: copy it by `read`"));
    }
    Ok(())
}

/// Memory of a device to export: the buffer's, or that of a copy. The consumer's stream waits for the work on it.
fn device_memory(
    buffer: &PyBuffer,
    py: Python<'_>,
    device: &Device,
    stream: NamedStream,
    copies: bool,
    read_only: bool,
) -> Result<(Memory, *mut c_void, Layout)> {
    check_layout(&buffer.layout, copies)?;
    let mut layout = buffer.layout.clone();
    let mut root = buffer.root()?;
    let borrower = Borrower::named(py, device, stream, &root.stream)?;
    if copies {
        let range = layout.span();
        root.settle(py, false)?;
        let copied = detached(py, || {
            let hub = root.buffer.hub();
            let made = hub.buffer::<u8>(range.len()).access(Access::ReadWrite);
            let made = made.shared_with([device]).build()?;
            bridge::copy(&*root.buffer, range, &made, 0)?;
            Ok::<_, Error>(made)
        })?;
        (root, layout.offset) = (Root::new(copied, false), 0);
    }
    let lent = root.lend_to(py, device, None, !read_only, "a DLPack consumer", borrower)?;
    let first = (lent.address + layout.offset) as *mut c_void;
    Ok((Memory::OnDevice(lent), first, layout))
}

/// The memory to export, the address of the first element, and where the elements lie.
fn memory(
    buffer: &PyBuffer,
    py: Python<'_>,
    copies: bool,
    read_only: bool,
) -> Result<(Memory, *mut c_void, Layout)> {
    check_layout(&buffer.layout, copies)?;
    if !copies {
        let (used, first) = buffer.lend(py, !read_only, "a DLPack consumer")?;
        return Ok((Memory::Lent(used), first.cast(), buffer.layout.clone()));
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
    place: (i32, i32),
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
        device: DlDevice { kind: place.0, number: place.1 },
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
