//! `mpirun -n 4 onebuf demo`: the demonstration on several ranks.
//!
//! ```text
//!   rank 0:  its channels ──delay, fft──► spectra ─┐  corner  ┌─► all channels, its frequencies ──beams──┐
//!   rank 1:  its channels ──delay, fft──► spectra ─┤   turn   ├─► all channels, its frequencies ──beams──┤
//!   rank 2:  its channels ──delay, fft──► spectra ─┘          └─► all channels, its frequencies ──beams──┴─► rank 0: detections
//! ```

mod agree;
mod part;
mod report;
mod trace;

use super::{DemoArgs, Source, machine, report::stage, wrong_usage};
use crate::{
    out::{Failure, Output, Result},
    screen::Screen,
};
use agree::agreed;
use onebuf::{
    Hub,
    peer::{before_signals_end, remove_sockets},
};
use onebuf_demo::Setup;
use onebuf_mpi::{Join, World};
use part::{Part, Ran};
use serde_json::{Value, json};
use std::time::Duration;

/// How long the ranks wait for the experiments of another one, which only a first run makes.
const SETUP: Duration = Duration::from_secs(600);

/// Joins the other ranks. `None` if no launcher of MPI has started this process.
pub fn join(args: &DemoArgs, setup: &Setup) -> Result<Option<World>> {
    let shape = setup.shape;
    let source = match &args.source {
        Source::Synthetic => "synthetic",
        Source::File(_) => "file",
        Source::Network(_) => "network",
    };
    let world = Join::new()
        .timeout(Duration::from_secs(args.rank_timeout.into()))
        .agree("--frames", args.frames)
        .agree("--samples", shape.samples())
        .agree("--channels", shape.channels)
        .agree("--beams", shape.beams)
        .agree("--order", args.order)
        .agree("--source", source)
        .agree("--ring", args.ring.unwrap_or(RING))
        .agree("--trace", args.trace.is_some())
        .start()?;
    if world.library().is_empty() {
        return Ok(None);
    }
    if let Some(option) = single(args) {
        wrong_usage(&format!("{option}: not with several ranks"));
    }
    Ok(Some(world))
}

/// The option that only a single process can have, if it is used.
fn single(args: &DemoArgs) -> Option<&'static str> {
    let used = [
        ("--adaptive", args.adaptive.is_some()),
        ("--batch", args.batch.is_some()),
        ("--save-beams", args.save_beams.is_some()),
        ("--staged", args.staged),
        ("--source udp: or tcp:", matches!(args.source, Source::Network(_))),
    ];
    used.into_iter().find_map(|(option, used)| used.then_some(option))
}

/// Slots of each rank's ring, if none are asked for.
const RING: u32 = 4;

/// Runs this rank's part. Rank 0 has the answer, and all ranks fail if it cannot give it.
pub fn run(
    args: &DemoArgs,
    setup: &Setup,
    screen: Screen,
    world: &World,
    output: Output,
) -> Result<()> {
    let _words = LastWords::of(world);
    let outcome = all_of_it(args, setup, screen, world, output);
    // A rank that was killed could not remove its socket. One that is ended by a signal does the same.
    outcome
        .inspect_err(|_| remove_sockets())
        .map_err(|why| Failure::new(told_by(world, &why.to_string())))
}

/// A rank's reason, and the ranks that may have caused it: the first to fail is not always the one that a rank was waiting for.
fn told_by(world: &World, why: &str) -> String {
    let others = world.ailing().into_iter().filter(|other| !why.contains(other));
    let others: String = others.map(|other| format!("; {other}")).collect();
    format!("rank {}: {why}{others}", world.rank())
}

/// A launcher ends all ranks when one has died. While this lives, they say which one before they end.
struct LastWords;

impl LastWords {
    fn of(world: &World) -> Self {
        let world = world.clone();
        before_signals_end(move || {
            for other in world.ailing() {
                eprintln!("onebuf: rank {}: {other}", world.rank());
            }
        });
        Self
    }
}

impl Drop for LastWords {
    fn drop(&mut self) {
        // The world ends with its last clone.
        before_signals_end(|| {});
    }
}

fn all_of_it(
    args: &DemoArgs,
    setup: &Setup,
    screen: Screen,
    world: &World,
    output: Output,
) -> Result<()> {
    let part = agreed(world, prepare(args, setup, world))?;
    let trace = args.trace.as_deref();
    let offset = trace.map(|_| trace::offset(world, part.hub())).transpose()?;
    let ran = agreed(world, part.run(args, world))?;
    let told = told(&part, &ran, world);
    let parts = world.collect(told.to_string().into_bytes(), 0, world.timeout())?;
    if let (Some(path), Some(offset)) = (trace, offset) {
        agreed(world, trace::save(world, part.hub(), offset, path, &ran.exchanges))?;
    }
    let give = |parts: Vec<Vec<u8>>| {
        let parts = parts.iter().map(|part| serde_json::from_slice(part));
        let parts: Vec<Value> = parts.collect::<Result<_, _>>()?;
        output.give(report::answer(&part, &ran, &parts, world, screen))
    };
    agreed(world, parts.map_or(Ok(()), give))
}

/// Chooses devices, builds kernels and runs them once. The first rank of each machine makes the experiments of a first run, alone.
fn prepare(args: &DemoArgs, setup: &Setup, world: &World) -> Result<Part> {
    let local = local_rank(world);
    let bytes = (setup.shape.samples() * size_of::<onebuf::Complex32>()) as u64;
    let find = || machine(args, bytes, local, false);
    let first = (local == 0).then(find);
    world.barrier(SETUP)?;
    let (hub, devices) = first.unwrap_or_else(find)?;
    Part::open(hub, devices, setup, world)
}

/// This process's number among the ranks of its machine.
fn local_rank(world: &World) -> usize {
    let (peers, own) = (world.peers(), world.rank());
    peers.iter().filter(|peer| peer.rank < own && peer.host == peers[own].host).count()
}

/// What a rank reports to rank 0.
fn told(part: &Part, ran: &Ran, world: &World) -> Value {
    let stages: Vec<Value> = ran.report.stages.iter().map(stage).collect();
    json!({
        "rank": world.rank(),
        "host": world.peers()[world.rank()].host,
        "channels": part.channels().len(),
        "frequencies": part.frequencies().len(),
        "frames": ran.report.frames,
        "frames_per_s": ran.frames_per_s,
        "bytes_copied": ran.bytes_copied,
        "bytes_received": ran.bytes_received,
        "stages": stages,
    })
}

/// A hub of the host alone, for small messages.
fn host() -> Result<Hub> {
    Ok(onebuf::builder().only(["host"]).build()?)
}
