//! `onebuf plan`: where a buffer would be allocated, and how each device would access it.

use crate::{
    devices,
    out::{Answer, Result},
    screen::Screen,
    table::{Cell, Table},
    units,
};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use onebuf::{
    CopyPolicy, Device, Hint, Hub, MemoryKind,
    plan::{Plan, Rejected},
    topology::{Verdict, VerdictState},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Show where a buffer for these devices would be allocated, how each would access it, and why not better
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  onebuf plan --devices opencl:0,opencl:1
  onebuf plan --devices opencl:0,host --size 64MiB --forbid-copies --explain
  onebuf plan --devices gpu,cpu --hint streaming --json

Devices are named by id (opencl:1), API (opencl), type (cpu, gpu, accelerator) or a part of their
name. Nothing is allocated or tested; `onebuf doctor` tests routes.")]
pub struct PlanArgs {
    /// Devices that access the buffer
    #[arg(long, required = true, value_name = "A,B,…", value_delimiter = ',')]
    devices: Vec<String>,
    /// Size in bytes
    #[arg(long, value_name = "N", conflicts_with = "size", value_parser = clap::value_parser!(u64).range(1..))]
    bytes: Option<u64>,
    /// Size with a unit
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = units::parse_bytes)]
    size: u64,
    /// Refuse a plan with implied copies
    #[arg(long)]
    forbid_copies: bool,
    /// Expected use of the buffer
    #[arg(long, value_parser = word::<Hint>(&["cpu_preferred", "gpu_preferred", "coherent", "streaming"]))]
    hint: Option<Hint>,
    /// Force a memory kind
    #[arg(long, value_parser = word::<MemoryKind>(&MEMORY_KINDS))]
    memory_kind: Option<MemoryKind>,
    /// Show everything, including rejected routes
    #[arg(long)]
    explain: bool,
    /// Run OpenCL kernels in OpenCL, even if it is proven that they run in CUDA's queues
    #[arg(long)]
    no_graft: bool,
}

const MEMORY_KINDS: [&str; 8] = [
    "host_pages",
    "fine_svm",
    "coarse_svm",
    "managed",
    "mapped_device",
    "exportable",
    "on_chip",
    "device",
];

/// The library's words, with completions for them.
fn word<T>(words: &[&'static str]) -> impl TypedValueParser<Value = T>
where
    T: DeserializeOwned + Clone + Send + Sync + 'static,
{
    let read = |word: String| serde_json::from_value::<T>(word.into());
    PossibleValuesParser::new(words.iter().copied()).try_map(read)
}

pub fn run(args: &PlanArgs, screen: Screen) -> Result<Answer> {
    let hub = devices::discover()?;
    let devices: Vec<Device> =
        args.devices.iter().map(|selector| hub.device(selector)).collect::<onebuf::Result<_>>()?;
    let bytes = args.bytes.unwrap_or(args.size);
    let mut builder = hub.buffer::<u8>(usize::try_from(bytes)?).shared_with(&devices);
    if args.forbid_copies {
        builder = builder.copies(CopyPolicy::Forbid);
    }
    if let Some(hint) = args.hint {
        builder = builder.hint(hint);
    }
    if let Some(memory_kind) = args.memory_kind {
        builder = builder.memory_kind(memory_kind);
    }
    let plan = builder.plan()?;
    let grafts = grafts(&hub, &devices, args.no_graft);
    let mut text = match args.explain {
        true => plan.explain(hub.topology()).trim_end().to_owned() + "\n",
        false => short(&hub, &plan, bytes, screen),
    };
    text.extend(grafts.iter().map(PlannedGraft::line));
    let mut json = plan.to_json(hub.topology());
    json["grafts"] = grafts.iter().map(PlannedGraft::json).collect();
    Ok(Answer { json, text })
}

/// OpenCL kernels in the queues of another API on the same chip.
struct PlannedGraft {
    from: String,
    to: String,
    used: bool,
    why: String,
}

impl PlannedGraft {
    fn new([from, to]: [&Device; 2], verdict: Verdict, off: bool) -> Self {
        let Verdict { state, why, .. } = verdict;
        let why = match state {
            _ if off => "--no-graft".into(),
            VerdictState::Refuted => format!("refuted: {why}"),
            _ => why,
        };
        let used = state == VerdictState::Proven && !off;
        Self { from: from.id().into(), to: to.id().into(), used, why }
    }

    fn line(&self) -> String {
        let Self { from, to, used, why } = self;
        match used {
            true => {
                format!("kernels of {from} in the queues of {to}, grafted: no hand-over ({why})\n")
            }
            false => format!("kernels of {from} in the queues of {to}: not grafted: {why}\n"),
        }
    }

    fn json(&self) -> Value {
        let Self { from, to, used, why } = self;
        json!({ "from": from, "to": to, "grafted": used, "why": why })
    }
}

/// Where a pipeline of these devices could avoid hand-overs, and whether it does.
fn grafts(hub: &Hub, devices: &[Device], off: bool) -> Vec<PlannedGraft> {
    let pairs = devices.iter().flat_map(|from| devices.iter().map(move |to| [from, to]));
    let graft =
        |pair: [&Device; 2]| PlannedGraft::new(pair, hub.graft_verdict(pair[0], pair[1]), off);
    pairs.filter(|[from, to]| hub.could_graft(from, to)).map(graft).collect()
}

fn short(hub: &Hub, plan: &Plan, bytes: u64, screen: Screen) -> String {
    let id = |device| hub.topology().node(device).id.as_str();
    let home = id(plan.allocate_on);
    let mut text = format!("{} on {home} as {}\n\n", units::bytes(bytes), plan.memory_kind);
    let mut table = Table::new(["seen by", "route", "sync", "zero-copy"]).remark("why");
    for hop in &plan.routes {
        let zero_copy = match hop.zero_copy {
            Some(true) => "yes",
            Some(false) => "no",
            None => "-",
        };
        let words = [id(hop.to), &hop.kind.to_string(), &hop.sync.to_string(), zero_copy];
        table.row(words.map(Cell::from), &*hop.why);
    }
    text += &table.render(screen);
    if !plan.rejected.is_empty() {
        let many = plan.rejected.len();
        let routes = if many == 1 { "route was" } else { "routes were" };
        text += &format!("\n{many} other {routes} not chosen: `--explain` shows why\n");
    }
    if plan.rejected.iter().any(|rejected| is_untried(hub, rejected)) {
        text += "some were never tested on this machine: run `onebuf doctor`\n";
    }
    text
}

fn is_untried(hub: &Hub, rejected: &Rejected) -> bool {
    let mut routes = hub.topology().between(rejected.from, rejected.to).iter();
    routes.any(|r| r.kind == rejected.kind && r.verdict.state == VerdictState::Declared)
}

#[cfg(test)]
mod tests {
    use super::{MEMORY_KINDS, MemoryKind, PlannedGraft, Verdict, VerdictState};

    #[test]
    fn every_memory_kind_can_be_asked_for() {
        assert_eq!(MemoryKind::ALL.map(|memory_kind| memory_kind.to_string()), MEMORY_KINDS);
    }

    #[test]
    fn a_graft_is_used_where_it_is_proven_and_wanted() {
        let host = onebuf::discover().unwrap().host();
        let line = |state, off| {
            let verdict = Verdict { state, why: "5 launches".into(), ..Verdict::default() };
            let graft = PlannedGraft::new([&host, &host], verdict, off);
            assert_eq!(graft.json()["grafted"], graft.used);
            graft.line()
        };
        assert!(
            line(VerdictState::Proven, false).ends_with("grafted: no hand-over (5 launches)\n")
        );
        assert!(line(VerdictState::Proven, true).ends_with("not grafted: --no-graft\n"));
        assert!(line(VerdictState::Declared, false).ends_with("not grafted: 5 launches\n"));
        assert!(line(VerdictState::Refuted, false).ends_with("not grafted: refuted: 5 launches\n"));
    }
}
