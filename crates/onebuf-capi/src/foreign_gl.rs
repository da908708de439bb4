//! Foreign OpenGL contexts
//!
//! An EGL context that the application created becomes a device of the hub, such as `gl:0@1`: a context of onebuf that
//! shares objects with it. Buffers of the application can be wrapped, and buffers of onebuf on that device can be bound in
//! the application's context by their names (onebuf_view_gl_name()). OpenGL has no reference counts: the caller
//! guarantees that the context outlives everything made with it, and that it was created by the EGL library that the hub
//! has loaded (`onebuf_hub_options.egl_library`).

use crate::{
    buffer::onebuf_buffer,
    device::onebuf_device,
    entry::{entry, free},
    handle::{Noun, noun},
    hub::onebuf_hub,
    input::{Options, Slot, give, out},
    queue::onebuf_queue,
    registered::Registered,
    status::onebuf_status,
    wrap::{WrapOptions, onebuf_wrap_options},
};
use onebuf::{ForeignGl, prelude::*};

/// An OpenGL context of the application. Free it with onebuf_gl_free().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_gl {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_gl, Registered<ForeignGl>, 21);

/// Properties of an OpenGL buffer. Set `size`; the call fills in the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_gl_buffer_info {
    /// `sizeof(onebuf_gl_buffer_info)`.
    pub size: usize,
    /// Size in bytes.
    pub bytes: usize,
    /// The usage hint (`GL_STATIC_DRAW` and others).
    pub usage: u32,
    /// Not zero: it was created by `glBufferStorage`, so that its size cannot change.
    pub is_immutable: u32,
    /// The storage flags of an immutable buffer.
    pub storage_flags: u32,
    /// Not zero: the host has it mapped.
    pub is_mapped: u32,
    /// The access flags of the mapping.
    pub map_flags: u32,
}
// SAFETY: plain numbers, the size first.
unsafe impl Options for onebuf_gl_buffer_info {}

/// Registers the OpenGL context that is current on this thread. Registering the same context again returns the same
/// registration. ONEBUF_INVALID_ARGUMENT if none is current; ONEBUF_UNAVAILABLE for a hub without OpenGL. The context has
/// no pending error, and stays alive until everything made with it is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_gl_wrap(hub: onebuf_hub, gl: Slot<'_, onebuf_gl>) -> onebuf_status {
    entry(|| {
        let gl = out(gl, "gl")?;
        // SAFETY: guaranteed by the caller.
        let found = unsafe { hub.get()?.hub.foreign_gl()? };
        let device = found.device();
        *gl = onebuf_gl::put(Registered::new(found, device)?)?;
        Ok(())
    })
}

/// The context's device: a context of onebuf that shares objects with it, for every thread. The handle ends with `gl`.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_gl_device(
    gl: onebuf_gl,
    device: Slot<'_, onebuf_device>,
) -> onebuf_status {
    entry(|| {
        let device = out(device, "device")?;
        *device = gl.get()?.device;
        Ok(())
    })
}

/// The application's context itself as a queue: calls are made on this thread, at once, between those of the application.
/// Use it, and free its views, only on this thread; calls on others are refused. Launches change the current program,
/// `GL_COPY_READ_BUFFER`, `GL_COPY_WRITE_BUFFER` and the blocks that the kernel uses. ONEBUF_FOREIGN_CONTEXT if the
/// context is not current on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_gl_queue(gl: onebuf_gl, queue: Slot<'_, onebuf_queue>) -> onebuf_status {
    entry(|| {
        let queue = out(queue, "queue")?;
        *queue = onebuf_queue::put((*gl.get()?.context.queue()?).clone())?;
        Ok(())
    })
}

/// Queries an OpenGL buffer of the context. ONEBUF_INVALID_ARGUMENT if there is no such buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_gl_buffer_query(
    gl: onebuf_gl,
    name: u32,
    info: *mut onebuf_gl_buffer_info,
) -> onebuf_status {
    entry(|| {
        let found = gl.get()?.context.buffer_info(name)?;
        let told = onebuf_gl_buffer_info {
            size: 0,
            bytes: found.bytes,
            usage: found.usage,
            is_immutable: found.is_immutable.into(),
            storage_flags: found.storage_flags,
            is_mapped: found.is_mapped.into(),
            map_flags: found.map_flags,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { give(told, info, "info") }
    })
}

/// Wraps an OpenGL buffer of the context, or of one that shares with it, without a copy. `options` may be NULL. The
/// application's earlier work on it is done (`glFinish`), or ends at a fence in `options.after`: one of
/// onebuf_gl_queue(). The buffer is not deleted, reallocated or mapped while it is wrapped. `options.release` gets the name
/// as a pointer. ONEBUF_INVALID_ARGUMENT for another size than the options require.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_buffer_wrap_gl(
    gl: onebuf_gl,
    name: u32,
    options: *const onebuf_wrap_options,
    buffer: Slot<'_, onebuf_buffer>,
) -> onebuf_status {
    entry(|| {
        let buffer = out(buffer, "buffer")?;
        let context = &gl.get()?.context;
        // SAFETY: guaranteed by the caller, also for what the options point at.
        let made = unsafe {
            let options = WrapOptions::read(options)?;
            options.build(context.hub().wrap_gl_buffer(context, name))?
        };
        *buffer = onebuf_buffer::put(made.into())?;
        Ok(())
    })
}

/// Frees a registration and the handle of its device. Objects made with it stay usable; the context itself is not
/// touched.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_gl_free(gl: onebuf_gl) -> onebuf_status {
    free(gl)
}
