//! [onebuf] for programs that use [glow] 0.18.
//!
//! The OpenGL context that a program made (with glutin, SDL or EGL itself) becomes a device of the hub, and its buffers become
//! onebuf's, and back. The context must be one of EGL, 4.3 or newer, and current on the calling thread.
//!
//! ```no_run
//! use glow::HasContext;
//! use onebuf::prelude::*;
//! use onebuf_glow::{GlowHubExt, GlowViewExt};
//! # fn run(gl: &glow::Context, vertices: glow::Buffer, draw: impl Fn(glow::Buffer)) -> onebuf::Result<()> {
//! let hub = onebuf::discover()?;
//! // SAFETY: the context is current here, and outlives everything below.
//! let glow = unsafe { hub.glow(gl) }?;
//! let here = glow.queue()?;                                    // the program's context, on this thread
//! // SAFETY: a buffer of this context, which is not deleted before.
//! let data = unsafe { glow.wrap::<f32>(vertices) }.after(&here.fence()).build()?;
//! data.fill(1.0)?;                                             // by onebuf, in a context of its own
//! let view = here.read(&data)?;                                // the program's next calls come after it
//! draw(view.glow_buffer()?);
//! # Ok(())
//! # }
//! ```
//!
//! # Safety
//! The callers guarantee the context and the buffers; onebuf checks what OpenGL reports.

#![allow(unsafe_code)]

use bytemuck::Pod;
use glow::HasContext;
use onebuf::{
    Buffer, Error, ForeignGl, Hub, NativeMemory, ReadView, Result, WrapBuilder, WriteView,
    prelude::*,
};
use std::{num::NonZeroU32, ops::Deref};

/// A program's OpenGL context, registered with a hub. It dereferences to [`ForeignGl`]. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Glow(ForeignGl);

/// Objects of glow on a [`Hub`].
pub trait GlowHubExt {
    /// Registers the program's OpenGL context, which is current on this thread: see [`GlHubExt::foreign_gl`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] for OpenGL ES and before 4.3; [`Error::InvalidArgument`] if OpenGL has an error pending, which
    /// would be taken for onebuf's; and those of [`GlHubExt::foreign_gl`].
    ///
    /// # Safety
    /// `gl` has the functions of the context that is current on this thread. That was created by the EGL library that this hub
    /// has loaded, and is not destroyed before the result, and everything created in it, is gone.
    unsafe fn glow(&self, gl: &glow::Context) -> Result<Glow>;
}

impl GlowHubExt for Hub {
    unsafe fn glow(&self, gl: &glow::Context) -> Result<Glow> {
        let version = gl.version();
        if version.is_embedded || (version.major, version.minor) < (4, 3) {
            let es = if version.is_embedded { " ES" } else { "" };
            let what = format!("a context of OpenGL{es} {}.{}", version.major, version.minor);
            return Err(Error::unsupported(what, "OpenGL 4.3 or newer"));
        }
        // SAFETY: the caller's contract.
        match unsafe { gl.get_error() } {
            // SAFETY: the caller's contract.
            glow::NO_ERROR => unsafe { self.foreign_gl() }.map(Glow),
            error => Err(Error::invalid(format!("an OpenGL error is pending: {error:#06x}"))),
        }
    }
}

impl Glow {
    /// Wraps a buffer of the program, without a copy: see [`GlHubExt::wrap_gl_buffer`]. Where the program's context is current, that is
    /// asked for the buffer's size, and onebuf's thread is not woken.
    ///
    /// # Safety
    /// As for [`GlHubExt::wrap_gl_buffer`].
    pub unsafe fn wrap<T: Pod>(&self, buffer: glow::Buffer) -> WrapBuilder<'_, T> {
        // SAFETY: the caller's contract.
        unsafe { self.hub().wrap_gl_buffer(&self.0, buffer.0.get()) }
    }

    /// The OpenGL buffer behind a buffer that is shared with [`ForeignGl::device`], for the program's own calls. Its name lives
    /// as long as the result, which grants no access: calls that use it need a view on [`ForeignGl::queue`], and bind it after
    /// the view was taken.
    ///
    /// # Errors
    /// As for [`Buffer::native_memory`].
    pub fn buffer<T: Pod>(&self, buffer: &Buffer<T>) -> Result<GlowBuffer> {
        let memory = buffer.native_memory(&self.device())?;
        if memory.offset() != 0 {
            let what = format!("an OpenGL buffer that begins at byte {}", memory.offset());
            return Err(Error::unsupported(what, "a buffer of its own"));
        }
        let name = name(memory.object("gl")? as u32)?;
        Ok(GlowBuffer { name, _memory: memory })
    }
}

impl Deref for Glow {
    type Target = ForeignGl;

    fn deref(&self) -> &ForeignGl {
        &self.0
    }
}

/// An OpenGL buffer of onebuf. Do not delete it: its memory is freed after this and the [`Buffer`] are dropped.
#[derive(Clone, Debug)]
pub struct GlowBuffer {
    name: glow::Buffer,
    _memory: NativeMemory,
}

impl GlowBuffer {
    /// glow's name of the buffer.
    pub fn get(&self) -> glow::Buffer {
        self.name
    }
}

/// A view as glow's buffer.
pub trait GlowViewExt {
    /// The buffer, for calls in the view's context. It is valid until the view is dropped. Bind it after the view was taken:
    /// OpenGL shows another context's changes to bindings that are made later.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a view on a queue of another API.
    fn glow_buffer(&self) -> Result<glow::Buffer>;
}

impl<T: Pod> GlowViewExt for ReadView<'_, T> {
    fn glow_buffer(&self) -> Result<glow::Buffer> {
        self.gl_name().and_then(name)
    }
}

impl<T: Pod> GlowViewExt for WriteView<'_, T> {
    fn glow_buffer(&self) -> Result<glow::Buffer> {
        self.gl_name().and_then(name)
    }
}

fn name(name: u32) -> Result<glow::Buffer> {
    let name = NonZeroU32::new(name).ok_or_else(|| Error::invalid("an OpenGL buffer: zero"))?;
    Ok(glow::NativeBuffer(name))
}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/neighbours/glow.md")]
struct ComingFrom;
