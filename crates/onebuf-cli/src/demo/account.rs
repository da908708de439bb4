//! Where a frame's time goes, compared with all stages in one API: from the trace of the same run.

use crate::{
    out,
    screen::Screen,
    table::{Cell, Table},
};
use onebuf::{
    BufferBuilder, Complex32, Result,
    trace::{Account, Idle, Trace},
};
use onebuf_bench::copy_bandwidth;
use onebuf_demo::Pipeline;
use serde_json::{Value, json};
use std::time::Duration;

/// Rounds that count, and warm-up rounds before them, in which drivers compile and pages are allocated.
const ROUNDS: usize = 32;
const WARM: usize = 4;

/// Frames per turn, if two APIs take turns: the maximum of a batch.
const TURN: usize = 8;

/// A way through both stages, and its memory.
type Variant<'w> = (&'w Pipeline, &'w BufferBuilder<'w, Complex32>);

/// Where the time went, for one way.
pub struct Column {
    label: &'static str,
    /// Frames of a round.
    frames: usize,
    account: Account,
    /// Bytes that a frame's stages must move, per nanosecond of the second device's copies: the time that they take at least.
    roof_ns: f64,
}

/// Measures the way that the report is about; also the two APIs taking turns, if that way is grafted; and all stages in one API,
/// as the limit.
pub fn take(
    trace: &Trace,
    best: Variant<'_>,
    native: Variant<'_>,
    batch: usize,
) -> Result<Vec<Column>> {
    let (setup, [first, second]) = (&native.0.setup, &native.0.devices);
    let label = match best.0.grafted_from {
        Some(_) => "grafted",
        None if first.index() == second.index() => "one device",
        None => "taking turns",
    };
    let mut columns = vec![Column::take(trace, label, best, batch)?];
    if best.0.grafted_from.is_some() {
        columns.push(Column::take(trace, "taking turns", native, TURN)?);
    }
    if first.index() == second.index() {
        return Ok(columns);
    }
    let alone = if first.hub().could_graft(first, second) { second } else { first };
    match Pipeline::open(&[alone.clone(), alone.clone()], setup.clone()) {
        Ok(limit) => {
            let request = alone.hub().buffer(setup.shape.samples()).shared_with([alone]);
            let mut sizes: Vec<usize> = columns.iter().map(|column| column.frames).collect();
            sizes.dedup();
            for frames in sizes {
                columns.push(Column::take(trace, "one API", (&limit, &request), frames)?);
            }
        }
        Err(why) => out::warn(format!("no baseline with all stages on {alone}: {why}")),
    }
    Ok(columns)
}

impl Column {
    /// Runs rounds of this many frames back to back, and waits for each round.
    fn take(
        trace: &Trace,
        label: &'static str,
        (pipeline, request): Variant<'_>,
        frames: usize,
    ) -> Result<Self> {
        let (slots, mut stretches) =
            (pipeline.frames(request, frames)?, Vec::with_capacity(ROUNDS));
        for round in 0..WARM + ROUNDS {
            trace.catch_up();
            let start = trace.now();
            pipeline.run(&slots)?;
            if round >= WARM {
                stretches.push(start..trace.now());
            }
        }
        let account = trace.account(stretches);
        let roof_ns = pipeline.shape().bytes_moved() as f64 / copy_bandwidth(&pipeline.devices[1])?;
        Ok(Self { label, frames, account, roof_ns })
    }

    /// The fraction of the copy bandwidth at which a frame goes through the stages.
    fn of_copy(&self) -> f64 {
        self.roof_ns / 1e3 / self.us(self.account.total)
    }

    /// Converts a total time to microseconds per frame.
    fn us(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1e6 / (ROUNDS * self.frames) as f64
    }

    fn work(&self, name: &str) -> Option<f64> {
        let of = self.account.work.iter().filter(|((_, work), _)| work == name);
        of.map(|(_, time)| self.us(*time)).reduce(|sum, us| sum + us)
    }

    fn idle(&self, cause: Idle) -> Option<f64> {
        self.account.idle.get(&cause).map(|time| self.us(*time))
    }

    fn json(&self) -> Value {
        let named =
            |(name, time): (String, &Duration)| json!({ "name": name, "us": self.us(*time) });
        let work = self.account.work.iter().map(|((_, name), time)| (name.clone(), time));
        let idle = self.account.idle.iter().map(|(cause, time)| (cause.to_string(), time));
        json!({
            "way": self.label,
            "frames_per_turn": self.frames,
            "frame_us": self.us(self.account.total),
            "of_copy": self.of_copy(),
            "work": work.map(named).collect::<Vec<_>>(),
            "idle": idle.map(named).collect::<Vec<_>>(),
        })
    }
}

/// The columns as JSON; `None` without a trace.
pub fn json(columns: &[Column]) -> Option<Value> {
    (!columns.is_empty()).then(|| columns.iter().map(Column::json).collect())
}

pub fn text(columns: &[Column], screen: Screen) -> String {
    if columns.is_empty() {
        return String::new();
    }
    let head = [""].into_iter().chain(columns.iter().map(|column| column.label));
    let mut table = Table::new(head.collect::<Vec<_>>());
    let mut row = |name: String, of: &dyn Fn(&Column) -> Option<f64>| {
        let values: Vec<Option<f64>> = columns.iter().map(of).collect();
        if values.iter().any(Option::is_some) {
            let shown = |us: Option<f64>| us.map_or_else(|| "-".into(), |us| format!("{us:.1}"));
            let cells = values.into_iter().map(|us| Cell::number(shown(us)));
            table.row([Cell::from(name)].into_iter().chain(cells).collect::<Vec<_>>(), "");
        }
    };
    for name in names(columns) {
        row(format!("{name} runs"), &|column| column.work(name));
    }
    for cause in Idle::ALL {
        row(cause.to_string(), &|column| column.idle(cause));
    }
    row("together".into(), &|column| Some(column.us(column.account.total)));
    let fractions = columns.iter().map(|column| Cell::number(format!("{:.2}", column.of_copy())));
    let name = Cell::from("of copy bandwidth");
    table.row([name].into_iter().chain(fractions).collect::<Vec<_>>(), "");
    let turns: Vec<String> = columns.iter().map(|column| column.frames.to_string()).collect();
    let (turns, table) = (turns.join(", "), table.render(screen));
    format!("\ntime per frame in µs, from the trace; frames per turn: {turns}\n{table}")
}

/// The names of all work of all columns, once each.
fn names(columns: &[Column]) -> Vec<&str> {
    let names = columns.iter().flat_map(|column| column.account.work.keys());
    let mut names: Vec<&str> = names.map(|(_, name)| name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names
}
