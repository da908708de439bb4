//! `onebuf doctor`: which routes work, by experiment.

mod mpi;

use crate::{
    devices,
    html::{self, Machine},
    out::{self, Answer, Failure, Result},
    screen::{Colour, Screen},
    table::{Cell, Table},
    units,
};
use indicatif::{ProgressBar, ProgressStyle};
use onebuf::{
    Device, Error, Hub, RouteKind,
    doctor::{
        Cached, DEFAULT_REACH, Diagnosis, Doctor, ExperimentProgress, GraftVerdict, Grafts,
        LargeVerdict,
    },
    topology::{DeviceIx, Route, VerdictState},
};
use onebuf_verdicts::{Findings, Private};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fs,
    io::IsTerminal,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Prove by experiment which routes between devices work, and which of them copy nothing
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  onebuf doctor                           tests routes without a verdict, reports all
  onebuf doctor --fresh                   tests all routes again
  onebuf doctor --devices opencl:0,host   only the routes between these two
  onebuf doctor --reach 4GiB              for buffers of up to 4 GiB
  onebuf doctor --html report.html        also writes an HTML page, for bug reports
  onebuf doctor --submit my-machine.json  also writes a file for docs/verdicts
  onebuf doctor --json | jq '.routes[] | select(.zero_copy)'
  mpirun -n 2 onebuf doctor --mpi         whether this MPI can be given the memory of GPUs

Routes are tested in helper processes: a driver that crashes or hangs refutes its route and affects
nothing else. What fails is repeated in a fresh helper before it counts. Refuted routes are a result, not a failure: the exit status is 0. A cache folder
that cannot be read or written is only a warning; \"saved\" in the JSON reports it.")]
pub struct DoctorArgs {
    /// Repeat experiments that have a verdict
    #[arg(long)]
    fresh: bool,
    /// Only routes between these devices, or of this one if only one is named
    #[arg(long, value_name = "A,B,…", value_delimiter = ',')]
    devices: Vec<String>,
    /// Size up to which every page is tested; the verdicts do not apply to larger buffers
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = units::parse_bytes)]
    reach: u64,
    /// Also write an HTML page as a single file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Also write the results, the machine and the date for others to see, without names of users, hosts and paths
    #[arg(long, value_name = "FILE")]
    submit: Option<PathBuf>,
    /// As two ranks of mpirun: try instead whether MPI can be given the memory of GPUs, every page, in both directions, and
    /// faster than through the host
    #[arg(long, conflicts_with_all = ["html", "submit"])]
    mpi: bool,
}

impl DoctorArgs {
    /// Whether MPI is examined, and not the routes.
    pub fn is_of_mpi(&self) -> bool {
        self.mpi
    }
}

pub use mpi::run as run_mpi;

pub fn run(args: &DoctorArgs, screen: Screen) -> Result<Answer> {
    let hub = devices::discover()?;
    let chosen = chosen(&hub, &args.devices)?;
    let between = |route: &Route| {
        let named = [route.from, route.to].map(|device| chosen.contains(&device));
        if chosen.len() == 1 { named.contains(&true) } else { named == [true, true] }
    };
    let start = Instant::now();
    let report = examine(&hub, args.fresh, args.reach, between)?;
    let both =
        |from: &Device, to: &Device| chosen.contains(&from.index()) && chosen.contains(&to.index());
    let Grafts { found: grafts, cached } = examine_grafts(&hub, args.fresh, both)?;
    let large = match args.reach > DEFAULT_REACH {
        true => examine_large(&hub, args.reach, |device| chosen.contains(&device.index()))?,
        false => Vec::new(),
    };
    let seconds = start.elapsed().as_secs_f64();
    warn_of(&hub, [&report.cached, &cached]);
    if let Some(path) = &args.html {
        let nodes = hub.topology().nodes();
        html::save(path, &html::doctor_page(&Machine::of(&hub), nodes, &report, seconds))?;
    }
    let mut json = devices::json(&hub);
    json["routes"] = report.to_json();
    json["grafts"] = grafts.iter().map(|graft| graft_row(&hub, graft)).collect();
    json["large"] = large.iter().map(|one| large_row(&hub, one)).collect();
    json["experiments"] = json!(report.experiments);
    json["saved"] = json!(report.cached.not_saved.is_none() && cached.not_saved.is_none());
    json["seconds"] = json!(seconds);
    if let Some(path) = &args.submit {
        submit(path, &json)?;
    }
    let text = match report.routes.is_empty() {
        true => "only one device: there is no route to test\n".into(),
        false => table(&report, screen) + &grafts_text(&hub, &grafts) + &summary(&report, seconds),
    };
    let text = text + &large.iter().map(|one| large_text(&hub, one)).collect::<String>();
    Ok(Answer { json, text: text + &devices::missing_text(&hub) })
}

/// Writes the object that can be published.
fn submit(path: &Path, json: &Value) -> Result<()> {
    let private = Private::of_this_machine();
    let findings = Findings::here(env!("CARGO_PKG_VERSION"), json, &private);
    let text = findings.map_err(|why| Failure::new(format!("--submit: {why}")))?.text();
    fs::write(path, text).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

/// The devices that a list of selectors means; all devices if it is empty.
fn chosen(hub: &Hub, selectors: &[String]) -> Result<BTreeSet<DeviceIx>> {
    if selectors.is_empty() {
        return Ok(hub.topology().indices().collect());
    }
    let mut chosen = BTreeSet::new();
    for selector in selectors {
        // Fails if none matches, with a list of the devices.
        hub.device(selector)?;
        chosen.extend(hub.select(selector).iter().map(|device| device.index()));
    }
    Ok(chosen)
}

/// Tests the requested routes, with a progress display on a terminal.
pub fn examine(
    hub: &Hub,
    fresh: bool,
    reach: u64,
    wanted: impl Fn(&Route) -> bool,
) -> Result<Diagnosis> {
    let helper = helper()?;
    let bar = progress_bar()?;
    let mut show = |progress: &ExperimentProgress| show(&bar, progress);
    let report = Doctor::new(helper)?.fresh(fresh).reach(reach).run_where(hub, wanted, &mut show);
    bar.finish_and_clear();
    Ok(report?)
}

fn show(bar: &ProgressBar, progress: &ExperimentProgress) {
    bar.set_length(progress.total as u64);
    bar.set_position(progress.done as u64);
    let left = progress.left.filter(|left| !left.is_zero());
    let left = left.map(|left| format!("about {} s left, ", left.as_secs() + 1));
    bar.set_message(left.unwrap_or_default() + &progress.route);
}

/// Tests large buffers on one device each, with a progress display on a terminal.
fn examine_large(
    hub: &Hub,
    reach: u64,
    wanted: impl Fn(&Device) -> bool,
) -> Result<Vec<LargeVerdict>> {
    let (helper, bar) = (helper()?, progress_bar()?);
    let mut show = |progress: &ExperimentProgress| show(&bar, progress);
    let found = Doctor::new(helper)?.reach(reach).large(hub, wanted, &mut show);
    bar.finish_and_clear();
    Ok(found?)
}

fn large_row(hub: &Hub, one: &LargeVerdict) -> Value {
    let LargeVerdict { device, bytes, verdict } = one;
    let id = hub.topology().node(*device).id.as_str();
    json!({ "device": id, "bytes": bytes, "state": verdict.state, "why": verdict.why })
}

fn large_text(hub: &Hub, one: &LargeVerdict) -> String {
    let LargeVerdict { device, bytes, verdict } = one;
    let (id, why) = (hub.topology().node(*device).id.as_str(), &verdict.why);
    let state = match verdict.state {
        VerdictState::Proven => "computed",
        VerdictState::Declared => "not tried",
        VerdictState::Refuted => "WRONG",
    };
    format!("a buffer of {bytes} bytes on {id}: {state} ({why})\n")
}

/// Prints each problem with the cache once; problems that the hub noted were printed at discovery.
pub fn warn_of<'c>(hub: &Hub, all: impl IntoIterator<Item = &'c Cached>) {
    let mut told: Vec<&Error> = hub.notes().iter().collect();
    for error in all.into_iter().flat_map(|cached| cached.not_read.iter().chain(&cached.not_saved))
    {
        if !told.contains(&error) {
            out::warn(error);
            told.push(error);
        }
    }
}

/// Tests whether OpenCL programs can be grafted on CUDA or HIP.
pub fn examine_grafts(
    hub: &Hub,
    fresh: bool,
    wanted: impl Fn(&Device, &Device) -> bool,
) -> Result<Grafts> {
    Ok(Doctor::new(helper()?)?.fresh(fresh).grafts(hub, wanted, &mut |_| ())?)
}

/// The helper program, which is this program itself.
fn helper() -> Result<PathBuf> {
    std::env::current_exe().map_err(|error| {
        Failure::new(format!(
            "cannot find the path of this program, which is its own helper: {error}"
        ))
    })
}

fn graft_row(hub: &Hub, graft: &GraftVerdict) -> Value {
    let id = |device| hub.topology().node(device).id.as_str();
    let GraftVerdict { from, to, verdict } = graft;
    json!({ "from": id(*from), "to": id(*to), "state": verdict.state, "why": verdict.why })
}

fn grafts_text(hub: &Hub, grafts: &[GraftVerdict]) -> String {
    let id = |device| hub.topology().node(device).id.as_str();
    let line = |graft: &GraftVerdict| {
        let GraftVerdict { from, to, verdict } = graft;
        let state = format!("{:?}", verdict.state).to_lowercase();
        format!("\nkernels of {} on {}, grafted: {state} ({})\n", id(*from), id(*to), verdict.why)
    };
    grafts.iter().map(line).collect()
}

pub fn progress_bar() -> Result<ProgressBar> {
    if !std::io::stderr().is_terminal() {
        return Ok(ProgressBar::hidden());
    }
    let style =
        ProgressStyle::with_template("{spinner} {pos}/{len} {bar:24} {elapsed} {wide_msg}")?;
    let bar = ProgressBar::new(0).with_style(style);
    // One step takes seconds: the spinner shows that something happens.
    bar.enable_steady_tick(Duration::from_millis(100));
    Ok(bar)
}

fn table(report: &Diagnosis, screen: Screen) -> String {
    let head = ["from", "to", "kind", "state", "zero-copy", "sync", "hand-over µs", "GB/s"];
    let mut table = Table::new(head).remark("why");
    for route in &report.routes {
        let verdict = &route.verdict;
        let id = |device: DeviceIx| Cell::from(report.devices[device.get()].as_str());
        let to = match route.from == route.to {
            true => Cell::from("another context"),
            false => id(route.to),
        };
        let zero_copy = match verdict.zero_copy {
            Some(true) => "yes",
            Some(false) => "no",
            None => "-",
        };
        let cells = [
            id(route.from),
            to,
            Cell::from(route.kind.to_string()),
            state(verdict.state),
            Cell::from(zero_copy),
            Cell::from(
                verdict.sync.map_or_else(|| "-".into(), |sync_method| sync_method.to_string()),
            ),
            Cell::number(units::known(verdict.handoff_us)),
            Cell::number(units::known(verdict.gb_per_s)),
        ];
        table.row(cells, verdict.why.as_str());
    }
    table.render(screen)
}

fn state(state: VerdictState) -> Cell {
    match state {
        VerdictState::Proven => Cell::from("proven").coloured(Colour::Green),
        VerdictState::Declared => Cell::from("declared").coloured(Colour::Yellow),
        VerdictState::Refuted => Cell::from("refuted").coloured(Colour::Red),
    }
}

fn summary(report: &Diagnosis, seconds: f64) -> String {
    let count = |fits: &dyn Fn(&Route) -> bool| report.routes.iter().filter(|r| fits(r)).count();
    let proven = |route: &Route| route.verdict.state == VerdictState::Proven;
    let free = |route: &Route| proven(route) && route.verdict.zero_copy == Some(true);
    let refuted = count(&|route| route.verdict.state == VerdictState::Refuted);
    let mut text = format!(
        "\n{} routes proven zero-copy, {} copy, {refuted} refuted ({} experiments, {seconds:.1} s)\n",
        count(&free),
        count(&|route| proven(route) && !free(route)),
        report.experiments,
    );
    text += &next(report, &free);
    if refuted > 0 {
        text += "refuted routes are never used; after a driver update, `onebuf doctor` tests them again\n";
    }
    text
}

/// Suggests the next commands, with a pair of devices that shares memory.
fn next(report: &Diagnosis, free: &dyn Fn(&Route) -> bool) -> String {
    let apart = |route: &Route| route.from != route.to && route.kind != RouteKind::Staged;
    let shared = |route: &&Route| free(route) && apart(route);
    // Two devices that both access host pages can share those.
    let mut ids: Vec<&str> = report
        .routes
        .iter()
        .filter(shared)
        .flat_map(|route| [route.from, route.to])
        .map(|device| report.devices[device.get()].as_str())
        .collect();
    ids.sort_by_key(|id| (*id == "host", *id));
    ids.dedup();
    match ids[..] {
        [a, b, ..] => format!("next: `onebuf plan --devices {a},{b} --explain`, `onebuf demo`\n"),
        _ => "no two devices here share memory without a copy; `onebuf demo` measures the copy\n"
            .into(),
    }
}
