//! What the owner of a turn and the communication thread tell each other.

use crate::{
    ending::{Ends, Fate},
    transport::Address,
};
use std::{collections::VecDeque, time::Instant};

/// A frame to turn.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) slot: usize,
    pub(super) number: u64,
    pub(super) from: Address,
    pub(super) into: Address,
}

/// A frame that was begun.
pub(super) struct Begun {
    pub(super) number: u64,
    pub(super) slot: usize,
    /// Messages of each rank that have not ended.
    pub(super) open: Vec<usize>,
    /// Whether each rank's record has come.
    pub(super) announced: Vec<bool>,
    /// When the messages of each rank ended, since which time; empty unless that is recorded.
    pub(super) ended: Vec<Instant>,
    pub(super) since: Instant,
}

/// What the owner and the communication thread tell each other.
pub(in crate::turn) struct Turning {
    pub(super) wanted: VecDeque<Wanted>,
    pub(super) begun: VecDeque<Begun>,
    /// Frames that were reported.
    pub(super) reported: u64,
    pub(super) end: Option<bool>,
    pub(super) fate: Fate,
    /// Of how many frames at a time the owner is told.
    pub(super) burst: usize,
    /// The rank that was waited for in vain: the others are told.
    pub(super) blamed: Option<usize>,
    pub(super) heard: Instant,
}

impl Begun {
    pub(super) fn is_done(&self) -> bool {
        self.open.iter().all(|open| *open == 0) && self.announced.iter().all(|announced| *announced)
    }

    /// Something of a rank has come, or has gone to it.
    pub(super) fn heard_of(&mut self, rank: usize) {
        if let Some(ended) = self.ended.get_mut(rank) {
            *ended = Instant::now();
        }
    }
}

impl Ends for Turning {
    fn fate(&mut self) -> &mut Fate {
        &mut self.fate
    }
}

impl Turning {
    /// Notes a message of a slot that has ended.
    pub(super) fn ended(&mut self, slot: usize, rank: usize) {
        self.heard = Instant::now();
        if let Some(begun) =
            self.begun.iter_mut().find(|begun| begun.slot == slot && begun.open[rank] > 0)
        {
            begun.open[rank] -= 1;
            begun.heard_of(rank);
        }
        self.settle();
    }

    /// Counts the frames whose memory is in use, and tells the owner if the oldest is turned.
    pub(super) fn settle(&mut self) {
        let begun = self.begun.iter().filter(|begun| begun.open.iter().any(|open| *open > 0));
        self.fate.busy = begun.count() + self.wanted.len();
        let ready = self.begun.iter().take_while(|begun| begun.is_done()).count();
        self.fate.note_ready(ready, self.burst);
    }
}
