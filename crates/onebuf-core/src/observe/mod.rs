//! The events that a hub reports while it works, and the traits that receive them.
//!
//! The core emits events and does not depend on their consumers. `onebuf::trace` keeps them, `onebuf::live` counts per buffer,
//! and a program can install its own [`Observer`] by [`HubBuilder::observer`](crate::HubBuilder::observer).
//!
//! ```
//! use onebuf::observe::{Event, Observer, Timed, What};
//! use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
//!
//! #[derive(Default)]
//! struct CopiedBytes(AtomicU64);
//!
//! impl Observer for CopiedBytes {
//!     fn event(&self, event: Event, _timed: Option<Timed>) {
//!         if event.what == What::Copy {
//!             self.0.fetch_add(event.bytes.unwrap_or(0), Ordering::Relaxed);
//!         }
//!     }
//! }
//!
//! # fn main() -> onebuf::Result<()> {
//! let copied = Arc::new(CopiedBytes::default());
//! let hub = onebuf::builder().observer(copied.clone()).build()?;
//! hub.buffer::<f32>(1024).build()?.write(&[1.0; 1024])?;
//! assert_eq!(copied.0.load(Ordering::Relaxed), 4096);
//! # Ok(())
//! # }
//! ```
//!
//! # Rules for observers
//!
//! - Calls come from the thread that did the work, from several threads at once, and possibly while the library holds a lock of
//!   the buffer or the queue. An observer must not use buffers, queues or devices of the hub that it observes: that can
//!   deadlock.
//! - A slow observer slows down the work that it observes. Events are neither queued nor dropped.
//! - A panic of an observer is caught and logged. The observed work continues, and that observer is not called again. (With
//!   `panic = "abort"` the process ends.)
//! - The hub keeps its observers alive. An observer that keeps the hub alive leaks both.
//!
//! # What it costs
//!
//! Without an observer: one branch per event. With one: two clock reads, the strings of the event, and the call.

mod event;
mod guarded;
mod installed;
mod progress;
#[cfg(feature = "tracing")]
mod spans;
#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
mod tests;
mod tracer;

pub(crate) use event::OnQueue;
pub use event::{Clock, Event, What};
pub(crate) use installed::{BufferObservers, Observers};
pub use progress::{Progress, ProgressSource, RunState, StageProgress};
pub use tracer::Timed;
#[doc(hidden)]
pub use tracer::{Began, Tracer};

use crate::topology::DeviceIx;
use onebuf_hal::{RouteKind, SyncMethod, locks::Arc};
use std::any::Any;

/// Receives the events of a hub. Every method has a default that does nothing. See the [module](self) for the rules.
pub trait Observer: Any + Send + Sync {
    /// Whether [`Observer::event`] should be called. Queried once, when the hub is built.
    fn wants_events(&self) -> bool {
        true
    }

    /// Called when a launch, hand-over, wait, copy, stage or graft has ended. `timed` is set for work that the device times
    /// itself.
    fn event(&self, event: Event, timed: Option<Timed>) {
        let _ = (event, timed);
    }

    /// Called when the hub has opened a service queue, for transfers and hand-overs for which the program has named no queue.
    fn service_queue(&self, queue: usize) {
        let _ = queue;
    }

    /// Called when a buffer was created. The returned observer receives the events of that buffer for as long as the buffer
    /// lives.
    fn buffer_made(&self, buffer: &NewBuffer) -> Option<Arc<dyn BufferObserver>> {
        let _ = buffer;
        None
    }
}

/// Receives the events of one buffer. These calls carry no names and no times, so that counting stays cheap.
pub trait BufferObserver: Send + Sync {
    /// Called when the buffer was handed over from a queue of one device to another queue.
    fn handed_over(&self, from: DeviceIx, to: DeviceIx, sync_method: SyncMethod) {
        let _ = (from, to, sync_method);
    }

    /// Called when an implied copy of the buffer's bytes was made.
    fn copied_implicitly(&self, bytes: u64) {
        let _ = bytes;
    }

    /// Called when a device's route failed: the device gets staged copies from now on. `route` is an index into
    /// [`NewBuffer::routes`].
    fn route_failed(&self, route: usize) {
        let _ = route;
    }
}

/// A newly created buffer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NewBuffer {
    /// Its name, or a text with its number.
    pub name: String,
    /// A number that is unique in the process.
    pub number: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// The device that allocated it.
    pub home: DeviceIx,
    /// The route of each device that shares it, including the home.
    pub routes: Vec<(DeviceIx, RouteKind)>,
}
