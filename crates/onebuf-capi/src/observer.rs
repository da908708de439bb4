//! Observers
//!
//! Functions of the program that a hub calls while it works (`onebuf_hub_options.observer`). Any thread may call them, several at
//! once, and also while the library holds locks: they must not use objects of the hub, must not throw, and should be short,
//! because the work waits for them. Devices are named by their index in the hub's list (onebuf_hub_device_at()); those of
//! foreign contexts follow. Strings and arrays are valid during the call.

use crate::{
    fault::Result,
    input::{Options, options},
    words::{self, onebuf_route, onebuf_sync_method},
};
use onebuf::{
    Cause, RouteKind, SyncMethod,
    observe::{BufferObserver, Clock, Event, NewBuffer, Observer, Timed, What},
    topology::DeviceIx,
};
use std::{
    ffi::{CString, c_char, c_void},
    ptr,
    sync::Arc,
};

/// No queue, or no frame.
pub const ONEBUF_NO_NUMBER: u64 = u64::MAX;

/// The kind of an event.
pub type onebuf_event_kind = u32;
/// A kernel was launched.
pub const ONEBUF_EVENT_LAUNCH: onebuf_event_kind = 0;
/// A buffer was handed over from one queue to another.
pub const ONEBUF_EVENT_HAND_OVER: onebuf_event_kind = 1;
/// A queue was made to wait for another, or a thread waited for a queue.
pub const ONEBUF_EVENT_WAIT: onebuf_event_kind = 2;
/// Bytes were copied.
pub const ONEBUF_EVENT_COPY: onebuf_event_kind = 3;
/// A part of a pipeline processed a frame.
pub const ONEBUF_EVENT_STAGE: onebuf_event_kind = 4;
/// A stage's kernels were grafted onto its neighbour's queue, or were not, if `failed`.
pub const ONEBUF_EVENT_GRAFT: onebuf_event_kind = 5;

/// An event that has ended. Strings that do not apply are NULL.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_event {
    /// The kind of event.
    pub kind: onebuf_event_kind,
    /// The device of the queue.
    pub device: i32,
    /// The device that had the buffer or the bytes before; for a wait, the device that was waited for; -1: none.
    pub from: i32,
    /// The device that the bytes went to, for copies; -1: none.
    pub to: i32,
    /// The queue, by a number that is unique in the process; ONEBUF_NO_NUMBER.
    pub queue: u64,
    /// The queue of `from`; ONEBUF_NO_NUMBER.
    pub from_queue: u64,
    /// When it began, in nanoseconds since the hub was created.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// Bytes that were copied or handed over.
    pub bytes: u64,
    /// The number of the frame in a pipeline; ONEBUF_NO_NUMBER.
    pub frame: u64,
    /// The name of the kernel or stage; for other events, what was done.
    pub name: *const c_char,
    /// The buffer's name, or its number.
    pub buffer: *const c_char,
    /// The part of a pipeline, if it has no queue: `source` or `sink`.
    pub part: *const c_char,
    /// The reason for the decision.
    pub why: *const c_char,
    /// The route; ONEBUF_ROUTE_ANY if none.
    pub route: onebuf_route,
    /// The sync method that ordered it; ONEBUF_SYNC_ANY if none.
    pub sync: onebuf_sync_method,
    /// Not zero: a copy that was not requested.
    pub implied: u32,
    /// Not zero: it failed.
    pub failed: u32,
    /// Not zero: the times are those of the device's clock.
    pub device_clock: u32,
}

/// A device that shares a new buffer, and its route.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_observed_route {
    /// The device.
    pub device: i32,
    /// The route by which it accesses the buffer.
    pub route: onebuf_route,
}

/// A buffer that was created.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_new_buffer {
    /// A number that is unique in the process.
    pub number: u64,
    /// Its name, or a text with its number.
    pub name: *const c_char,
    /// Size in bytes.
    pub bytes: u64,
    /// The devices that share it, the one that allocated it included.
    pub routes: *const onebuf_observed_route,
    /// Number of devices.
    pub route_count: usize,
    /// The device that allocated it.
    pub home: i32,
}

/// An observer. Functions that are NULL are not called.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_observer {
    /// `sizeof(onebuf_observer)`.
    pub size: usize,
    /// The first argument of each function; valid until `done` was called.
    pub user: *mut c_void,
    /// Called when a launch, hand-over, wait, copy, stage or graft has ended.
    pub event: Option<unsafe extern "C" fn(user: *mut c_void, event: *const onebuf_event)>,
    /// Called when a buffer was created.
    pub buffer_made:
        Option<unsafe extern "C" fn(user: *mut c_void, buffer: *const onebuf_new_buffer)>,
    /// Called when the buffer of this number was handed over from a queue of one device to another queue. `sync` is a
    /// onebuf_sync_method.
    pub handed_over:
        Option<unsafe extern "C" fn(user: *mut c_void, buffer: u64, from: i32, to: i32, sync: u32)>,
    /// Called when an implied copy of the buffer's bytes was made.
    pub copied_implicitly: Option<unsafe extern "C" fn(user: *mut c_void, buffer: u64, bytes: u64)>,
    /// Called when a route of the buffer failed, by its index in `onebuf_new_buffer.routes`: the device gets copies from now on.
    pub route_failed: Option<unsafe extern "C" fn(user: *mut c_void, buffer: u64, route: usize)>,
    /// Called once, on any thread, when no function is called any more. It is also called if the hub could not be discovered,
    /// unless a `size` was wrong.
    pub done: Option<unsafe extern "C" fn(user: *mut c_void)>,
}
// SAFETY: plain pointers, the size first; functions may be null.
unsafe impl Options for onebuf_observer {}

/// The program's functions, as an observer of the library.
pub(crate) struct Functions(onebuf_observer);

// SAFETY: the pointer is only passed on, and the caller guarantees that any thread may call the functions, several at once.
unsafe impl Send for Functions {}
// SAFETY: as above.
unsafe impl Sync for Functions {}

impl Functions {
    /// # Safety
    /// As for `onebuf_hub_discover`.
    pub unsafe fn read(given: *const onebuf_observer) -> Result<Option<Watch>> {
        if given.is_null() {
            return Ok(None);
        }
        // SAFETY: guaranteed by the caller.
        Ok(Some(Watch(Arc::new(Functions(unsafe { options(given)? })))))
    }
}

impl Drop for Functions {
    fn drop(&mut self) {
        if let Some(done) = self.0.done {
            // SAFETY: the caller's function with the caller's argument.
            unsafe { done(self.0.user) };
        }
    }
}

/// The functions, shared with the observers of buffers.
pub(crate) struct Watch(Arc<Functions>);

fn text(text: &str) -> CString {
    CString::new(text.replace('\0', "\\0")).unwrap_or_default()
}

fn pointer(text: &Option<CString>) -> *const c_char {
    text.as_ref().map_or(ptr::null(), |text| text.as_ptr())
}

fn number(device: DeviceIx) -> i32 {
    device.0.into()
}

fn ns(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn kind(what: What) -> onebuf_event_kind {
    match what {
        What::Launch => ONEBUF_EVENT_LAUNCH,
        What::HandOver => ONEBUF_EVENT_HAND_OVER,
        What::Wait => ONEBUF_EVENT_WAIT,
        What::Copy => ONEBUF_EVENT_COPY,
        What::Stage => ONEBUF_EVENT_STAGE,
        What::Graft => ONEBUF_EVENT_GRAFT,
    }
}

impl Observer for Watch {
    fn wants_events(&self) -> bool {
        self.0.0.event.is_some()
    }

    fn event(&self, event: Event, _timed: Option<Timed>) {
        let Some(call) = self.0.0.event else { return };
        let (name, part) = (text(&event.name), event.part.map(text));
        let [buffer, why] = [&event.buffer, &event.why].map(|given| given.as_deref().map(text));
        let queue = |queue: Option<usize>| queue.map_or(ONEBUF_NO_NUMBER, |queue| queue as u64);
        let plain = onebuf_event {
            kind: kind(event.what),
            device: number(event.device),
            from: event.from.map_or(-1, number),
            to: event.to.map_or(-1, number),
            queue: queue(event.queue),
            from_queue: queue(event.from_queue),
            start_ns: ns(event.start),
            end_ns: ns(event.end),
            bytes: event.bytes.unwrap_or(0),
            frame: event.frame.unwrap_or(ONEBUF_NO_NUMBER),
            name: name.as_ptr(),
            buffer: pointer(&buffer),
            part: pointer(&part),
            why: pointer(&why),
            route: event.route.map_or(words::ONEBUF_ROUTE_ANY, words::route_number),
            sync: event.sync_method.map_or(words::ONEBUF_SYNC_ANY, words::sync_method_number),
            implied: (event.cause == Some(Cause::Implied)).into(),
            failed: event.failed.into(),
            device_clock: (event.clock == Clock::Device).into(),
        };
        // SAFETY: the caller's function; its arguments outlive the call.
        unsafe { call(self.0.0.user, &plain) };
    }

    fn buffer_made(&self, buffer: &NewBuffer) -> Option<Arc<dyn BufferObserver>> {
        let given = &self.0.0;
        if let Some(call) = given.buffer_made {
            let name = text(&buffer.name);
            let route = |(device, route): &(DeviceIx, RouteKind)| onebuf_observed_route {
                device: number(*device),
                route: words::route_number(*route),
            };
            let routes: Vec<onebuf_observed_route> = buffer.routes.iter().map(route).collect();
            let plain = onebuf_new_buffer {
                number: buffer.number,
                name: name.as_ptr(),
                bytes: buffer.bytes,
                routes: routes.as_ptr(),
                route_count: routes.len(),
                home: number(buffer.home),
            };
            // SAFETY: the caller's function; its arguments outlive the call.
            unsafe { call(given.user, &plain) };
        }
        let of_buffers = given.handed_over.is_some()
            || given.copied_implicitly.is_some()
            || given.route_failed.is_some();
        let of_this = || Arc::new(OfBuffer { functions: self.0.clone(), number: buffer.number });
        of_buffers.then(|| -> Arc<dyn BufferObserver> { of_this() })
    }
}

/// The observer of one buffer.
struct OfBuffer {
    functions: Arc<Functions>,
    number: u64,
}

impl BufferObserver for OfBuffer {
    fn handed_over(&self, from: DeviceIx, to: DeviceIx, sync_method: SyncMethod) {
        let given = &self.functions.0;
        if let Some(call) = given.handed_over {
            let sync = words::sync_method_number(sync_method);
            // SAFETY: the caller's function with the caller's argument.
            unsafe { call(given.user, self.number, number(from), number(to), sync) };
        }
    }

    fn copied_implicitly(&self, bytes: u64) {
        if let Some(call) = self.functions.0.copied_implicitly {
            // SAFETY: the caller's function with the caller's argument.
            unsafe { call(self.functions.0.user, self.number, bytes) };
        }
    }

    fn route_failed(&self, route: usize) {
        if let Some(call) = self.functions.0.route_failed {
            // SAFETY: the caller's function with the caller's argument.
            unsafe { call(self.functions.0.user, self.number, route) };
        }
    }
}
