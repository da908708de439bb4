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
mod private;
mod process;
mod progress;
mod report;
mod result;

use chapters::Plan;
use discovery::Devices;
use job::Tools;
use onebuf_conformance::{MARK, VARIABLE};
use options::{LIMIT_VARIABLE, Options, Request, USAGE};
use progress::Progress;
use report::Report;
use std::{env, fs, path::PathBuf, process::ExitCode, time::Instant};

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
    let limit = options::limit(env::var(LIMIT_VARIABLE).ok())?;
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
    let mut progress = Progress::new(&jobs);
    progress.devices(&devices);
    let (mut rows, mut routes) = (devices.rows.clone(), Vec::new());
    for job in &jobs {
        if process::interrupted().is_some() {
            break;
        }
        progress.begin(job);
        let (row, found) = tools.work(job);
        progress.end(job, &row);
        rows.push(row);
        routes.extend(found);
    }
    for route in &mut routes {
        route.why = tools.private.scrub(&route.why);
    }
    let cut_short = process::interrupted().map(|_| "the run was interrupted".to_owned());
    let (rows, facts, took) = (result::joined(rows), report::facts(), start.elapsed());
    let report = Report { version, devices: chosen, rows, routes, took, cut_short, facts };
    drop(tools);
    publish(&report, options);
    Ok(match process::interrupted() {
        Some(signal) => ExitCode::from(128u8.saturating_add(signal as u8)),
        None if report.is_good() => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    })
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
