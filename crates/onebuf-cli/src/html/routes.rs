//! The doctor's page: the routes between devices, with verdicts and costs.

use super::{
    Machine, cell,
    markup::{Element, el},
    number, page, row, section, table,
};
use crate::units;
use onebuf::{
    RouteKind,
    doctor::Diagnosis,
    plan::{Request, plan},
    topology::{DeviceIx, Node, Route, Topology, VerdictState},
};
use std::{collections::BTreeSet, fmt::Write};

/// The size of the buffers that the matrix's plans are for.
const PLANNED_BYTES: u64 = 16 << 20;

/// The corner of the matrix: the meaning of rows and columns.
const CORNER: &str = "memory of ↓ accessed by →";

/// Summary of a verdict, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Judgement {
    ZeroCopy,
    Copies,
    Declared,
    Refuted,
}

impl Judgement {
    const ALL: [Self; 4] = [Self::ZeroCopy, Self::Copies, Self::Declared, Self::Refuted];

    fn of(route: &Route) -> Self {
        match (route.verdict.state, route.verdict.zero_copy) {
            (VerdictState::Refuted, _) => Self::Refuted,
            (VerdictState::Declared, _) => Self::Declared,
            (VerdictState::Proven, Some(true)) => Self::ZeroCopy,
            (VerdictState::Proven, _) => Self::Copies,
        }
    }

    /// A sign that is recognisable without colour.
    fn sign(self) -> &'static str {
        match self {
            Self::ZeroCopy => "●",
            Self::Copies => "◐",
            Self::Declared => "○",
            Self::Refuted => "✕",
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::ZeroCopy => "zero-copy",
            Self::Copies => "copies",
            Self::Declared => "declared",
            Self::Refuted => "refuted",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Self::ZeroCopy => "proven by experiment; no copies",
            Self::Copies => {
                "proven by experiment; every hand-over copies, and the copies are counted"
            }
            Self::Declared => "declared by the driver; not tested",
            Self::Refuted => "tested and failed; never used",
        }
    }

    fn badge(self) -> Element {
        let sign = el("span").attr("aria-hidden", "true").text(self.sign());
        el("span")
            .class(&format!("badge {}", self.word()))
            .child(sign)
            .text(format!(" {}", self.word()))
    }
}

/// The page of `onebuf doctor --html`. The nodes are those of the examined hub's topology.
pub fn doctor_page(machine: &Machine, nodes: &[Node], report: &Diagnosis, seconds: f64) -> String {
    let count = |judgement| report.routes.iter().filter(|r| Judgement::of(r) == judgement).count();
    let found =
        Judgement::ALL.map(|judgement| format!("{} {}", count(judgement), judgement.word()));
    let about = format!(
        "{} routes between {} devices: {}. {} experiments, {seconds:.1} s.",
        report.routes.len(),
        involved(report).len(),
        found.join(", "),
        report.experiments,
    );
    let sections =
        [matrix(nodes, report), details(report), machine.section(), machine.paste(&text(report))];
    page("onebuf doctor", about, sections)
}

/// The devices that are an end of some route.
fn involved(report: &Diagnosis) -> BTreeSet<DeviceIx> {
    report.routes.iter().flat_map(|route| [route.from, route.to]).collect()
}

/// The route that a plan takes for each pair of devices.
fn matrix(nodes: &[Node], report: &Diagnosis) -> Element {
    let legend = Judgement::ALL
        .map(|judgement| el("li").child(judgement.badge()).text(format!(" {}", judgement.about())));
    let devices = involved(report);
    let proven = Topology::new(nodes.to_vec(), report.routes.clone());
    let id = |device: &DeviceIx| report.devices[device.get()].as_str();
    let heads: Vec<&str> = std::iter::once(CORNER).chain(devices.iter().map(id)).collect();
    let rows = devices
        .iter()
        .map(|from| row(id(from), devices.iter().map(|to| pair(report, &proven, *from, *to))));
    let caption = format!(
        "The route that a plan takes for a buffer of {} that both devices use; the others are in the list below",
        units::bytes(PLANNED_BYTES)
    );
    section("matrix", "Route per pair")
        .child(el("ul").class("legend").children(legend))
        .child(el("div").class("matrix").child(table(&caption, &heads, rows)))
}

/// The route by which a planned buffer of the first device is accessed by the second. `None` if no plan allocates there.
fn planned(proven: &Topology, from: DeviceIx, to: DeviceIx) -> Option<&Route> {
    let request = Request {
        devices: vec![from, to],
        bytes: PLANNED_BYTES,
        allocate_on: Some(from),
        ..Request::default()
    };
    let found = plan(proven, &request).ok()?;
    let hop = found.routes.iter().find(|hop| hop.to == to)?;
    let serves = |route: &&Route| {
        route.kind == hop.kind && route.memory_kind.is_none_or(|kind| kind == found.memory_kind)
    };
    proven.between(from, to).iter().find(serves)
}

/// One cell: verdict, kind, latency and bandwidth of the planned route, or else of the best one; the reason is a tooltip.
fn pair(report: &Diagnosis, proven: &Topology, from: DeviceIx, to: DeviceIx) -> Element {
    let ids = [from, to].map(|device| report.devices[device.get()].as_str());
    let td = el("td").attr("data-from", ids[0]).attr("data-to", ids[1]);
    let best = || {
        let routes = proven.between(from, to).iter();
        routes.min_by_key(|route| (Judgement::of(route), route.kind))
    };
    let planned = if from == to { None } else { planned(proven, from, to) };
    let Some(best) = planned.or_else(best) else {
        let text = if from == to { "itself" } else { "not tried" };
        return td.class("none").text(text);
    };
    let judgement = Judgement::of(best);
    let context = if from == to { " (another context)" } else { "" };
    let numbers = [
        best.verdict.handoff_us.map(|us| format!("{us:.1} µs")),
        best.verdict.gb_per_s.map(|gb| format!("{gb:.1} GB/s")),
    ];
    let numbers: Vec<String> = numbers.into_iter().flatten().collect();
    td.class(judgement.word())
        .attr("data-state", judgement.word())
        .attr("title", &best.verdict.why)
        .child(judgement.badge())
        .child(el("span").class("kind").text(format!("{}{context}", best.kind)))
        .child(el("span").class("cost").text(numbers.join(" · ")))
}

/// Every route, with its reason.
fn details(report: &Diagnosis) -> Element {
    let heads =
        ["from", "to", "route", "verdict", "sync", "#hand-over, µs", "#GB/s", "#up to", "why"];
    let rows = report.routes.iter().map(|route| {
        let verdict = &route.verdict;
        let id = |device: DeviceIx| &report.devices[device.get()];
        let to = if route.from == route.to { "another context" } else { id(route.to) };
        let sync = verdict.sync.map_or_else(|| "-".into(), |sync_method| sync_method.to_string());
        let reach = verdict.envelope.as_ref().map(|envelope| units::bytes(envelope.max_bytes));
        el("tr")
            .child(el("th").attr("scope", "row").text(id(route.from)))
            .children([cell(to), cell(route.kind), el("td").child(Judgement::of(route).badge())])
            .child(cell(sync))
            .child(number(units::known(verdict.handoff_us)))
            .child(number(units::known(verdict.gb_per_s)))
            .child(number(reach.unwrap_or_else(|| "-".into())))
            .child(cell(&verdict.why).class("why"))
    });
    section("routes", "Every route").child(table("Verdict for each route", &heads, rows))
}

/// The routes as text for a bug report, without staged ones.
fn text(report: &Diagnosis) -> String {
    let mut text = String::new();
    for route in report.routes.iter().filter(|route| route.kind != RouteKind::Staged) {
        let id = |device: DeviceIx| &report.devices[device.get()];
        let (from, to, word) = (id(route.from), id(route.to), Judgement::of(route).word());
        let _ = writeln!(text, "{from} -> {to} {}: {word} ({})", route.kind, route.verdict.why);
    }
    text
}
