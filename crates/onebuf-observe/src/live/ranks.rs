//! The ranks of a job, as the rank that gathers them shows them.

use super::{PipelineSeen, Snapshot};
use onebuf_core::Cause;
use serde::{Deserialize, Serialize};

/// What is known of a rank's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RankState {
    /// It has told its state lately.
    Running,
    /// A signal or a debugger has stopped its process.
    Stopped,
    /// Its process has ended, or MPI cannot reach it.
    Gone,
    /// It has told nothing for a while, for an unknown reason.
    Silent,
    /// Its part of the job is done.
    Ended,
    /// It has told nothing yet.
    #[default]
    Unknown,
}

impl RankState {
    /// The word in JSON.
    pub fn name(self) -> &'static str {
        match self {
            RankState::Running => "running",
            RankState::Stopped => "stopped",
            RankState::Gone => "gone",
            RankState::Silent => "silent",
            RankState::Ended => "ended",
            RankState::Unknown => "unknown",
        }
    }
}

/// A rank of an MPI job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankSeen {
    /// Its number.
    pub rank: u64,
    /// The name of its machine.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
    /// What is known of its process.
    pub state: RankState,
    /// The age of what follows; `None` if it has told nothing yet.
    pub told_us_ago: Option<u64>,
    /// What it has told.
    #[serde(flatten)]
    pub told: RankTold,
}

/// What a rank tells of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankTold {
    /// The number of its buffers.
    #[serde(default)]
    pub buffers: u64,
    /// The hand-overs between its queues.
    #[serde(default)]
    pub hand_overs: u64,
    /// Bytes of copies that its program asked for.
    #[serde(default)]
    pub asked_bytes: u64,
    /// Bytes of implied copies.
    #[serde(default)]
    pub implied_bytes: u64,
    /// Its pipelines.
    #[serde(default)]
    pub pipelines: Vec<PipelineSeen>,
}

impl RankTold {
    /// The part of a snapshot that other ranks are told.
    pub fn of(seen: &Snapshot) -> Self {
        let moved = |cause| {
            let of = seen.ledger.iter().filter(|entry| entry.cause == cause);
            of.map(|entry| entry.bytes).sum()
        };
        Self {
            buffers: (seen.buffers.len() + seen.buffers_left_out) as u64,
            hand_overs: seen.fences.iter().map(|(_, count)| count).sum(),
            asked_bytes: moved(Cause::Asked),
            implied_bytes: moved(Cause::Implied),
            pipelines: seen.pipelines.clone(),
        }
    }

    /// Encodes it in at most so many bytes. Stages are left out until it fits, then pipelines.
    pub fn encode(&self, most: usize) -> Vec<u8> {
        let mut told = self.clone();
        loop {
            match serde_json::to_vec(&told) {
                Ok(text) if text.len() <= most => return text,
                _ if told.pipelines.iter().any(|pipeline| !pipeline.stages.is_empty()) => {
                    told.pipelines.iter_mut().for_each(|pipeline| pipeline.stages.clear());
                }
                _ if told.pipelines.pop().is_some() => {}
                _ => return Vec::new(),
            }
        }
    }

    /// Decodes what a rank has told. `None` if it is something else.
    pub fn decode(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }
}

/// The ranks of a job, for the live view of one of them.
pub trait RankSource: Send + Sync {
    /// All ranks, in their order. Called by the thread for viewers: it must not wait for other ranks.
    fn ranks(&self) -> Vec<RankSeen>;
}

impl RankSeen {
    /// The names in it, which terminals show.
    pub(super) fn names(&mut self) -> impl Iterator<Item = &mut String> {
        std::iter::once(&mut self.host).chain(names_of(&mut self.told.pipelines))
    }
}

/// The names of pipelines and their stages.
pub(super) fn names_of(pipelines: &mut [PipelineSeen]) -> impl Iterator<Item = &mut String> {
    pipelines.iter_mut().flat_map(|pipeline| {
        let stages = pipeline.stages.iter_mut();
        let stages = stages.flat_map(|stage| [&mut stage.name, &mut stage.device]);
        std::iter::once(&mut pipeline.name).chain(stages)
    })
}

impl Snapshot {
    /// Leaves out ranks, or parts of them, to make the packet shorter. Returns false if there is nothing to leave out. Ranks that do not run
    /// are kept longest.
    pub(super) fn shorten_ranks(&mut self) -> bool {
        let half = self.ranks.len() / 2;
        if self.ranks.is_empty() {
            return false;
        }
        self.ranks_left_out += self.ranks.len() - half;
        self.ranks.sort_by_key(|rank| (rank.state == RankState::Running, rank.rank));
        self.ranks.truncate(half);
        self.ranks.sort_by_key(|rank| rank.rank);
        true
    }

    /// Leaves out the stages of ranks' pipelines. Returns false if there are none.
    pub(super) fn shorten_stages(&mut self) -> bool {
        let pipelines = self.ranks.iter_mut().flat_map(|rank| &mut rank.told.pipelines);
        pipelines.fold(false, |any, pipeline| {
            let has = !pipeline.stages.is_empty();
            pipeline.stages.clear();
            any || has
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::StageSeen;
    use onebuf_hal::printable;

    fn told(stages: usize) -> RankTold {
        let stage = |at| StageSeen {
            name: format!("stage {at}"),
            device: "host".into(),
            frames: 1,
            p50_us: None,
            p99_us: Some(7),
            busy_us: 3,
        };
        let stages = (0..stages).map(stage).collect();
        let pipeline = PipelineSeen { name: "line".into(), stages, ..PipelineSeen::default() };
        RankTold { implied_bytes: 5, pipelines: vec![pipeline], ..RankTold::default() }
    }

    #[test]
    fn what_a_rank_tells_fits() {
        let small = told(3);
        assert_eq!(RankTold::decode(&small.encode(3072)), Some(small));
        let large = told(100).encode(3072);
        assert!(large.len() <= 3072);
        let large = RankTold::decode(&large).unwrap();
        assert_eq!((large.pipelines.len(), large.pipelines[0].stages.len()), (1, 0));
        assert_eq!(RankTold::decode(&told(100).encode(100)).unwrap().pipelines.len(), 0);
        assert_eq!(told(1).encode(10), b"");
        assert_eq!(RankTold::decode(b"{\"pipelines\": 3}"), None);
    }

    #[test]
    fn a_job_of_a_thousand_ranks_fits_a_packet_with_those_that_ail() {
        let rank = |rank| RankSeen {
            rank,
            host: "n\u{1b}ode".into(),
            state: if rank == 777 { RankState::Stopped } else { RankState::Running },
            told: told(4),
            ..RankSeen::default()
        };
        let seen =
            Snapshot { schema: 2, ranks: (0..1000).map(rank).collect(), ..Snapshot::default() };
        let seen = Snapshot::decode(&seen.encode().unwrap()).unwrap();
        assert_eq!(seen.ranks.len() + seen.ranks_left_out, 1000);
        assert!(seen.ranks.len() > 50 && seen.ranks.is_sorted_by_key(|rank| rank.rank));
        assert!(seen.ranks.iter().any(|rank| rank.state == RankState::Stopped));
        assert_eq!(seen.ranks[0].host, printable("n\u{1b}ode"));
        assert!(!seen.ranks[0].host.contains('\u{1b}'));
    }
}
