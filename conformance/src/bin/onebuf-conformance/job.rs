//! One process of a chapter, and what all of them share.

use crate::{
    parse::{self, Format},
    process::{self, Ended, Program},
    result::{Counts, Row},
};
use onebuf_verdicts::Private;
use std::{
    collections::BTreeMap,
    fs::DirBuilder,
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Duration,
};

/// One process of a chapter.
#[derive(Clone, Debug)]
pub struct Job {
    pub chapter: &'static str,
    /// A device, a pair, or `all`.
    pub device: String,
    pub of: Vec<String>,
    /// The path of the program in the bundle.
    pub program: String,
    pub arguments: Vec<String>,
    pub environment: BTreeMap<String, String>,
    pub format: Format,
    pub limit: Duration,
    /// The seconds that it takes on a machine with two processors, for the estimate.
    pub seconds: f64,
    /// Why it is not run.
    pub skip: Option<String>,
}

impl Job {
    /// Whether nothing may run beside it: the doctor measures times, and large buffers need the memory.
    pub fn is_alone(&self) -> bool {
        ["doctor", "large"].contains(&self.chapter)
    }
}

/// The bundle, a folder for files of this run, and the environment of every process.
#[derive(Debug)]
pub struct Tools {
    pub bundle: PathBuf,
    pub scratch: Scratch,
    pub environment: BTreeMap<String, String>,
    pub private: Private,
}

impl Tools {
    /// Creates the folders of a run.
    pub fn new(bundle: PathBuf) -> io::Result<Self> {
        let scratch = Scratch::new()?;
        let mut environment = BTreeMap::new();
        let mut set = |name: &str, value: &str| environment.insert(name.into(), value.to_owned());
        set(onebuf_conformance::VARIABLE, &bundle.to_string_lossy());
        set("TMPDIR", &scratch.folder("tmp", PASSABLE)?);
        // Verdicts and compiled kernels of this run, apart from the user's.
        set("XDG_CACHE_HOME", &scratch.folder("cache", CLOSED)?);
        set("RUST_BACKTRACE", "0");
        scratch.folder("verdicts", CLOSED)?;
        Ok(Self { bundle, scratch, environment, private: Private::of_this_machine() })
    }

    /// The folder where the doctor leaves its verdicts for other chapters.
    pub fn verdicts(&self) -> String {
        self.scratch.0.join("verdicts").to_string_lossy().into_owned()
    }

    /// Runs a program of the bundle.
    pub fn run(
        &self,
        program: &str,
        arguments: &[String],
        environment: &BTreeMap<String, String>,
        limit: Duration,
    ) -> Ended {
        let mut all = self.environment.clone();
        all.extend(environment.clone());
        let path = &self.bundle.join(program);
        let scratch = &self.scratch.0;
        process::run(&Program { path, arguments, environment: &all, limit, scratch })
    }

    /// Runs a job; returns its row, and the routes that the doctor printed.
    pub fn work(&self, job: &Job) -> (Row, Vec<parse::Route>) {
        let row = |counts, took| {
            let (device, of) = (job.device.clone(), job.of.clone());
            self.scrubbed(Row { chapter: job.chapter, device, of, counts, took })
        };
        if let Some(why) = &job.skip {
            let mut counts = Counts::default();
            counts.skip(why.clone());
            return (row(counts, Duration::ZERO), Vec::new());
        }
        let ended = self.run(&job.program, &job.arguments, &job.environment, job.limit);
        let mut counts = parse::counts(job.format, &ended);
        if job.format == Format::Libtest {
            let name = job.program.rsplit('/').next().unwrap_or_default();
            counts.failures.iter_mut().for_each(|text| text.insert_str(0, &format!("{name}: ")));
        }
        let routes = match job.format {
            Format::Doctor => parse::routes(&ended.stdout).unwrap_or_default(),
            _ => Vec::new(),
        };
        (row(counts, ended.took), routes)
    }

    /// Removes private names from the texts of a row.
    pub fn scrubbed(&self, mut row: Row) -> Row {
        let clean = |text: &String| self.private.scrub(text);
        let counts = &mut row.counts;
        counts.failures = counts.failures.iter().map(clean).collect();
        counts.skips = counts.skips.iter().map(|(why, times)| (clean(why), *times)).collect();
        row
    }
}

/// A folder of this run, removed at its end.
#[derive(Debug)]
pub struct Scratch(pub PathBuf);

impl Scratch {
    fn new() -> io::Result<Self> {
        for attempt in 0..100u32 {
            let name = format!("onebuf-conformance-{}-{attempt}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            match new_folder(&folder, PASSABLE) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return made.map(|()| Self(folder)),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn folder(&self, name: &str, mode: u32) -> io::Result<String> {
        let folder = self.0.join(name);
        new_folder(&folder, mode)?;
        Ok(folder.to_string_lossy().into_owned())
    }
}

/// Caches must be closed to other users.
const CLOSED: u32 = 0o700;
/// A test starts a program of its own as another user, who passes through these folders and cannot list them.
const PASSABLE: u32 = 0o711;

fn new_folder(folder: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().mode(mode).create(folder)
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed stays in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
