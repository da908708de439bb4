//! The cost of a hand-over by each sync method between two APIs on one chip, compared with host waits.

use crate::{
    Bench, Case, Row, Side, Stop, Unit, Workload,
    abba::compare,
    machine::check,
    solo::{self, try_timed},
};
use onebuf::{Buffer, BufferBuilder, Device, Hub, Result, RouteKind, SyncMethod};
use std::{collections::BTreeSet, time::Duration};

/// Turns of each side in one measurement.
const BATCH: u64 = 8;

/// Turns after which the sync method is known.
const TRIES: usize = 32;

/// Sync methods between two APIs, best first.
const SYNC_METHODS: [SyncMethod; 4] =
    [SyncMethod::Semaphore, SyncMethod::WaitValue, SyncMethod::Callback, SyncMethod::HostWait];

/// Words of the buffer: the cost of a hand-over does not depend on it.
const WORDS: usize = 1 << 18;

pub const WORKLOAD: Workload = Workload {
    name: "handoff_sync_<a>_<b>_us",
    about: "a hand-over of memory by a descriptor, by each sync method, over host waits",
    cases,
};

fn cases(bench: &Bench) -> Vec<Case> {
    let pairs = pairs(&bench.hub);
    if pairs.is_empty() {
        let why = "two APIs of which one imports the other's memory by a file descriptor: found 0";
        return vec![Case::absent(WORKLOAD.name, why)];
    }
    pairs
        .iter()
        .flat_map(|pair| SYNC_METHODS.map(|sync_method| case(pair.clone(), sync_method)))
        .collect()
}

/// Exporter and importer; each pair of devices once.
fn pairs(hub: &Hub) -> Vec<[Device; 2]> {
    let topology = hub.topology();
    let mut seen = BTreeSet::new();
    let by_fd = topology.routes().iter().filter(|route| {
        let ends = [route.from.min(route.to), route.from.max(route.to)];
        route.kind == RouteKind::OpaqueFd && seen.insert(ends)
    });
    let device = |ix| hub.device(&topology.node(ix).id).ok();
    by_fd.filter_map(|route| Some([device(route.from)?, device(route.to)?])).collect()
}

fn case(pair: [Device; 2], sync_method: SyncMethod) -> Case {
    let name = format!("handoff_sync_{}_{}_{sync_method}_us", pair[0], pair[1]);
    Case::new(name.clone(), move |bench| {
        run(bench, &pair, sync_method).map(|row| Row { name: name.clone(), ..row })
    })
}

fn run(bench: &Bench, pair: &[Device; 2], sync_method: SyncMethod) -> Result<Row, Stop> {
    let builder = bench.hub.buffer::<u32>(WORDS).shared_with(pair).trust_declared(true);
    let builder = builder.allocate_on(&pair[0]).route(RouteKind::OpaqueFd);
    let plan = builder.plan().map_err(|error| Stop::Absent(error.to_string()))?;
    let best = plan.routes.iter().map(|hop| hop.sync).max().unwrap_or(SyncMethod::HostWait);
    let joined = |by| Stop::Absent(format!("{} and {} are joined by {by}", pair[0], pair[1]));
    if sync_method < best {
        return Err(joined(best));
    }
    let ours = Turns::new(builder.clone(), pair, sync_method)?;
    let used = ours.sync_methods()?;
    // Work that is always done needs no sync method; then the plan's method is reported.
    let has = if used.is_empty() { sync_method == best } else { used.contains(&sync_method) };
    if !has {
        return Err(joined(*used.first().unwrap_or(&best)));
    }
    let remark = match used.iter().find(|other| **other != sync_method) {
        Some(other) => format!("the other way by {other}"),
        None => "there and back, halved".to_owned(),
    };
    if sync_method == SyncMethod::HostWait {
        let found = solo::measure(bench.effort, |times| ours.many(times))?;
        ours.check()?;
        return Ok(found.row("", Unit::Us).remark(remark));
    }
    let waits = Turns::new(builder, pair, SyncMethod::HostWait)?;
    let found = compare(bench.effort, || ours.batch(), || waits.batch())?;
    ours.check()?;
    waits.check()?;
    Ok(found.row("", Unit::Us).remark(remark))
}

/// A buffer that two sides take turns on, joined by one sync method.
struct Turns {
    buffer: Buffer<u32>,
    sides: [Side; 2],
}

impl Turns {
    fn new(
        builder: BufferBuilder<u32>,
        [a, b]: &[Device; 2],
        sync_method: SyncMethod,
    ) -> Result<Self> {
        Ok(Self {
            buffer: builder.sync(sync_method).build()?,
            sides: [Side::new(a)?, Side::new(b)?],
        })
    }

    /// The sync methods in both directions, if there was something to wait for.
    fn sync_methods(&self) -> Result<BTreeSet<SyncMethod>> {
        let mut used = BTreeSet::new();
        for side in self.sides.iter().cycle().take(TRIES) {
            side.touch(&self.buffer)?;
            used.extend(self.buffer.fence().map(|fence| fence.sync_method()));
        }
        // Methods within one API do not describe the pair.
        used.retain(|sync_method| SYNC_METHODS.contains(sync_method));
        Ok(used)
    }

    fn round(&self) -> Result<()> {
        self.sides.iter().try_for_each(|side| side.touch(&self.buffer))
    }

    /// Makes this many hand-overs, and waits for the last.
    fn many(&self, times: u64) -> Result<Duration> {
        let rounds = times.div_ceil(2);
        let spent = try_timed(1, || -> Result<()> {
            (0..rounds).try_for_each(|_| self.round())?;
            self.sides.iter().try_for_each(|side| side.queue.finish())
        })?;
        Ok(spent.mul_f64(times as f64 / (2 * rounds) as f64))
    }

    /// Nanoseconds per hand-over.
    fn batch(&self) -> Result<f64> {
        Ok(self.many(2 * BATCH)?.as_nanos() as f64 / (2 * BATCH) as f64)
    }

    fn check(&self) -> Result<()> {
        check(&self.buffer, self.sides[0].added().wrapping_add(self.sides[1].added()))
    }
}
