//! What is printed while chapters run, with an estimate of the time left.

use crate::{discovery::Devices, job::Job, result::Row};
use std::{
    io::{IsTerminal, Write, stderr},
    time::{Duration, Instant},
};

/// Counts jobs, and weighs them by the seconds that they are expected to take.
#[derive(Debug)]
pub struct Progress {
    total: usize,
    done: usize,
    /// Expected seconds: of all jobs, and of those that are over.
    expected: [f64; 2],
    start: Instant,
    on_terminal: bool,
}

impl Progress {
    pub fn new(jobs: &[Job]) -> Self {
        let all = jobs.iter().map(weight).sum();
        let (start, on_terminal) = (Instant::now(), stderr().is_terminal());
        Self { total: jobs.len(), done: 0, expected: [all, 0.0], start, on_terminal }
    }

    /// Prints what was found.
    pub fn devices(&self, devices: &Devices) {
        for one in &devices.found {
            eprintln!("{:10} {}, {}", one.id, one.about[0], one.about[1]);
        }
        for row in devices.rows.iter().filter(|row| row.counts.passed == 0) {
            eprintln!("{:10} {}: {}", row.device, row.counts.cell(), row.counts.why());
        }
        let minutes = self.expected[0] / 60.0;
        eprintln!("{} parts, about {minutes:.0} minutes on two processors", self.total);
    }

    /// Prints what runs now, if someone looks.
    pub fn begin(&self, job: &Job) {
        if self.on_terminal {
            let mut err = stderr();
            let _ = write!(err, "{} …", self.head(job)).and_then(|()| err.flush());
        }
    }

    pub fn end(&mut self, job: &Job, row: &Row) {
        self.done += 1;
        self.expected[1] += weight(job);
        let again = if self.on_terminal { "\r\x1b[K" } else { "" };
        let why = match row.counts.passed {
            0 => format!(": {}", row.counts.why()),
            _ if row.counts.failed > 0 => format!(": {}", row.counts.why()),
            _ => String::new(),
        };
        let seconds = row.took.as_secs_f64();
        let left = self.left().map_or_else(String::new, |left| format!("; {left}"));
        let skipped = match row.counts.skipped {
            0 => String::new(),
            number => format!(", {number} skipped"),
        };
        let (head, cell) = (self.head(job), row.counts.cell());
        eprintln!("{again}{head} {cell}{skipped} ({seconds:.1} s{left}){why}");
    }

    fn head(&self, job: &Job) -> String {
        let name = match job.program.strip_prefix("tests/") {
            Some(test) => format!("{} ({test})", job.device),
            None => job.device.clone(),
        };
        let number = (self.done.max(1)).min(self.total);
        format!("[{number:>3}/{}] {:10} {name}:", self.total, job.chapter)
    }

    /// The time left, once enough is over to tell.
    fn left(&self) -> Option<String> {
        let [all, over] = self.expected;
        if over < 10.0 || self.done == self.total {
            return None;
        }
        let scale = self.start.elapsed().as_secs_f64() / over;
        Some(words(Duration::from_secs_f64((all - over).max(0.0) * scale)))
    }
}

/// A job that is skipped takes no time.
fn weight(job: &Job) -> f64 {
    if job.skip.is_some() { 0.0 } else { job.seconds.max(0.1) }
}

fn words(left: Duration) -> String {
    match left.as_secs() {
        0..60 => "less than a minute left".into(),
        seconds => format!("about {} min left", seconds.div_ceil(60)),
    }
}
