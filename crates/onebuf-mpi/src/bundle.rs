//! Messages of one call: some to send, some to receive, each with a record before it.
//!
//! A receive waits for the record first, and begins to receive the bytes only if their number is the expected one. MPI must not
//! be given a message that is longer than the memory for it: Open MPI 4.1 and 5.0 write beyond the end then.
//!
//! # Safety
//! The bundle's own records stay in place while the bundle lives, which the engine keeps until its last transfer has ended. The
//! memory of the messages is guaranteed by who makes the bundle, until it is told that the call is over.

#![allow(unsafe_code)]

use crate::{
    board::{Board, Progress},
    engine::{Actor, Call, Io},
    layout::Layout,
    ranks::Ranks,
    transport::{Address, Lane, Outcome, Transfer, Way},
    wire::{Kind, RECORD, Record},
};
use onebuf_hal::{
    Error, Result,
    locks::{Mutex, lock},
};
use std::sync::Arc;

/// A message that is not wanted is received up to this size; a larger one ends the work with its rank.
const MOST_DISCARDED: u64 = 1 << 30;

/// One message.
#[derive(Clone, Copy)]
pub(crate) struct Letter {
    pub way: Way,
    pub peer: usize,
    pub at: Address,
    pub layout: Layout,
}

/// How far a half of a letter has come: its record, or its bytes.
#[derive(Clone, Debug, Default, PartialEq)]
enum Stage {
    #[default]
    Waits,
    Begun,
    Ended,
}

/// What is known of a letter.
struct LetterState {
    letter: Letter,
    /// The record to send, or the one that came. In a box, because it must not move.
    record: Box<[u8; RECORD]>,
    head: Stage,
    data: Stage,
    /// Where bytes go that are not wanted.
    discarded: Vec<u8>,
}

struct Letters {
    all: Vec<LetterState>,
    begun: bool,
    /// Nothing more is begun.
    winds_down: bool,
    /// The first failure.
    error: Option<Error>,
}

/// By what the messages of a call are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub kind: Kind,
    pub tag: i32,
    /// Tells the calls of all ranks apart; zero for others.
    pub number: u64,
    /// Which call it is.
    pub call: u32,
}

/// The messages of one call.
pub(crate) struct Bundle {
    letters: Mutex<Letters>,
    progress: Board<Progress>,
    label: Label,
    ranks: Arc<Ranks>,
}

const HEAD: u64 = 0;
const DATA: u64 = 1;

fn mark(at: usize, half: u64) -> u64 {
    at as u64 * 2 + half
}

impl Label {
    /// The record of a message.
    pub fn record(&self, bytes: usize) -> Record {
        let Self { kind, tag, number, call } = *self;
        Record { number, extra: call, bytes: bytes as u64, ..Record::new(kind, tag as u32) }
    }
}

impl LetterState {
    fn new(letter: Letter, label: Label) -> Self {
        let record = match letter.way {
            Way::Send => label.record(letter.layout.bytes()).encode(),
            Way::Receive => [0; RECORD],
        };
        let (head, data) = (Stage::Waits, Stage::Waits);
        Self { letter, record: Box::new(record), head, data, discarded: Vec::new() }
    }

    fn is_complete(&self) -> bool {
        self.head == Stage::Ended && self.data == Stage::Ended
    }

    /// Whether the letter's memory is not used, and will not be.
    fn is_over(&self, winds_down: bool) -> bool {
        match &self.data {
            Stage::Ended => true,
            Stage::Begun => !self.discarded.is_empty(),
            // What is not begun is not begun any more.
            Stage::Waits => winds_down,
        }
    }
}

impl Letters {
    fn is_over(&self) -> bool {
        self.begun && self.all.iter().all(|state| state.is_over(self.winds_down))
    }

    /// Whether every message has ended.
    fn is_complete(&self) -> bool {
        self.begun && self.all.iter().all(LetterState::is_complete)
    }
}

impl Bundle {
    /// The messages of a call.
    ///
    /// # Safety
    /// The letters' memory is valid, and used by no other code, until the call is over.
    pub unsafe fn new(letters: Vec<Letter>, label: Label, ranks: Arc<Ranks>) -> Self {
        let all = letters.into_iter().map(|letter| LetterState::new(letter, label)).collect();
        let letters = Letters { all, begun: false, winds_down: false, error: None };
        Self {
            letters: Mutex::new(letters),
            progress: Board::new(Progress::default()),
            label,
            ranks,
        }
    }

    /// Tells the owner what has changed, and the engine if there is nothing more to do.
    fn tell(&self, letters: &Letters, io: &mut Io<'_>) {
        if letters.winds_down || letters.is_complete() {
            io.retire();
        }
        let mut progress = self.progress.lock();
        if progress.outcome.is_none() {
            progress.outcome = match &letters.error {
                Some(error) => Some(Err(error.clone())),
                None => letters.is_complete().then_some(Ok(())),
            };
        }
        progress.over = letters.is_over();
        drop(progress);
        self.progress.tell();
    }

    /// Begins all letters: the record and the bytes of a send, the record of a receive.
    fn begin(&self, letters: &mut Letters, io: &mut Io<'_>) -> Result<()> {
        letters.begun = true;
        for (at, state) in letters.all.iter_mut().enumerate() {
            let Letter { way, peer, at: memory, layout } = state.letter;
            self.begin_head(state, io, at)?;
            if way == Way::Send {
                let begun = self.begin_data(state, io, at, memory, layout);
                // A record without its bytes: later messages would be taken for these.
                begun.inspect_err(|error| io.give_up_on(peer, error))?;
            }
        }
        Ok(())
    }

    fn begin_head(&self, state: &mut LetterState, io: &mut Io<'_>, at: usize) -> Result<()> {
        let memory = Address::new(state.record.as_mut_ptr());
        let transfer = self.transfer(&state.letter, memory, Layout::contiguous(RECORD), Lane::Head);
        // SAFETY: the record lives as long as the bundle.
        unsafe { io.begin(mark(at, HEAD), &transfer) }?;
        state.head = Stage::Begun;
        Ok(())
    }

    fn begin_data(
        &self,
        state: &mut LetterState,
        io: &mut Io<'_>,
        at: usize,
        memory: Address,
        layout: Layout,
    ) -> Result<()> {
        let transfer = self.transfer(&state.letter, memory, layout, Lane::Data);
        // SAFETY: who made the bundle guarantees the letter's memory; what is discarded lives as long as the bundle.
        unsafe { io.begin(mark(at, DATA), &transfer) }?;
        state.data = Stage::Begun;
        io.expect(layout.bytes());
        Ok(())
    }

    fn transfer(&self, letter: &Letter, at: Address, layout: Layout, lane: Lane) -> Transfer {
        Transfer { way: letter.way, at, layout, peer: letter.peer, lane, tag: self.label.tag }
    }

    /// A record has come: receives the bytes, or discards them if they are not wanted.
    fn announced(&self, letters: &mut Letters, io: &mut Io<'_>, at: usize) -> Result<()> {
        let winds_down = letters.winds_down;
        let state = &mut letters.all[at];
        let Letter { peer, at: memory, layout, .. } = state.letter;
        let record = Record::decode(&state.record[..], peer)
            .inspect_err(|error| io.give_up_on(peer, error))?;
        let checked = self.check(&record, &state.letter);
        if checked.is_ok() && !winds_down {
            let begun = self.begin_data(state, io, at, memory, layout);
            return begun.inspect_err(|error| io.give_up_on(peer, error));
        }
        let bytes = usize::try_from(record.bytes).unwrap_or(usize::MAX);
        if record.bytes > MOST_DISCARDED {
            let error = checked.and(Err(Error::refused(format!("rank {peer} sent {bytes} bytes"))));
            return error.inspect_err(|error| io.give_up_on(peer, error));
        }
        state.discarded = vec![0; bytes.max(1)];
        let memory = Address::new(state.discarded.as_mut_ptr());
        self.begin_data(state, io, at, memory, Layout::contiguous(bytes)).and(checked)
    }

    /// Whether a record announces what the letter is for.
    fn check(&self, record: &Record, letter: &Letter) -> Result<()> {
        let (peer, expected) = (letter.peer, self.label.record(letter.layout.bytes()));
        if (Record { bytes: expected.bytes, ..*record }) != expected {
            return Err(Error::refused(format!("rank {peer} sent a message of another call")));
        }
        match record.bytes == expected.bytes {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "rank {peer} sent {} bytes with tag {}, and {} were expected",
                record.bytes, self.label.tag, expected.bytes
            ))),
        }
    }

    /// Gives up the messages that have not come.
    fn wind_down(&self, letters: &mut Letters, io: &mut Io<'_>) {
        letters.winds_down = true;
        for (at, state) in letters.all.iter().enumerate() {
            if state.letter.way == Way::Receive && state.head == Stage::Begun {
                io.cancel(mark(at, HEAD));
            }
        }
    }
}

impl Actor for Bundle {
    fn woken(&self, io: &mut Io<'_>) {
        let mut letters = lock(&self.letters);
        let given_up = self.progress.lock().given_up;
        let begun = match letters.begun || given_up {
            false => self.begin(&mut letters, io),
            true => Ok(()),
        };
        letters.begun = true;
        if let Err(error) = begun {
            letters.error.get_or_insert(error);
        }
        if given_up || letters.error.is_some() {
            self.wind_down(&mut letters, io);
        }
        self.tell(&letters, io);
    }

    fn ended(&self, io: &mut Io<'_>, mark: u64, outcome: Outcome) {
        let (at, half) = ((mark / 2) as usize, mark % 2);
        let mut letters = lock(&self.letters);
        let Some(state) = letters.all.get_mut(at) else { return };
        let (way, peer) = (state.letter.way, state.letter.peer);
        if half == HEAD {
            state.head = Stage::Ended;
        } else {
            state.data = Stage::Ended;
        }
        let next = match (outcome, way, half) {
            (Outcome::Failed(error), ..) => Err(error),
            (Outcome::Truncated, ..) => {
                Err(Error::refused(format!("rank {peer} sent more bytes than it announced")))
            }
            (Outcome::Cancelled, ..) => {
                state.data = Stage::Ended; // it never begins
                Ok(())
            }
            (Outcome::Done(_), Way::Receive, HEAD) => self.announced(&mut letters, io, at),
            (Outcome::Done(bytes), Way::Receive, _) => self.arrived(&letters.all[at], bytes),
            (Outcome::Done(_), Way::Send, _) => Ok(()),
        };
        if let Err(error) = next {
            letters.error.get_or_insert(error);
            self.wind_down(&mut letters, io);
        }
        self.tell(&letters, io);
    }

    fn failed(&self, io: &mut Io<'_>, error: &Error) {
        let mut letters = lock(&self.letters);
        letters.error.get_or_insert_with(|| error.clone());
        self.wind_down(&mut letters, io);
        self.tell(&letters, io);
    }
}

impl Bundle {
    /// The bytes of a letter have come: all that were announced.
    fn arrived(&self, state: &LetterState, bytes: u64) -> Result<()> {
        let expected = match state.discarded.is_empty() {
            true => state.letter.layout.bytes() as u64,
            false => return Ok(()),
        };
        match bytes == expected {
            true => Ok(()),
            false => Err(Error::refused(format!(
                "rank {} announced {expected} bytes and sent {bytes}",
                state.letter.peer
            ))),
        }
    }
}

impl Call for Bundle {
    fn progress(&self) -> &Board<Progress> {
        &self.progress
    }

    fn late(&self) -> String {
        let letters = lock(&self.letters);
        let said = |state: &LetterState| {
            let (bytes, rank) =
                (state.letter.layout.bytes(), self.ranks.describe(state.letter.peer));
            match state.letter.way {
                Way::Send => format!("{bytes} bytes for {rank}"),
                Way::Receive => format!("{bytes} bytes from {rank}"),
            }
        };
        let open = letters.all.iter().filter(|state| !state.is_complete());
        let all: Vec<String> = open.map(said).collect();
        format!("{} with tag {}", all.join(", "), self.label.tag)
    }
}
