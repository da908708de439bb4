//! Copies between any two buffers, by the shortest way there is.
//!
//! The buffers may belong to different devices, platforms, contexts, even hubs, and both may be regions.
//! In this order:
//!
//! | where the bytes are | what is done | [`Crossing::way`] |
//! |---|---|---|
//! | at the same place | nothing | `same` |
//! | both at hand on one device | one copy inside it | `same` |
//! | one or both in memory that the host sees in place | one copy, straight through the pointer | `svm_pointer`, `host_pointer` |
//! | on two devices, neither seen by the host | pinned chunks, read and written at the same time | `staged` |
//!
//! A chip with memory of its own gets the third way in pinned chunks, too (`staged`): its driver would copy pages
//! that it does not know more slowly than this does.
//!
//! ```
//! use onebuf::bridge;
//!
//! let hub = onebuf::discover()?;
//! let (from, to) = (hub.buffer::<f32>(1000).build()?, hub.buffer::<f32>(3000).build()?);
//! from.fill(2.0)?;
//! let crossing = bridge::copy(&from, 10..20, &to, 2990)?;     // ten elements, to the end of the other
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
//! The ledger counts what was asked for as asked. What hand-overs had to copy besides, because a driver keeps a
//! copy of its own or a route failed, is implied, and in the report.

mod async_copy;
mod cross;

use crate::{
    buffer::{Buffer, Part, SubBuffer, byte_range},
    fence::Fence,
};
use bytemuck::Pod;
use cross::{At, cross};
use onebuf_hal::{Error, Result, RouteKind, locks::Ordering};
use serde::Serialize;
use std::{fmt, marker::PhantomData, ops::RangeBounds};

/// One end of a crossing: a buffer, or a region of one.
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

    /// Elements of it, and how many bytes they are.
    fn elements(&self, range: impl RangeBounds<usize>) -> Result<(At<'b>, usize)> {
        let (offset, bytes) = byte_range::<T>(range, self.len())?;
        Ok((At { part: self.part, offset }, bytes))
    }

    /// So many elements from one on.
    fn starting(&self, at: usize, elements: usize) -> Result<(At<'b>, usize)> {
        let end = at.checked_add(elements);
        self.elements(
            at..end.ok_or_else(|| Error::invalid("a range that ends past the largest index"))?,
        )
    }
}

impl<T: Pod> fmt::Debug for Place<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({:?} of {} bytes)", self.part.span, self.part.core.bytes)
    }
}

/// How a copy went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Crossing {
    /// The device that the source was allocated on, or `host`.
    pub from: String,
    /// The same of the target.
    pub to: String,
    /// By which way the bytes went.
    pub way: RouteKind,
    /// How many were copied, and counted as asked for: none where they were at their place already.
    pub bytes: u64,
    /// In how many chunks they went through host memory; zero where it was one copy.
    pub chunks: u64,
    /// How many bytes hand-overs of the two buffers copied meanwhile, though nobody had asked.
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

/// Copies a range of elements to those from `at` on, and waits until they are there.
///
/// Source and target may be one buffer, and may overlap: the target then holds what the source held.
///
/// # Errors
/// [`Error::InvalidArgument`] for a range that is empty or not inside, or where the host would have to touch a
/// buffer that it must keep away from; [`Error::Busy`] while somebody holds a conflicting guard;
/// [`Error::Timeout`]; the driver's.
pub fn copy<'a, 'b, T: Pod>(
    from: impl Into<Place<'a, T>>,
    range: impl RangeBounds<usize>,
    to: impl Into<Place<'b, T>>,
    at: usize,
) -> Result<Crossing> {
    let (from, to) = (from.into(), to.into());
    let (from, bytes) = from.elements(range)?;
    let (to, _) = to.starting(at, bytes / size_of::<T>())?;
    let (crossing, under_way) = cross::measured(from, to, bytes, cross)?;
    let Some(point) = under_way else { return Ok(crossing) };
    let done = point.wait(to.part.core.hub.timeout());
    [from, to].into_iter().try_for_each(|end| end.part.core.watch(done.clone()))?;
    Ok(crossing)
}

/// Starts the same, and gives the fence that tells when the bytes are there; of everything that is done by a
/// queue, nothing is waited for. Neither buffer can be used before its turn: guards taken meanwhile are ordered
/// behind the copy.
///
/// It is done before this returns where only the host has one end, and where the buffers belong to two hubs.
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
/// As for [`copy`]; what goes wrong later is the fence's.
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
        return Err(Error::invalid(format!("a slice of {have} elements for a range of {want}")));
    }
    with_host(from, bytes, false, || {
        from.part.read_asked(from.offset, bytemuck::cast_slice_mut(into))
    })
}

/// A copy between a buffer and the caller's own memory.
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
