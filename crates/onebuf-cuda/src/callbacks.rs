//! Callbacks when an event is reached.
//!
//! A host function runs when its stream reaches it. So each pending callback gets its own stream, which waits for the
//! event alone: in another stream it could wait for the very work that it is to release. In a dead context host
//! functions are not called at all, so a thread handles those that are overdue.

use super::{deferred_free::is_pending, device::Context, queue::RawQueue};
use onebuf_hal::{
    Callback, Error, Result,
    host_signals::Behind,
    locks::{Arc, Mutex, lock},
};
use onebuf_sys::{
    Refused,
    cuda_like::{CuEvent, CuStatus, CuStream, consts},
};
use std::{
    collections::HashMap,
    ffi::c_void,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Weak,
    time::Duration,
};

/// How often overdue callbacks are looked after.
const ROUND: Duration = Duration::from_millis(50);

/// A callback on its way.
struct PendingCallback {
    callback: Callback,
    /// The stream that will run it.
    stream: CuStream,
    behind: Behind,
    /// Keeps the context, and with it the stream.
    queue: Arc<RawQueue>,
}

/// The callbacks of a context, and the streams that bring them.
#[derive(Default)]
pub(super) struct CallbackStreams(Mutex<CallbackTable>);

#[derive(Default)]
struct CallbackTable {
    idle: Vec<CuStream>,
    pending: HashMap<u64, PendingCallback>,
    last: u64,
    watched: bool,
    /// How many are being run now.
    delivering: usize,
    /// Queues of pending callbacks that were run: in a host function nothing may be freed.
    retired: Vec<Arc<RawQueue>>,
}

impl fmt::Debug for CallbackStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallbackStreams({} under way)", lock(&self.0).pending.len())
    }
}

/// What the driver keeps until it runs the host function.
struct Ticket {
    callback_streams: Arc<CallbackStreams>,
    number: u64,
}

impl CallbackStreams {
    /// At the end of the context, which is current: nothing is under way any more.
    pub fn free(&self, context: &Context) {
        for stream in std::mem::take(&mut lock(&self.0).idle) {
            // SAFETY: made by `stream`, destroyed once.
            context.driver.note(unsafe { context.table().destroy_stream(stream) });
        }
    }

    /// Lets go of what host functions could not.
    pub fn sweep(&self) {
        let retired = std::mem::take(&mut lock(&self.0).retired);
        drop(retired);
    }

    /// A stream that nothing is under way on. The context is current.
    fn stream(&self, context: &Context) -> Result<CuStream, Refused> {
        let idle = lock(&self.0).idle.pop();
        // SAFETY: the context is current.
        idle.map_or_else(
            || unsafe { context.table().create_stream(consts::STREAM_NON_BLOCKING) },
            Ok,
        )
    }

    fn put_back(&self, stream: CuStream) {
        lock(&self.0).idle.push(stream);
    }

    /// Takes a pending callback off the desk: whoever does so runs it. Its stream serves again.
    fn take(&self, number: u64) -> Option<PendingCallback> {
        let mut table = lock(&self.0);
        let pending = table.pending.remove(&number)?;
        table.idle.push(pending.stream);
        table.delivering += 1;
        Some(pending)
    }

    /// Runs the callback of one that was taken. The queue may be the last reference to the context: it is kept for
    /// whoever may free it.
    fn deliver(&self, pending: PendingCallback, reached: Result<()>) {
        let PendingCallback { callback, behind, queue, .. } = pending;
        let outcome = reached.and_then(|()| match behind.has_failed() {
            true => queue.driver().check(Err(wait_failed())),
            false => Ok(()),
        });
        if catch_unwind(AssertUnwindSafe(|| callback(outcome))).is_err() {
            tracing::error!("a callback panicked");
        }
        self.put_away(queue);
    }

    fn put_away(&self, queue: Arc<RawQueue>) {
        let mut table = lock(&self.0);
        table.retired.push(queue);
        table.delivering -= 1;
    }

    /// Keeps a queue until it can be freed: not in a callback. This may be the last reference to the context, so
    /// none is held here afterwards.
    pub fn retire(queue: Arc<RawQueue>) {
        let (callback_streams, context) =
            (queue.context.callback_streams.clone(), Arc::downgrade(&queue.context));
        lock(&callback_streams.0).retired.push(queue);
        watch(&callback_streams, context);
    }

    fn add(&self, pending: PendingCallback) -> u64 {
        let mut table = lock(&self.0);
        table.last += 1;
        let number = table.last;
        table.pending.insert(number, pending);
        number
    }
}

/// Calls back when the event is reached; a refused callback is given back. The context is current.
pub(super) fn send(
    queue: &Arc<RawQueue>,
    event: CuEvent,
    behind: Behind,
    callback: Callback,
) -> Result<(), (Error, Callback)> {
    let context = &queue.context;
    let refused =
        |refused, callback| Err((context.driver.check::<()>(Err(refused)).unwrap_err(), callback));
    let stream = match context.callback_streams.stream(context) {
        Ok(stream) => stream,
        Err(why) => return refused(why, callback),
    };
    // SAFETY: a live stream and event of the current context.
    if let Err(why) = unsafe { context.table().stream_wait_event(stream, event, 0) } {
        context.callback_streams.put_back(stream);
        return refused(why, callback);
    }
    let pending = PendingCallback { callback, stream, behind, queue: queue.clone() };
    let number = context.callback_streams.add(pending);
    let ticket = Box::into_raw(Box::new(Ticket {
        callback_streams: context.callback_streams.clone(),
        number,
    }));
    // SAFETY: a live stream; the ticket is the function's alone.
    let sent = unsafe { context.table().launch_host_function(stream, arrive, ticket.cast()) };
    match sent {
        Ok(()) => {
            watch(&context.callback_streams, Arc::downgrade(context));
            Ok(())
        }
        Err(why) => {
            // SAFETY: made above, and not given to the driver.
            drop(unsafe { Box::from_raw(ticket) });
            match context.callback_streams.take(number) {
                Some(pending) => {
                    context.callback_streams.put_away(pending.queue);
                    refused(why, pending.callback)
                }
                None => Ok(()),
            }
        }
    }
}

/// What the driver calls, on a thread of its own. No call of the driver's is allowed here, so nothing may be freed.
unsafe extern "C" fn arrive(ticket: *mut c_void) {
    // SAFETY: made by `send`, and given to this one call.
    let ticket = unsafe { Box::from_raw(ticket.cast::<Ticket>()) };
    let Ticket { callback_streams, number } = *ticket;
    if let Some(pending) = callback_streams.take(number) {
        callback_streams.deliver(pending, Ok(()));
    }
}

/// What an event says that waited behind a host signal which failed.
pub(super) fn wait_failed() -> Refused {
    Refused { call: "a wait in the stream", status: CuStatus::WAIT_FAILED }
}

/// Sees to it that somebody looks after what is overdue.
fn watch(callback_streams: &Arc<CallbackStreams>, context: Weak<Context>) {
    if std::mem::replace(&mut lock(&callback_streams.0).watched, true) {
        return;
    }
    let named = std::thread::Builder::new().name("onebuf-couriers".to_owned());
    if let Err(why) = named.spawn(move || while look(&context) {}) {
        tracing::error!("nobody looks after callbacks: {why}");
        lock(&callback_streams.0).watched = false;
    }
}

/// One round: pending callbacks of a dead context are delivered with its error. Says whether to come again.
fn look(context: &Weak<Context>) -> bool {
    std::thread::sleep(ROUND);
    let Some(context) = context.upgrade() else { return false };
    context.callback_streams.sweep();
    let mut table = lock(&context.callback_streams.0);
    if table.pending.is_empty() && table.retired.is_empty() && table.delivering == 0 {
        table.watched = false;
        return false;
    }
    let streams: Vec<_> = table.pending.iter().map(|(n, pending)| (*n, pending.stream)).collect();
    drop(table);
    // A context that cannot be entered any more calls nobody back.
    let dead: Vec<_> = match context.enter() {
        Err(why) => streams.into_iter().map(|(n, _)| (n, why.clone())).collect(),
        Ok(_current) => {
            // SAFETY: streams of pending callbacks that are under way live; so do all others of the context.
            let query = |stream| unsafe { context.table().stream_query(stream) };
            let dead = streams.into_iter().filter_map(|(n, stream)| match query(stream) {
                Err(why) if !is_pending(&why) => {
                    Some((n, context.driver.check::<()>(Err(why)).err()?))
                }
                _ => None,
            });
            dead.collect()
        }
    };
    for (number, why) in dead {
        if let Some(pending) = context.callback_streams.take(number) {
            context.callback_streams.deliver(pending, Err(why));
        }
    }
    true
}
