//! Copies between two devices without waiting: each chunk has its own host memory, which is freed when the second queue has
//! read it.
//!
//! # Safety
//! Drivers get pointers into async copies. An async copy is freed when both its transfers are known to be over, and
//! leaked otherwise.

#![allow(unsafe_code)]

use super::cross::{self, At, Went};
use crate::{
    buffer::Hold, hub::Hub, observe::What, queue_state::QueueState, route::staged, sync::Terms,
};
use onebuf_hal::{Access, Error, Event, Result, RouteKind, locks::Arc};
use std::{mem, time::Duration};

/// How long dropping an async copy that could not be completed waits for its transfers.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// Like [`cross::cross`], but does not wait for copies between two queues either.
pub(super) fn cross(from: At<'_>, to: At<'_>, bytes: usize) -> Result<Went> {
    let (a, b) = (from.part.core, to.part.core);
    let apart = !std::ptr::eq(a, b) && a.hub.is(&b.hub) && cross::common(from, to, bytes).is_none();
    let aliases = (a.newest_device_alias(), b.newest_device_alias());
    match aliases {
        (Some(source), Some(target)) if apart => send(from, to, bytes, (source, target)),
        _ => cross::cross(from, to, bytes),
    }
}

fn send(from: At<'_>, to: At<'_>, bytes: usize, aliases: (usize, usize)) -> Result<Went> {
    let (a, b) = (from.part.core, to.part.core);
    from.part.check_host(true, false)?;
    to.part.check_host(false, true)?;
    let began = b.hub.tracer().begin(What::Copy);
    let (from_queue, to_queue) = (a.queue_state_at(aliases.0)?, b.queue_state_at(aliases.1)?);
    let source = Hold::take(from.part, &from_queue, Access::Read)?;
    let target = to.target(&to_queue, bytes)?;
    let mut routes = b.hub.topology().between(from_queue.device, to_queue.device).iter();
    let terms = Terms::proven_over(routes.find(|route| route.kind == RouteKind::Staged));
    let road = Road { from: (&from_queue, &source), to: (&to_queue, &target), terms };
    let mut chunks = 0;
    for (at, len) in staged::ranges(bytes) {
        road.send(&a.hub, from.offset + at, to.offset + at, len)?;
        chunks += 1;
    }
    target.overwritten();
    b.count_asked(a.plan.allocate_on, b.plan.allocate_on, bytes);
    let (way, under_way) = (RouteKind::Staged, Some(to_queue.note()));
    let on = Some(to_queue.clone());
    let went = Went { way, bytes, chunks, under_way, on, ..Went::nowhere() };
    went.tell(began, a, b);
    Ok(went)
}

struct Road<'r, 'b> {
    from: (&'r Arc<QueueState>, &'r Hold<'b>),
    to: (&'r Arc<QueueState>, &'r Hold<'b>),
    terms: Terms,
}

impl Road<'_, '_> {
    /// Enqueues a read on the first queue, and a write on the second queue after it.
    fn send(&self, hub: &Hub, from_at: usize, to_at: usize, len: usize) -> Result<()> {
        let ((a, source), (b, target)) = (self.from, self.to);
        let mut async_copy = AsyncCopy { bytes: vec![0; len], transfers: Vec::new() };
        let into = async_copy.bytes.as_mut_ptr();
        // SAFETY: `async_copy` owns the bytes, and is leaked unless both transfers are over.
        let read = unsafe { a.hal.read(source.memory(), from_at, into, len) };
        let read = async_copy.started(read)?;
        a.hal.flush()?;
        hub.sync().after(b, &a.at_event(read), self.terms)?;
        // SAFETY: as above; the queue waits for the read.
        let written = unsafe { b.hal.write(target.memory(), to_at, into, len) };
        let written = async_copy.started(written)?;
        b.hal.flush()?;
        async_copy.free_after(&*written, hub.timeout())
    }
}

/// The host memory of an unfinished copy, and its transfers.
struct AsyncCopy {
    bytes: Vec<u8>,
    transfers: Vec<Arc<dyn Event>>,
}

impl AsyncCopy {
    /// Records a transfer. If its start timed out, it may be running without an event, and the memory is leaked.
    fn started(&mut self, transfer: Result<Arc<dyn Event>>) -> Result<Arc<dyn Event>> {
        match &transfer {
            Ok(event) => self.transfers.push(event.clone()),
            Err(Error::Timeout { .. }) => mem::forget(mem::take(&mut self.bytes)),
            Err(_) => {}
        }
        transfer
    }

    /// Frees the memory in a callback of the last transfer, which waits for the first. Without callbacks the thread waits. The
    /// memory is leaked if the last transfer fails, since the first may then still be running.
    fn free_after(mut self, last: &dyn Event, timeout: Duration) -> Result<()> {
        let bytes = mem::take(&mut self.bytes);
        self.transfers.clear();
        // The callback must not call the driver: some drivers hold a lock here.
        let free = move |outcome: Result<()>| match outcome {
            Ok(()) => drop(bytes),
            Err(_) => mem::forget(bytes),
        };
        let Err((error, free)) = last.on_complete(Box::new(free)) else { return Ok(()) };
        tracing::debug!(%error, "no callback from this transfer: the thread waits instead");
        let outcome = last.wait(timeout);
        free(outcome.clone());
        outcome
    }
}

impl Drop for AsyncCopy {
    fn drop(&mut self) {
        let ended = |event: &Arc<dyn Event>| event.wait(LAST_WAIT).is_ok() || event.is_over();
        if !self.transfers.iter().all(ended) {
            mem::forget(mem::take(&mut self.bytes));
        }
    }
}
