//! `onebuf attach`: the other process of `onebuf share`.

use crate::{
    devices,
    out::{Answer, Output, Result},
    turns::{Hands, PageCounts, devices_json, judge, pages},
    units,
};
use onebuf::peer::{Attach, Attached, socket_path};
use serde_json::json;
use std::time::Duration;

/// Attach to a buffer that `onebuf share` offers; check and write every page, in turns
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  onebuf attach frames                    what `onebuf share --name frames` offers
  onebuf attach frames --rounds 100 --devices opencl:0
  onebuf attach /run/user/1000/onebuf/frames.sock --json

Device memory needs a device of the same chip in --devices; without one the error message says
which to name. Drivers that run on the CPU are refused for it, because they trust the contents of the owner's file.

The owner is not trusted: its user, every size and offset, and the seals of its memory are
checked before anything is mapped.")]
pub struct AttachArgs {
    /// Name of the buffer, or path of the socket
    #[arg(value_name = "NAME|PATH")]
    name: String,
    /// Number of rounds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Devices that write and check here, in turn, and that import device memory [default: the host, for host pages
    /// only]
    #[arg(long, value_name = "A,B,…", value_delimiter = ',')]
    devices: Vec<String>,
    /// Seconds to wait for the owner, and for each of its turns
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86400))]
    timeout: u64,
}

pub fn run(args: &AttachArgs, output: &Output) -> Result<Answer> {
    let path = socket_path(&args.name)?.display().to_string();
    let hub = devices::discover()?;
    let (hands, devices) = Hands::open(&hub, &args.devices)?;
    let timeout = Duration::from_secs(args.timeout);
    let attach = Attach::to(&args.name).timeout(timeout);
    let mut attached = attach.open::<u32>(&hub, |builder| builder.shared_with(&devices))?;
    let (owner, buffer) = (attached.owner(), attached.buffer());
    let (bytes, count) = (buffer.size_bytes() as u64, pages(buffer.len()));
    let (seen_by, memory) = (devices_json(buffer), buffer.plan().memory_kind);
    output.tell(&format!("{} of process {} at {path}", units::bytes(bytes), owner.pid))?;
    let mut seen = PageCounts::default();
    for _ in 0..args.rounds {
        round(&hands, &mut attached, timeout, &mut seen)?;
    }
    judge(&seen)?;
    let mut json = json!({
        "path": path,
        "owner": { "pid": owner.pid, "uid": owner.uid },
        "bytes": bytes,
        "pages": count,
        "devices": seen_by,
        "memory": memory,
        "bytes_copied": hub.ledger().implied_bytes(),
    });
    seen.add_to(&mut json);
    Ok(Answer { json, text: format!("{}\n", seen.words()) })
}

/// The owner's turn, then this side's.
fn round(
    hands: &Hands,
    attached: &mut Attached<u32>,
    timeout: Duration,
    seen: &mut PageCounts,
) -> onebuf::Result<()> {
    attached.wait(timeout)?;
    let (session, round) = (attached.session(), attached.round());
    hands.check(attached.buffer(), session, round, seen)?;
    hands.write(attached.buffer(), session, round + 1)?;
    attached.hand_over()
}
