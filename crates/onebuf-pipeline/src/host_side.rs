//! Frames between the host and memory that the host cannot map.
//!
//! ```text
//!   source ─ fills ─► host side ─ copy, on a queue of its own ─► slot's buffer ─► stages ─► … ─ copy ─► host side ─► sink reads
//! ```
//!
//! A host side is memory that the host maps and that the device's copy engine reads or writes directly. The source fills the next one
//! while earlier frames are copied and computed. The slot's buffer is ordered after the copy like after any user, and a host side
//! is not filled again before its copy has ended. Copies are counted as requested.

mod several;

pub use several::{HostMemory, HostSlots};

use bytemuck::Pod;
use onebuf_core::{Buffer, CopyPolicy, Device, MemoryKind, Queue, bridge};
use onebuf_hal::{
    Error, Result,
    locks::{Arc, Mutex},
};

/// The kinds of memory that host sides may have: pages of the process that the driver pins, or pinned memory of the driver.
const KINDS: [MemoryKind; 2] = [MemoryKind::HostPages, MemoryKind::MappedDevice];

/// The direction of the copies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Towards {
    Device,
    Host,
}

/// How the frames of a buffer that the host cannot map come or go.
enum Aside<T: Pod> {
    BySides(Sides<T>),
    /// By transfers between ordinary memory and the device, and the reason.
    ByTransfers(Vec<T>, String),
}

struct Sides<T: Pod> {
    queue: Queue,
    all: Vec<Buffer<T>>,
    next: usize,
}

/// The host's end of a pipeline, for one buffer of each slot.
pub(crate) struct HostEnd<T: Pod> {
    towards: Towards,
    /// Maximum number of host sides.
    most: usize,
    aside: Option<Aside<T>>,
}

impl<T: Pod> HostEnd<T> {
    /// An end for a ring of this many slots, and the function that selects a slot's buffer. The source's or the sink's function and
    /// `Pipeline::explain` share both.
    pub fn new<F>(towards: Towards, slots: usize, buffer: F) -> Arc<Mutex<(Self, F)>> {
        Arc::new(Mutex::new((Self { towards, most: slots.max(2), aside: None }, buffer)))
    }

    /// Describes how the frames of a slot's buffer come or go.
    pub fn explain(&mut self, buffer: &Buffer<T>) -> String {
        let home = &buffer.hub().topology().node(buffer.plan().allocate_on).id;
        let kind = buffer.plan().memory_kind;
        let (part, does, moved) = match self.towards {
            Towards::Device => ("source", "fills", "uploads"),
            Towards::Host => ("sink", "reads", "downloads"),
        };
        if self.maps(buffer) {
            return format!("the {part} {does} {kind} of {home} in place");
        }
        match self.aside(buffer) {
            Aside::BySides(sides) => {
                let pinned = sides.all.first().map_or(KINDS[0], |side| side.plan().memory_kind);
                format!(
                    "the {part} {does} pinned memory ({pinned}), and a queue of its own {moved} it: {kind} of {home} cannot be mapped"
                )
            }
            Aside::ByTransfers(_, why) => {
                format!("the {part} {does} ordinary memory, and each frame is one transfer: {why}")
            }
        }
    }

    /// Whether the host maps the buffer itself. Asked for every frame: a buffer that was exported is no longer mapped.
    fn maps(&self, buffer: &Buffer<T>) -> bool {
        buffer.maps_in_place(self.towards == Towards::Device)
    }

    /// The memory beside a buffer that is not mapped. All slots share it, unless their buffers differ in home or length.
    fn aside(&mut self, buffer: &Buffer<T>) -> &mut Aside<T> {
        if let Some(Aside::BySides(sides)) = &self.aside
            && !sides.fit(buffer)
        {
            self.aside = None;
        }
        self.aside.get_or_insert_with(|| match Sides::open(buffer) {
            Ok(sides) => Aside::BySides(sides),
            Err(why) => Aside::ByTransfers(Vec::new(), why.to_string()),
        })
    }

    /// Lets `fill` write the next frame, and brings it to the buffer if `is_frame` says so.
    pub fn fill<R>(
        &mut self,
        buffer: &Buffer<T>,
        fill: impl FnOnce(&mut [T]) -> Result<R>,
        is_frame: impl FnOnce(&R) -> bool,
    ) -> Result<R> {
        if self.maps(buffer) {
            return fill_mapped(buffer, fill);
        }
        let most = self.most;
        match self.aside(buffer) {
            Aside::BySides(sides) => {
                let (side, queue) = sides.next(most)?;
                let filled = fill_mapped(side, fill)?;
                if is_frame(&filled) {
                    bridge::copy_on(queue, side, buffer)?;
                    queue.flush()?;
                }
                Ok(filled)
            }
            Aside::ByTransfers(aside, _) => {
                aside.resize(buffer.len(), T::zeroed());
                let filled = fill(aside)?;
                if is_frame(&filled) {
                    buffer.write(aside)?;
                }
                Ok(filled)
            }
        }
    }

    /// Lets `take` read the buffer's frame.
    pub fn take(
        &mut self,
        buffer: &Buffer<T>,
        take: impl FnOnce(&[T]) -> Result<()>,
    ) -> Result<()> {
        if self.maps(buffer) {
            return take(&buffer.map()?);
        }
        let most = self.most;
        match self.aside(buffer) {
            Aside::BySides(sides) => {
                let (side, queue) = sides.next(most)?;
                bridge::copy_on(queue, buffer, side)?;
                queue.flush()?;
                take(&side.map()?)
            }
            Aside::ByTransfers(aside, _) => {
                aside.resize(buffer.len(), T::zeroed());
                buffer.read(aside)?;
                take(aside)
            }
        }
    }
}

fn fill_mapped<T: Pod, R>(
    buffer: &Buffer<T>,
    fill: impl FnOnce(&mut [T]) -> Result<R>,
) -> Result<R> {
    let mut map = buffer.map_mut()?;
    let filled = fill(&mut map)?;
    map.unmap()?;
    Ok(filled)
}

impl<T: Pod> Sides<T> {
    /// Opens the queue, and makes the first host side.
    ///
    /// # Errors
    /// Why host pages cannot be used, if no kind can.
    fn open(buffer: &Buffer<T>) -> Result<Self> {
        let (device, first) = side_of(buffer)?;
        Ok(Self { queue: device.queue()?, all: vec![first], next: 0 })
    }

    /// Whether these host sides are for buffers like this one.
    fn fit(&self, buffer: &Buffer<T>) -> bool {
        let same = self.all.first().is_some_and(|side| side.len() == buffer.len());
        same && self.queue.device().index() == buffer.plan().allocate_on
    }

    /// The next host side. Another one is made until there are as many as wanted.
    fn next(&mut self, most: usize) -> Result<(&Buffer<T>, &Queue)> {
        if self.next == self.all.len() && self.all.len() < most {
            let (len, kind) = (self.all[0].len(), self.all[0].plan().memory_kind);
            self.all.push(side(&self.queue.device(), len, kind)?);
        }
        let at = self.next % self.all.len();
        self.next = at + 1;
        Ok((&self.all[at], &self.queue))
    }
}

/// The home of a buffer, and a host side for it, of the first kind that the device's copies use in place.
///
/// # Errors
/// Why host pages cannot be used, if no kind can.
fn side_of<T: Pod>(buffer: &Buffer<T>) -> Result<(Device, Buffer<T>)> {
    let hub = buffer.hub();
    let device = hub.device(&hub.topology().node(buffer.plan().allocate_on).id)?;
    let [pages, pinned] = KINDS;
    let made = side(&device, buffer.len(), pages)
        .or_else(|why| side(&device, buffer.len(), pinned).map_err(|_| why))?;
    Ok((device, made))
}

/// Memory that both the host and the device are known to use in place.
fn side<T: Pod>(device: &Device, len: usize, kind: MemoryKind) -> Result<Buffer<T>> {
    let host = device.hub().host();
    let builder = device.hub().buffer::<T>(len).shared_with([device, &host]).memory_kind(kind);
    let side = builder.copies(CopyPolicy::Forbid).build()?;
    match side.maps_in_place(true) && device.index() != host.index() {
        true => Ok(side),
        false => Err(Error::unsupported(
            format!("{kind} that {device} copies and the host maps"),
            "a driver that uses such memory in place",
        )),
    }
}
