//! `mpirun -n 4 onebuf demo`: the demonstration on several ranks.
//!
//! ```text
//!   rank 0:  its channels ──delay, fft──► spectra ─┐  corner  ┌─► all channels, its frequencies ──beams──┐
//!   rank 1:  its channels ──delay, fft──► spectra ─┤   turn   ├─► all channels, its frequencies ──beams──┤
//!   rank 2:  its channels ──delay, fft──► spectra ─┘          └─► all channels, its frequencies ──beams──┴─► rank 0: detections
//! ```

mod agree;
mod losses;
mod part;
mod port;
mod report;
mod rounds;
mod trace;
mod wired;

use super::{
    DemoArgs, Source,
    beams::BeamsFile,
    listen::{Listen, UdpListen},
    machine,
    report::{network, stage},
    wire::PATIENCE,
};
use crate::{
    out::{Failure, Output, Result, say, wrong_usage},
    screen::Screen,
};
use agree::agreed;
use losses::{LeftOut, Seen};
use onebuf::{
    Hub,
    peer::{before_signals_end, remove_sockets},
};
use onebuf_demo::Setup;
use onebuf_mpi::{Join, World, share};
use part::{Part, Ran};
use port::Port;
use report::Whole;
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
        Source::Network(Listen::Udp(_)) => "udp",
        Source::Network(Listen::Tcp(_)) => "tcp",
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
        .agree("--save-beams", args.save_beams.is_some())
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
        ("--staged", args.staged),
        ("--source tcp:", matches!(args.source, Source::Network(Listen::Tcp(_)))),
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
    let mut file = agreed(world, beams_file(args, setup, world))?;
    let (part, mut port) = agreed(world, prepare(args, setup, world))?;
    let trace = args.trace.as_deref();
    let offset = trace.map(|_| trace::offset(world, part.hub())).transpose()?;
    agreed(world, port.as_mut().map_or(Ok(()), |port| listen(port, &part, world)))?;
    let ran = agreed(world, part.run(args, world, port.as_ref()))?;
    let saved = file.as_mut().zip(ran.beams.as_deref()).map(|(to, last)| to.write(last));
    agreed(world, saved.transpose().map_err(Failure::from))?;
    let left_out = left_out(world, port.as_ref(), &ran)?;
    let told = told(&part, &ran, port.as_ref(), world);
    let parts = world.collect(told.to_string().into_bytes(), 0, world.timeout())?;
    if let (Some(path), Some(offset)) = (trace, offset) {
        agreed(world, trace::save(world, part.hub(), offset, path, &ran.exchanges))?;
    }
    let give = |parts: Vec<Vec<u8>>| {
        let parts = parts.iter().map(|part| serde_json::from_slice(part));
        let parts: Vec<Value> = parts.collect::<Result<_, _>>()?;
        let whole = Whole { part: &part, ran: &ran, parts: &parts, left_out, world };
        output.give(whole.answer(screen))
    };
    agreed(world, parts.map_or(Ok(()), give))
}

/// The file for the beams of the last frame, at rank 0.
fn beams_file(args: &DemoArgs, setup: &Setup, world: &World) -> Result<Option<BeamsFile>> {
    let path = args.save_beams.as_deref().filter(|_| world.rank() == 0);
    Ok(path.map(|path| BeamsFile::create(path, setup.shape)).transpose()?)
}

/// Binds this rank's port, chooses devices, builds kernels and runs them once. The first rank of each machine makes the experiments of a
/// first run, alone.
fn prepare(args: &DemoArgs, setup: &Setup, world: &World) -> Result<(Part, Option<Port>)> {
    let local = local_rank(world);
    let bytes = (setup.shape.samples() * size_of::<onebuf::Complex32>()) as u64;
    // Other ranks wait at the barrier, whatever this one finds.
    let port = bind(args, setup, world);
    let find = || machine(args, bytes, local, false);
    let first = (local == 0 && port.is_ok()).then(find);
    world.barrier(SETUP)?;
    let port = port?;
    let (hub, devices) = first.unwrap_or_else(find)?;
    Ok((Part::open(hub, devices, setup, world)?, port))
}

/// This rank's port, if frames come over the network and it has channels.
fn bind(args: &DemoArgs, setup: &Setup, world: &World) -> Result<Option<Port>> {
    let Source::Network(Listen::Udp(listen)) = &args.source else { return Ok(None) };
    let own = of_rank(listen, world)?;
    let channels = share(setup.shape.channels, world.size(), world.rank());
    (!channels.is_empty()).then(|| Port::open(&own)).transpose()
}

fn of_rank(listen: &UdpListen, world: &World) -> Result<UdpListen> {
    listen.of_rank(world.rank()).map_err(Failure::new)
}

/// Begins to listen, and says so.
fn listen(port: &mut Port, part: &Part, world: &World) -> Result<()> {
    let (own, shape, rank) = (part.channels(), part.setup.shape, world.rank());
    port.listen(own.len() * shape.length)?;
    say(format!(
        "rank {rank}: listening at udp:{} for up to {} s; expecting frames of channels {} to {} of {}, of {} samples: `onebuf send --share {rank}/{}`",
        port.address(),
        PATIENCE.as_secs(),
        own.start,
        own.end - 1,
        shape.channels,
        shape.length,
        world.size(),
    ));
    Ok(())
}

/// The frames that were not processed, at rank 0. All ranks call it.
fn left_out(world: &World, port: Option<&Port>, ran: &Ran) -> Result<LeftOut> {
    let own = port.map(Port::seen).unwrap_or_default();
    let all = world.collect(own.encode(), 0, world.timeout())?.unwrap_or_default();
    let all: Vec<Seen> = all.iter().map(|seen| Seen::decode(seen)).collect::<Result<_>>()?;
    Ok(LeftOut::of(&all, &ran.taken))
}

/// This process's number among the ranks of its machine.
fn local_rank(world: &World) -> usize {
    let (peers, own) = (world.peers(), world.rank());
    peers.iter().filter(|peer| peer.rank < own && peer.host == peers[own].host).count()
}

/// What a rank reports to rank 0.
fn told(part: &Part, ran: &Ran, port: Option<&Port>, world: &World) -> Value {
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
        "device_bytes": world.device_bytes(),
        "stages": stages,
        "network": port.map(|port| network(&port.counts(), &port.socket_counts())),
    })
}

/// A hub of the host alone, for small messages.
fn host() -> Result<Hub> {
    Ok(onebuf::builder().only(["host"]).build()?)
}
