//! Callbacks when an event is reached.
//!
//! A host function runs when its stream reaches it. So each pending callback gets its own stream, which waits for the
//! event alone: in a shared stream it could wait for the work that it has to release. The driver does not call host
//! functions in a dead context, so a thread delivers the overdue callbacks.

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

/// How often the thread checks for overdue callbacks.
const ROUND: Duration = Duration::from_millis(50);

/// A callback that has not run yet.
struct PendingCallback {
    callback: Callback,
    /// The stream that runs the host function.
    stream: CuStream,
    behind: Behind,
    /// Keeps the context alive, and with it the stream.
    queue: Arc<RawQueue>,
}

/// The callbacks of a context, and the streams that run them.
#[derive(Default)]
pub(super) struct CallbackStreams(Mutex<CallbackTable>);

#[derive(Default)]
struct CallbackTable {
    idle: Vec<CuStream>,
    pending: HashMap<u64, PendingCallback>,
    last: u64,
    watched: bool,
    /// The number of callbacks that are running now.
    delivering: usize,
    /// Queues of callbacks that have run. A host function must not free them.
    retired: Vec<Arc<RawQueue>>,
}

impl fmt::Debug for CallbackStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallbackStreams({} under way)", lock(&self.0).pending.len())
    }
}

/// The argument that the driver passes to the host function.
struct Ticket {
    callback_streams: Arc<CallbackStreams>,
    number: u64,
}

impl CallbackStreams {
    /// Destroys the idle streams when the context ends. The context is current, and no callback is pending.
    pub fn free(&self, context: &Context) {
        for stream in std::mem::take(&mut lock(&self.0).idle) {
            // SAFETY: made by `stream`, destroyed once.
            context.driver.note(unsafe { context.table().destroy_stream(stream) });
        }
    }

    /// Drops the queues that host functions could not free.
    pub fn sweep(&self) {
        let retired = std::mem::take(&mut lock(&self.0).retired);
        drop(retired);
    }

    /// Returns a stream without pending work. The context is current.
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

    /// Removes a pending callback from the table; the caller then runs it. Its stream becomes idle again.
    fn take(&self, number: u64) -> Option<PendingCallback> {
        let mut table = lock(&self.0);
        let pending = table.pending.remove(&number)?;
        table.idle.push(pending.stream);
        table.delivering += 1;
        Some(pending)
    }

    /// Runs a callback that `take` returned. Its queue may hold the last reference to the context, so it is retired,
    /// not dropped.
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

    /// Keeps a queue until it can be freed outside a callback. The queue may hold the last reference to the context, so
    /// this function keeps only a weak one.
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

/// Calls back when the event is reached; returns the callback if the driver refuses. The context is current.
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
    // SAFETY: a live stream; only this one call of the host function uses the ticket.
    let sent = unsafe { context.table().launch_host_function(stream, arrive, ticket.cast()) };
    match sent {
        Ok(()) => {
            watch(&context.callback_streams, Arc::downgrade(context));
            Ok(())
        }
        Err(why) => {
            // SAFETY: made above, and the driver did not accept it.
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

/// The host function, which the driver calls on its own thread. Driver calls are not allowed here, so nothing may be
/// freed.
unsafe extern "C" fn arrive(ticket: *mut c_void) {
    // SAFETY: made by `send`, and passed to this one call.
    let ticket = unsafe { Box::from_raw(ticket.cast::<Ticket>()) };
    let Ticket { callback_streams, number } = *ticket;
    if let Some(pending) = callback_streams.take(number) {
        callback_streams.deliver(pending, Ok(()));
    }
}

/// The error of an event that waited behind a host signal that failed.
pub(super) fn wait_failed() -> Refused {
    Refused { call: "a wait in the stream", status: CuStatus::WAIT_FAILED }
}

/// Starts the thread that delivers overdue callbacks, unless it is running.
fn watch(callback_streams: &Arc<CallbackStreams>, context: Weak<Context>) {
    if std::mem::replace(&mut lock(&callback_streams.0).watched, true) {
        return;
    }
    let named = std::thread::Builder::new().name("onebuf-callback".to_owned());
    if let Err(why) = named.spawn(move || while look(&context) {}) {
        tracing::error!("cannot start the callback thread: {why}");
        lock(&callback_streams.0).watched = false;
    }
}

/// Delivers the pending callbacks of a dead context with its error. Returns whether to run again.
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
    // In a context that cannot be entered the driver calls no host function.
    let dead: Vec<_> = match context.enter() {
        Err(why) => streams.into_iter().map(|(n, _)| (n, why.clone())).collect(),
        Ok(_current) => {
            // SAFETY: the streams of pending callbacks are alive, because the context is.
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
