//! The order of experiments: what is right or wrong is tried side by side, what is timed is timed alone.
//!
//! A helper makes one experiment after the other, because loading all drivers of a machine takes longer than most experiments.
//! What fails is tried again in a fresh helper of its own before it counts.

use super::{
    request::What,
    session::{Helper, Session},
};
use onebuf_core::topology::{Node, Topology, Verdict, VerdictState};
use onebuf_hal::{DeviceKind, Error, Result, RouteKind};
use onebuf_sys::system_memory;
use std::{
    collections::BTreeMap,
    sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Sender, channel},
    },
    thread,
};

/// The most helpers at a time. More only wait for each other in the drivers.
const MOST_HELPERS: usize = 8;
/// How many times the size of its largest buffer a helper may need: both sides may have a copy, and a driver may keep one.
const COPIES: u64 = 3;

/// One route to try.
pub(super) struct Task<'t> {
    pub from: &'t Node,
    pub to: &'t Node,
    pub kind: RouteKind,
}

/// What happens during a run.
pub(super) enum Stage {
    /// An experiment with this task begins.
    Begins(usize),
    /// The task has been seen to share, and is to be timed later.
    Shares,
    /// The task has its verdict.
    Ends(usize, Verdict),
}

pub(super) struct Schedule<'d> {
    helper: Helper<'d>,
    /// How many helpers run at a time, and the size of the largest buffer of each.
    width: usize,
    reach: u64,
}

impl<'d> Schedule<'d> {
    /// Each helper gets a buffer of `reach` bytes if the machine has the memory; fewer helpers run side by side for it.
    pub fn new(helper: Helper<'d>, reach: u64, topology: &Topology) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let nodes = topology.indices().map(|device| &topology.node(device).info);
        let of_gpus = nodes.filter(|info| info.kind == DeviceKind::Gpu && info.memory_bytes > 0);
        let least = of_gpus.map(|info| info.memory_bytes).min().unwrap_or(u64::MAX);
        let (width, reach) = fitting(cores.min(MOST_HELPERS), reach, available().min(least));
        Self { helper, width, reach }
    }

    /// Tries all tasks and reports each verdict.
    ///
    /// # Errors
    /// If a helper cannot be started or sees other devices.
    pub fn run(&self, tasks: &[Task<'_>], tell: &mut dyn FnMut(Stage)) -> Result<()> {
        let broken = self.broken(tasks)?;
        let of_broken = |task: &Task<'_>| {
            let ends = |id: &str| task.from.id == id || task.to.id == id;
            broken.iter().find(|(id, _)| ends(id)).map(|(_, verdict)| verdict.clone())
        };
        let mut wanted = Vec::new();
        for (index, task) in tasks.iter().enumerate() {
            match of_broken(task) {
                Some(verdict) => tell(Stage::Ends(index, verdict)),
                None => wanted.push(index),
            }
        }
        let (mut shared, mut doubtful) = (Vec::new(), Vec::new());
        let mut kept = self.side_by_side(tasks, &wanted, &mut |index, verdict| match verdict {
            None => tell(Stage::Begins(index)),
            Some(verdict) if verdict.state == VerdictState::Proven => {
                shared.push((index, verdict));
                tell(Stage::Shares);
            }
            Some(verdict) => doubtful.push((index, verdict)),
        })?;
        // Beside others, an experiment may have failed for lack of memory of the device: it is repeated alone.
        for (index, first) in doubtful {
            let task = &tasks[index];
            let what = What::Share(task.kind, self.reach);
            let verdict = self.helper.confirmed(first, task.from, task.to, what)?;
            match verdict.state {
                VerdictState::Proven => {
                    shared.push((index, verdict));
                    tell(Stage::Shares);
                }
                _ => tell(Stage::Ends(index, verdict)),
            }
        }
        shared.sort_by_key(|(index, _)| *index);
        for (index, shares) in shared {
            tell(Stage::Begins(index));
            let task = &tasks[index];
            let Some(sync) = shares.sync else { continue };
            let what = What::Time(task.kind, sync);
            let costs = self.helper.tried(&mut kept, task.from, task.to, what)?;
            tell(Stage::Ends(index, with_costs(shares, costs)));
        }
        Ok(())
    }

    /// The devices that fail by themselves, with the reason.
    fn broken(&self, tasks: &[Task<'_>]) -> Result<BTreeMap<String, Verdict>> {
        let mut broken = BTreeMap::new();
        let nodes: BTreeMap<&str, &Node> = tasks
            .iter()
            .flat_map(|task| [task.from, task.to])
            .map(|node| (&*node.id, node))
            .collect();
        for (id, node) in nodes {
            broken.extend(self.helper.broken(node)?.map(|verdict| (id.to_owned(), verdict)));
        }
        Ok(broken)
    }

    /// Tries whether the wanted tasks share memory, in several helpers at a time. Calls back at the begin and at the end of each.
    /// Returns one of the helpers; the others have ended.
    fn side_by_side(
        &self,
        tasks: &[Task<'_>],
        wanted: &[usize],
        tell: &mut dyn FnMut(usize, Option<Verdict>),
    ) -> Result<Option<Session>> {
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let work = |send: Sender<(usize, Option<Verdict>)>| -> Result<Option<Session>> {
            let mut kept = None;
            loop {
                let next = wanted.get(next.fetch_add(1, Ordering::Relaxed));
                let Some(&index) = next.filter(|_| !failed.load(Ordering::Relaxed)) else {
                    return Ok(kept);
                };
                let task = &tasks[index];
                // The receiver outlives all senders.
                let _ = send.send((index, None));
                let what = What::Share(task.kind, self.reach);
                let verdict = self.helper.ask(&mut kept, task.from, task.to, what);
                let verdict = verdict.inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
                let _ = send.send((index, Some(verdict)));
            }
        };
        thread::scope(|scope| {
            let (send, told) = channel();
            let start = |_| {
                let send = send.clone();
                scope.spawn(|| work(send))
            };
            let workers: Vec<_> = (0..self.width.min(wanted.len())).map(start).collect();
            drop(send);
            told.into_iter().for_each(|(index, verdict)| tell(index, verdict));
            let ended = workers.into_iter().map(|worker| {
                worker
                    .join()
                    .unwrap_or_else(|_| Err(Error::invalid("a thread of the doctor panicked")))
            });
            let kept: Vec<Option<Session>> = ended.collect::<Result<_>>()?;
            Ok(kept.into_iter().flatten().next())
        })
    }
}

/// A verdict on sharing, completed by the costs. A route whose costs could not be measured stays declared.
fn with_costs(shares: Verdict, costs: Verdict) -> Verdict {
    let why = format!("{}; {}", shares.why, costs.why);
    match costs.state {
        VerdictState::Proven => Verdict { envelope: shares.envelope, why, ..costs },
        VerdictState::Declared => Verdict { why, ..Verdict::default() },
        VerdictState::Refuted => costs,
    }
}

/// The number of helpers and the size of their largest buffers, for this much memory.
fn fitting(cores: usize, reach: u64, available: u64) -> (usize, u64) {
    let most = (available / COPIES / reach.max(1)).clamp(1, cores as u64);
    (most as usize, reach.min(available / COPIES / most))
}

/// The memory in bytes that helpers can get.
pub(super) fn available() -> u64 {
    system_memory::available_bytes().unwrap_or(u64::MAX)
}

#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
mod tests;
