//! Runs tests: which mutants each reaches, and which mutants they detect.

use crate::{list::Mutant, tree::Program};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// A mutant that needs more address space than any test has gone wrong.
const ADDRESS_SPACE: u64 = 24 << 30;

/// Inputs of each fuzz test: a mutant that survives these few is rarely noticed by more.
const FUZZ: &str = "40";

/// One test, run in a process of its own.
pub struct Test<'p> {
    pub program: &'p Program,
    pub name: String,
    pub takes: Duration,
    /// The mutants that its code passes.
    pub reaches: BTreeSet<usize>,
}

/// What the tests say of a mutant.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// This test fails.
    Caught(String),
    /// This test does not end.
    Timeout(String),
    /// This many tests pass its place, and none fails.
    Missed(usize),
    /// The compiler refuses it.
    Unviable,
    /// It cannot be decided at run time; not run.
    Fixed,
    /// The run ended before its turn.
    NotRun,
}

impl Verdict {
    pub fn word(&self) -> &'static str {
        match self {
            Self::Caught(_) => "caught",
            Self::Timeout(_) => "timeout",
            Self::Missed(0) => "not reached",
            Self::Missed(_) => "missed",
            Self::Unviable => "unviable",
            Self::Fixed => "constant",
            Self::NotRun => "not run",
        }
    }
}

enum Ended {
    Passed,
    Failed,
    TooLate,
}

fn run(
    test: &str,
    program: &Program,
    home: &Path,
    limit: Duration,
    variable: (&str, &str),
) -> Ended {
    let mut command = Command::new("timeout");
    command.arg("--kill-after=2").arg(limit.as_secs().max(1).to_string());
    command
        .args(["prlimit", &format!("--as={ADDRESS_SPACE}"), "--core=0"])
        .arg(&program.path)
        .args(["--exact", test]);
    command.current_dir(&program.folder).env(variable.0, variable.1);
    // What a mutant writes or removes is not the user's.
    command
        .env("HOME", home)
        .env("XDG_CACHE_HOME", home.join("cache"))
        .env("XDG_RUNTIME_DIR", home)
        .env("TMPDIR", home.join("tmp"));
    if std::env::var_os("ONEBUF_FUZZ").is_none() {
        command.env("ONEBUF_FUZZ", FUZZ);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match command.status().ok().and_then(|status| status.code()) {
        Some(0) => Ended::Passed,
        Some(124 | 137) => Ended::TooLate,
        _ => Ended::Failed,
    }
}

/// Calls a function with 0, 1, …, from several threads, until it says that there is no more.
fn in_parallel(jobs: usize, work: impl Fn(usize) -> bool + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| while work(next.fetch_add(1, Relaxed)) {});
        }
    });
}

/// Folders of one test at a time.
fn home(scratch: &Path, name: &str) -> std::path::PathBuf {
    let home = scratch.join(name);
    let _ = fs::remove_dir_all(&home);
    for folder in ["cache", "tmp"] {
        let _ = fs::create_dir_all(home.join(folder));
    }
    home
}

/// Runs every test once, without a mutant. Those that fail or take too long are left out, and named.
pub fn survey<'p>(
    programs: &'p [Program],
    scratch: &Path,
    jobs: usize,
    limit: Duration,
) -> Result<Vec<Test<'p>>, String> {
    let mut names: Vec<(&Program, String)> = Vec::new();
    for program in programs {
        let output = Command::new(&program.path)
            .args(["--list", "--format=terse"])
            .current_dir(&program.folder)
            .output();
        let output = output.map_err(|error| format!("{}: {error}", program.name))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        names.extend(
            text.lines()
                .filter_map(|line| line.strip_suffix(": test"))
                .map(|name| (program, name.to_owned())),
        );
    }
    let tests = Mutex::new(Vec::new());
    in_parallel(jobs, |at| {
        let Some((program, name)) = names.get(at) else { return false };
        let (home, start) = (home(scratch, &format!("survey-{at}")), Instant::now());
        let reach = home.join("reach");
        let ended =
            run(name, program, &home, limit, ("ONEBUF_MUTANT_REACH", &reach.to_string_lossy()));
        let takes = start.elapsed();
        let text = fs::read_to_string(&reach).unwrap_or_default();
        let _ = fs::remove_dir_all(&home);
        match ended {
            Ended::Passed => {
                let reaches = text.lines().filter_map(|line| line.parse().ok()).collect();
                tests.lock().expect("no panic").push(Test {
                    program,
                    name: name.clone(),
                    takes,
                    reaches,
                });
            }
            Ended::Failed => {
                eprintln!("left out, it fails without a mutant: {} {name}", program.name)
            }
            Ended::TooLate => eprintln!(
                "left out, it takes more than {} s: {} {name}",
                limit.as_secs(),
                program.name
            ),
        }
        true
    });
    Ok(tests.into_inner().expect("no panic"))
}

/// Runs the tests that pass a mutant's place until one fails: those of its own module first, then the fastest.
fn judge(mutant: &Mutant, tests: &[&Test<'_>], scratch: &Path) -> Verdict {
    let module = module(&mutant.file);
    let mut order: Vec<_> = tests.iter().collect();
    order.sort_by_key(|test| {
        (!(test.name.contains(&module) && test.takes < Duration::from_secs(3)), test.takes)
    });
    for test in &order {
        let home = home(scratch, &format!("mutant-{}", mutant.id));
        // Ten times as long as without the mutant, on a machine that may be busy.
        let limit = test.takes * 10 + Duration::from_secs(15);
        let ended =
            run(&test.name, test.program, &home, limit, ("ONEBUF_MUTANT", &mutant.id.to_string()));
        let _ = fs::remove_dir_all(&home);
        let name = format!("{} {}", test.program.name, test.name);
        match ended {
            Ended::Passed => {}
            Ended::Failed => return Verdict::Caught(name),
            Ended::TooLate => return Verdict::Timeout(name),
        }
    }
    Verdict::Missed(tests.len())
}

/// The path of a file's module, as tests are named: `buffer::transition`.
fn module(file: &str) -> String {
    let inside = file.split_once("/src/").map_or(file, |(_, inside)| inside);
    let path = inside.trim_end_matches(".rs").trim_end_matches("/mod");
    format!("{}::", path.replace('/', "::"))
}

/// The verdicts of all mutants, in the order of `mutants`. `said` hears of each.
pub fn judge_all(
    mutants: &[&Mutant],
    tests: &[Test<'_>],
    scratch: &Path,
    jobs: usize,
    until: Option<Instant>,
    said: impl Fn(&Mutant, &Verdict) + Sync,
) -> BTreeMap<usize, Verdict> {
    let mut reaching: HashMap<usize, Vec<&Test<'_>>> = HashMap::new();
    for test in tests {
        for id in &test.reaches {
            reaching.entry(*id).or_default().push(test);
        }
    }
    let verdicts = Mutex::new(BTreeMap::new());
    in_parallel(jobs, |at| {
        let Some(mutant) = mutants.get(at) else { return false };
        let late = until.is_some_and(|until| Instant::now() > until);
        let tests = reaching.get(&mutant.id).map(Vec::as_slice).unwrap_or_default();
        let verdict = if late { Verdict::NotRun } else { judge(mutant, tests, scratch) };
        said(mutant, &verdict);
        verdicts.lock().expect("no panic").insert(mutant.id, verdict);
        true
    });
    verdicts.into_inner().expect("no panic")
}
