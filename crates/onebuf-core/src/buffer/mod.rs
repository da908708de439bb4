//! `Buffer<T>`: typed memory that is accessible to a set of devices.

mod alias;
mod batch;
mod builder;
mod core;
mod export;
mod exposed;
mod failover;
mod few;
pub mod flags;
mod guard_entries;
mod hand_over;
mod hold;
mod imported;
mod in_place;
mod io;
mod label;
mod landing;
mod lease;
mod lent;
mod make;
mod map;
mod owned;
mod owner;
mod pages;
mod part;
mod pending;
mod rest;
mod span;
mod staging;
mod state;
mod sub;
mod take;
mod transition;
mod wait;

pub(crate) use alias::{Alias, HOME, Seen};
pub use batch::WriteBatch;
pub use builder::BufferBuilder;
pub(crate) use builder::stricter;
pub use core::Core;
pub(crate) use core::{CorePool, Lender, Loan};
pub use export::{Exported, ImportBuilder};
pub(crate) use few::Few;
pub(crate) use guard_entries::GuardEntry;
pub use hold::Hold;
pub use make::Shape;
pub(crate) use make::{Lent, make, make_around};
pub use map::{Map, MapMut, MapWrite};
use owned::Owned;
pub(crate) use owner::{Claim, Tag};
pub(crate) use part::Part;
pub use part::Window;
pub use pending::Pending;
pub(crate) use span::Span;
pub use sub::SubBuffer;
pub(crate) use take::Taken;

use crate::{device::Device, fence::Fence, hub::Hub, plan::Plan};
use bytemuck::Pod;
use onebuf_hal::{
    Access, Error, Result,
    locks::{Arc, lock},
};
use std::{fmt, marker::PhantomData, ops::RangeBounds};

/// Typed memory accessible to a set of devices. One allocation, unless a device needs a staged copy.
///
/// All methods take `&self`: guards decide at run time which queue may use the buffer. There are many
/// readers or one writer; a conflicting request gets [`Error::Busy`] until the guards in the way are dropped.
pub struct Buffer<T: Pod> {
    core: Owned,
    /// The range of the core's memory, when the buffer wraps a foreign sub-buffer.
    window: Option<Box<Window>>,
    element: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    fn new(core: Core) -> Self {
        Self::from_box(Box::new(core))
    }

    pub(crate) fn from_box(core: Box<Core>) -> Self {
        Self { core: Owned::new(core), window: None, element: PhantomData }
    }

    /// Makes the core shared and returns it. Only for a buffer that does not come from a pool.
    pub(crate) fn share_core(&mut self) -> Arc<Core> {
        self.core.share()
    }

    /// A buffer on a core that other buffers, wrapped around the same memory, may share.
    pub(crate) fn sharing(core: Arc<Core>, window: Option<Window>) -> Self {
        let window = window.map(Box::new);
        Self { core: Owned::Together(Some(core)), window, element: PhantomData }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.size_bytes() / size_of::<T>()
    }

    /// Always false: a buffer has at least one element.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the size in bytes.
    pub fn size_bytes(&self) -> usize {
        self.part().span.len()
    }

    /// Returns the hub that the buffer belongs to.
    pub fn hub(&self) -> &Hub {
        &self.core.hub
    }

    /// Returns the plan that the buffer was built by.
    pub fn plan(&self) -> &Plan {
        &self.core.plan
    }

    /// Describes where the memory is, which route each device uses, and why better routes were rejected.
    pub fn explain(&self) -> String {
        let mut text = self.core.plan.explain(self.core.hub.topology());
        let (access, host) = (self.part().access, self.core.host);
        text.push_str(&format!("\nfor kernels: {access}; for the host: {host}"));
        for alias in &self.core.aliases {
            if let Some(remark) = alias.memory().and_then(|m| m.remark()) {
                let id = self.core.device_id(alias.device);
                text.push_str(&format!("\n{id} ({}): {remark}", alias.kind()));
            }
        }
        self.core.explain_failures(&mut text);
        text
    }

    /// What kernels may do with the buffer.
    pub fn access(&self) -> Access {
        self.part().access
    }

    /// Does the first part of a hand-over to `device` now: the queues that used the buffer release it, behind their work so far.
    /// A later view on that device then enqueues nothing on other queues.
    ///
    /// This is for batches on a GPU that alternates between two APIs: a release that is enqueued only when the other API takes
    /// the buffer switches the GPU back to the first API's context, once per buffer. Release all buffers, wait once, then continue
    /// with the other API:
    ///
    /// ```no_run
    /// # use onebuf::{Access, Buffer, Device, Queue, Result};
    /// # fn stage(frame: &Buffer<f32>, queue: &Queue) -> Result<()> { Ok(()) }
    /// # fn batch(frames: &[Buffer<f32>], first: &Queue, second: &Queue) -> Result<()> {
    /// frames.iter().try_for_each(|frame| stage(frame, first))?;
    /// frames.iter().try_for_each(|frame| frame.release_to(&second.device(), Access::ReadWrite))?;
    /// first.finish()?;
    /// frames.iter().try_for_each(|frame| stage(frame, second))
    /// # }
    /// ```
    ///
    /// For [`Access::Read`] the other devices may continue to read. Where that takes more driver calls, as with imported memory,
    /// release for [`Access::ReadWrite`] instead.
    ///
    /// # Errors
    /// [`Error::NotShared`], [`Error::Busy`] while a conflicting guard is held, and the driver's errors. The buffer stays usable
    /// after an error.
    pub fn release_to(&self, device: &Device, access: Access) -> Result<()> {
        if !self.core.hub.is(device.hub()) {
            return Err(Error::ForeignContext {
                have: format!("a device of another hub ({device})"),
                want: "a device of the buffer's hub".into(),
            });
        }
        self.core.release_to(device.index(), access.writes())
    }

    #[inline]
    pub(crate) fn part(&self) -> Part<'_> {
        match &self.window {
            None => Part::whole(&self.core),
            Some(window) => window.part(&self.core),
        }
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// Returns the core, unless the buffer is only a part of its memory.
    pub(crate) fn whole_core(&self) -> Result<&Core> {
        match self.window {
            None => Ok(&self.core),
            Some(_) => Err(Error::unsupported("this with a part of a buffer", "a whole one")),
        }
    }

    /// Identifies the buffer's memory, and says which of its bytes the buffer is. Two wraps of the same memory have the same number.
    #[doc(hidden)]
    pub fn extent(&self) -> (usize, std::ops::Range<usize>) {
        let Part { core, span, .. } = self.part();
        (core as *const Core as usize, span.start..span.end)
    }

    /// Whether a plan has chosen where its memory is: not for memory that was imported from another process.
    #[doc(hidden)]
    pub fn was_planned(&self) -> bool {
        self.core.plan.score.place.is_some()
    }

    /// Whether the buffer wraps foreign memory.
    pub fn is_foreign(&self) -> bool {
        self.core.is_foreign()
    }

    pub(crate) fn note_foreign(&self, fence: &Fence, write: bool) -> Result<()> {
        self.core.note_foreign(self.part().span, fence, write)
    }

    pub(crate) fn add_claim(&self, claim: Option<Claim>) {
        if let Some(claim) = claim {
            lock(&self.core.claims).push(claim);
        }
    }

    /// Takes the buffer out of its pool permanently: it is freed when dropped. Use this when other code keeps a handle
    /// of the memory.
    pub fn detach(&self) {
        self.core.lock_state().detached = true;
    }

    /// Returns a fence of the last writes on all queues, or of the last reads if nothing was written yet.
    /// `None` if there was no work at all.
    pub fn fence(&self) -> Option<Fence> {
        self.core.fence(self.part().span)
    }

    /// Returns a fence of the last writes and the reads since: what a writer waits for. `None` if there was no
    /// work at all.
    pub fn uses(&self) -> Option<Fence> {
        self.core.uses(self.part().span)
    }

    /// Checks a range of elements; returns its byte offset and its number of bytes.
    fn byte_range(&self, range: impl RangeBounds<usize>) -> Result<(usize, usize)> {
        byte_range::<T>(range, self.len())
    }
}

/// Checks a range of `len` elements; returns its byte offset and its number of bytes.
pub(crate) fn byte_range<T>(range: impl RangeBounds<usize>, len: usize) -> Result<(usize, usize)> {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    let overflow = || Error::invalid("the end of the range overflows usize");
    let start = match range.start_bound() {
        Included(&at) => at,
        Excluded(&at) => at.checked_add(1).ok_or_else(overflow)?,
        Unbounded => 0,
    };
    let end = match range.end_bound() {
        Included(&at) => at.checked_add(1).ok_or_else(overflow)?,
        Excluded(&at) => at,
        Unbounded => len,
    };
    if start >= end || end > len {
        return Err(Error::invalid(format!(
            "elements {start}..{end} of a buffer of {len}: the range must be non-empty and inside"
        )));
    }
    Ok((start * size_of::<T>(), (end - start) * size_of::<T>()))
}

impl<T: Pod> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let element = std::any::type_name::<T>();
        let home = self.core.device_id(self.core.plan.allocate_on);
        write!(
            f,
            "Buffer<{element}>({} elements on {home}, {})",
            self.len(),
            self.core.plan.memory_kind
        )
    }
}
