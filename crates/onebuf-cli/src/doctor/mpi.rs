//! `mpirun -n 2 onebuf doctor --mpi`: whether MPI can be given the memory of GPUs.

use super::DoctorArgs;
use crate::{
    devices,
    out::{self, Answer, Failure, Output, Result},
};
use onebuf::{
    Device, Hub,
    doctor::Verdicts,
    topology::{Verdict, VerdictState},
};
use onebuf_mpi::{DeviceMemory, Join, World};
use serde_json::{Value, json};
use std::time::Duration;

/// How long a message of the experiment may take, and the other rank to start.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A device's row.
struct Row {
    device: String,
    found: DeviceMemory,
    /// Whether the verdict is of an earlier run.
    is_stored: bool,
}

/// Both ranks run it; rank 0 has the answer, and stores the verdicts.
pub fn run(args: &DoctorArgs, output: Output) -> Result<()> {
    let hub = devices::discover()?;
    let gpus = gpus(&hub, &args.devices)?;
    let ids: Vec<&str> = gpus.iter().map(Device::id).collect();
    let world = Join::new()
        .timeout(TIMEOUT)
        .agree("devices", ids.join(","))
        .agree("--fresh", args.fresh)
        .agree("--reach", args.reach)
        .start()?;
    if world.size() != 2 {
        let (why, ranks) = ("--mpi tries messages between two ranks of one machine", world.size());
        return Err(Failure::new(format!("{why}, not {ranks}: `mpirun -n 2 onebuf doctor --mpi`")));
    }
    let (mut rows, mut saved) = (Vec::new(), true);
    for device in &gpus {
        let row = examine(&world, device, args)?;
        saved &= row.1;
        rows.push(row.0);
    }
    match world.rank() {
        0 => output.give(answer(&world, &rows, saved)),
        _ => Ok(()),
    }
}

/// The devices whose memory an MPI may claim to take.
fn gpus(hub: &Hub, named: &[String]) -> Result<Vec<Device>> {
    let chosen = super::chosen(hub, named)?;
    let all = hub.devices().into_iter();
    let all = all.filter(|device| ["cuda", "hip"].contains(&device.info().api.0));
    Ok(all.filter(|device| chosen.contains(&device.index())).collect())
}

/// The verdict on a device, and whether it could be stored.
fn examine(world: &World, device: &Device, args: &DoctorArgs) -> Result<(Row, bool)> {
    let row = |found, is_stored| Row { device: device.id().into(), found, is_stored };
    let stored = DeviceMemory::stored(world, device).filter(|_| !args.fresh);
    let known = world.collect(vec![u8::from(stored.is_some())], 0, TIMEOUT)?;
    // Rank 0 decides for both.
    let known = known.is_some_and(|all| all[0] == vec![1]);
    let known = tell(world, known)?;
    if known {
        let verdict = stored.unwrap_or_default();
        return Ok((row(DeviceMemory::of(verdict), true), true));
    }
    let (keeps, mut saved) = (world.rank() == 0, None);
    let found = world.try_device_memory(device, args.reach, || {
        // An MPI that ends the process leaves this behind.
        saved = Some(!keeps || save(world, device, &DeviceMemory::unfinished()));
    })?;
    // Without an experiment there is nothing to keep.
    let saved = saved.is_none_or(|saved| saved && (!keeps || save(world, device, &found)));
    Ok((row(found, false), saved))
}

/// What rank 0 says.
fn tell(world: &World, own: bool) -> Result<bool> {
    let hub = onebuf::builder().only(["host"]).build()?;
    let word = hub.buffer_from(&[u8::from(own)]).build()?;
    world.broadcast(&word, 0)?.wait(TIMEOUT)?;
    Ok(word.to_vec()?[0] == 1)
}

/// Stores a verdict. A folder that cannot be written is a warning.
fn save(world: &World, device: &Device, found: &DeviceMemory) -> bool {
    let mut verdicts = Verdicts::default();
    found.store_in(&mut verdicts, world, device);
    let saved = Verdicts::user_folder().and_then(|folder| verdicts.save(&folder));
    saved.inspect_err(|error| out::warn(error)).is_ok()
}

/// MPI's name and version: the first line of what it says of itself.
fn name(world: &World) -> String {
    let line = world.library().lines().next().unwrap_or_default();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn state(verdict: &Verdict) -> Option<VerdictState> {
    (verdict.state != VerdictState::Declared).then_some(verdict.state)
}

fn answer(world: &World, rows: &[Row], saved: bool) -> Answer {
    let claim = world.gpu_claim();
    let object = |Row { device, found, is_stored }: &Row| -> Value {
        let DeviceMemory { verdict, staged_gb_per_s, .. } = found;
        json!({
            "device": device,
            // Nothing is known of what MPI does not claim.
            "state": state(verdict),
            "why": verdict.why,
            "gb_per_s": verdict.gb_per_s,
            "staged_gb_per_s": staged_gb_per_s,
            "bytes": verdict.envelope.as_ref().map(|sizes| sizes.max_bytes),
            "stored": is_stored,
        })
    };
    let json = json!({
        "mpi": name(world),
        "gpu_claim": { "cuda": claim.cuda, "hip": claim.hip },
        "device_memory": rows.iter().map(object).collect::<Vec<_>>(),
        "saved": saved,
    });
    let mut text = format!("{}: {claim}\n", name(world));
    if rows.is_empty() {
        text += "no CUDA or HIP device: there is nothing to try\n";
    }
    for Row { device, found, is_stored } in rows {
        let verdict = &found.verdict;
        let state = match verdict.state {
            VerdictState::Proven => "proven",
            VerdictState::Refuted => "refuted",
            VerdictState::Declared => "not tried",
        };
        let when = if *is_stored { ", tried before (`--fresh` tries again)" } else { "" };
        text += &format!("memory of {device}, given to MPI: {state}{when} ({})\n", verdict.why);
    }
    Answer { json, text }
}
