//! Events as plain data.

use super::OnQueue;
use crate::{Cause, topology::DeviceIx};
use onebuf_hal::{Result, RouteKind, SyncMethod};
use std::time::Duration;

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
    /// The part of a pipeline, where it has no queue: `source` or `sink`.
    pub part: Option<&'static str>,
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
    /// The sync method that ordered it.
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

    /// A thread waited for the queue.
    pub(crate) fn thread_waited<T>(&mut self, outcome: &Result<T>) {
        self.sync_method = Some(SyncMethod::HostWait);
        self.failed = outcome.is_err();
    }

    /// The queue that it came from, or was waited for.
    pub(crate) fn came_from(&mut self, from: impl Into<OnQueue>) {
        let OnQueue { device, queue } = from.into();
        self.from = Some(device);
        self.from_queue = Some(queue);
    }
}
