//! `./dev mutants`: which changes of the sources do the tests not notice?
//!
//! cargo-mutants finds the mutants. Compiling each alone would take days here, so all of them are compiled at once, into a copy of the
//! workspace, each behind a condition (`weave`). A first run of every test records the mutants whose place it passes. Then each mutant is
//! switched on by the environment, and only the tests that pass its place are run, until one fails.

mod list;
mod report;
mod tree;
mod trial;
mod weave;

use clap::Parser;
use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    path::PathBuf,
    process::ExitCode,
    sync::Mutex,
    time::{Duration, Instant},
};
use trial::Verdict;

/// Runs the mutants of the pure parts, and a sample of the others.
#[derive(Parser)]
struct Arguments {
    /// How many mutants of the files that are not taken whole.
    #[arg(long, default_value_t = 300)]
    sample: usize,
    /// Only the sample: none of the files that are taken whole.
    #[arg(long)]
    sample_only: bool,
    /// Another sample.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only files that match this pattern; several may be given.
    #[arg(long = "in", value_name = "GLOB")]
    within: Vec<String>,
    /// Integration tests to run beside the unit tests; several may be given.
    #[arg(long = "test", value_name = "NAME", default_values = ["plan", "guards", "failures"])]
    tests: Vec<String>,
    /// Tests at a time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Leave out tests that take longer than this without a mutant, in seconds.
    #[arg(long, default_value_t = 60)]
    slowest: u64,
    /// Begin no mutant after this many minutes.
    #[arg(long)]
    minutes: Option<u64>,
    /// Only those that the last run has missed.
    #[arg(long)]
    missed: bool,
    /// Print the mutants and run none.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    match mutate(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("mutants: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn mutate(arguments: &Arguments) -> Result<(), String> {
    let start = Instant::now();
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .map_err(|error| error.to_string())?;
    let folder = root.join("target/mutants");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let choice = list::Choice::read(&root.join(".cargo/mutants.toml"))?;
    let mut mutants = list::choose(&list::all(&root)?, &choice, arguments.sample, arguments.seed)?;
    mutants.retain(|mutant| !(arguments.sample_only && mutant.pure));
    if !arguments.within.is_empty() {
        mutants
            .retain(|mutant| arguments.within.iter().any(|glob| list::matches(glob, &mutant.file)));
    }
    let results = folder.join("results.tsv");
    if arguments.missed {
        let before = report::missed(
            &fs::read_to_string(&results)
                .map_err(|error| format!("{}: {error}", results.display()))?,
        );
        mutants.retain(|mutant| before.contains(&mutant.name));
    }
    for (at, mutant) in mutants.iter_mut().enumerate() {
        mutant.id = at + 1;
    }
    if arguments.list {
        mutants.iter().for_each(|mutant| println!("{}", mutant.name));
        return Ok(());
    }
    eprintln!(
        "{} mutants, {} of them in files taken whole",
        mutants.len(),
        mutants.iter().filter(|mutant| mutant.pure).count()
    );
    let copy = folder.join("tree");
    tree::copy(&root, &copy)?;
    let (programs, left) = tree::build(&root, &copy, &mutants, &arguments.tests)?;
    eprintln!("{} test programs after {} s", programs.len(), start.elapsed().as_secs());
    let scratch = folder.join("scratch");
    let tests =
        trial::survey(&programs, &scratch, arguments.jobs, Duration::from_secs(arguments.slowest))?;
    eprintln!("{} tests after {} s", tests.len(), start.elapsed().as_secs());
    let woven: Vec<_> = mutants
        .iter()
        .filter(|mutant| !left.unviable.contains(&mutant.id) && !left.fixed.contains(&mutant.id))
        .collect();
    let until = arguments.minutes.map(|minutes| start + Duration::from_secs(minutes * 60));
    let mut verdicts: BTreeMap<usize, Verdict> = BTreeMap::new();
    verdicts.extend(left.unviable.iter().map(|id| (*id, Verdict::Unviable)));
    verdicts.extend(left.fixed.iter().map(|id| (*id, Verdict::Fixed)));
    // Written as they come: a run may be interrupted.
    let failed = |error: std::io::Error| format!("{}: {error}", results.display());
    let mut table = fs::File::create(&results).map_err(failed)?;
    for mutant in &mutants {
        if let Some(verdict) = verdicts.get(&mutant.id) {
            table.write_all(report::line(mutant, verdict).as_bytes()).map_err(failed)?;
        }
    }
    let table = Mutex::new(table);
    verdicts.extend(trial::judge_all(
        &woven,
        &tests,
        &scratch,
        arguments.jobs,
        until,
        |mutant, verdict| {
            let line = report::line(mutant, verdict);
            print!("{line}");
            let written = table.lock().expect("no panic").write_all(line.as_bytes());
            written.unwrap_or_else(|error| eprintln!("{}", failed(error)));
        },
    ));
    print!("{}", report::summary(&mutants, &verdicts));
    println!("{} s; every verdict: {}", start.elapsed().as_secs(), results.display());
    Ok(())
}
