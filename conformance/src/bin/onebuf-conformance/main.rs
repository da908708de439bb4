//! `onebuf-conformance`, the program at the top of a conformance bundle: runs the whole proof on the drivers of a machine. See
//! `--help` and `docs/conformance.md`.
//!
//! This program loads no driver. Each chapter is a program of the bundle in a process of its own, which has a time limit; what
//! it prints is data.

mod chapters;
mod discovery;
mod html;
mod job;
mod options;
mod parse;
mod process;
mod progress;
mod report;
mod result;

use chapters::Plan;
use discovery::Devices;
use job::{Job, Tools};
use onebuf_conformance::{MARK, VARIABLE};
use onebuf_verdicts::Machine;
use options::{LIMIT_VARIABLE, Options, Request, USAGE};
use progress::Progress;
use report::Report;
use result::Row;
use std::{
    collections::BTreeMap,
    env, fs,
    path::PathBuf,
    process::ExitCode,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

/// The report that every run writes, in the current folder.
const REPORT: &str = "onebuf-conformance-report.txt";

fn main() -> ExitCode {
    match Request::parse(env::args().skip(1)) {
        Ok(Request::Help) => println!("{USAGE}"),
        Ok(Request::Contents) => chapters::contents().iter().for_each(|file| println!("{file}")),
        Ok(Request::Run(options)) => {
            return run(&options).unwrap_or_else(|why| wrong_usage(&why, ""));
        }
        Err(why) => return wrong_usage(&why, USAGE),
    }
    ExitCode::SUCCESS
}

fn wrong_usage(why: &str, usage: &str) -> ExitCode {
    eprintln!("onebuf-conformance: {why}");
    if !usage.is_empty() {
        eprintln!("{usage}");
    }
    ExitCode::from(2)
}

/// Runs everything; the error is one of usage.
fn run(options: &Options) -> Result<ExitCode, String> {
    let start = Instant::now();
    let (bundle, version) = bundle()?;
    // Processes side by side may wait for each other.
    let limit = options::limit(env::var(LIMIT_VARIABLE).ok())? * options.jobs as u32;
    if let Some(page) = &options.html {
        // Found out now, and not after twenty minutes.
        fs::write(page, "").map_err(|error| format!("--html {page}: {error}"))?;
    }
    process::prepare();
    let tools = Tools::new(bundle).map_err(|error| format!("no folder for this run: {error}"))?;
    let devices = Devices::find(&tools);
    let chosen = devices.chosen(&options.devices)?;
    let plan = Plan { options, tools: &tools, devices: &devices, chosen: &chosen, limit };
    let jobs = plan.jobs();
    let progress = Progress::new(&jobs);
    progress.devices(&devices);
    let (mut rows, mut routes) = (devices.rows.clone(), Vec::new());
    let progress = Mutex::new(progress);
    // In the order of the chapters: the doctor's verdicts are there when others need them.
    for group in jobs.chunk_by(|a, b| a.is_alone() == b.is_alone()) {
        let workers = if group[0].is_alone() { 1 } else { options.jobs };
        for (row, found) in side_by_side(&tools, group, workers, &progress) {
            rows.push(row);
            routes.extend(found);
        }
    }
    for route in &mut routes {
        route.why = tools.private.scrub(&route.why);
    }
    let findings = report::findings(&version, &devices, &routes, &rows, &tools.private);
    let cut_short = process::interrupted().map(|_| "the run was interrupted".to_owned());
    let facts = report::facts(&Machine::here());
    let (rows, took) = (result::joined(rows), start.elapsed());
    let report =
        Report { version, devices: chosen, rows, routes, took, cut_short, facts, findings };
    drop(tools);
    publish(&report, options);
    Ok(match process::interrupted() {
        Some(signal) => ExitCode::from(128u8.saturating_add(signal as u8)),
        None if report.is_good() => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    })
}

/// Runs jobs, up to `workers` at a time. The results are in the order of the jobs; those after an interruption have none.
fn side_by_side(
    tools: &Tools,
    jobs: &[Job],
    workers: usize,
    progress: &Mutex<Progress>,
) -> Vec<(Row, Vec<parse::Route>)> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        while let Some(at) =
            Some(next.fetch_add(1, Ordering::Relaxed)).filter(|at| *at < jobs.len())
            && process::interrupted().is_none()
        {
            lock(progress).begin(&jobs[at]);
            let result = tools.work(&jobs[at]);
            lock(progress).end(&jobs[at], &result.0);
            lock(&done).insert(at, result);
        }
    };
    thread::scope(|scope| (0..workers.min(jobs.len())).for_each(|_| drop(scope.spawn(work))));
    done.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The folder of the bundle, and its version.
fn bundle() -> Result<(PathBuf, String), String> {
    let beside = || Some(env::current_exe().ok()?.parent()?.to_owned());
    let named = env::var_os(VARIABLE).filter(|named| !named.is_empty()).map(PathBuf::from);
    let folder = named.or_else(beside).and_then(|folder| folder.canonicalize().ok());
    let Some(folder) = folder else { return Err("the folder of the bundle does not exist".into()) };
    let version = fs::read_to_string(folder.join(MARK)).map_err(|_| {
        format!(
            "this program belongs to an unpacked bundle, and {folder:?} is none: see `./dev bundle`"
        )
    })?;
    Ok((folder, version.trim().to_owned()))
}

/// Prints the results, and writes the report.
fn publish(report: &Report, options: &Options) {
    match options.json {
        true => println!("{}", report.json()),
        false => println!("\n{}\n{}", report.table_text(), report.summary()),
    }
    for (head, lines) in report.lists().into_iter().filter(|(head, _)| head == "failed") {
        eprintln!("{head}");
        lines.iter().for_each(|line| eprintln!("  {line}"));
    }
    let pages = options.html.iter().map(|page| (page.as_str(), html::page(report)));
    for (file, text) in [(REPORT, report.text())].into_iter().chain(pages) {
        match fs::write(file, text) {
            Ok(()) => eprintln!("report: {file}"),
            Err(error) => eprintln!("onebuf-conformance: {file} cannot be written: {error}"),
        }
    }
}
