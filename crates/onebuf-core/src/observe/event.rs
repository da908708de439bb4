//! Events as plain data.

use crate::{Cause, topology::DeviceIx};
use onebuf_hal::{Result, RouteKind, SyncMethod};
use std::time::Duration;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum What {
    /// A kernel was launched.
    Launch,
    /// A buffer was handed over from one queue to another: release, fence, acquire.
    HandOver,
    /// A queue was made to wait for another, or a thread waited for a queue.
    Wait,
    /// Bytes were copied; the ledger counts the same copies.
    Copy,
    /// A part of a pipeline processed a frame.
    Stage,
    /// A stage's kernels were grafted into its neighbour's queue. If `failed`, they were not, and `why` states the reason.
    Graft,
}

impl What {
    /// The name in a trace.
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

/// The clock that timed an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Clock {
    /// The host's clock: the duration of the call.
    #[default]
    Host,
    /// The device's clock: the duration of the work.
    Device,
}

/// The queue of an event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OnQueue {
    pub device: DeviceIx,
    /// A number that is unique in the process.
    pub queue: usize,
}

/// One event. Fields that are unknown or do not apply are `None`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Event {
    /// The kind of event.
    pub what: What,
    /// The name of the kernel or stage; for other events, what was done.
    pub name: String,
    /// The device of the queue.
    pub device: DeviceIx,
    /// The queue, by a number that is unique in the process.
    pub queue: Option<usize>,
    /// The part of a pipeline, if it has no queue: `source` or `sink`.
    pub part: Option<&'static str>,
    /// When it began, relative to the creation of the hub.
    pub start: Duration,
    /// When it ended, relative to the creation of the hub.
    pub end: Duration,
    /// The clock of these times.
    pub clock: Clock,
    /// The device that had the buffer or the bytes before; for a wait, the device that was waited for.
    pub from: Option<DeviceIx>,
    /// The queue of that device.
    pub from_queue: Option<usize>,
    /// The device that the bytes went to, for copies.
    pub to: Option<DeviceIx>,
    /// The number of bytes that were copied or handed over.
    pub bytes: Option<u64>,
    /// The route.
    pub route: Option<RouteKind>,
    /// The sync method that ordered it.
    pub sync_method: Option<SyncMethod>,
    /// The buffer's name, or its number.
    pub buffer: Option<String>,
    /// For a copy: whether it was requested or implied.
    pub cause: Option<Cause>,
    /// The number of the frame in a pipeline.
    pub frame: Option<u64>,
    /// Whether it failed.
    pub failed: bool,
    /// The reason for the decision, if there was one.
    pub why: Option<String>,
}

impl Event {
    #[doc(hidden)]
    pub fn new(what: What, device: DeviceIx, queue: Option<usize>) -> Self {
        Self {
            what,
            name: what.name().into(),
            device,
            queue,
            part: None,
            start: Duration::ZERO,
            end: Duration::ZERO,
            clock: Clock::Host,
            from: None,
            from_queue: None,
            to: None,
            bytes: None,
            route: None,
            sync_method: None,
            buffer: None,
            cause: None,
            frame: None,
            failed: false,
            why: None,
        }
    }

    /// Records that a thread waited for the queue.
    pub(crate) fn thread_waited<T>(&mut self, outcome: &Result<T>) {
        self.sync_method = Some(SyncMethod::HostWait);
        self.failed = outcome.is_err();
    }

    /// Records the queue that the buffer came from, or that was waited for.
    pub(crate) fn came_from(&mut self, from: impl Into<OnQueue>) {
        let OnQueue { device, queue } = from.into();
        self.from = Some(device);
        self.from_queue = Some(queue);
    }
}
