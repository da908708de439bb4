//! `onebuf demo`: two devices take turns on one buffer, and what that costs.

mod kernels;
mod pipeline;
mod report;
mod signal;

use crate::{
    devices, doctor,
    out::{Answer, Failure, Result},
    screen::Screen,
};
use onebuf::{
    BufferBuilder, Complex32, CopyPolicy, Device, Error, Hub, RouteKind,
    doctor::DEFAULT_REACH,
    topology::{Route, State},
};
use pipeline::Pipeline;
use report::Report;
use signal::{Frames, Source};

/// Let two devices take turns on one buffer of samples; measure it against a staged copy
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  onebuf demo                             two OpenCL platforms, or OpenCL and the host
  onebuf demo --devices opencl:0,host --frames 32
  onebuf demo --samples 1048576 --source file:capture.iq
  onebuf demo --json | jq .speedup

Stage 1 shifts every frame down by 3/16 of the sample rate; stage 2 makes the sum and the
difference of its two pulses; both in place. Every sample of every frame is checked against double
precision on the CPU. Routes that no experiment has tried yet are tried first, once.")]
pub struct Args {
    /// Who computes the first and the second stage
    #[arg(long, value_name = "A,B", value_parser = pair)]
    devices: Option<[String; 2]>,
    /// How many frames to measure
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    frames: u32,
    /// Complex samples per frame, at least 2
    #[arg(long, value_name = "N", default_value_t = 1 << 22, value_parser = clap::value_parser!(u32).range(2..=1 << 30))]
    samples: u32,
    /// Where frames come from: `synthetic`, or `file:PATH` of interleaved little-endian f32 I and Q
    #[arg(long, value_name = "SOURCE", default_value = "synthetic")]
    source: Source,
    /// Only run the staged way, for comparison
    #[arg(long)]
    staged: bool,
}

fn pair(text: &str) -> Result<[String; 2], String> {
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    let pair =
        names.try_into().ok().filter(|pair: &[String; 2]| pair.iter().all(|n| !n.is_empty()));
    pair.ok_or_else(|| "two devices are needed, such as opencl:0,host".into())
}

pub fn run(args: &Args, screen: Screen) -> Result<Answer> {
    let mut frames = Frames::open(&args.source, args.samples as usize)?;
    let hub = devices::discover_for_doctor()?;
    let ids = choose(&hub, args.devices.as_ref())?.map(|device| device.id().to_owned());
    let bytes = u64::from(args.samples) * size_of::<Complex32>() as u64;
    let hub = with_verdicts(hub, &ids, bytes)?;
    let devices = [hub.device(&ids[0])?, hub.device(&ids[1])?];
    let one = devices[0].index() == devices[1].index();
    if one && args.staged {
        let [device, _] = &devices;
        return Err(Failure::new(format!("--staged needs two devices, not {device} twice")));
    }
    let samples = args.samples as usize;
    let wish = hub.buffer::<Complex32>(samples).shared_with(&devices);
    let (policy, obstacle) = policy(&wish);
    let direct = (!args.staged).then(|| wish.clone().copies(policy).build()).transpose()?;
    let staged = wish.allocate_on(&devices[0]).route(RouteKind::Staged);
    let staged = (!one).then(|| staged.build()).transpose()?;

    let pipeline = Pipeline::open(&devices, samples, args.frames as usize)?;
    let buffers: Vec<_> = [&direct, &staged].into_iter().flatten().collect();
    let mut measured = pipeline.measure(&buffers, &mut frames)?.into_iter();
    let direct = direct.and_then(|_| measured.next());
    let staged = staged.and_then(|_| measured.next());
    Ok(Report { args, pipeline: &pipeline, direct, staged, obstacle }.answer(screen))
}

/// Two platforms of OpenCL if there are two, else OpenCL and the host, else the host alone.
fn choose(hub: &Hub, named: Option<&[String; 2]>) -> Result<[Device; 2]> {
    if let Some([first, second]) = named {
        return Ok([hub.device(first)?, hub.device(second)?]);
    }
    let opencl = hub.select("opencl");
    let Some(first) = opencl.first().cloned() else { return Ok([hub.host(), hub.host()]) };
    let second = opencl.into_iter().find(|other| other.info().platform != first.info().platform);
    Ok([first, second.unwrap_or_else(|| hub.host())])
}

/// Sees to it that the routes the demonstration could take have been tried.
fn with_verdicts(hub: Hub, ids: &[String; 2], bytes: u64) -> Result<Hub> {
    let [a, b] = [hub.device(&ids[0])?.index(), hub.device(&ids[1])?.index()];
    let ours = [a, b, hub.host().index()];
    // The staged copy is there whatever experiments say.
    let wanted = |route: &Route| {
        ours.contains(&route.from) && ours.contains(&route.to) && route.kind != RouteKind::Staged
    };
    let unknown = |route: &&Route| {
        let known = route.verdict.state == State::Refuted || route.verdict.proven_for(bytes);
        route.from != route.to && wanted(route) && !known
    };
    let unknown = hub.topology().routes().iter().filter(unknown).count();
    if unknown == 0 {
        return Ok(hub);
    }
    eprintln!("onebuf: trying {unknown} routes between {} and {} first …", ids[0], ids[1]);
    doctor::examine(&hub, false, bytes.max(DEFAULT_REACH), wanted)?;
    Ok(Hub::discover()?)
}

/// Copies are forbidden where a proven route makes that possible; else the reason why it is not.
fn policy(wish: &BufferBuilder<'_, Complex32>) -> (CopyPolicy, Option<String>) {
    match wish.clone().copies(CopyPolicy::Forbid).plan() {
        Ok(_) => (CopyPolicy::Forbid, None),
        Err(Error::CopyForbidden { route, why }) => {
            (CopyPolicy::Allow, Some(format!("{route} would copy: {why}")))
        }
        Err(other) => (CopyPolicy::Allow, Some(other.to_string())),
    }
}
