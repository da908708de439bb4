//! Chooses the queue of each stage: its own device's, or that of a neighbour which runs its grafted kernels.

use super::Wanted;
use onebuf_core::{Device, Queue, observe::What};
use onebuf_hal::Result;
use serde::Serialize;
use std::fmt;

/// Whether a stage's OpenCL kernels were grafted onto a neighbouring stage's API on the same chip; see
/// [`Builder::launches`](super::Builder::launches).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Graft {
    /// The kernels of this device run in the neighbour's queue. No hand-over takes place.
    From(String),
    /// The kernels run on the stage's own device, for this reason.
    Not(String),
}

impl fmt::Display for Graft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Graft::From(device) => write!(f, "{device}'s kernels, grafted: no hand-over"),
            Graft::Not(why) => write!(f, "not grafted: {why}"),
        }
    }
}

/// Where a stage runs.
pub(super) struct Placement {
    pub device: Device,
    /// The index of the stage whose queue it uses.
    queue_of: usize,
    /// The device that the caller asked for.
    own: Device,
    /// `None` if no neighbour could run its kernels.
    pub graft: Option<Graft>,
}

impl Placement {
    fn own(at: usize, device: &Device) -> Self {
        Self { device: device.clone(), queue_of: at, own: device.clone(), graft: None }
    }

    fn is_moved(&self) -> bool {
        matches!(self.graft, Some(Graft::From(_)))
    }
}

/// Decides where each stage runs. The first pass goes from the last stage to the first, so that a stage knows where the next
/// one went. The second pass goes from the first to the last and tries the preceding stage as the neighbour.
pub(super) fn placements<S>(stages: &[Wanted<'_, S>], allowed: bool) -> Vec<Placement> {
    let own = |(at, stage): (usize, &Wanted<'_, S>)| Placement::own(at, &stage.device);
    let mut placements: Vec<Placement> = stages.iter().enumerate().map(own).collect();
    let pairs = (1..stages.len()).map(|at| (at - 1, at));
    for (at, beside) in pairs.clone().rev().chain(pairs.map(|(before, at)| (at, before))) {
        let (own, to) = (&stages[at].device, placements[beside].device.clone());
        if placements[at].is_moved() || !own.hub().could_graft(own, &to) {
            continue;
        }
        let grafted = attempt(&stages[at], &to, allowed);
        let (queue_of, placement) = (placements[beside].queue_of, &mut placements[at]);
        match grafted {
            Ok(()) => {
                (placement.device, placement.queue_of) = (to, queue_of);
                placement.graft = Some(Graft::From(placement.own.id().into()));
            }
            Err(why) => placement.graft = Some(Graft::Not(why)),
        }
    }
    placements
}

/// Grafts all kernels of a stage, or returns the reason why it cannot.
fn attempt<S>(stage: &Wanted<'_, S>, to: &Device, allowed: bool) -> Result<(), String> {
    if !allowed {
        return Err("turned off".into());
    }
    if stage.kernels.is_empty() {
        return Err("the stage does not say which kernels it launches".into());
    }
    stage.kernels.iter().try_for_each(|kernel| kernel.graft_if_proven(to))
}

/// One queue per stage. Stages that share a queue hold clones of it.
pub(super) fn queues(placements: &[Placement]) -> Result<Vec<Queue>> {
    let mut queues: Vec<Option<Queue>> = placements.iter().map(|_| None).collect();
    let one = |placement: &Placement| match &mut queues[placement.queue_of] {
        Some(queue) => Ok(queue.clone()),
        none => Ok(none.insert(placement.device.queue()?).clone()),
    };
    placements.iter().map(one).collect()
}

/// Records each stage's graft in the log and in the trace.
pub(super) fn tell(
    names: impl Iterator<Item = String>,
    placements: &[Placement],
    queues: &[Queue],
) {
    for ((name, placement), queue) in names.zip(placements).zip(queues) {
        let Some(graft) = &placement.graft else { continue };
        tracing::info!("stage {name} on {}: {graft}", placement.device);
        queue.record(queue.tracer().begin(What::Graft), |event| {
            event.name = name;
            event.from = Some(placement.own.index());
            event.failed = !placement.is_moved();
            event.why = Some(graft.to_string());
        });
    }
}
