//! The progress of a run, with an estimate of the time left.

use onebuf_core::topology::Node;
use onebuf_hal::RouteKind;
use std::time::{Duration, Instant};

/// The progress of a run.
#[derive(Clone, Debug)]
pub struct ExperimentProgress {
    /// Routes completed.
    pub done: usize,
    /// Routes in total.
    pub total: usize,
    /// The route whose experiment began last, as `from -> to kind`.
    pub route: String,
    /// The estimated time until the end; `None` before the first experiment has ended.
    pub left: Option<Duration>,
}

/// Counts what is done, and reports it.
pub(super) struct Meter<'p> {
    progress: &'p mut dyn FnMut(&ExperimentProgress),
    now: ExperimentProgress,
    /// Experiments on sharing that are left.
    sharing: usize,
    /// Routes whose costs are left to measure.
    timing: usize,
    /// When the current kind of experiment began, and how many of them have ended.
    since: Instant,
    ended: usize,
    /// How long one experiment on sharing took, on average.
    sharing_takes: Option<Duration>,
}

impl<'p> Meter<'p> {
    pub fn new(total: usize, progress: &'p mut dyn FnMut(&ExperimentProgress)) -> Self {
        let now = ExperimentProgress { done: 0, total, route: String::new(), left: None };
        let (since, sharing_takes) = (Instant::now(), None);
        Self { progress, now, sharing: 0, timing: 0, since, ended: 0, sharing_takes }
    }

    /// Announces the experiments.
    pub fn tries(&mut self, tasks: usize) {
        (self.sharing, self.since) = (tasks, Instant::now());
    }

    pub fn begins(&mut self, from: &Node, to: &Node, kind: RouteKind) {
        self.now.route = format!("{} -> {} {kind}", from.id, to.id);
        self.report();
    }

    /// A verdict was known before.
    pub fn knows(&mut self) {
        self.now.done += 1;
    }

    /// A route shares memory, and is to be timed.
    pub fn shares(&mut self) {
        self.timing += 1;
        self.shared();
    }

    /// A route has its verdict.
    pub fn ends(&mut self) {
        self.now.done += 1;
        match self.sharing {
            0 => {
                self.timing = self.timing.saturating_sub(1);
                self.ended += 1;
            }
            _ => self.shared(),
        }
        self.estimate();
    }

    fn shared(&mut self) {
        self.sharing = self.sharing.saturating_sub(1);
        self.ended += 1;
        if self.sharing == 0 {
            self.sharing_takes = self.one_takes();
            (self.since, self.ended) = (Instant::now(), 0);
        }
        self.estimate();
    }

    fn one_takes(&self) -> Option<Duration> {
        Some(self.since.elapsed() / u32::try_from(self.ended).ok().filter(|ended| *ended > 0)?)
    }

    /// Until the first is timed, timing a route is expected to take as long as its experiment on sharing took.
    fn estimate(&mut self) {
        let left = |one: Option<Duration>, n: usize| one.map(|one| one * n as u32);
        self.now.left = match self.sharing {
            0 => left(self.one_takes().or(self.sharing_takes), self.timing),
            sharing => left(self.one_takes(), 2 * sharing + self.timing),
        };
    }

    pub fn close(mut self) {
        (self.now.route, self.now.left) = (String::new(), Some(Duration::ZERO));
        self.now.done = self.now.total;
        self.report();
    }

    fn report(&mut self) {
        (self.progress)(&self.now);
    }
}
