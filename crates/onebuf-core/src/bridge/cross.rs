//! Chooses the way of a copy, and makes it.
//!
//! # Safety
//! A driver gets the address of a map that onebuf owns, whose buffer is kept until the transfer is over.

#![allow(unsafe_code)]

use super::Crossing;
use crate::{
    buffer::{Alias, Core, HOME, Hold, Part},
    ledger::Cause,
    observe::{Began, Timed, What},
    queue_state::{QueuePoint, QueueState},
    route::{
        means::Stretch,
        staged::{self, End, Order},
    },
};
use onebuf_hal::{
    Access, AccessState, Error, HostAccess, MemoryKind, Result, RouteKind,
    locks::{Arc, Ordering},
};
use std::ptr::NonNull;

/// A place in a buffer or region: the part, and the offset in it.
#[derive(Clone, Copy)]
pub(crate) struct At<'b> {
    pub part: Part<'b>,
    pub offset: usize,
}

/// The result of a copy: way, size, chunks, and the unfinished work.
pub(crate) struct Went {
    pub way: RouteKind,
    pub bytes: usize,
    pub chunks: usize,
    pub under_way: Option<QueuePoint>,
    /// The queue that did most of the work.
    pub on: Option<Arc<QueueState>>,
    /// The device's times, for a trace.
    pub timed: Option<Timed>,
}

/// An overlapping move inside one buffer that needs more pieces than this goes through the host.
const MOST_PIECES: usize = 16;

/// The size of one step of a copy between two hubs.
const BOUNCE_BYTES: usize = 16 << 20;

impl Went {
    /// Source and target are the same place: nothing was moved.
    pub fn nowhere() -> Self {
        Self { way: RouteKind::Same, bytes: 0, chunks: 0, under_way: None, on: None, timed: None }
    }
}

impl<'b> At<'b> {
    /// The offset in the whole buffer.
    fn absolute(&self) -> usize {
        self.part.span.start + self.offset
    }

    /// Whether a copy of `bytes` bytes covers the whole buffer.
    pub fn is_all(&self, bytes: usize) -> bool {
        bytes == self.part.core.bytes
    }

    /// Takes the buffer for writing. Older contents are not brought along if all of them will be overwritten.
    pub fn target(&self, queue_state: &Arc<QueueState>, bytes: usize) -> Result<Hold<'b>> {
        match self.is_all(bytes) {
            true => Hold::overwrite(self.part, queue_state),
            false => Hold::take(self.part, queue_state, Access::ReadWrite),
        }
    }
}

/// Copies by `go`, and reports it together with the implied copies.
pub(super) fn measured(
    from: At<'_>,
    to: At<'_>,
    bytes: usize,
    go: impl FnOnce(At<'_>, At<'_>, usize) -> Result<Went>,
) -> Result<(Crossing, Option<QueuePoint>)> {
    let (a, b) = (from.part.core, to.part.core);
    let implied = || {
        let other = if std::ptr::eq(a, b) { 0 } else { b.implied.load(Ordering::Relaxed) };
        a.implied.load(Ordering::Relaxed) + other
    };
    let before = implied();
    let Went { way, bytes, chunks, under_way, .. } = go(from, to, bytes)?;
    let id = |core: &Core| core.device_id(core.plan.allocate_on).to_owned();
    let crossing = Crossing {
        from: id(a),
        to: id(b),
        way,
        bytes: bytes as u64,
        chunks: chunks as u64,
        implied_bytes: implied() - before,
    };
    Ok((crossing, under_way))
}

/// Copies like [`cross`], but a source that the host has mapped is read from its map, where the driver would otherwise transfer it to
/// the device first. This copy is complete when the function returns.
pub(super) fn cross_now(from: At<'_>, to: At<'_>, bytes: usize) -> Result<Went> {
    match device_of_map(from, to, bytes) {
        Some(queue_state) => from_map(from, to, bytes, &queue_state?),
        None => cross(from, to, bytes),
    }
}

/// Returns the queue that copies from the source's map, if the host has the newest contents there.
fn device_of_map(from: At<'_>, to: At<'_>, bytes: usize) -> Option<Result<Arc<QueueState>>> {
    let (a, b) = (from.part.core, to.part.core);
    // The transfer is a write by the host.
    let host = [a.host == HostAccess::ReadWrite, b.host.writes()];
    if std::ptr::eq(a, b) || !a.hub.is(&b.hub) || host.contains(&false) {
        return None;
    }
    let home = &a.aliases[HOME];
    let is_mapped = home.memory().is_some_and(|memory| {
        memory.is_read_from_map() && memory.access_state() != AccessState::Acquired
    });
    let fits = is_mapped
        && a.has_own_memory(home.device)
        && a.lock_state().has_newest(home.replica())
        && !is_one_memory(a, b);
    let target = fits.then(|| b.at_hand(true, to.is_all(bytes)))?;
    let target = target.into_iter().find(|&alias| b.aliases[alias].device == home.device)?;
    Some(b.queue_state_at(target))
}

/// Copies from memory that the host has mapped, by one transfer of its device.
fn from_map(from: At<'_>, to: At<'_>, bytes: usize, queue_state: &Arc<QueueState>) -> Result<Went> {
    let (a, b) = (from.part.core, to.part.core);
    let began = b.hub.tracer().begin(What::Copy);
    // A guard that only reads would map the memory for reading, which can transfer it twice.
    let is_released = a.home().access_state() == AccessState::Released;
    let access = if is_released { Access::ReadWrite } else { Access::Read };
    let source = match Hold::take(from.part, a.hub.host_queue_state()?, access) {
        // Others read it: so does the ordinary copy.
        Err(Error::Busy { .. }) => return cross(from, to, bytes),
        taken => taken?,
    };
    let Some(seen) = source.host_bytes().map(|bytes| bytes[from.offset..].as_ptr()) else {
        drop(source);
        return cross(from, to, bytes);
    };
    let target = to.target(queue_state, bytes)?;
    // SAFETY: the source is held, and kept for this queue below if the transfer may still run after an error.
    let started = unsafe { queue_state.hal.write(target.memory(), to.offset, seen, bytes) };
    let copied = started.and_then(|event| {
        queue_state.hal.flush()?;
        event.wait(a.hub.timeout())
    });
    if copied.is_ok() {
        target.overwritten();
    }
    drop((source, target));
    if let Err(error) = copied {
        [a, b].iter().for_each(|core| core.keep_for(queue_state, &error));
        return Err(error);
    }
    b.count_asked(a.plan.allocate_on, b.plan.allocate_on, bytes);
    let (way, on) = (pointer_way(a), Some(queue_state.clone()));
    let went = Went { way, bytes, on, ..Went::nowhere() };
    went.tell(began, a, b);
    Ok(went)
}

/// Copies by the shortest way, and counts it. Work of a single queue is only enqueued; everything else is complete.
pub(crate) fn cross(from: At<'_>, to: At<'_>, bytes: usize) -> Result<Went> {
    let (a, b) = (from.part.core, to.part.core);
    if !a.hub.is(&b.hub) {
        return between_hubs(from, to, bytes);
    }
    let (one, began) = (std::ptr::eq(a, b), b.hub.tracer().begin(What::Copy));
    let went = match common(from, to, bytes) {
        _ if (one || is_one_memory(a, b)) && from.absolute() == to.absolute() => Went::nowhere(),
        _ if one => within(from, to, bytes)?,
        Some(aliases) => in_device(from, to, bytes, aliases)?,
        None => through(from, to, bytes)?,
    };
    if went.bytes > 0 {
        b.count_asked(a.plan.allocate_on, b.plan.allocate_on, bytes);
        went.tell(began, a, b);
    }
    Ok(went)
}

impl Went {
    /// Records the copy in the trace.
    pub fn tell(&self, began: Began<'_>, from: &Core, to: &Core) {
        let Some(queue_state) = &self.on else { return };
        began.end_timed(queue_state, self.timed.clone(), |event| {
            event.route = Some(self.way);
            let (from, home) = (from.plan.allocate_on, to.plan.allocate_on);
            to.tell_copy(event, Cause::Asked, from, home, self.bytes);
        });
    }
}

/// Whether two buffers wrap the same native object.
fn is_one_memory(a: &Core, b: &Core) -> bool {
    let (a, b) = (&a.aliases[0], &b.aliases[0]);
    let raw = |alias: &Alias| alias.memory().map(|memory| memory.raw());
    a.device == b.device && raw(a).is_some() && raw(a) == raw(b)
}

/// Returns aliases of one device on which both buffers are up to date.
pub(super) fn common(from: At<'_>, to: At<'_>, bytes: usize) -> Option<(usize, usize)> {
    let (a, b) = (from.part.core, to.part.core);
    let theirs = b.at_hand(true, to.is_all(bytes));
    let on = |alias: usize| {
        theirs.iter().find(|&&other| b.aliases[other].device == a.aliases[alias].device)
    };
    a.at_hand(false, false).into_iter().find_map(|alias| on(alias).map(|&other| (alias, other)))
}

/// Enqueues one copy inside a device.
pub(super) fn in_device(
    from: At<'_>,
    to: At<'_>,
    bytes: usize,
    (alias, _): (usize, usize),
) -> Result<Went> {
    on_queue(from, to, bytes, from.part.core.queue_state_at(alias)?)
}

/// Enqueues one copy on a queue of a device that uses both buffers.
pub(super) fn on_queue(
    from: At<'_>,
    to: At<'_>,
    bytes: usize,
    queue_state: Arc<QueueState>,
) -> Result<Went> {
    let core = from.part.core;
    let source = Hold::take(from.part, &queue_state, Access::Read)?;
    let mut target = to.target(&queue_state, bytes)?;
    let mut before = None;
    match (source.host_bytes(), target.host_bytes_mut()) {
        (Some(source), Some(target)) => target[to.offset..to.offset + bytes]
            .copy_from_slice(&source[from.offset..from.offset + bytes]),
        _ => {
            // Behind the waits for others.
            before = queue_state.timestamp();
            queue_state.hal.copy(
                source.memory(),
                from.offset,
                target.memory(),
                to.offset,
                bytes,
            )?;
        }
    }
    let timed =
        before.zip(queue_state.timestamp()).map(|(before, after)| Timed::between(before, after));
    target.overwritten();
    let foreign =
        [core, to.part.core].into_iter().find(|core| core.aliases[0].device != queue_state.device);
    let way = match foreign {
        Some(core) if queue_state.device == core.hub.host_index() => pointer_way(core),
        _ => RouteKind::Same,
    };
    let under_way = Some(queue_state.note());
    Ok(Went { way, bytes, chunks: 0, under_way, on: Some(queue_state), timed })
}

/// The route kind by which the host accesses a buffer in place.
fn pointer_way(core: &Core) -> RouteKind {
    match core.plan.memory_kind {
        MemoryKind::FineSvm | MemoryKind::CoarseSvm | MemoryKind::Managed => RouteKind::SvmPointer,
        _ => RouteKind::HostPointer,
    }
}

/// The way, and the number of chunks, of a copy between a buffer and the caller's memory.
pub(super) fn host_way(core: &Core, bytes: usize) -> (RouteKind, usize) {
    let (host, device) = (core.hub.host_index(), core.aliases[core.newest_alias()].device);
    match () {
        () if device != host => {
            // Without a queue there is no copy, either.
            (RouteKind::Staged, core.means(device).map_or(0, |means| means.chunks(bytes)))
        }
        () if core.plan.allocate_on == host => (RouteKind::Same, 0),
        () => (pointer_way(core), 0),
    }
}

/// Copies between two devices: through a pointer if the host accesses one end in place, otherwise in chunks.
fn through(from: At<'_>, to: At<'_>, bytes: usize) -> Result<Went> {
    let (a, b) = (from.part.core, to.part.core);
    from.part.check_host(true, false)?;
    to.part.check_host(false, true)?;
    let alias = if to.is_all(bytes) { b.overwrite_alias() } else { b.newest_alias() };
    let (from_queue, to_queue) = (a.queue_state_at(a.newest_alias())?, b.queue_state_at(alias)?);
    let source = Hold::take(from.part, &from_queue, Access::Read)?;
    let mut target = to.target(&to_queue, bytes)?;
    let written = target.host_bytes_mut().map(|bytes| NonNull::from(&mut bytes[to.offset..]));
    let read = source.host_bytes().map(|bytes| NonNull::from(&bytes[from.offset..]));
    let ends = (end(&source, read, from.offset), end(&target, written, to.offset));
    let copied =
        staged::copy(&ends.0, &ends.1, bytes, b.means_between(from_queue.device, to_queue.device)?);
    if copied.is_ok() {
        target.overwritten();
    }
    drop((source, target));
    if let Err(error) = &copied {
        // Either queue may still be using the other's memory.
        a.keep_for(&to_queue, error);
        b.keep_for(&from_queue, error);
    }
    let chunks = copied?;
    let way = match (read, written) {
        _ if chunks > 0 => RouteKind::Staged,
        (Some(_), _) => pointer_way(a),
        (_, Some(_)) => pointer_way(b),
        // Neither in chunks nor by a pointer: directly from one device to the other.
        (None, None) => RouteKind::Peer,
    };
    Ok(Went { way, bytes, chunks, on: Some(to_queue), ..Went::nowhere() })
}

/// Makes one end of a copy from a guard.
fn end<'h>(hold: &'h Hold<'_>, seen: Option<NonNull<[u8]>>, offset: usize) -> End<'h> {
    match seen {
        Some(bytes) => End::Host(bytes.cast()),
        None => End::Device(hold.queue(), hold.memory(), offset),
    }
}

/// Copies inside one buffer, where source and target may overlap.
fn within(from: At<'_>, to: At<'_>, bytes: usize) -> Result<Went> {
    let (core, a, b) = (from.part.core, from.absolute(), to.absolute());
    let whole = Part::whole(core);
    let pieces = bytes.div_ceil(a.abs_diff(b));
    let alias = core.newest_alias();
    let queue_state = core.queue_state_at(alias)?;
    let mut hold = Hold::take(whole, &queue_state, Access::ReadWrite)?;
    if let Some(all) = hold.host_bytes_mut() {
        all.copy_within(a..a + bytes, b);
        let home = core.plan.allocate_on == core.hub.host_index();
        let way = if home { RouteKind::Same } else { pointer_way(core) };
        return Ok(Went { way, bytes, on: Some(queue_state), ..Went::nowhere() });
    }
    if pieces <= MOST_PIECES {
        move_in_pieces(&queue_state, &hold, (a, b), bytes)?;
        let under_way = Some(queue_state.note());
        let way = RouteKind::Same;
        return Ok(Went { way, bytes, under_way, on: Some(queue_state), ..Went::nowhere() });
    }
    whole.check_host(true, true)?;
    let at = |offset| Stretch(hold.queue(), hold.memory(), offset);
    let order = if b > a { Order::Down } else { Order::Up };
    let moved = staged::relay(at(a), at(b), bytes, order, core.means(queue_state.device)?);
    drop(hold);
    let chunks = moved.inspect_err(|error| core.keep_for(&queue_state, error))?;
    let (way, on) = (RouteKind::Staged, Some(queue_state));
    Ok(Went { way, bytes, chunks, on, ..Went::nowhere() })
}

/// Moves in pieces. A piece is as long as the distance of the move, so that none overlaps its own target. The order leads away
/// from the target, so that no piece overwrites bytes that have not been read.
fn move_in_pieces(
    queue_state: &QueueState,
    hold: &Hold<'_>,
    (from, to): (usize, usize),
    bytes: usize,
) -> Result<()> {
    let memory = hold.memory();
    let mut starts: Vec<usize> = (0..bytes).step_by(from.abs_diff(to)).collect();
    if to > from {
        starts.reverse();
    }
    starts.into_iter().try_for_each(|start| {
        let len = from.abs_diff(to).min(bytes - start);
        queue_state.hal.copy(memory, from + start, memory, to + start, len)
    })
}

/// Copies between two hubs by a read and a write. Each hub counts its own.
fn between_hubs(from: At<'_>, to: At<'_>, bytes: usize) -> Result<Went> {
    let mut bounce = vec![0; bytes.min(BOUNCE_BYTES)];
    for start in (0..bytes).step_by(BOUNCE_BYTES) {
        let chunk = &mut bounce[..BOUNCE_BYTES.min(bytes - start)];
        from.part.read_asked(from.offset + start, chunk)?;
        to.part.write_asked(to.offset + start, chunk)?;
    }
    let chunks = bytes.div_ceil(BOUNCE_BYTES);
    Ok(Went { way: RouteKind::Staged, bytes, chunks, ..Went::nowhere() })
}
