//! The report: JSON for programs, text for people.

use crate::{
    chapters::{ALL, CHAPTERS},
    discovery::{Devices, Found},
    parse::Route,
    result::{Counts, Row},
};
use onebuf_verdicts::{Findings, Machine, Private};
use serde_json::{Value, json};
use std::{fmt::Write, time::Duration};

/// Devices side by side in one table.
const COLUMNS: usize = 7;

/// Everything that a report tells.
#[derive(Debug)]
pub struct Report {
    pub version: String,
    pub devices: Vec<Found>,
    pub rows: Vec<Row>,
    pub routes: Vec<Route>,
    pub took: Duration,
    /// Why the run ended early.
    pub cut_short: Option<String>,
    /// Facts about the machine: their names and values.
    pub facts: Vec<(&'static str, String)>,
    /// What the doctor found, or why it cannot be shown.
    pub findings: Result<Findings, String>,
}

/// One block of the table device × chapter: its head, then a row for each chapter.
pub type Block = Vec<Vec<String>>;

impl Report {
    /// Whether nothing failed, and something was run.
    pub fn is_good(&self) -> bool {
        let failed: usize = self.rows.iter().map(|row| row.counts.failed).sum();
        failed == 0 && self.total().passed > 0 && self.cut_short.is_none()
    }

    pub fn total(&self) -> Counts {
        let sum = |part: fn(&Counts) -> usize| self.rows.iter().map(|row| part(&row.counts)).sum();
        Counts {
            passed: sum(|counts| counts.passed),
            failed: sum(|counts| counts.failed),
            skipped: sum(|counts| counts.skipped),
            ..Counts::default()
        }
    }

    pub fn json(&self) -> Value {
        let row = |row: &Row| {
            let Counts { passed, failed, skipped, .. } = &row.counts;
            json!({
                "name": row.chapter, "device": row.device, "passed": passed, "failed": failed,
                "skipped": skipped, "why": row.counts.why(),
            })
        };
        let devices: Vec<&Value> = self.devices.iter().map(Found::json).collect();
        let chapters: Vec<Value> = self.rows.iter().map(row).collect();
        json!({
            "schema": 2, "devices": devices, "chapters": chapters,
            "doctor": self.findings.as_ref().ok(),
        })
    }

    /// The table device × chapter. A pair counts for both of its devices.
    pub fn table(&self) -> Vec<Block> {
        let mut columns: Vec<&str> = self.devices.iter().map(|one| one.id.as_str()).collect();
        columns.push(ALL);
        let blocks = columns.chunks(COLUMNS).map(|columns| {
            let head = ["chapter"].iter().chain(columns).map(|&text| text.to_owned()).collect();
            let line = |chapter: &&str| -> Option<Vec<String>> {
                let mut rows = self.rows.iter();
                rows.any(|row| row.chapter == *chapter).then(|| {
                    let cells = columns.iter().map(|column| self.cell(chapter, column));
                    std::iter::once((*chapter).to_owned()).chain(cells).collect()
                })
            };
            std::iter::once(head).chain(CHAPTERS.iter().filter_map(line)).collect()
        });
        blocks.collect()
    }

    fn cell(&self, chapter: &str, column: &str) -> String {
        let is_here = |row: &&Row| match column {
            ALL => row.of.is_empty(),
            device => row.of.iter().any(|id| id == device),
        };
        let rows = self.rows.iter().filter(|row| row.chapter == chapter).filter(is_here);
        let mut sum: Option<Counts> = None;
        for row in rows {
            let sum = sum.get_or_insert_default();
            sum.passed += row.counts.passed;
            sum.failed += row.counts.failed;
        }
        sum.map_or_else(|| "-".into(), |counts| counts.cell())
    }

    /// The tables as text.
    pub fn table_text(&self) -> String {
        self.table().iter().map(|block| aligned(block)).collect::<Vec<_>>().join("\n")
    }

    /// The result in one line.
    pub fn summary(&self) -> String {
        let Counts { passed, failed, skipped, .. } = self.total();
        let seconds = self.took.as_secs();
        let early = self.cut_short.as_ref().map_or_else(String::new, |why| format!("; {why}"));
        format!("{passed} passed, {failed} failed, {skipped} skipped in {seconds} s{early}")
    }

    /// The whole report as text.
    pub fn text(&self) -> String {
        let mut text = format!("onebuf {} conformance report\n\n", self.version);
        for (name, value) in &self.facts {
            let _ = writeln!(text, "{name:8} {value}");
        }
        text.push_str("\ndevices\n");
        text.push_str(&aligned(&self.device_rows()));
        let _ = write!(text, "\n{}\n{}\n", self.summary(), self.table_text());
        for (head, lines) in self.lists() {
            let _ = writeln!(text, "{head}");
            lines.iter().for_each(|line| {
                let _ = writeln!(text, "  {line}");
            });
            text.push('\n');
        }
        if !self.routes.is_empty() {
            text.push_str("routes, by the doctor's experiments\n");
            text.push_str(&aligned(&self.route_rows()));
        }
        text.push_str("\nthe doctor's object, as `onebuf doctor --submit` writes it\n");
        text + &match &self.findings {
            Ok(findings) => findings.text(),
            Err(why) => format!("none: {why}\n"),
        }
    }

    pub fn device_rows(&self) -> Block {
        let head = ["id", "name", "platform", "version", "driver"].map(str::to_owned).into();
        let row = |one: &Found| std::iter::once(&one.id).chain(&one.about).cloned().collect();
        std::iter::once(head).chain(self.devices.iter().map(row)).collect()
    }

    pub fn route_rows(&self) -> Block {
        let head = ["from", "to", "kind", "state", "zero-copy", "sync", "µs", "GB/s", "why"];
        let row = |route: &Route| {
            let Route { from, to, kind, state, zero_copy, sync, handoff_us, gb_per_s, why, .. } =
                route;
            [from, to, kind, state, zero_copy, sync, handoff_us, gb_per_s, why]
                .map(Clone::clone)
                .into()
        };
        std::iter::once(head.map(str::to_owned).into()).chain(self.routes.iter().map(row)).collect()
    }

    /// What failed, and what could not run, with the reasons.
    pub fn lists(&self) -> Vec<(String, Vec<String>)> {
        let place = |row: &Row| format!("{} on {}", row.chapter, row.device);
        let failed = self.rows.iter().flat_map(|row| {
            row.counts.failures.iter().map(move |why| format!("{}: {why}", place(row)))
        });
        let skipped = self.rows.iter().flat_map(|row| {
            row.counts.skips.iter().map(move |(why, times)| match times {
                1 => format!("{}: {why}", place(row)),
                _ => format!("{}: {why} ({times} times)", place(row)),
            })
        });
        let notes = self.rows.iter().flat_map(|row| &row.counts.notes).cloned();
        let times = self.rows.iter().filter(|row| row.took.as_secs() > 0);
        let times = times.map(|row| format!("{:5} s  {}", row.took.as_secs(), place(row)));
        let lists: [(&str, Vec<String>); 4] = [
            ("failed", failed.collect()),
            ("could not run, or refuted", skipped.collect()),
            ("hand-overs by each method, of all", notes.collect()),
            ("time", times.collect()),
        ];
        let lists = lists.into_iter().filter(|(_, lines)| !lines.is_empty());
        lists.map(|(head, lines)| (head.to_owned(), lines)).collect()
    }
}

/// Columns of equal width; the last one is as long as it is.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|c| c.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|at| width(at).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// What a bug report needs to know of the machine.
pub fn facts(machine: &Machine) -> Vec<(&'static str, String)> {
    let Machine { system, kernel, cpu, processors, memory_bytes, .. } = machine;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let memory = memory_bytes.map_or_else(String::new, |bytes| format!("{} kB", bytes >> 10));
    vec![
        ("system", text(system)),
        ("kernel", text(kernel)),
        ("glibc", glibc()),
        ("CPU", format!("{}, {} usable", text(cpu), processors.unwrap_or(1))),
        ("memory", memory),
    ]
}

/// What the doctor found, with all devices of the machine, since routes may lead to any of them.
pub fn findings(
    version: &str,
    devices: &Devices,
    routes: &[Route],
    rows: &[Row],
    private: &Private,
) -> Result<Findings, String> {
    let took = rows.iter().filter(|row| row.chapter == "doctor" && !row.of.is_empty());
    let doctor = json!({
        "devices": devices.found.iter().map(|one| &one.whole).collect::<Vec<_>>(),
        "unavailable": devices.missing,
        "routes": routes.iter().map(|route| &route.row).collect::<Vec<_>>(),
        "grafts": [],
        "large": [],
        // Nothing was known before.
        "experiments": routes.len(),
        "seconds": took.map(|row| row.took.as_secs_f64()).sum::<f64>(),
    });
    Findings::here(version, &doctor, private)
}

/// The version of the C library that this process runs with.
fn glibc() -> String {
    // SAFETY: the call takes nothing and returns a static text that ends with a zero.
    let text = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    text.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{parse, process};

    /// What the discovery of one API prints, with names of a machine in it.
    const FOUND: &str = r#"{"devices":[
        {"id":"host","api":"host","name":"CPU of ada ","platform":"linux","version":"6.1","driver":"6.1","kind":"cpu",
         "physical":{"uuid":null,"pci":null},"memory_bytes":5,"max_loop_iterations":null,"features":["callbacks"]},
        {"id":"gl:0","api":"gl","name":"Acme","platform":"Acme","version":"4","driver":"/home/ada/libacme.so.1","kind":"gpu",
         "physical":{"uuid":"8f6f1c0e-5a60-4b8a-9b8e-0123456789ab","pci":"0000:01:00.0"},"memory_bytes":null,
         "max_loop_iterations":9,"features":[]}],
        "unavailable":[{"api":"cuda","tried":["/home/ada/libcuda.so"],"loaded":false,"code":null,"reason":"none","hint":null}]}"#;
    const ROUTES: &str = r#"{"routes":[{"from":"host","to":"gl:0","kind":"host_pointer","state":"proven","zero_copy":true,
        "sync":"host_wait","handoff_us":3.25,"gb_per_s":null,"why":"ada saw every page","envelope":null}]}"#;

    fn report() -> Report {
        let ended = |stdout: &str| process::Ended {
            how: process::How::Exit(0),
            stdout: stdout.replace('\n', ""),
            stderr: String::new(),
            took: Duration::from_secs(2),
        };
        let mut devices = Devices::default();
        for api in ["gl", "cuda"] {
            devices.take(api, &ended(FOUND));
        }
        let routes = parse::routes(&ended(ROUTES).stdout).expect("routes");
        let row = |device: &str, of: &[&str]| Row {
            chapter: "doctor",
            device: device.into(),
            of: of.iter().map(|&id| id.to_owned()).collect(),
            counts: Counts { passed: 1, ..Counts::default() },
            took: Duration::from_secs(2),
        };
        let rows = vec![row("host", &["host"]), row("gl:0", &["gl:0"]), row(ALL, &[])];
        let private = Private::new(["ada".to_owned()], []);
        let findings = findings("0.2.0", &devices, &routes, &rows, &private);
        Report {
            version: "0.2.0".into(),
            devices: devices.found,
            rows,
            routes,
            took: Duration::from_secs(9),
            cut_short: None,
            facts: facts(&Machine::here()),
            findings,
        }
    }

    #[test]
    fn the_report_contains_the_doctors_object_without_names() {
        let report = report();
        let json = report.json();
        let fields: Vec<&String> = json.as_object().expect("an object").keys().collect();
        assert_eq!(fields, ["chapters", "devices", "doctor", "schema"]);
        let object = Findings::parse(&json["doctor"].to_string()).expect("findings");
        assert_eq!((object.devices.len(), object.unavailable.len()), (2, 1));
        assert_eq!((object.experiments, object.seconds), (1, Some(4.0)), "those of devices");
        assert_eq!(object.routes[0].why, "<user> saw every page");
        let whole = report.text();
        let (_, text) = whole.split_once("`onebuf doctor --submit` writes it\n").expect("a head");
        assert_eq!(Findings::parse(text), Ok(object));
        for private in ["/home", "8f6f1c0e", "01:00"] {
            assert!(FOUND.contains(private) && !text.contains(private), "{private}");
        }
    }

    #[test]
    fn the_report_lists_the_hand_overs() {
        let mut report = report();
        report.rows[0].counts.notes.push("host -> gl:0 (event, 20 of 22 hand-overs)".into());
        let text = report.text();
        assert!(
            text.contains("\nhand-overs by each method, of all\n  host -> gl:0 (event, 20"),
            "{text}"
        );
    }

    #[test]
    fn an_object_that_cannot_be_made_has_a_reason() {
        let mut report = report();
        report.findings = Err("no doctor".into());
        assert!(report.json()["doctor"].is_null() && report.is_good());
        assert!(report.text().ends_with("writes it\nnone: no doctor\n"), "{}", report.text());
    }
}
