//! `onebuf demo`: the worked pipeline. Frames of a sensor array stream in; one device delays, windows and transforms
//! the channels, another forms beams, with one buffer between them. The report compares the cost with a staged copy.

mod account;
mod batch;
mod beams;
mod graft;
mod judge;
mod listen;
mod live;
mod pipeline;
mod ranks;
mod report;
mod signal;
mod stream;
mod supply;
mod watched;
mod wire;

use crate::{
    devices, doctor,
    out::{self, Answer, Failure, Output, Result, wrong_usage},
    screen::Screen,
};
use batch::Batch;
use beams::BeamsFile;
use graft::Graft;
use onebuf::{
    BufferBuilder, Complex32, CopyPolicy, Device, Error, Hub, RouteKind, cache,
    doctor::{Cached, DEFAULT_REACH},
    libs::Blas,
    topology::{Route, VerdictState},
    trace::HubTraceExt,
};
use onebuf_demo::{Adapted, Interpolator, Pipeline, Setup, Shape};
use pipeline::Way;
use report::Report;
use signal::{Frames, Source};
use std::path::{Path, PathBuf};
use stream::{Feed, Stream, Streamed};
use supply::Supply;
use watched::Watched;

/// Stream frames of a sensor array: align and transform on one device, form beams on another, one buffer between
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  onebuf demo                             OpenCL and CUDA or HIP on one chip; else two OpenCL
                                          platforms; else OpenCL and the host
  onebuf demo --devices opencl:0,cuda:0 --frames 64 --batch 8
  onebuf demo --no-graft                  OpenCL kernels run in OpenCL, not in a CUDA stream
  onebuf demo --frames 1000 --ring 16     a longer stream, with a live view on a terminal
  onebuf demo --samples 1048576 --channels 1024 --source file:capture.iq
  onebuf demo --samples 4194304 --channels 4 --beams 2    long channels: 1048576 samples each
  onebuf demo --adaptive 64               weights adapted to the received signal
  onebuf demo --source udp:127.0.0.1:5000 receives from `onebuf send --to udp:127.0.0.1:5000`
  onebuf demo --frames 64 --trace out.json   then open it at https://ui.perfetto.dev
  onebuf demo --save-beams beams.npy      then numpy.load('beams.npy')
  onebuf demo --json | jq .speedup
  mpirun -n 4 onebuf demo --frames 100    four processes, each with a part of the channels
  mpirun -n 4 onebuf demo --source udp:127.0.0.1:5000     rank r listens at port 5000 + r, for
                                          `onebuf send --ranks 4 --to udp:127.0.0.1:5000`

A frame is channels of up to 2048 complex samples, with --channels of up to 4194304. Stage 1, `delay+fft`:
every channel is delayed by a fraction of a sample (Lagrange interpolator, Farrow structure), windowed and
transformed in place. Stage 2, `beams`, multiplies the spectrum with weights (a complex matrix product): by
cuFFT and cuBLAS, rocFFT and rocBLAS or the CPU's libraries, on OpenCL by onebuf's kernels (stage 2 also
on CUDA and HIP without cuBLAS or rocBLAS). Stage 3, `detect`, lists peaks above each beam's noise. Every
output value depends on a whole bin of all channels, and is checked against double precision on the CPU.

First the frames stream through a ring of buffers. Then up to 64 of them are measured twice, zero-copy and
staged.
OpenCL kernels run in the CUDA stream if that is proven (docs/graft.md).
Routes without a verdict are tested first, once.

Under mpirun each rank has a part of the channels, which it computes, reads from a file that all ranks can read,
or receives at a UDP port of its own. A corner turn gives it all channels of some frequencies,
whose beams it forms; rank 0 gathers the beams, detects, and checks every number. Nothing is grafted or
staged then, and no second run compares ways.")]
pub struct DemoArgs {
    /// Devices of the first and the second stage
    #[arg(long, value_name = "A,B", value_parser = pair)]
    devices: Option<[String; 2]>,
    /// Number of frames
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    frames: u32,
    /// Complex samples per frame, at least 4: a whole number of channels
    #[arg(long, value_name = "N", default_value_t = 1 << 22, value_parser = samples)]
    samples: usize,
    /// Channels of a frame [default: as many as a channel has samples, or more]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    channels: Option<u32>,
    /// Order of the interpolation polynomial for fractional delays, from 3 to 5
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=5))]
    order: u8,
    /// Number of beams
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    beams: u32,
    /// Form beams from the first K channels with weights adapted to the first frame, which suppresses signals from
    /// other directions (MVDR)
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(2..=1024))]
    adaptive: Option<u32>,
    /// Frames that a stage processes before the other takes over [default: as few as keep switching below a tenth of
    /// the stages' own time, up to 8]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=64))]
    batch: Option<u32>,
    /// Number of buffers in the ring; at least as many as a batch has frames [default: two batches, at least 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    ring: Option<u32>,
    /// Source of frames: `synthetic`; `file:PATH` of interleaved little-endian f32 I and Q; `udp:HOST:PORT` or
    /// `tcp:HOST:PORT` to listen at; `udp:HOST:PORT?sockets=4&cpus=0-3&busy_poll=50` on several sockets, whose threads
    /// are pinned to processors and poll for 50 us before they sleep. Under mpirun, rank r listens at PORT + r
    #[arg(long, value_name = "SOURCE", default_value = "synthetic")]
    source: Source,
    /// Run only the staged way, for comparison
    #[arg(long)]
    staged: bool,
    /// Write a trace to this file, for Perfetto or chrome://tracing; recording adds overhead
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write the beams of the last frame to this file, for NumPy (.npy): a row for each beam, a column for each frequency
    #[arg(long, value_name = "FILE")]
    save_beams: Option<PathBuf>,
    /// Run OpenCL kernels in OpenCL, even if it is proven that they run in the CUDA stream
    #[arg(long)]
    no_graft: bool,
    /// Under mpirun: how many seconds a rank waits for another one
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    rank_timeout: u32,
}

fn pair(text: &str) -> Result<[String; 2], String> {
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    let pair =
        names.try_into().ok().filter(|pair: &[String; 2]| pair.iter().all(|n| !n.is_empty()));
    pair.ok_or_else(|| "two devices are needed, such as opencl:0,host".into())
}

/// Parses the number of samples. Too few samples for a channel are reported later, with the shape.
fn samples(text: &str) -> Result<usize, String> {
    let samples: usize = text.parse().map_err(|_| "a number of samples is needed".to_owned())?;
    match samples {
        4..=0x4000_0000 => Ok(samples),
        _ => Err("at least 4 and at most 1073741824 samples".into()),
    }
}

/// Inverting a covariance loses digits: at most four of single precision's seven.
const WEIGHTS_TOLERANCE: f64 = 1e-2;

/// Maximum number of frames that are measured one way against the other.
const COMPARED: usize = 64;

impl DemoArgs {
    /// Whether kernels may run in the other stage's queue.
    fn grafts(&self) -> bool {
        !self.no_graft && !self.staged
    }

    /// The constants of all frames; exits with a usage error if the shape is impossible.
    fn setup(&self) -> Setup {
        let (samples, beams) = (self.samples, self.beams as usize);
        let shape = match self.channels {
            Some(channels) => Shape::with_channels(samples, channels as usize, beams),
            None => Shape::of(samples, beams),
        };
        let setup = shape.and_then(|shape| {
            let setup = Setup::new(shape, Interpolator::new(self.order.into())?);
            match self.adaptive.map_or(shape.channels, |used| used as usize) {
                used if used <= shape.channels => Ok(setup.of_channels(used)),
                used => Err(format!("--adaptive {used}, of {} channels", shape.channels)),
            }
        });
        setup.unwrap_or_else(|why| wrong_usage(&why))
    }

    fn check(&self) {
        let DemoArgs { frames, .. } = self;
        if self.batch.is_some_and(|batch| batch > *frames) {
            wrong_usage(&format!("--batch needs at least as many --frames, not {frames}"));
        }
        if let (Some(batch), Some(ring)) = (self.batch, self.ring)
            && batch > ring
        {
            wrong_usage(&format!("--ring {ring} has no room for --batch {batch}"));
        }
    }
}

/// Runs the demonstration: this rank's part of it under a launcher of MPI, where only rank 0 has an answer.
pub fn run(args: &DemoArgs, screen: Screen, output: Output) -> Result<()> {
    args.check();
    let setup = args.setup();
    match ranks::join(args, &setup)? {
        Some(world) => ranks::run(args, &setup, screen, &world, output),
        None => output.give(run_alone(args, setup, screen)?),
    }
}

fn run_alone(args: &DemoArgs, setup: Setup, screen: Screen) -> Result<Answer> {
    let shape = setup.shape;
    let file = args.save_beams.as_deref().map(|path| BeamsFile::create(path, shape)).transpose()?;
    let mut supply = Supply::of(&args.source, &setup)?;
    let bytes = (shape.samples() * size_of::<Complex32>()) as u64;
    let (hub, devices) = machine(args, bytes, 0, args.grafts())?;
    let watched = Watched::open(&hub, args.trace.as_deref());
    let one = devices[0].index() == devices[1].index();
    let request = hub.buffer::<Complex32>(shape.samples()).name("frame").shared_with(&devices);
    let (setup, adapted) = adapt(args, &devices, setup, &request, &mut supply)?;
    let graft = Graft::of(!args.no_graft, &devices, &setup);
    let native = Pipeline::open(&devices, setup.clone())?;
    let in_place = hub.buffer::<Complex32>(shape.samples()).shared_with([&devices[1]]);
    // With one queue of one device nothing has to be shared.
    let (best, direct) = match graft.pipeline() {
        Some(grafted) => (grafted, in_place),
        None => (&native, request.clone()),
    };
    let (policy, obstacle) = policy(&direct);
    let shared = request.clone();
    let direct = (!args.staged).then(|| (best, direct.copies(policy)));
    let staged =
        (!one).then(|| (&native, request.allocate_on(&devices[0]).route(RouteKind::Staged)));

    let wishes: Vec<&(&Pipeline, _)> = [&direct, &staged].into_iter().flatten().collect();
    let (pipeline, request) = wishes[0];
    let batch = batch(args, pipeline, request)?;
    // Warm-up: drivers compile and pages are allocated on first use.
    pipeline.run(&pipeline.frames(request, 1)?)?;
    let mut feed = supply.start(&setup)?;
    let streamed = stream(args, pipeline, request, batch.frames, &mut feed, &watched)?;
    if let (Some(mut file), Some(beams)) = (file, &streamed.beams) {
        file.write(beams)?;
    }
    let mut frames = match feed {
        Feed::Frames(frames) => frames,
        Feed::Wire(wire) => Frames::again(&setup, wire.into_kept())?,
    };
    let mut ways = Vec::new();
    for (pipeline, request) in &wishes {
        ways.push(way(pipeline, request, batch.frames)?);
    }
    let count = COMPARED.min(args.frames as usize);
    let mut measured = pipeline::measure(ways, &mut frames, count)?.into_iter();
    let columns = match (hub.trace(), &direct) {
        (Some(trace), Some((best, memory))) => {
            account::take(&trace, (best, memory), (&native, &shared), batch.frames)?
        }
        _ => Vec::new(),
    };
    watched.save()?;
    let direct = direct.as_ref().and_then(|_| measured.next());
    let staged = staged.as_ref().and_then(|_| measured.next());
    let graft = &graft;
    let report =
        Report { pipeline, adapted, streamed, direct, staged, batch, obstacle, graft, columns };
    Ok(report.answer(screen))
}

/// The devices, after the routes that could be used for so many bytes have been tested. Of several chips the one with this number is
/// taken.
fn machine(args: &DemoArgs, bytes: u64, chip: usize, grafts: bool) -> Result<(Hub, [Device; 2])> {
    let hub = devices::discover()?;
    let ids = choose(&hub, args.devices.as_ref(), chip)?.map(|device| device.id().to_owned());
    let routes = try_routes(&hub, &ids, bytes)?;
    let grafts = if grafts { graft::try_it(&hub, &ids)? } else { None };
    let found = [routes, grafts];
    doctor::warn_of(&hub, found.iter().flatten());
    let hub = match found.iter().all(Option::is_none) && args.trace.is_none() {
        true => hub,
        false => again(&hub, found, args.trace.as_deref())?,
    };
    let devices = [hub.device(&ids[0])?, hub.device(&ids[1])?];
    if devices[0].index() == devices[1].index() && args.staged {
        let [device, _] = &devices;
        return Err(Failure::new(format!("--staged needs two devices, not {device} twice")));
    }
    Ok((hub, devices))
}

/// A new hub with the same devices and the new verdicts, whether or not the cache could be written.
fn again(hub: &Hub, found: [Option<Cached>; 2], trace: Option<&Path>) -> Result<Hub> {
    let mut verdicts = hub.verdicts().clone();
    found.into_iter().flatten().for_each(|found| verdicts.extend(found.verdicts));
    let builder = onebuf::builder().verdicts(verdicts);
    // Named explicitly, so that compiled programs are stored there.
    let builder =
        cache::user_folder().into_iter().fold(builder, |builder, folder| builder.cache(folder));
    Ok(Watched::recording(builder, trace).build()?)
}

/// Weights adapted to the first frame, if requested.
fn adapt(
    args: &DemoArgs,
    devices: &[Device; 2],
    setup: Setup,
    request: &BufferBuilder<'_, Complex32>,
    supply: &mut Supply<'_>,
) -> Result<(Setup, Option<Adapted>)> {
    if args.adaptive.is_none() {
        return Ok((setup, None));
    }
    let pipeline = Pipeline::open(devices, setup.clone())?;
    let samples = supply.first(&setup)?;
    let adapted = pipeline.adapt(&pipeline.frame(request)?, &samples)?;
    let (error, by) = (adapted.max_rel_error, &adapted.device);
    if error.is_nan() || error > WEIGHTS_TOLERANCE {
        return Err(Failure::new(format!(
            "the weights solved by {by} have an error of {error:.1e}; {WEIGHTS_TOLERANCE:.0e} is allowed"
        )));
    }
    Ok((Setup { weights: adapted.weights.clone(), ..setup }, Some(adapted)))
}

fn stream(
    args: &DemoArgs,
    pipeline: &Pipeline,
    request: &BufferBuilder<'_, Complex32>,
    batch: usize,
    feed: &mut Feed,
    watched: &Watched<'_>,
) -> Result<Streamed> {
    let ring = args.ring.map_or((2 * batch).max(4), |ring| ring as usize);
    let (request, batch, count) = (request.clone(), batch.min(ring), args.frames.into());
    let (grafts, keep) = (args.grafts(), args.save_beams.is_some());
    Stream { pipeline, request, frames: count, ring, batch, grafts, keep, watched }.run(feed)
}

fn way<'p>(
    pipeline: &'p Pipeline,
    request: &BufferBuilder<'_, Complex32>,
    frames: usize,
) -> onebuf::Result<Way<'p>> {
    Ok(Way::new(pipeline, pipeline.frames(request, frames)?))
}

/// Frames per switch: as requested, or as the costs of the better way suggest.
fn batch(
    args: &DemoArgs,
    pipeline: &Pipeline,
    request: &BufferBuilder<'_, Complex32>,
) -> Result<Batch> {
    match args.batch {
        Some(batch) => Ok(Batch::asked(batch as usize)),
        None => {
            let frame = pipeline.frames(request, 1)?;
            Batch::measured(pipeline, &frame[0], args.frames as usize)
        }
    }
}

/// One chip that OpenCL and CUDA or HIP both support; else two OpenCL platforms, else OpenCL and the host, else the
/// host alone.
fn choose(hub: &Hub, named: Option<&[String; 2]>, chip: usize) -> Result<[Device; 2]> {
    if let Some([first, second]) = named {
        return Ok([hub.device(first)?, hub.device(second)?]);
    }
    let chips = chips(hub, chip + 1);
    if !chips.is_empty() {
        return Ok(chips[chip % chips.len()].clone());
    }
    let opencl = hub.select("opencl");
    let Some(first) = opencl.first().cloned() else { return Ok([hub.host(), hub.host()]) };
    let second = opencl.into_iter().find(|other| other.info().platform != first.info().platform);
    Ok([first, second.unwrap_or_else(|| hub.host())])
}

/// The OpenCL device and the CUDA or HIP device of each chip whose latter device has its library of matrix products; as many as are needed.
fn chips(hub: &Hub, needed: usize) -> Vec<[Device; 2]> {
    let (opencl, mut chips) = (hub.select("opencl"), Vec::new());
    for second in hub.select("cuda").into_iter().chain(hub.select("hip")) {
        let same = |first: &&Device| first.info().physical.same_chip(&second.info().physical);
        let Some(first) = opencl.iter().find(same).filter(|_| chips.len() < needed) else {
            continue;
        };
        match second.queue().and_then(|queue| Blas::on(&queue)) {
            Ok(_) => chips.push([first.clone(), second]),
            Err(why) => out::warn(format!("{second} is left out: {why}")),
        }
    }
    chips
}

/// Tests the routes that the demonstration could use, if they have no verdict. Returns the new verdicts.
fn try_routes(hub: &Hub, ids: &[String; 2], bytes: u64) -> Result<Option<Cached>> {
    let [a, b] = [hub.device(&ids[0])?.index(), hub.device(&ids[1])?.index()];
    let ours = [a, b, hub.host().index()];
    // The staged copy works without an experiment.
    let wanted = |route: &Route| {
        ours.contains(&route.from) && ours.contains(&route.to) && route.kind != RouteKind::Staged
    };
    let unknown = |route: &&Route| {
        let known = route.verdict.state == VerdictState::Refuted || route.verdict.proven_for(bytes);
        route.from != route.to && wanted(route) && !known
    };
    let unknown = hub.topology().routes().iter().filter(unknown).count();
    if unknown == 0 {
        return Ok(None);
    }
    eprintln!("onebuf: testing {unknown} routes between {} and {} first …", ids[0], ids[1]);
    let report = doctor::examine(hub, false, bytes.max(DEFAULT_REACH), wanted)?;
    Ok(Some(report.cached))
}

/// Forbids copies if a proven route makes that possible; otherwise returns the reason why none does.
fn policy(request: &BufferBuilder<'_, Complex32>) -> (CopyPolicy, Option<String>) {
    match request.clone().copies(CopyPolicy::Forbid).plan() {
        Ok(_) => (CopyPolicy::Forbid, None),
        Err(Error::CopyForbidden { route, why }) => {
            (CopyPolicy::Allow, Some(format!("{route} would copy: {why}")))
        }
        Err(other) => (CopyPolicy::Allow, Some(other.to_string())),
    }
}
