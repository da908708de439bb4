//! `Buffer<T>`: typed memory that a set of devices sees.

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
mod lease;
mod lent;
mod make;
mod map;
mod owned;
mod owner;
mod pages;
mod part;
mod pending;
mod span;
mod staging;
mod state;
mod sub;
mod transition;

pub use batch::WriteBatch;
pub use builder::BufferBuilder;
pub(crate) use builder::stricter;
pub use core::Core;
pub(crate) use core::{Alias, Taken};
pub use export::{Exported, ImportBuilder};
pub(crate) use few::Few;
pub(crate) use guard_entries::GuardEntry;
pub use hold::Hold;
pub use make::Shape;
pub(crate) use make::{Lent, make, make_around};
pub use map::{Map, MapMut};
use owned::Owned;
pub(crate) use owner::{Claim, Lender, Loan, Owner, Tag};
pub use part::Window;
pub(crate) use part::{Part, Seen};
pub use pending::Pending;
pub(crate) use span::Span;
pub use sub::SubBuffer;

use crate::{device::Device, fence::Fence, hub::Hub, plan::Plan};
use bytemuck::Pod;
use onebuf_hal::{
    Access, Error, Result,
    locks::{Arc, lock},
};
use std::{fmt, marker::PhantomData, ops::RangeBounds};

/// Typed memory visible to a set of devices. One allocation, however many devices see it.
///
/// All methods take `&self`: who may use the buffer when is decided at run time, by guards. Many
/// readers or one writer; a second one gets [`Error::Busy`] until the first guard is dropped.
pub struct Buffer<T: Pod> {
    core: Owned,
    /// Which part of the core's memory it is, when that is somebody else's sub-buffer.
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

    /// Its core, for others to have as well. For a buffer that comes from no pool.
    pub(crate) fn share_core(&mut self) -> Arc<Core> {
        self.core.share()
    }

    /// Around memory that others may have wrapped as well.
    pub(crate) fn sharing(core: Arc<Core>, window: Option<Window>) -> Self {
        let window = window.map(Box::new);
        Self { core: Owned::Together(core), window, element: PhantomData }
    }

    /// How many elements.
    pub fn len(&self) -> usize {
        self.size_bytes() / size_of::<T>()
    }

    /// Never: a buffer has at least one element.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// How many bytes.
    pub fn size_bytes(&self) -> usize {
        self.part().span.len()
    }

    /// The hub it belongs to.
    pub fn hub(&self) -> &Hub {
        &self.core.hub
    }

    /// The plan it was built by.
    pub fn plan(&self) -> &Plan {
        &self.core.plan
    }

    /// Where it lies, who sees it by which route, and why no better one was taken.
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

    /// Does the first part of a hand-over now: those that had the buffer release it, behind their work so far. Whoever takes
    /// it on that device later finds nothing left to be enqueued elsewhere.
    ///
    /// For batches on a GPU that changes between two APIs: a release that is enqueued only when the other side asks takes the GPU
    /// back to the first one's context, for every buffer. Release them all, wait once, and go on with the other:
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
    /// For [`Access::Read`] the others may go on reading; where that takes more calls, as with imported memory, it is better
    /// to release it for everything.
    ///
    /// # Errors
    /// [`Error::NotShared`], [`Error::Busy`] while somebody else holds a guard that is in the way, and the driver's: the buffer
    /// can be used then as before.
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

    /// What it is, when it is not a part of something.
    pub(crate) fn whole_core(&self) -> Result<&Core> {
        match self.window {
            None => Ok(&self.core),
            Some(_) => Err(Error::unsupported("this with a part of a buffer", "a whole one")),
        }
    }

    /// Whether its memory is somebody else's.
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

    /// Takes the buffer out of its pool for good: dropped, it is freed. For memory that somebody else keeps
    /// a handle of.
    pub fn detach(&self) {
        self.core.lock_state().detached = true;
    }

    /// The last writes as a fence, of every queue that has one (the last reads, where nothing was written
    /// yet); `None` when there was no work at all.
    pub fn fence(&self) -> Option<Fence> {
        self.core.fence(self.part().span)
    }

    /// The last writes and the reads since as one fence: what a writer waits for. `None` when there was no
    /// work at all.
    pub fn uses(&self) -> Option<Fence> {
        self.core.uses(self.part().span)
    }

    /// Checks a range of elements; gives its first byte and its number of bytes.
    fn byte_range(&self, range: impl RangeBounds<usize>) -> Result<(usize, usize)> {
        byte_range::<T>(range, self.len())
    }
}

/// A range of elements among `len`: its first byte and its number of bytes.
pub(crate) fn byte_range<T>(range: impl RangeBounds<usize>, len: usize) -> Result<(usize, usize)> {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    let overflow = || Error::invalid("a range that ends past the largest index");
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
