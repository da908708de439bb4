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
    topology::{DeviceIx, Route, VerdictState},
};
use std::{collections::BTreeSet, fmt::Write};

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

/// The page of `onebuf doctor --html`.
pub fn doctor_page(machine: &Machine, report: &Diagnosis, seconds: f64) -> String {
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
        [matrix(report), details(report), machine.section(), machine.paste(&text(report))];
    page("onebuf doctor", about, sections)
}

/// The devices that are an end of some route.
fn involved(report: &Diagnosis) -> BTreeSet<DeviceIx> {
    report.routes.iter().flat_map(|route| [route.from, route.to]).collect()
}

/// The best route for each pair of devices.
fn matrix(report: &Diagnosis) -> Element {
    let legend = Judgement::ALL
        .map(|judgement| el("li").child(judgement.badge()).text(format!(" {}", judgement.about())));
    let devices = involved(report);
    let id = |device: &DeviceIx| report.devices[device.get()].as_str();
    let heads: Vec<&str> = std::iter::once(CORNER).chain(devices.iter().map(id)).collect();
    let rows =
        devices.iter().map(|from| row(id(from), devices.iter().map(|to| pair(report, *from, *to))));
    let caption = "The best route for each pair; the others are in the list below";
    section("matrix", "Best route per pair")
        .child(el("ul").class("legend").children(legend))
        .child(el("div").class("matrix").child(table(caption, &heads, rows)))
}

/// One cell: verdict, kind, latency and bandwidth of the best route; the reason is a tooltip.
fn pair(report: &Diagnosis, from: DeviceIx, to: DeviceIx) -> Element {
    let ids = [from, to].map(|device| report.devices[device.get()].as_str());
    let td = el("td").attr("data-from", ids[0]).attr("data-to", ids[1]);
    let routes = report.routes.iter().filter(|route| route.from == from && route.to == to);
    let best = routes.min_by_key(|route| (Judgement::of(route), route.kind));
    let Some(best) = best else {
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
