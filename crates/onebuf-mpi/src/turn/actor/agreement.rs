//! What the ranks of a turn must agree on, and what is said of those that do not, or are late.

use super::{Partner, TurnActor, TurnWires, state::Begun};
use crate::{
    checksum::checksum,
    ranks::list,
    wire::{Kind, Record},
};
use onebuf_hal::{Error, Result, locks::lock};

impl TurnActor {
    /// The ranks that a frame waits for, those that are gone or stopped first.
    pub(super) fn late_of(&self, begun: &Begun) -> (u64, Vec<usize>) {
        let waits = |rank: &usize| begun.open[*rank] > 0 || !begun.announced[*rank];
        let mut late: Vec<usize> = (0..begun.open.len()).filter(waits).collect();
        late.sort_by_key(|rank| !self.ranks.ails(*rank));
        (begun.number, late)
    }

    pub(super) fn late(&self, what: &str, ranks: &[usize]) -> Error {
        let all: Vec<String> = ranks.iter().map(|rank| self.ranks.describe(*rank)).collect();
        let what = format!("{what} of corner turn {}: {}", self.number, all.join(", "));
        Error::timeout(what, self.timeout)
    }

    /// The error for ranks that have not ended the turn.
    pub fn late_end(&self) -> Error {
        self.late_ranks("the end", |partner| !partner.heard)
    }

    pub(super) fn late_ranks(&self, what: &str, is_late: impl Fn(&Partner) -> bool) -> Error {
        let wires = lock(&self.wires);
        let late = wires.partners.iter().filter(|partner| is_late(partner));
        let late: Vec<usize> = late.map(|partner| partner.rank).collect();
        self.late(what, &late)
    }

    /// The rank because of which this one stops, if it is another one's fault.
    pub(super) fn blamed(&self) -> Option<usize> {
        let waited = self.board.lock().blamed;
        waited.or_else(|| (0..self.ranks.all.len()).find(|rank| self.ranks.ails(*rank)))
    }

    /// Another rank has stopped, perhaps because of a third one.
    pub(super) fn stopped(&self, rank: usize, record: &Record) -> Error {
        let blamed =
            (record.extra as usize).checked_sub(1).filter(|rank| *rank < self.ranks.all.len());
        if blamed.is_some() {
            self.board.lock().blamed = blamed;
        }
        let why = blamed
            .map_or(String::new(), |rank| format!("; it waited for {}", self.ranks.describe(rank)));
        Error::Unavailable {
            what: format!("corner turn {} with rank {rank}", self.number),
            tried: Vec::new(),
            reason: format!("rank {rank} has stopped after {} frames{why}", record.number),
        }
    }

    pub(super) fn record(&self, kind: Kind) -> Record {
        Record::new(kind, self.number)
    }

    /// How this rank sees the turn. The divisions are compared by their checksum.
    pub(super) fn open(&self) -> Record {
        let starts = [self.shape.channels.starts(), self.shape.frequencies.starts()].concat();
        let bytes: Vec<u8> =
            starts.iter().flat_map(|start| (*start as u64).to_le_bytes()).collect();
        let words = [
            self.shape.channels.total() as u64,
            self.shape.frequencies.total() as u64,
            checksum(&bytes),
        ];
        let element = self.shape.element as u32;
        Record { number: self.run, extra: element, words, ..self.record(Kind::Open) }
    }

    pub(super) fn check_open(&self, rank: usize, theirs: &Record) -> Result<()> {
        let ours = self.open();
        if *theirs == ours {
            return Ok(());
        }
        let own = self.shape.rank;
        let differs = |what: &str, own_has: u64, peer_has: u64| {
            (own_has != peer_has)
                .then(|| format!("{what}: {own_has} at rank {own}, {peer_has} at rank {rank}"))
        };
        let all = [
            differs("channels", ours.words[0], theirs.words[0]),
            differs("frequencies", ours.words[1], theirs.words[1]),
            differs("bytes of an element", ours.extra.into(), theirs.extra.into()),
            differs("run of the pipeline", ours.number, theirs.number),
        ];
        let mut all: Vec<String> = all.into_iter().flatten().collect();
        if all.is_empty() {
            all.push(format!("how rank {own} and rank {rank} divide channels or frequencies"));
        }
        Err(Error::invalid(format!(
            "the ranks of corner turn {} differ in {}",
            self.number,
            all.join("; ")
        )))
    }

    pub(super) fn check_frame(&self, rank: usize, theirs: u64, ours: u64) -> Result<()> {
        if theirs == ours {
            return Ok(());
        }
        let own = self.shape.rank;
        Err(Error::invalid(format!(
            "in corner turn {} rank {rank} is at frame {theirs}, and rank {own} at frame {ours}",
            self.number
        )))
    }

    /// All ranks must have turned as many frames.
    pub(super) fn check_ends(&self, wires: &TurnWires) -> Result<()> {
        let ended = wires.partners.iter().filter(|partner| partner.heard);
        let others: Vec<&Partner> =
            ended.filter(|partner| partner.announced != wires.started).collect();
        // Frames that this rank has still to begin may make up for it.
        let behind = |partner: &&&Partner| {
            partner.announced < wires.started || self.board.lock().end.is_some()
        };
        match others.iter().find(behind) {
            None => Ok(()),
            Some(first) => {
                let ranks: Vec<usize> = others.iter().map(|partner| partner.rank).collect();
                let (theirs, ours) = (first.announced, wires.started);
                let (turn, list) = (self.number, list(&ranks));
                Err(Error::invalid(format!(
                    "corner turn {turn} has ended after {theirs} frames at {list}, and after {ours} at rank {}",
                    self.shape.rank
                )))
            }
        }
    }
}
