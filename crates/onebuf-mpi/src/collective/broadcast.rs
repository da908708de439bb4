//! Barrier and broadcast: MPI's own calls, after the ranks have agreed on what they do.
//!
//! # Safety
//! The records are the actor's own, and stay in place while it lives. Who makes the actor guarantees the bytes.

#![allow(unsafe_code)]

use crate::{
    board::{Board, Progress},
    engine::{Actor, Call, Io},
    ranks::{Ranks, list},
    transport::{Address, Outcome},
    wire::{Kind, RECORD, Record},
    world::World,
};
use onebuf_hal::{
    Error, Result,
    locks::{Mutex, lock},
};
use std::sync::Arc;

/// What all ranks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Barrier,
    Broadcast { at: Address, bytes: usize, root: usize },
}

const AGREE: u64 = 0;
const MOVE: u64 = 1;

pub(super) struct Broadcast {
    what: What,
    own: Record,
    progress: Board<Progress>,
    /// This rank's record, and then those of all ranks.
    records: Mutex<(Box<[u8; RECORD]>, Vec<u8>)>,
    ranks: Arc<Ranks>,
}

impl Broadcast {
    pub fn new(what: What, number: u64, world: &World) -> Self {
        let (bytes, root) = match what {
            What::Barrier => (0, u32::MAX),
            What::Broadcast { bytes, root, .. } => (bytes as u64, root as u32),
        };
        let own = Record { number, bytes, extra: root, ..Record::new(Kind::Collective, 0) };
        let records = Mutex::new((Box::new(own.encode()), vec![0; RECORD * world.size()]));
        Self { what, own, progress: Board::new(Progress::default()), records, ranks: world.ranks() }
    }

    /// Exchanges what each rank is about to do.
    fn agree(&self, io: &mut Io<'_>) -> Result<()> {
        let mut records = lock(&self.records);
        let (from, into) = (Address::of(&records.0[..]), Address::new(records.1.as_mut_ptr()));
        // SAFETY: the actor's own memory, which the engine keeps until the call has ended.
        unsafe { io.all_gather(AGREE, from, into, RECORD) }
    }

    /// Whether all ranks do the same.
    fn check(&self) -> Result<()> {
        let records = lock(&self.records);
        let mut others = Vec::new();
        for (rank, record) in records.1.chunks(RECORD).enumerate() {
            let record = Record::decode(record, rank)?;
            if record != self.own {
                others.push((rank, record));
            }
        }
        if others.is_empty() {
            return Ok(());
        }
        let ranks: Vec<usize> = others.iter().map(|(rank, _)| *rank).collect();
        let theirs: Vec<String> =
            others.iter().map(|(rank, record)| format!("rank {rank}: {}", said(record))).collect();
        Err(Error::invalid(format!(
            "{} made another call than rank {}: {}, and not {}",
            list(&ranks),
            self.ranks.own,
            theirs.join(", "),
            said(&self.own)
        )))
    }

    /// Moves the root's bytes.
    fn go(&self, io: &mut Io<'_>) -> Result<bool> {
        match self.what {
            What::Barrier => Ok(true),
            What::Broadcast { at, bytes, root } => {
                io.expect(bytes);
                // SAFETY: who made the actor guarantees the bytes; all ranks have as many.
                unsafe { io.broadcast(MOVE, at, bytes, root) }.map(|()| false)
            }
        }
    }

    /// Ends with an outcome; the bytes are not in use.
    fn end(&self, io: &mut Io<'_>, outcome: Result<()>) {
        let mut progress = self.progress.lock();
        progress.outcome.get_or_insert(outcome);
        progress.over = true;
        drop(progress);
        io.retire();
        self.progress.tell();
    }
}

/// A call for people.
fn said(record: &Record) -> String {
    match record.extra {
        u32::MAX => format!("barrier (call {})", record.number),
        root => {
            format!("broadcast of {} bytes from rank {root} (call {})", record.bytes, record.number)
        }
    }
}

impl Actor for Broadcast {
    fn woken(&self, io: &mut Io<'_>) {
        // A call of all ranks cannot be given up: its owner keeps the memory.
        if self.progress.lock().given_up {
            return;
        }
        if let Err(error) = self.agree(io) {
            self.end(io, Err(error));
        }
    }

    fn ended(&self, io: &mut Io<'_>, mark: u64, outcome: Outcome) {
        let next = match outcome {
            Outcome::Failed(error) => Err(error),
            Outcome::Truncated | Outcome::Cancelled => {
                Err(Error::refused("a message of another length came"))
            }
            Outcome::Done(_) if mark == AGREE => self.check().and_then(|()| self.go(io)),
            Outcome::Done(_) => Ok(true),
        };
        match next {
            Ok(false) => {}
            Ok(true) => self.end(io, Ok(())),
            Err(error) => self.end(io, Err(error)),
        }
    }

    fn failed(&self, io: &mut Io<'_>, error: &Error) {
        // MPI may still use the bytes: `over` stays as it is.
        self.progress.lock().outcome.get_or_insert(Err(error.clone()));
        io.retire();
        self.progress.tell();
    }
}

impl Call for Broadcast {
    fn progress(&self) -> &Board<Progress> {
        &self.progress
    }

    fn late(&self) -> String {
        let ails = (0..self.ranks.all.len()).filter(|&rank| self.ranks.ails(rank));
        let ails: Vec<String> = ails.map(|rank| self.ranks.describe(rank)).collect();
        match ails.is_empty() {
            true => format!("{}: another rank is late", said(&self.own)),
            false => format!("{}: {}", said(&self.own), ails.join(", ")),
        }
    }
}
