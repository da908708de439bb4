//! `onebuf bench`: measures onebuf against a baseline.

use crate::{
    doctor,
    html::{self, Machine},
    out::{self, Answer, Failure, Output, Result},
    screen::{Colour, Screen},
    table::{Cell, Table},
    units,
};
use onebuf_bench::{Bench, Case, Effort, Met, Outcome, Ranks, Row, Skipped, WORKLOADS, Workload};
use serde_json::json;
use std::path::PathBuf;

/// Measure onebuf against raw C calls or staged copies in the same run
#[derive(clap::Args)]
#[command(after_long_help = long_help(), after_help = EXAMPLES)]
pub struct BenchArgs {
    /// Only these: a name from the list in `--help`, or one of a row, such as handoff_opencl:0_opencl:1_ratio
    #[arg(value_name = "NAME", value_parser = name)]
    names: Vec<String>,
    /// Fewer samples: a rough look, not a measurement
    #[arg(long)]
    quick: bool,
    /// Size of the buffers that are handed over [default: 256MiB, with --quick 32MiB]
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes)]
    size: Option<u64>,
    /// Also write an HTML page as a single file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Runs as a rank of MPI, and measures this row; `onebuf bench` starts its ranks so
    #[arg(long, value_name = "ROW", hide = true)]
    rank_of: Option<String>,
}

/// Hand-overs of larger buffers take too long for `--quick`.
const QUICK_BYTES: usize = 32 << 20;

const EXAMPLES: &str = "\
Examples:
  onebuf bench                            everything
  onebuf bench launch_enqueue_ratio       one benchmark
  onebuf bench handoff --size 64MiB       every pair of platforms, smaller buffers
  onebuf bench --html report.html         also writes an HTML page, with plots
  onebuf bench --quick --json | jq '.results[] | {name, ratio}'";

fn long_help() -> String {
    let list: String =
        WORKLOADS.iter().map(|w| format!("  {}\n      {}\n", w.name, w.about)).collect();
    format!(
        "{EXAMPLES}

Names:
{list}
With several OpenCL platforms the first has the plain name, and the others have their device's id
appended. `handoff` means every pair.

Method: ours (A) and the baseline (B) run in the same process in blocks of four batches, A B B A,
after a first block that is not counted. The ratio is the median of the blocks' own ratios; its 95 %
interval is by order statistics and assumes nothing about the noise. The two values share the median
block's time in that ratio. Without a baseline the value is the median of batches of 200 us or more.
`in noise`: the ratio is beyond its bar, but the better end of the interval is not.

A benchmark that cannot run here is skipped, with the reason on stderr. That is a failure (status 1)
if it was named."
    )
}

fn name(text: &str) -> Result<String, String> {
    if onebuf_bench::known(text) {
        return Ok(text.into());
    }
    let names: Vec<&str> = WORKLOADS.iter().map(Workload::short).collect();
    Err(format!("there is no such benchmark; there are {}", names.join(", ")))
}

/// Runs the benchmarks and prints the results itself, because results are useful even if some benchmarks failed.
pub fn run(args: &BenchArgs, screen: Screen, output: Output) -> Result<()> {
    let (effort, bytes) =
        if args.quick { (Effort::QUICK, QUICK_BYTES) } else { (Effort::FULL, Bench::BYTES) };
    if let Some(row) = &args.rank_of {
        return Ok(onebuf_bench::run_rank(row, effort.least)?);
    }
    let bytes = args.size.map_or(Ok(bytes), usize::try_from)?;
    let mut bench = Bench::discover(effort, bytes)?;
    bench.ranks = Some(ranks(args.quick)?);
    bench.hub().notes().iter().for_each(out::warn);
    let cases = onebuf_bench::cases(&bench, &args.names);
    let outcome = measure(&bench, &cases)?;
    for Skipped { name, why, .. } in &outcome.skipped {
        out::skip(name, why);
    }
    if let Some(path) = &args.html {
        html::save(path, &html::bench_page(&Machine::of(bench.hub()), &outcome))?;
    }
    let json = json!({ "results": outcome.results, "skipped": outcome.skipped });
    output.give(Answer { json, text: text(&outcome, screen) })?;
    failure(args, &outcome).map_or(Ok(()), Err)
}

/// How this program starts itself as a rank.
fn ranks(quick: bool) -> Result<Ranks> {
    let quick = quick.then(|| "--quick".to_owned());
    let arguments = ["bench".to_owned()].into_iter().chain(quick).chain(["--rank-of".to_owned()]);
    Ok(Ranks { program: std::env::current_exe()?, arguments: arguments.collect() })
}

/// Runs the cases, with a progress display on a terminal.
fn measure(bench: &Bench, cases: &[Case]) -> Result<Outcome> {
    let bar = doctor::progress_bar()?;
    bar.set_length(cases.len() as u64);
    let outcome = onebuf_bench::run(bench, cases, |number, case| {
        bar.set_position(number as u64);
        bar.set_message(case.name.clone());
    });
    bar.finish_and_clear();
    Ok(outcome)
}

/// Why the command as a whole failed.
fn failure(args: &BenchArgs, outcome: &Outcome) -> Option<Failure> {
    let bad = |skipped: &&Skipped| skipped.failed || !args.names.is_empty();
    let bad: Vec<&str> = outcome.skipped.iter().filter(bad).map(|s| s.name.as_str()).collect();
    (!bad.is_empty()).then(|| Failure::new(format!("could not run {}", bad.join(", "))))
}

fn text(outcome: &Outcome, screen: Screen) -> String {
    if outcome.results.is_empty() {
        return String::new();
    }
    let head = ["name", "value", "baseline", "ratio [95 %]", "bar", "met", "of copy", "n"];
    let mut table = Table::new(head).remark("on");
    for row in &outcome.results {
        table.row(cells(row), row.remark.as_str());
    }
    table.render(screen)
}

fn cells(row: &Row) -> [Cell; 8] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    [
        Cell::from(row.name.as_str()),
        Cell::number(row.in_unit(row.value)),
        Cell::number(or_dash(row.baseline.map(|value| row.in_unit(value)))),
        Cell::number(or_dash(row.ratio_text())),
        Cell::from(or_dash(row.bar.map(|bar| bar.to_string()))),
        row.met().map_or_else(|| Cell::from("-"), met),
        Cell::number(or_dash(row.of_copy.map(|fraction| format!("{fraction:.2}")))),
        Cell::number(row.n.to_string()),
    ]
}

fn met(met: Met) -> Cell {
    let colour = match met {
        Met::Yes => Colour::Green,
        Met::WithinNoise => Colour::Yellow,
        Met::No => Colour::Red,
    };
    Cell::from(met.to_string()).coloured(colour)
}
