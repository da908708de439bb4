//! What a viewer is told, in one packet of JSON.

use super::{StatisticsTable, statistics::BufferStatistics};
use onebuf_core::{
    Cause, Hub,
    observe::{Progress, ProgressSource, RunState, StageProgress},
    topology::DeviceIx,
};
use onebuf_hal::{Error, Result, RouteKind, SyncMethod, locks::Arc, printable};
use serde::{Deserialize, Serialize};
use std::{sync::atomic::Ordering, time::Duration};

/// No packet is longer: half of what a socket's buffer holds by default.
pub(super) const MOST_BYTES: usize = 96 << 10;
/// The version of its shape.
const SCHEMA: u32 = 2;
/// No more buffers are listed at first.
const MOST_BUFFERS: usize = 256;
/// Names are cut there.
const MOST_NAME: usize = 64;

/// How a program does, now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The version of this shape.
    pub schema: u32,
    /// Its process.
    pub pid: u32,
    /// Its program's name.
    pub program: String,
    /// Since when it has been published.
    pub uptime_us: u64,
    /// The devices that its buffers and its ledger speak of.
    pub devices: Vec<DeviceSeen>,
    /// Its buffers, the oldest first.
    pub buffers: Vec<BufferSeen>,
    /// How many more there are.
    pub buffers_left_out: usize,
    /// How many hand-overs were ordered by each sync method.
    pub fences: Vec<(SyncMethod, u64)>,
    /// What was moved between each pair.
    pub ledger: Vec<Moved>,
    /// Its pipelines.
    pub pipelines: Vec<PipelineSeen>,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSeen {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
}

/// A buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferSeen {
    /// Its name, or its number.
    pub name: String,
    /// By which it is known as long as the process lives.
    pub number: u64,
    /// How large it is.
    pub bytes: u64,
    /// The device that allocated it.
    pub home: String,
    /// How the others see it.
    pub routes: Vec<RouteSeen>,
    /// How often it went from one queue to another.
    pub hand_overs: u64,
    /// The last time.
    pub last: Option<HandOver>,
    /// Bytes that were copied for it although nobody asked.
    pub implied_bytes: u64,
}

/// How a device sees a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteSeen {
    /// The device.
    pub to: String,
    /// By which route, now.
    pub kind: RouteKind,
}

/// A buffer's way from one device to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOver {
    /// Who had it.
    pub from: String,
    /// Who got it.
    pub to: String,
    /// The sync method that ordered it.
    pub sync: SyncMethod,
}

/// What was moved between one ordered pair for one cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Where the bytes came from.
    pub from: String,
    /// Where they went.
    pub to: String,
    /// Whether anybody asked.
    pub cause: Cause,
    /// How many.
    pub bytes: u64,
    /// In how many operations.
    pub operations: u64,
}

/// A pipeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PipelineSeen {
    /// What the program calls it.
    pub name: String,
    /// Frames that came out.
    pub frames: u64,
    /// Frames that were dropped.
    pub dropped: u64,
    /// Frames that were incomplete.
    pub incomplete: u64,
    /// Frames that are on their way.
    pub on_the_way: u64,
    /// How long it has been running; how long it ran, when it is over.
    pub elapsed_us: u64,
    /// Where it is in its life.
    #[serde(default)]
    pub state: RunState,
    /// Over the last five seconds up to now; 0 unless it runs.
    pub frames_per_second: f64,
    /// Since its start, up to now or to its end.
    #[serde(default)]
    pub average_per_second: f64,
    /// How long ago the last frame came out, or it was started before one did; 0 unless it runs.
    #[serde(default)]
    pub since_last_us: u64,
    /// How long no frame has come out, where that is a stall: see [`Progress::stalled`].
    #[serde(default)]
    pub stalled_us: Option<u64>,
    /// Half of all frames took no longer.
    pub p50_us: Option<u64>,
    /// 99 of 100 took no longer.
    pub p99_us: Option<u64>,
    /// Its stages, in their order.
    pub stages: Vec<StageSeen>,
}

/// A stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageSeen {
    /// Its name.
    pub name: String,
    /// Its device.
    pub device: String,
    /// Frames that it passed on.
    pub frames: u64,
    /// Half of all frames took no longer in it, on the host.
    pub p50_us: Option<u64>,
    /// 99 of 100.
    pub p99_us: Option<u64>,
    /// All the time that its function ran.
    pub busy_us: u64,
}

/// Enough of a name that somebody chose.
fn cut(name: &str) -> String {
    name.chars().take(MOST_NAME).collect()
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Snapshot {
    /// Of a hub and its pipelines.
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
        }
    }

    /// As one packet. Buffers are left out until it fits.
    pub(super) fn encode(mut self) -> Result<Vec<u8>> {
        loop {
            let packet = serde_json::to_vec(&self);
            let packet = packet.map_err(|error| Error::invalid(format!("a snapshot: {error}")))?;
            if packet.len() <= MOST_BYTES {
                return Ok(packet);
            }
            let half = self.buffers.len() / 2;
            if self.buffers.is_empty() {
                return Err(Error::invalid("more pipelines and devices than a packet holds"));
            }
            self.buffers_left_out += self.buffers.len() - half;
            self.buffers.truncate(half);
        }
    }

    /// What a publisher said, who may be anybody of this user's.
    pub(super) fn decode(packet: &[u8]) -> Result<Self> {
        // The parser repeats what it does not know.
        let wrong =
            |what: String| Error::refused(format!("it sent no snapshot: {}", printable(&what)));
        let said: Snapshot =
            serde_json::from_slice(packet).map_err(|error| wrong(error.to_string()))?;
        match said.schema {
            SCHEMA => Ok(said.printable()),
            other => Err(wrong(format!("version {other}, this program knows {SCHEMA}"))),
        }
    }
}

impl Snapshot {
    /// Every name in it as a terminal can show it: the publisher chose them.
    fn printable(mut self) -> Self {
        let names = self.buffers.iter_mut().flat_map(|buffer| {
            let ends = buffer.last.iter_mut().flat_map(|last| [&mut last.from, &mut last.to]);
            let routes = buffer.routes.iter_mut().map(|route| &mut route.to);
            [&mut buffer.name, &mut buffer.home].into_iter().chain(routes).chain(ends)
        });
        let devices = self.devices.iter_mut().flat_map(|device| [&mut device.id, &mut device.name]);
        let moved = self.ledger.iter_mut().flat_map(|moved| [&mut moved.from, &mut moved.to]);
        let pipelines = self.pipelines.iter_mut().flat_map(|pipeline| {
            let stages = pipeline.stages.iter_mut();
            let stages = stages.flat_map(|stage| [&mut stage.name, &mut stage.device]);
            std::iter::once(&mut pipeline.name).chain(stages)
        });
        let all = names.chain(devices).chain(moved).chain(pipelines).chain([&mut self.program]);
        all.for_each(|name| *name = printable(name));
        self
    }
}

/// What the process calls itself.
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
