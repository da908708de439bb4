//! Traces: every launch, hand-over, wait and copy, and the stages of pipelines, with their times.
//!
//! A hub built with [`HubBuilder::trace`](HubBuilderTraceExt::trace) keeps a limited number of the newest events and writes
//! them in the Trace Event format, which Perfetto (<https://ui.perfetto.dev>) and `chrome://tracing` open. Devices appear as
//! processes and queues as threads. An arrow leads from a queue to the queue that it handed a buffer to.
//!
//! ```
//! use onebuf::{prelude::*, trace::What};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let hub = onebuf::builder().trace(1 << 16).build()?;
//! let signal = hub.buffer::<f32>(1024).name("signal").build()?;
//! signal.write(&[1.0; 1024])?;
//!
//! let trace = hub.trace().expect("tracing is on");
//! let copy = &trace.events()[0];
//! assert_eq!((copy.what, copy.bytes, copy.buffer.as_deref()), (What::Copy, Some(4096), Some("signal")));
//!
//! let mut json = Vec::new();
//! trace.write(&mut json)?;                             // or `trace.save("out.json")?`
//! assert!(String::from_utf8_lossy(&json).contains("traceEvents"));
//! # Ok(())
//! # }
//! ```
//!
//! # Clocks
//!
//! Times are the host's, from before a call to after it. A launch is therefore as long as its enqueueing took, and on the
//! host's own queues as long as it ran. If a queue was created with [`QueueSpec::profiling`](onebuf_hal::QueueSpec), a launch
//! has a second event with the times of the device's clock ([`Clock::Device`]). The two clocks are aligned so that no launch
//! of a queue was queued before its call began. The remaining error is up to the duration of that call. It is larger if an
//! API does not report when work was queued and the device was never idle.
//!
//! # Overhead
//!
//! Without a trace: one load and one branch per event. With a trace: two clock reads, a lock that is held for a few stores,
//! and the names. With the cargo feature `tracing`, every event is also a span of the `tracing` crate (target `onebuf`, level
//! `TRACE`), whether or not the hub has a trace.

mod account;
mod format;
mod lanes;
mod recorder;
#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
mod tests;

pub use account::{Account, Idle};
pub use onebuf_core::observe::{Clock, Event, What};

use onebuf_core::{Hub, HubBuilder};
use onebuf_hal::locks::Arc;
use recorder::Recorder;
use std::{
    fmt,
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

/// The recorded events of a hub; see the [module](self). Keeps the hub alive.
#[derive(Clone)]
pub struct Trace {
    recorder: Arc<Recorder>,
    hub: Hub,
}

/// Turns on traces in a [`HubBuilder`].
pub trait HubBuilderTraceExt: Sized {
    /// Records events and keeps the newest `events` of them: see [`trace`](self). Without it nothing is recorded.
    #[must_use = "nothing is discovered until `build`"]
    fn trace(self, events: usize) -> Self;

    /// With a trace, creates queues with profiling by default, so that launches are also recorded by their device's clock.
    /// Some drivers are slower with such queues.
    #[must_use = "nothing is discovered until `build`"]
    fn trace_devices(self) -> Self;
}

impl HubBuilderTraceExt for HubBuilder {
    fn trace(self, events: usize) -> Self {
        self.observer(Arc::new(Recorder::new(events)))
    }

    fn trace_devices(self) -> Self {
        self.device_times()
    }
}

/// The trace of a [`Hub`].
pub trait HubTraceExt {
    /// The events recorded so far; `None` unless the hub was built with [`HubBuilder::trace`](HubBuilderTraceExt::trace).
    fn trace(&self) -> Option<Trace>;
}

impl HubTraceExt for Hub {
    fn trace(&self) -> Option<Trace> {
        Some(Trace { recorder: self.observer()?, hub: self.clone() })
    }
}

impl Trace {
    /// The recorded events, in the order in which they ended.
    pub fn events(&self) -> Vec<Event> {
        self.recorder.events()
    }

    /// How many events were overwritten by later ones.
    pub fn dropped(&self) -> u64 {
        self.recorder.dropped()
    }

    /// Deletes all events and resets the count of dropped ones.
    pub fn clear(&self) {
        self.recorder.clear();
    }

    /// Writes the events as one JSON object in the Trace Event format. Work that a device has not finished yet has only the
    /// host's times.
    ///
    /// # Errors
    /// The writer's errors.
    pub fn write(&self, to: impl Write) -> io::Result<()> {
        let own = self.recorder.service_queues();
        format::write(to, &self.events(), self.dropped(), self.hub.topology(), &own)
    }

    /// Writes the events to a file, as [`Trace::write`] does. An existing file is replaced.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        self.write(&mut file)?;
        file.flush()
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("dropped", &self.dropped()).finish_non_exhaustive()
    }
}
