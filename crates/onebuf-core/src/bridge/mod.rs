//! Copies between any two buffers, by the shortest way available.
//!
//! The buffers may belong to different devices, platforms, contexts, or even hubs, and both may be regions. The first way that
//! applies is used:
//!
//! | location of the bytes | action | [`Crossing::way`] |
//! |---|---|---|
//! | source and target are the same place | nothing | `same` |
//! | both are up to date on one device | one copy inside the device | `same` |
//! | one or both are in memory that the host accesses in place | one copy through the pointer | `svm_pointer`, `host_pointer` |
//! | on two devices, neither accessible to the host | pinned chunks, read and written at the same time | `staged` |
//!
//! If the device has its own memory, the third way also uses pinned chunks (`staged`): its driver copies unpinned pages more
//! slowly.
//!
//! ```
//! use onebuf::bridge;
//!
//! let hub = onebuf::discover()?;
//! let (from, to) = (hub.buffer::<f32>(1000).build()?, hub.buffer::<f32>(3000).build()?);
//! from.fill(2.0)?;
//! let crossing = bridge::copy(&from, 10..20, &to, 2990)?;     // ten elements, to the end of `to`
//! println!("{crossing}");                                     // host -> host: same, 40 bytes
//! assert_eq!(to.map()?[2989..2991], [0.0, 2.0]);
//!
//! bridge::from_host(&[7.0; 3], &to, 0)?;
//! let mut back = [0.0; 2];
//! bridge::to_host(&to, 2..4, &mut back)?;
//! assert_eq!(back, [7.0, 0.0]);
//! # Ok::<(), onebuf::Error>(())
//! ```
//!
//! The ledger counts these copies as requested. Copies that hand-overs make in addition, because a driver keeps its own copy or a
//! route failed, count as implied, and are in the report.

mod async_copy;
mod cross;

use crate::{
    buffer::{Buffer, Part, SubBuffer, byte_range},
    fence::Fence,
    observe::What,
    queues::Queue,
};
use bytemuck::Pod;
use cross::{At, cross};
use onebuf_hal::{Error, Result, RouteKind, locks::Ordering};
use serde::Serialize;
use std::{fmt, marker::PhantomData, ops::RangeBounds};

/// One end of a copy: a buffer, or a region of one.
pub struct Place<'b, T: Pod> {
    part: Part<'b>,
    element: PhantomData<T>,
}

impl<'b, T: Pod> From<&'b Buffer<T>> for Place<'b, T> {
    fn from(buffer: &'b Buffer<T>) -> Self {
        Self { part: buffer.part(), element: PhantomData }
    }
}

impl<'b, T: Pod> From<&'b SubBuffer<'_, T>> for Place<'b, T> {
    fn from(region: &'b SubBuffer<'_, T>) -> Self {
        Self { part: region.part(), element: PhantomData }
    }
}

impl<'b, T: Pod> Place<'b, T> {
    fn len(&self) -> usize {
        self.part.span.len() / size_of::<T>()
    }

    /// Returns a range of elements, and its size in bytes.
    fn elements(&self, range: impl RangeBounds<usize>) -> Result<(At<'b>, usize)> {
        let (offset, bytes) = byte_range::<T>(range, self.len())?;
        Ok((At { part: self.part, offset }, bytes))
    }

    /// Returns `elements` elements from index `at` on, and their size in bytes.
    fn starting(&self, at: usize, elements: usize) -> Result<(At<'b>, usize)> {
        let end = at.checked_add(elements);
        self.elements(
            at..end.ok_or_else(|| Error::invalid("the end of the range overflows usize"))?,
        )
    }
}

impl<T: Pod> fmt::Debug for Place<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({:?} of {} bytes)", self.part.span, self.part.core.bytes)
    }
}

/// How a copy was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Crossing {
    /// The device that allocated the source, or `host`.
    pub from: String,
    /// The device that allocated the target, or `host`.
    pub to: String,
    /// The way that the bytes took.
    pub way: RouteKind,
    /// The number of bytes copied, counted as requested; zero if source and target are the same place.
    pub bytes: u64,
    /// The number of chunks that went through host memory; zero for a single copy.
    pub chunks: u64,
    /// The number of bytes that hand-overs of the two buffers copied meanwhile (implied copies).
    pub implied_bytes: u64,
}

impl fmt::Display for Crossing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Crossing { from, to, way, bytes, chunks, implied_bytes } = self;
        write!(f, "{from} -> {to}: {way}, {bytes} bytes")?;
        if *chunks > 0 {
            write!(f, " in {chunks} chunk{}", if *chunks == 1 { "" } else { "s" })?;
        }
        match implied_bytes {
            0 => Ok(()),
            implied => write!(f, ", {implied} bytes implied"),
        }
    }
}

/// Copies a range of elements to those from `at` on, and waits until the copy is complete.
///
/// Source and target may overlap in one buffer; the target then gets the source's earlier contents.
///
/// # Errors
/// [`Error::InvalidArgument`] for a range that is empty or out of bounds, or if the host would have to access a buffer without
/// host access; [`Error::Busy`] while a conflicting guard is held; [`Error::Timeout`]; the driver's errors.
pub fn copy<'a, 'b, T: Pod>(
    from: impl Into<Place<'a, T>>,
    range: impl RangeBounds<usize>,
    to: impl Into<Place<'b, T>>,
    at: usize,
) -> Result<Crossing> {
    let (from, to) = (from.into(), to.into());
    let (from, bytes) = from.elements(range)?;
    let (to, _) = to.starting(at, bytes / size_of::<T>())?;
    let (crossing, under_way) = cross::measured(from, to, bytes, cross::cross_now)?;
    let Some(point) = under_way else { return Ok(crossing) };
    let done = point.wait(to.part.core.hub.timeout());
    [from, to].into_iter().try_for_each(|end| end.part.core.watch(done.clone()))?;
    Ok(crossing)
}

/// Starts a copy like [`copy`], and returns the fence that is reached when it is complete. It does not wait for any queue. Guards
/// taken meanwhile are ordered after the copy, so neither buffer can be used too early.
///
/// The copy is complete when this returns if one end is only on the host, or if the buffers belong to two hubs.
///
/// ```
/// # use onebuf::bridge;
/// # let hub = onebuf::discover()?;
/// # let (from, to) = (hub.buffer::<u8>(64).build()?, hub.buffer::<u8>(64).build()?);
/// let (crossing, fence) = bridge::copy_async(&from, .., &to, 0)?;
/// fence.wait_default()?;
/// assert_eq!(crossing.bytes, 64);
/// # Ok::<(), onebuf::Error>(())
/// ```
///
/// # Errors
/// As for [`copy`]; later errors are reported by the fence.
pub fn copy_async<'a, 'b, T: Pod>(
    from: impl Into<Place<'a, T>>,
    range: impl RangeBounds<usize>,
    to: impl Into<Place<'b, T>>,
    at: usize,
) -> Result<(Crossing, Fence)> {
    let (from, to) = (from.into(), to.into());
    let (from, bytes) = from.elements(range)?;
    let (to, _) = to.starting(at, bytes / size_of::<T>())?;
    let (crossing, under_way) = cross::measured(from, to, bytes, async_copy::cross)?;
    let hub = &to.part.core.hub;
    let point = match under_way {
        Some(point) => point,
        None => hub.service_queue_state(hub.host_index())?.note(),
    };
    Ok((crossing, Fence::new(point, hub.timeout())))
}

impl<T: Pod> Buffer<T> {
    /// Copies a range of another buffer (or of this one) to the elements from `at` on, by the shortest way:
    /// see [`bridge`](crate::bridge). A copy inside one device is only enqueued.
    pub fn copy_from(
        &self,
        at: usize,
        from: &Buffer<T>,
        range: impl RangeBounds<usize>,
    ) -> Result<()> {
        let (from, bytes) = Place::from(from).elements(range)?;
        let (to, _) = Place::from(self).starting(at, bytes / size_of::<T>())?;
        cross(from, to, bytes).map(drop)
    }
}

/// Enqueues a copy of a whole buffer to another one of the same length on a queue of a device that uses both. The host does not wait,
/// and the copy is counted as requested.
///
/// # Errors
/// As for [`copy`]; [`Error::InvalidArgument`] for a buffer of another length.
#[doc(hidden)]
pub fn copy_on<T: Pod>(queue: &Queue, from: &Buffer<T>, to: &Buffer<T>) -> Result<()> {
    if from.len() != to.len() {
        let (from, to) = (from.len(), to.len());
        return Err(Error::invalid(format!("the source has {from} elements, the target {to}")));
    }
    let (from, bytes) = Place::from(from).elements(..)?;
    let (to, _) = Place::from(to).starting(0, bytes / size_of::<T>())?;
    let (a, b) = (from.part.core, to.part.core);
    let began = b.hub.tracer().begin(What::Copy);
    let went = cross::on_queue(from, to, bytes, queue.queue_state.clone())?;
    b.count_asked(a.plan.allocate_on, b.plan.allocate_on, bytes);
    went.tell(began, a, b);
    Ok(())
}

/// Copies a slice to the elements from `at` on.
///
/// # Errors
/// As for [`copy`].
pub fn from_host<'b, T: Pod>(
    from: &[T],
    to: impl Into<Place<'b, T>>,
    at: usize,
) -> Result<Crossing> {
    let (to, bytes) = to.into().starting(at, from.len())?;
    with_host(to, bytes, true, || to.part.write_asked(to.offset, bytemuck::cast_slice(from)))
}

/// Copies a range of elements to a slice of the same length.
///
/// # Errors
/// As for [`copy`]; [`Error::InvalidArgument`] for a slice of another length.
pub fn to_host<'b, T: Pod>(
    from: impl Into<Place<'b, T>>,
    range: impl RangeBounds<usize>,
    into: &mut [T],
) -> Result<Crossing> {
    let (from, bytes) = from.into().elements(range)?;
    if bytes != size_of_val(into) {
        let (have, want) = (into.len(), bytes / size_of::<T>());
        return Err(Error::invalid(format!("the slice has {have} elements, the range has {want}")));
    }
    with_host(from, bytes, false, || {
        from.part.read_asked(from.offset, bytemuck::cast_slice_mut(into))
    })
}

/// Copies between a buffer and the caller's memory.
fn with_host(
    at: At<'_>,
    bytes: usize,
    writes: bool,
    copy: impl FnOnce() -> Result<()>,
) -> Result<Crossing> {
    let core = at.part.core;
    let before = core.implied.load(Ordering::Relaxed);
    copy()?;
    let (way, chunks) = cross::host_way(core, bytes);
    let (host, device) = ("host".to_owned(), core.device_id(core.plan.allocate_on).to_owned());
    let (from, to) = if writes { (host, device) } else { (device, host) };
    let implied_bytes = core.implied.load(Ordering::Relaxed) - before;
    Ok(Crossing { from, to, way, bytes: bytes as u64, chunks: chunks as u64, implied_bytes })
}
