//! Foreign contexts and buffers.

use super::{
    asked::{Asked, Unfit, ask},
    context::{Context, Enter},
    conv,
    device::{Device, Driver},
    discover::Library,
    memory::{Memory, TARGET},
    queue::Queue,
};
use onebuf_hal::{
    self as hal, DeviceEntries, Domain, Error, KnownAs, PhysicalId, Result, locks::Arc,
    watchdog::Post,
};
use onebuf_sys::gl::{EglContext, Gl, GlRefused, consts};
use std::any::Any;

/// A foreign context, and onebuf's context that shares its objects. Keeps the latter alive.
#[derive(Debug)]
pub struct ForeignDevice {
    ours: Arc<Context>,
    theirs: EglContext,
}

/// Properties of a foreign buffer.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// `GL_BUFFER_SIZE`.
    pub bytes: usize,
    /// `GL_BUFFER_USAGE`.
    pub usage: u32,
    /// `GL_BUFFER_IMMUTABLE_STORAGE`.
    pub is_immutable: bool,
    /// `GL_BUFFER_STORAGE_FLAGS`.
    pub storage_flags: u32,
    /// `GL_BUFFER_MAPPED`.
    pub is_mapped: bool,
    /// `GL_BUFFER_ACCESS_FLAGS`.
    pub map_flags: u32,
}

impl Facts {
    /// Whether `glBufferSubData` may write the buffer.
    fn takes_writes(&self) -> bool {
        !self.is_immutable || self.storage_flags & consts::DYNAMIC_STORAGE_BIT != 0
    }

    /// Whether the host has it mapped in a way that excludes shaders.
    fn is_held(&self) -> bool {
        self.is_mapped && self.map_flags & consts::MAP_PERSISTENT_BIT == 0
    }
}

impl hal::Library for Library {}

impl Library {
    /// Returns the context that is current on this thread, if any.
    pub fn current(&self) -> Option<usize> {
        let context = self.table.current_context();
        (!context.is_null()).then_some(context.0 as usize)
    }

    /// Registers the context that is current on this thread, for the lifetime of the returned object.
    ///
    /// # Safety
    /// The conditions of `Library::adopt`.
    pub unsafe fn enter_current(
        &self,
        entries: &mut dyn DeviceEntries,
    ) -> Result<Arc<dyn Any + Send + Sync>> {
        // SAFETY: the caller keeps the foreign context alive, as `adopt` requires.
        let (device, foreign_device) = unsafe { self.adopt(entries.new_domain()) }?;
        let device = Arc::new(device);
        let same = |left: &dyn hal::Device| {
            let left = left.as_any().downcast_ref::<Device>();
            left.is_some_and(|left| hal::Device::info(left) == hal::Device::info(&*device))
        };
        let entry_device = entries.entry(device.clone(), KnownAs::Like, &same)?;
        let entry_device = entry_device.as_any().downcast_ref::<Device>();
        entry_device
            .ok_or_else(|| Error::invalid("a device entry of another API"))?
            .host_foreign_device(&foreign_device);
        Ok(Arc::new(foreign_device))
    }

    /// Creates a device for foreign contexts, and a context that shares objects with the one that is current here.
    ///
    /// # Safety
    /// The foreign context stays alive until the returned `ForeignDevice` is dropped.
    unsafe fn adopt(&self, domain: Domain) -> Result<(Device, ForeignDevice)> {
        let (theirs, display) = (self.table.current_context(), self.table.current_display());
        if theirs.is_null() || display.is_null() {
            return Err(Error::invalid("no EGL context is current on this thread"));
        }
        let Asked { mut info, limits, habits } = ask(&self.table, &self.identity).map_err(unfit)?;
        let same = |chip: &&PhysicalId| chip.uuid.is_some() && chip.uuid == info.physical.uuid;
        info.physical = *self.chips.iter().find(same).unwrap_or(&info.physical);
        let table = self.table.clone();
        let post = Post::new("gl", info.name.clone());
        let driver = Arc::new(Driver { table, display, domain, info, limits, habits, post });
        let ours = Arc::new(Context::sharing(&driver, theirs)?);
        Ok((Device::entry(driver), ForeignDevice { ours, theirs }))
    }
}

fn unfit(why: Unfit) -> Error {
    match why {
        Unfit::TooOld(version) => Error::unsupported(
            format!("a context of OpenGL {version}"),
            "OpenGL 4.4, or 4.3 with GL_ARB_buffer_storage",
        ),
        Unfit::Refused(refused) => conv::refused(refused, "the current context"),
    }
}

impl Device {
    /// Uses the context that shares with the foreign one from now on, while the foreign device lives.
    pub fn host_foreign_device(&self, foreign_device: &ForeignDevice) {
        self.admit(&foreign_device.ours);
    }
}

impl ForeignDevice {
    /// Creates a queue over the foreign context itself, on the thread where it is current.
    pub fn queue(&self) -> Result<Arc<dyn hal::Queue>> {
        let inline = Context::inline(&self.ours, self.theirs)?;
        Ok(Arc::new(Queue::new(Arc::new(inline), false)))
    }

    /// Creates a queue over the foreign context, which `enter` makes current on any thread for the time of a call.
    pub fn entered_queue(&self, enter: Enter) -> Result<Arc<dyn hal::Queue>> {
        let entered = Context::entered(&self.ours, self.theirs, enter)?;
        Ok(Arc::new(Queue::new(Arc::new(entered), false)))
    }

    /// Queries a buffer's properties, from any thread. Where the foreign context is current it is asked itself: to wake the thread of
    /// our context takes longer than all queries.
    pub fn facts(&self, name: u32) -> Result<Facts> {
        let driver = &self.ours.driver;
        let facts = match driver.table.current_context() == self.theirs {
            true => driver.check(facts_here(&driver.table, name)),
            false => self.ours.run(|gl| facts(gl, name)),
        }?;
        facts.ok_or_else(|| Error::invalid(format!("{name} is no buffer of this OpenGL context")))
    }

    /// Wraps a foreign buffer with these properties. Its owner still deletes it.
    ///
    /// # Safety
    /// The buffer is not deleted or given other storage while the memory, or work on it, exists.
    pub unsafe fn wrap(&self, name: u32, facts: &Facts) -> Result<Arc<dyn hal::Memory>> {
        if facts.is_held() {
            return Err(Error::Busy {
                what: "its owner has the OpenGL buffer mapped: unmap it first".to_owned(),
            });
        }
        let limit = self.ours.driver.info.caps.max_alloc_bytes;
        if facts.bytes == 0 || facts.bytes as u64 > limit {
            let bytes = facts.bytes;
            return Err(Error::invalid(format!("an OpenGL buffer of {bytes} bytes: 1 to {limit}")));
        }
        Ok(Arc::new(Memory::lent(self.ours.clone(), name, facts.bytes, facts.takes_writes())))
    }
}

/// Queries a buffer's properties in the foreign context, which is current on this thread, and binds again what was bound.
fn facts_here(gl: &Gl, name: u32) -> Result<Option<Facts>, GlRefused> {
    let mut bound = 0;
    // SAFETY: the context is current. The target's own name asks for the buffer that is bound there.
    unsafe {
        gl.pending()?;
        gl.integer(TARGET, &raw mut bound)?;
    }
    let facts = facts(gl, name);
    // SAFETY: as above; the name was bound before.
    unsafe { gl.bind_buffer(TARGET, bound as u32)? };
    facts
}

/// Queries a buffer's properties; `None` if the name is no buffer.
fn facts(gl: &Gl, name: u32) -> Result<Option<Facts>, GlRefused> {
    let number = |what| {
        let mut number = 0i64;
        // SAFETY: the context is current, a buffer is bound, and the query writes one number.
        unsafe { gl.buffer_integer(TARGET, what, &raw mut number) }.map(|()| number)
    };
    // SAFETY: the context is current; `is_buffer` accepts any number, and only a buffer is bound.
    unsafe {
        if name == 0 || gl.is_buffer(name)? == 0 {
            return Ok(None);
        }
        gl.bind_buffer(TARGET, name)?;
    }
    let flags = |what| number(what).map(|number| number as u32);
    Ok(Some(Facts {
        bytes: usize::try_from(number(consts::BUFFER_SIZE)?).unwrap_or(0),
        usage: flags(consts::BUFFER_USAGE)?,
        is_immutable: number(consts::BUFFER_IMMUTABLE_STORAGE)? != 0,
        storage_flags: flags(consts::BUFFER_STORAGE_FLAGS)?,
        is_mapped: number(consts::BUFFER_MAPPED)? != 0,
        map_flags: flags(consts::BUFFER_ACCESS_FLAGS)?,
    }))
}
