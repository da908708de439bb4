//! What happened when: every launch, hand-over, wait and copy, and the stages of pipelines.
//!
//! A hub that was made with [`HubBuilder::trace`](HubBuilderTraceExt::trace) keeps the newest events, so many and no
//! more, and writes them in the Trace Event format: Perfetto (<https://ui.perfetto.dev>) and `chrome://tracing` open
//! it. Devices are processes there, queues are threads, and an arrow leads from a queue to the one that it handed a
//! buffer to.
//!
//! ```
//! use onebuf::{prelude::*, trace::What};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let hub = onebuf::builder().trace(1 << 16).build()?;
//! let signal = hub.buffer::<f32>(1024).name("signal").build()?;
//! signal.write(&[1.0; 1024])?;
//!
//! let trace = hub.trace().expect("it was asked for");
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
//! # Whose clock
//!
//! Times are the host's: from before a call to after it, so a launch is as long as its enqueueing took, and on the
//! host's own queues as long as it ran. Where a queue was opened with [`QueueSpec::profiling`](onebuf_hal::QueueSpec), a launch
//! has a second event, when it ran by the device's clock ([`Clock::Device`]). The two clocks are joined so that of all
//! launches of a queue none was queued before its call began; they may be apart by as long as that call took, and more
//! where an API does not tell when work was queued, and the device always had some.
//!
//! # What it costs
//!
//! Without a trace one load and a branch for each of these. With one, two looks at the clock, a lock that is held
//! for a few stores, and the names. With the cargo feature `tracing`, every event is a span of the `tracing` crate as
//! well, target `onebuf`, level `TRACE`, whether or not the hub has a trace.

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

/// What a hub has recorded; see the [module](self). Keeps the hub alive.
#[derive(Clone)]
pub struct Trace {
    recorder: Arc<Recorder>,
    hub: Hub,
}

/// Traces of a [`HubBuilder`].
pub trait HubBuilderTraceExt: Sized {
    /// Records what happens, and keeps so many of the newest events: see [`trace`](self). Without it nothing is recorded.
    #[must_use = "nothing is discovered until `build`"]
    fn trace(self, events: usize) -> Self;

    /// With a trace, opens queues that nothing else was said of for profiling, so that launches are recorded by their
    /// device's clock, too. Some drivers take longer for such queues.
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
    /// What was recorded so far; `None` unless the hub was made with [`HubBuilder::trace`](HubBuilderTraceExt::trace).
    fn trace(&self) -> Option<Trace>;
}

impl HubTraceExt for Hub {
    fn trace(&self) -> Option<Trace> {
        Some(Trace { recorder: self.observer()?, hub: self.clone() })
    }
}

impl Trace {
    /// What is kept, in the order in which it ended.
    pub fn events(&self) -> Vec<Event> {
        self.recorder.events()
    }

    /// How many events had to go for later ones.
    pub fn dropped(&self) -> u64 {
        self.recorder.dropped()
    }

    /// Forgets everything, also how much was dropped.
    pub fn clear(&self) {
        self.recorder.clear();
    }

    /// Writes what is kept as one JSON object in the Trace Event format. What a device has not finished yet has
    /// the host's times alone.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write(&self, to: impl Write) -> io::Result<()> {
        let own = self.recorder.service_queues();
        format::write(to, &self.events(), self.dropped(), self.hub.topology(), &own)
    }

    /// The same, to a file, which is replaced.
    ///
    /// # Errors
    /// When it cannot be written.
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
