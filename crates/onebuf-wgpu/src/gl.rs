//! wgpu's OpenGL backend: its context, which wgpu makes current for the time of a lock, and buffers over OpenGL names.
//!
//! # Safety
//! The context is registered while wgpu's lock keeps it current, and the registration keeps the `wgpu::Device`.

#![allow(unsafe_code)]

use crate::caught::caught;
use onebuf::{Error, ForeignGl, Hub, NativeMemory, Queue, Result, prelude::*};
use std::{
    num::NonZeroU32,
    panic::{AssertUnwindSafe, catch_unwind},
};
use wgpu::hal::api::Gles;

/// Runs `work` while wgpu's context is current on this thread; `None` if the device is none of OpenGL.
pub(crate) fn current<R>(
    device: &wgpu::Device,
    work: impl FnOnce() -> Result<R>,
) -> Option<Result<R>> {
    // SAFETY: the device is only used for the lock of its context.
    let hal = unsafe { device.as_hal::<Gles>() }?;
    // wgpu panics if another thread holds the lock for a second.
    match catch_unwind(AssertUnwindSafe(|| hal.context().lock())) {
        Ok(_current) => Some(work()),
        Err(_) => Some(Err(Error::Busy { what: "wgpu's OpenGL context".to_owned() })),
    }
}

/// Registers a wgpu device; `None` if it is none of OpenGL.
pub(crate) fn register(hub: &Hub, device: &wgpu::Device) -> Option<Result<(ForeignGl, Queue)>> {
    current(device, || {
        // SAFETY: wgpu's context is current here, and the device, which has it, is kept.
        let context = unsafe { hub.foreign_gl() }?;
        context.keep(device.clone());
        let theirs = device.clone();
        let queue = context.queue_within(move |work| {
            let entered = current(&theirs, || {
                work();
                Ok(())
            });
            entered.unwrap_or(Ok(())) // of another backend: nothing ran, which is an error
        })?;
        Ok((context, queue))
    })
}

/// A buffer of wgpu over this memory, which it keeps.
///
/// # Safety
/// The memory belongs to a context that shares with the device's. Only submissions that are ordered with its other users use it.
pub(crate) unsafe fn make(
    device: &wgpu::Device,
    memory: &NativeMemory,
    desc: &wgpu::BufferDescriptor<'_>,
) -> Result<wgpu::Buffer> {
    let name = NonZeroU32::new(memory.object("gl")? as u32)
        .ok_or_else(|| Error::invalid("an OpenGL buffer: zero"))?;
    // The backend only asks whether it is bound for indices, and whether it is mapped.
    let usage = match desc.usage.contains(wgpu::BufferUsages::INDEX) {
        true => wgpu::wgt::BufferUses::INDEX,
        false => wgpu::wgt::BufferUses::STORAGE_READ_WRITE,
    };
    let told = wgpu::hal::BufferDescriptor {
        label: desc.label,
        size: desc.size,
        usage,
        memory_flags: wgpu::hal::MemoryFlags::empty(),
    };
    let kept = memory.clone();
    let callback: wgpu::hal::DropCallback = Box::new(move || drop(kept));
    // SAFETY: the memory keeps the name, which has that many bytes.
    let hal = unsafe {
        let device = device.as_hal::<Gles>().ok_or_else(|| {
            Error::unsupported("this wgpu::Device", "one of wgpu's Vulkan or OpenGL backends")
        })?;
        device.buffer_from_raw(name, &told, Some(callback))
    };
    caught(device, "Device::create_buffer_from_hal", || {
        // SAFETY: a buffer of this device, of that size, whose contents are initialised.
        unsafe { device.create_buffer_from_hal::<Gles>(hal, desc) }
    })
}
