//! The report: JSON for programs, text for people.

use crate::{
    chapters::{ALL, CHAPTERS},
    discovery::Found,
    parse::Route,
    result::{Counts, Row},
};
use serde_json::{Value, json};
use std::{fmt::Write, fs, time::Duration};

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
        json!({ "schema": 2, "devices": devices, "chapters": chapters })
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
        text
    }

    pub fn device_rows(&self) -> Block {
        let head = ["id", "name", "platform", "version", "driver"].map(str::to_owned).into();
        let row = |one: &Found| std::iter::once(&one.id).chain(&one.about).cloned().collect();
        std::iter::once(head).chain(self.devices.iter().map(row)).collect()
    }

    pub fn route_rows(&self) -> Block {
        let head = ["from", "to", "kind", "state", "zero-copy", "sync", "µs", "GB/s", "why"];
        let row = |route: &Route| {
            let Route { from, to, kind, state, zero_copy, sync, handoff_us, gb_per_s, why } = route;
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
        let times = self.rows.iter().filter(|row| row.took.as_secs() > 0);
        let times = times.map(|row| format!("{:5} s  {}", row.took.as_secs(), place(row)));
        let lists: [(&str, Vec<String>); 3] = [
            ("failed", failed.collect()),
            ("could not run, or refuted", skipped.collect()),
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
pub fn facts() -> Vec<(&'static str, String)> {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map_or_else(String::new, |(_, value)| value.trim().to_owned())
    };
    let processors = std::thread::available_parallelism().map_or(1, |number| number.get());
    let cpu = field(&read("/proc/cpuinfo"), "model name");
    let system = read("/etc/os-release");
    let system = system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    vec![
        ("system", system.unwrap_or_default().trim_matches('"').to_owned()),
        ("kernel", read("/proc/sys/kernel/osrelease").trim().to_owned()),
        ("glibc", glibc()),
        ("CPU", format!("{cpu}, {processors} usable")),
        ("memory", field(&read("/proc/meminfo"), "MemTotal")),
    ]
}

/// The version of the C library that this process runs with.
fn glibc() -> String {
    // SAFETY: the call takes nothing and returns a static text that ends with a zero.
    let text = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    text.to_string_lossy().into_owned()
}
