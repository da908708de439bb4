//! The snapshot that viewers receive, as one packet of JSON.

use super::{RankSeen, StatisticsTable, ranks::names_of, statistics::BufferStatistics};
use onebuf_core::{
    Cause, Hub,
    observe::{Progress, ProgressSource, RunState, StageProgress},
    topology::DeviceIx,
};
use onebuf_hal::{Error, Result, RouteKind, SyncMethod, locks::Arc, printable};
use serde::{Deserialize, Serialize};
use std::{sync::atomic::Ordering, time::Duration};

/// The longest packet: half of a socket buffer's default size.
pub(super) const MOST_BYTES: usize = 96 << 10;
/// The version of the snapshot's format.
const SCHEMA: u32 = 2;
/// The maximum number of listed buffers.
const MOST_BUFFERS: usize = 256;
/// Longer names are cut.
const MOST_NAME: usize = 64;

/// The current state of a program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The version of this format.
    pub schema: u32,
    /// The program's process id.
    pub pid: u32,
    /// The program's name.
    pub program: String,
    /// Time since the hub was published.
    pub uptime_us: u64,
    /// The devices that the buffers and the ledger refer to.
    pub devices: Vec<DeviceSeen>,
    /// The buffers, oldest first.
    pub buffers: Vec<BufferSeen>,
    /// How many buffers are not listed.
    pub buffers_left_out: usize,
    /// The number of hand-overs by each sync method.
    pub fences: Vec<(SyncMethod, u64)>,
    /// Bytes moved between each pair of devices.
    pub ledger: Vec<Moved>,
    /// The pipelines.
    pub pipelines: Vec<PipelineSeen>,
    /// The ranks of the job, if the program gathers them.
    #[serde(default)]
    pub ranks: Vec<RankSeen>,
    /// How many ranks are not listed.
    #[serde(default)]
    pub ranks_left_out: usize,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSeen {
    /// The device's id.
    pub id: String,
    /// The device's name.
    pub name: String,
}

/// A buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferSeen {
    /// The buffer's name, or its number.
    pub name: String,
    /// The buffer's number, unique within the process.
    pub number: u64,
    /// The buffer's size.
    pub bytes: u64,
    /// The device that allocated it.
    pub home: String,
    /// The routes of the other devices.
    pub routes: Vec<RouteSeen>,
    /// How many times it was handed over between queues.
    pub hand_overs: u64,
    /// The last hand-over.
    pub last: Option<HandOver>,
    /// Bytes of implied copies.
    pub implied_bytes: u64,
}

/// A device's route to a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteSeen {
    /// The device.
    pub to: String,
    /// The current kind of the route.
    pub kind: RouteKind,
}

/// A buffer's hand-over from one device to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOver {
    /// The previous user.
    pub from: String,
    /// The next user.
    pub to: String,
    /// The sync method that ordered it.
    pub sync: SyncMethod,
}

/// Bytes moved between one ordered pair of devices for one cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// The source device.
    pub from: String,
    /// The destination device.
    pub to: String,
    /// Whether the caller asked for the copy.
    pub cause: Cause,
    /// The number of bytes.
    pub bytes: u64,
    /// The number of operations.
    pub operations: u64,
}

/// A pipeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PipelineSeen {
    /// The pipeline's name.
    pub name: String,
    /// Frames that came out at the sink.
    pub frames: u64,
    /// Frames that were dropped.
    pub dropped: u64,
    /// Frames that were incomplete.
    pub incomplete: u64,
    /// Frames in flight.
    pub on_the_way: u64,
    /// The run's duration, up to now or to its end.
    pub elapsed_us: u64,
    /// The lifecycle state.
    #[serde(default)]
    pub state: RunState,
    /// Frames per second over the last five seconds; 0 unless running.
    pub frames_per_second: f64,
    /// Frames per second since the start, up to now or to the end.
    #[serde(default)]
    pub average_per_second: f64,
    /// Time since the last frame came out, or since the start if none has; 0 unless running.
    #[serde(default)]
    pub since_last_us: u64,
    /// How long no frame has come out, if that is a stall: see [`Progress::stalled`].
    #[serde(default)]
    pub stalled_us: Option<u64>,
    /// The median latency of a frame.
    pub p50_us: Option<u64>,
    /// The 99th percentile.
    pub p99_us: Option<u64>,
    /// The stages, in order.
    pub stages: Vec<StageSeen>,
}

/// A stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageSeen {
    /// The stage's name.
    pub name: String,
    /// The stage's device.
    pub device: String,
    /// Frames that the stage passed on.
    pub frames: u64,
    /// The median time of a frame in the stage, on the host.
    pub p50_us: Option<u64>,
    /// The 99th percentile.
    pub p99_us: Option<u64>,
    /// Total time spent in the stage's function.
    pub busy_us: u64,
}

/// Limits the length of a name.
fn cut(name: &str) -> String {
    name.chars().take(MOST_NAME).collect()
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Snapshot {
    /// Takes a snapshot of a hub and its pipelines.
    pub(super) fn of(
        hub: &Hub,
        statistics_table: &StatisticsTable,
        pipelines: &[(String, Arc<dyn ProgressSource>)],
        uptime: Duration,
    ) -> Self {
        let living = statistics_table.living();
        let shown =
            living.iter().take(MOST_BUFFERS).map(|statistics| BufferSeen::of(hub, statistics));
        let moved = hub.ledger().entries().into_iter().map(|e| Moved {
            from: e.from,
            to: e.to,
            cause: e.cause,
            bytes: e.bytes,
            operations: e.operations,
        });
        let nodes = hub.topology().nodes().iter();
        Self {
            schema: SCHEMA,
            pid: std::process::id(),
            program: program(),
            uptime_us: us(uptime),
            devices: nodes
                .map(|n| DeviceSeen { id: n.id.clone(), name: cut(&n.info.name) })
                .collect(),
            buffers: shown.collect(),
            buffers_left_out: living.len().saturating_sub(MOST_BUFFERS),
            fences: statistics_table
                .sync_methods()
                .into_iter()
                .filter(|(_, count)| *count > 0)
                .collect(),
            ledger: moved.collect(),
            pipelines: pipelines
                .iter()
                .map(|(name, pipeline)| PipelineSeen::of(name, pipeline.progress()))
                .collect(),
            ranks: Vec::new(),
            ranks_left_out: 0,
        }
    }

    /// Encodes as one packet. Ranks' stages, buffers and ranks are removed until it fits.
    pub(super) fn encode(mut self) -> Result<Vec<u8>> {
        loop {
            let packet = serde_json::to_vec(&self);
            let packet = packet.map_err(|error| Error::invalid(format!("a snapshot: {error}")))?;
            if packet.len() <= MOST_BYTES {
                return Ok(packet);
            }
            if self.shorten_stages() {
                continue;
            }
            let half = self.buffers.len() / 2;
            if self.buffers.is_empty() {
                if self.shorten_ranks() {
                    continue;
                }
                return Err(Error::invalid("too many pipelines and devices for one packet"));
            }
            self.buffers_left_out += self.buffers.len() - half;
            self.buffers.truncate(half);
        }
    }

    /// Decodes a snapshot. The publisher may be any process of the same user.
    pub(super) fn decode(packet: &[u8]) -> Result<Self> {
        // The parser's errors repeat parts of its input.
        let wrong = |what: String| {
            Error::refused(format!("it sent an invalid snapshot: {}", printable(&what)))
        };
        let said: Snapshot =
            serde_json::from_slice(packet).map_err(|error| wrong(error.to_string()))?;
        match said.schema {
            SCHEMA => Ok(said.printable()),
            other => Err(wrong(format!("version {other}, but this program supports {SCHEMA}"))),
        }
    }
}

impl Snapshot {
    /// Makes all names printable, because the publisher chose them and terminals show them.
    fn printable(mut self) -> Self {
        let names = self.buffers.iter_mut().flat_map(|buffer| {
            let ends = buffer.last.iter_mut().flat_map(|last| [&mut last.from, &mut last.to]);
            let routes = buffer.routes.iter_mut().map(|route| &mut route.to);
            [&mut buffer.name, &mut buffer.home].into_iter().chain(routes).chain(ends)
        });
        let devices = self.devices.iter_mut().flat_map(|device| [&mut device.id, &mut device.name]);
        let moved = self.ledger.iter_mut().flat_map(|moved| [&mut moved.from, &mut moved.to]);
        let pipelines = names_of(&mut self.pipelines);
        let ranks = self.ranks.iter_mut().flat_map(RankSeen::names);
        let all = names.chain(devices).chain(moved).chain(pipelines).chain(ranks);
        let all = all.chain([&mut self.program]);
        all.for_each(|name| *name = printable(name));
        self
    }
}

/// The name of the program's file.
fn program() -> String {
    let path = std::env::current_exe().ok();
    let name = path.as_ref().and_then(|path| path.file_name());
    cut(&name.unwrap_or_default().to_string_lossy())
}

impl BufferSeen {
    fn of(hub: &Hub, statistics: &BufferStatistics) -> Self {
        let id = |device: DeviceIx| hub.topology().node(device).id.clone();
        let others = statistics.aliases.iter().filter(|alias| alias.device != statistics.home);
        Self {
            name: cut(&statistics.name),
            number: statistics.number,
            bytes: statistics.bytes,
            home: id(statistics.home),
            routes: others
                .map(|alias| RouteSeen { to: id(alias.device), kind: alias.kind() })
                .collect(),
            hand_overs: statistics.hand_overs.load(Ordering::Relaxed),
            last: statistics.last().map(|(from, to, sync)| HandOver {
                from: id(from),
                to: id(to),
                sync,
            }),
            implied_bytes: statistics.implied.load(Ordering::Relaxed),
        }
    }
}

impl PipelineSeen {
    fn of(name: &str, progress: Progress) -> Self {
        Self {
            name: cut(name),
            frames: progress.frames,
            dropped: progress.dropped,
            incomplete: progress.incomplete,
            on_the_way: progress.on_the_way,
            elapsed_us: us(progress.elapsed),
            state: progress.state,
            frames_per_second: progress.frames_per_second,
            average_per_second: progress.average_per_second,
            since_last_us: us(progress.since_last),
            stalled_us: progress.stalled.map(us),
            p50_us: progress.p50.map(us),
            p99_us: progress.p99.map(us),
            stages: progress.stages.into_iter().map(StageSeen::of).collect(),
        }
    }
}

impl StageSeen {
    fn of(stage: StageProgress) -> Self {
        Self {
            name: cut(&stage.name),
            device: stage.device,
            frames: stage.frames,
            p50_us: stage.p50.map(us),
            p99_us: stage.p99.map(us),
            busy_us: us(stage.busy),
        }
    }
}
