//! What happened when: every launch, hand-over, wait and copy, and the stages of pipelines.
//!
//! A hub that was made with [`HubBuilder::trace`](crate::HubBuilder::trace) keeps the newest events, so many and no
//! more, and writes them in the Trace Event format: Perfetto (<https://ui.perfetto.dev>) and `chrome://tracing` open
//! it. Devices are processes there, queues are threads, and an arrow leads from a queue to the one that it handed a
//! buffer to.
//!
//! ```
//! use onebuf::{Hub, trace::What};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let hub = Hub::builder().trace(1 << 16).build()?;
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
//! host's own queues as long as it ran. Where a queue was opened with [`QueueSpec::profiling`](crate::QueueSpec), a launch
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
pub(crate) use recorder::{Began, Timed, Tracer, Track};

use crate::{Cause, Hub, RouteKind, SyncMethod, topology::DeviceIx};
use recorder::Recorder;
use std::{
    fmt,
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
    time::Duration,
};

/// What sort of thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum What {
    /// A kernel was started.
    Launch,
    /// A buffer went from one queue to another: release, fence, acquire.
    HandOver,
    /// A queue was made to wait for another, or a thread waited for one.
    Wait,
    /// Bytes were moved; the ledger counts the same.
    Copy,
    /// A part of a pipeline worked on a frame.
    Stage,
    /// A stage's kernels were to run in its neighbour's queue; `failed`, they do not, and `why` says the reason.
    Graft,
}

impl What {
    /// As the trace has it.
    pub fn name(self) -> &'static str {
        match self {
            What::Launch => "launch",
            What::HandOver => "hand-over",
            What::Wait => "wait",
            What::Copy => "copy",
            What::Stage => "stage",
            What::Graft => "graft",
        }
    }
}

/// By which clock an event was timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Clock {
    /// The host's: how long the call took.
    #[default]
    Host,
    /// The device's own: how long the work took.
    Device,
}

/// One thing that happened. What is not known of it, or does not apply, is `None`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Event {
    /// What sort of thing.
    pub what: What,
    /// The kernel's or the stage's name; else what was done.
    pub name: String,
    /// Whose queue it was on.
    pub device: DeviceIx,
    /// Which queue, by a number that no other queue of the process has.
    pub queue: Option<usize>,
    /// When it began, since the hub was made.
    pub start: Duration,
    /// When it ended.
    pub end: Duration,
    /// Whose times these are.
    pub clock: Clock,
    /// The device that had the buffer, or the bytes, before; of a wait, the one that was waited for.
    pub from: Option<DeviceIx>,
    /// Its queue.
    pub from_queue: Option<usize>,
    /// The device that the bytes went to, for copies.
    pub to: Option<DeviceIx>,
    /// How many bytes were moved, or are now the other's to use.
    pub bytes: Option<u64>,
    /// By which route.
    pub route: Option<RouteKind>,
    /// By which step of the ladder it was ordered.
    pub sync_method: Option<SyncMethod>,
    /// The buffer's name, or its number.
    pub buffer: Option<String>,
    /// Whether anybody asked for a copy.
    pub cause: Option<Cause>,
    /// Which frame of a pipeline.
    pub frame: Option<u64>,
    /// It did not succeed.
    pub failed: bool,
    /// Why it was so, where somebody decided.
    pub why: Option<String>,
    pub(crate) track: Track,
}

/// What a hub has recorded; see the [module](self). Keeps the hub alive.
#[derive(Clone)]
pub struct Trace(Hub);

impl Hub {
    /// What was recorded so far; `None` unless the hub was made with [`HubBuilder::trace`](crate::HubBuilder::trace).
    pub fn trace(&self) -> Option<Trace> {
        self.tracer().recorder().map(|_| Trace(self.clone()))
    }
}

impl Trace {
    fn recorder(&self) -> Option<&Recorder> {
        self.0.tracer().recorder()
    }

    /// What is kept, in the order in which it ended.
    pub fn events(&self) -> Vec<Event> {
        self.recorder().map_or_else(Vec::new, Recorder::events)
    }

    /// How many events had to go for later ones.
    pub fn dropped(&self) -> u64 {
        self.recorder().map_or(0, Recorder::dropped)
    }

    /// Forgets everything, also how much was dropped.
    pub fn clear(&self) {
        self.recorder().into_iter().for_each(Recorder::clear);
    }

    /// Writes what is kept as one JSON object in the Trace Event format. What a device has not finished yet has
    /// the host's times alone.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write(&self, to: impl Write) -> io::Result<()> {
        let names = self.recorder().map(Recorder::queue_names).unwrap_or_default();
        format::write(to, &self.events(), self.dropped(), self.0.topology(), &names)
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
