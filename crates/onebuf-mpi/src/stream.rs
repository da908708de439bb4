//! Streams of frames from one rank to another.
//!
//! ```text
//!   sender                                            receiver
//!   Open(bytes, options) ───────────────────────────► checked
//!   checked ◄──────────────────────────── Open(bytes, options)
//!   credits += n ◄──────────────────────────── Credit(n)   n slots are ready to receive
//!   Frame(number, checksum), and its bytes ─────────► the next slot
//!   End(frames) ────────────────────────────────────► no more
//!   ◄───────────────────────────────────────────── End
//! ```
//!
//! A frame is sent only when a slot is ready for it, so that MPI never buffers one. Each side's last record is `End`, or `Stop` if
//! it does not go on. Both sides wait for the other's, so that nothing is under way afterwards.

pub(crate) mod end;
pub(crate) mod receiver;
pub(crate) mod sender;
mod wires;

use crate::{
    ranks::Ranks,
    wire::{Kind, Record},
};
use onebuf_hal::{Error, Result};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// The tags of streams follow those of calls of all ranks: two for each.
const FIRST_TAG: i32 = 20_480;

/// The largest number of a stream.
pub const MOST_STREAM: u32 = 2_047;

const CHECKSUM: u16 = 1;

/// What both ends of a stream must agree on.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub stream: u32,
    pub peer: usize,
    /// The bytes of a frame.
    pub bytes: usize,
    /// The bytes of an element.
    pub element: u32,
    pub checksum: bool,
    /// Counts the runs of the pipeline.
    pub run: u64,
    pub timeout: Duration,
    pub ranks: Arc<Ranks>,
}

impl Spec {
    /// The tag from the sender to the receiver.
    fn down(&self) -> i32 {
        FIRST_TAG + 2 * self.stream as i32
    }

    /// The tag from the receiver to the sender.
    fn up(&self) -> i32 {
        self.down() + 1
    }

    fn record(&self, kind: Kind) -> Record {
        Record::new(kind, self.stream)
    }

    /// How this end describes itself.
    fn open(&self) -> Record {
        let flags = if self.checksum { CHECKSUM } else { 0 };
        let (bytes, number) = (self.bytes as u64, self.run);
        Record { flags, bytes, number, extra: self.element, ..self.record(Kind::Open) }
    }

    /// Checks how the other end describes itself.
    fn check_open(&self, theirs: &Record) -> Result<()> {
        let ours = self.open();
        if *theirs == ours {
            return Ok(());
        }
        let (own, peer) = (self.ranks.own, self.peer);
        let differs = |what: &str, own_has: u64, peer_has: u64| {
            (own_has != peer_has)
                .then(|| format!("{what}: {own_has} at rank {own}, {peer_has} at rank {peer}"))
        };
        let all = [
            differs("bytes of a frame", ours.bytes, theirs.bytes),
            differs("bytes of an element", ours.extra.into(), theirs.extra.into()),
            differs("checksums", ours.flags.into(), theirs.flags.into()),
            differs("run of the pipeline", ours.number, theirs.number),
        ];
        let all: Vec<String> = all.into_iter().flatten().collect();
        Err(Error::invalid(format!(
            "the ends of stream {} differ: {}",
            self.stream,
            all.join("; ")
        )))
    }

    /// Checks that a record belongs to this stream.
    fn check_channel(&self, record: &Record) -> Result<()> {
        match record.channel == self.stream {
            true => Ok(()),
            false => Err(self.refused(&format!("a record of stream {}", record.channel))),
        }
    }

    fn refused(&self, what: &str) -> Error {
        Error::refused(format!("rank {} sent {what} in stream {}", self.peer, self.stream))
    }

    /// The other end has stopped before the end of the stream.
    fn stopped(&self, frames: u64) -> Error {
        Error::Unavailable {
            what: format!("stream {} with rank {}", self.stream, self.peer),
            tried: Vec::new(),
            reason: format!("rank {} has stopped after {frames} frames", self.peer),
        }
    }

    /// The other end is silent for too long.
    fn late(&self, what: &str, frame: u64) -> Error {
        let (stream, rank) = (self.stream, self.ranks.describe(self.peer));
        Error::timeout(format!("{what} {frame} of stream {stream}: {rank}"), self.timeout)
    }

    /// The other end does not end.
    pub fn late_end(&self) -> Error {
        let (stream, rank) = (self.stream, self.ranks.describe(self.peer));
        Error::timeout(format!("the end of stream {stream}: {rank}"), self.timeout)
    }
}

/// When something was last heard of the other side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heard(Instant);

impl Heard {
    pub fn now() -> Self {
        Self(Instant::now())
    }

    pub fn is_late(&self, limit: Duration) -> bool {
        self.0.elapsed() >= limit
    }
}
