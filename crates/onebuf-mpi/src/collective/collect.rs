//! Bytes of every rank at one of them, whatever their number.
//!
//! # Safety
//! All memory is the actor's own, and stays in place while the actor lives, which the engine keeps until its last transfer has
//! ended. A vector that is being received into is not touched before that.

#![allow(unsafe_code)]

use crate::{
    board::{Board, Progress},
    bundle::Label,
    engine::{Actor, Call, Io},
    layout::Layout,
    ranks::Ranks,
    transport::{Address, Lane, Outcome, Transfer, Way},
    wire::{RECORD, Record},
};
use onebuf_hal::{
    Error, Result,
    locks::{Mutex, lock},
};
use std::{mem, sync::Arc};

/// The most bytes of one rank.
const MOST: u64 = 1 << 30;

/// What comes from a rank.
struct Contribution {
    record: Box<[u8; RECORD]>,
    bytes: Vec<u8>,
    done: bool,
}

struct Collected {
    /// What this rank sends.
    own: Vec<u8>,
    record: Box<[u8; RECORD]>,
    parts: Vec<Contribution>,
    /// Transfers that have not ended.
    open: usize,
}

pub(super) struct Collect {
    root: usize,
    label: Label,
    state: Mutex<Collected>,
    progress: Board<Progress>,
    ranks: Arc<Ranks>,
}

/// Marks of transfers: what this rank sends, then the record and the bytes of each rank.
const SENDS: u64 = u64::MAX;

impl Collect {
    pub fn new(own: Vec<u8>, root: usize, rank: usize, label: Label, ranks: Arc<Ranks>) -> Self {
        let record = Box::new(label.record(own.len()).encode());
        let part =
            |_| Contribution { record: Box::new([0; RECORD]), bytes: Vec::new(), done: false };
        let many = if rank == root { ranks.all.len() } else { 0 };
        let state = Collected { own, record, parts: (0..many).map(part).collect(), open: 0 };
        let progress = Board::new(Progress::default());
        Self { root, label, state: Mutex::new(state), progress, ranks }
    }

    /// The bytes of all ranks, after it is done.
    pub fn take(&self) -> Vec<Vec<u8>> {
        lock(&self.state).parts.iter_mut().map(|part| mem::take(&mut part.bytes)).collect()
    }

    fn transfer(&self, way: Way, peer: usize, lane: Lane, at: Address, bytes: usize) -> Transfer {
        Transfer { way, at, layout: Layout::contiguous(bytes), peer, lane, tag: self.label.tag }
    }

    fn begin(&self, state: &mut Collected, io: &mut Io<'_>) -> Result<()> {
        for (rank, part) in state.parts.iter_mut().enumerate() {
            let at = Address::new(part.record.as_mut_ptr());
            let transfer = self.transfer(Way::Receive, rank, Lane::Head, at, RECORD);
            // SAFETY: the actor's own memory.
            unsafe { io.begin(2 * rank as u64, &transfer) }?;
            state.open += 1;
        }
        let (record, own) = (Address::of(&state.record[..]), Address::of(&state.own));
        for (lane, at, bytes) in [(Lane::Head, record, RECORD), (Lane::Data, own, state.own.len())]
        {
            // SAFETY: the actor's own memory.
            unsafe { io.begin(SENDS, &self.transfer(Way::Send, self.root, lane, at, bytes)) }?;
            state.open += 1;
        }
        Ok(())
    }

    /// A rank has told how many bytes it sends: receives them.
    fn announced(&self, state: &mut Collected, io: &mut Io<'_>, rank: usize) -> Result<()> {
        let part = &mut state.parts[rank];
        let record = Record::decode(&part.record[..], rank)?;
        let bytes = usize::try_from(record.bytes).unwrap_or(usize::MAX);
        if record != self.label.record(bytes) || record.bytes > MOST {
            return Err(Error::refused(format!("rank {rank} sent a message of another call")));
        }
        part.bytes = vec![0; bytes];
        let at = Address::new(part.bytes.as_mut_ptr());
        // SAFETY: the actor's own memory.
        unsafe {
            io.begin(2 * rank as u64 + 1, &self.transfer(Way::Receive, rank, Lane::Data, at, bytes))
        }?;
        io.expect(bytes);
        state.open += 1;
        Ok(())
    }

    fn tell(&self, state: &Collected, io: &mut Io<'_>, error: Option<Error>) {
        let mut progress = self.progress.lock();
        if let Some(error) = error {
            progress.outcome.get_or_insert(Err(error));
        }
        if state.open == 0 {
            progress.outcome.get_or_insert(Ok(()));
        }
        progress.over = state.open == 0;
        if progress.outcome.is_some() {
            io.retire();
        }
        drop(progress);
        self.progress.tell();
    }
}

impl Actor for Collect {
    fn woken(&self, io: &mut Io<'_>) {
        let mut state = lock(&self.state);
        let begun = self.begin(&mut state, io);
        self.tell(&state, io, begun.err());
    }

    fn ended(&self, io: &mut Io<'_>, mark: u64, outcome: Outcome) {
        let mut state = lock(&self.state);
        state.open -= 1;
        let rank = (mark / 2) as usize;
        let next = match outcome {
            Outcome::Failed(error) => Err(error),
            Outcome::Truncated | Outcome::Cancelled => {
                Err(Error::refused("a message of another length came"))
            }
            Outcome::Done(_) if mark == SENDS => Ok(()),
            Outcome::Done(_) if mark.is_multiple_of(2) => self.announced(&mut state, io, rank),
            Outcome::Done(_) => {
                state.parts[rank].done = true;
                Ok(())
            }
        };
        self.tell(&state, io, next.err());
    }

    fn failed(&self, io: &mut Io<'_>, error: &Error) {
        let state = lock(&self.state);
        self.tell(&state, io, Some(error.clone()));
    }
}

impl Call for Collect {
    fn progress(&self) -> &Board<Progress> {
        &self.progress
    }

    fn late(&self) -> String {
        let state = lock(&self.state);
        let late = state.parts.iter().enumerate().filter(|(_, part)| !part.done);
        let late: Vec<String> = late.map(|(rank, _)| self.ranks.describe(rank)).collect();
        match late.is_empty() {
            true => format!("bytes for {}", self.ranks.describe(self.root)),
            false => format!("bytes from {}", late.join(", ")),
        }
    }
}
