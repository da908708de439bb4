//! The receiving end of a stream.
//!
//! # Safety
//! The owner keeps the memory of a slot until the slot is reported as filled, or until nothing is under way; otherwise forever.

#![allow(unsafe_code)]

use super::{
    Heard, Spec,
    wires::{COMES, Wires, slot_of},
};
use crate::{
    board::Board,
    ending::{Ends, Fate, burst, tell, tell_now},
    engine::{Actor, Io},
    transport::{Address, Outcome, Way},
    wire::{Kind, Record},
};
use onebuf_hal::{
    Error, Result,
    locks::{Mutex, lock},
};
use std::{collections::VecDeque, mem};

/// A frame that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    /// The number that the frame has in the sender's pipeline.
    pub number: u64,
    pub checksum: u64,
}

/// A slot that a frame is received into.
struct SlotPosted {
    slot: usize,
    record: Option<Arrived>,
    bytes: bool,
}

/// What the owner and the communication thread tell each other.
pub(crate) struct Intake {
    /// Slots that the owner has given, and that were not begun.
    given: VecDeque<(usize, Address)>,
    /// Slots that were begun and not reported, in their order.
    posted: VecDeque<SlotPosted>,
    /// Frames that were announced.
    announced: u64,
    /// Frames that were reported.
    reported: u64,
    /// How many frames the sender has sent, when it has sent its last.
    total: Option<u64>,
    /// The owner ends the stream early.
    stop: bool,
    fate: Fate,
    /// Of how many frames at a time the owner is told.
    burst: usize,
    /// Receives for which nothing will come were cancelled.
    cancelled: bool,
    heard: Heard,
}

pub(crate) struct StreamReceiver {
    pub spec: Spec,
    pub board: Board<Intake>,
    wires: Mutex<Wires>,
}

/// What the oldest slot has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filling {
    /// Nothing yet.
    Waits,
    Frame(Arrived),
    /// There are no more frames.
    End,
}

impl StreamReceiver {
    pub fn new(spec: Spec, slots: usize) -> Self {
        let intake = Intake {
            given: VecDeque::new(),
            posted: VecDeque::new(),
            announced: 0,
            reported: 0,
            total: None,
            stop: false,
            fate: Fate::default(),
            burst: burst(slots, spec.bytes),
            cancelled: false,
            heard: Heard::now(),
        };
        let wires = Mutex::new(Wires::new(&spec, Way::Receive, slots));
        Self { spec, board: Board::new(intake), wires }
    }

    /// Gives a slot to receive the next frame into. The engine must be woken afterwards.
    ///
    /// # Safety
    /// The memory, of a frame's size, is valid and has no other user until it is reported: see the module.
    pub unsafe fn give(&self, slot: usize, at: Address) {
        let mut intake = self.board.lock();
        if !intake.fate.over {
            intake.fate.busy += 1;
            intake.given.push_back((slot, at));
        }
    }

    /// Ends the stream before its end. The engine must be woken afterwards.
    pub fn stop(&self) {
        let mut intake = self.board.lock();
        intake.stop = true;
        intake.heard = Heard::now();
    }

    /// What the oldest slot has. A frame is not reported again.
    ///
    /// # Errors
    /// Why the stream has failed; [`Error::Timeout`] if the other end is silent for too long.
    pub fn poll(&self) -> Result<Filling> {
        let mut intake = self.board.lock();
        let ready = intake.posted.front().and_then(|posted| posted.record.filter(|_| posted.bytes));
        if let Some(arrived) = ready {
            intake.posted.pop_front();
            intake.reported += 1;
            return Ok(Filling::Frame(arrived));
        }
        if let Some(error) = &intake.fate.error {
            return Err(error.clone());
        }
        if intake.total == Some(intake.reported) {
            return Ok(Filling::End);
        }
        match !intake.posted.is_empty() && intake.heard.is_late(self.spec.timeout) {
            true => Err(self.spec.late("frame", intake.reported)),
            false => Ok(Filling::Waits),
        }
    }

    /// Begins to receive into the slots that the owner has given, and tells the sender.
    fn post(&self, wires: &mut Wires, io: &mut Io<'_>) -> Result<()> {
        while !wires.said {
            let mut intake = self.board.lock();
            let Some((slot, at)) = intake.given.pop_front() else { break };
            // SAFETY: the owner keeps the slot's memory.
            let begun = unsafe { wires.start(&self.spec, io, slot, at) };
            begun.inspect_err(|_| intake.fate.busy -= 1)?;
            if intake.posted.is_empty() {
                intake.heard = Heard::now();
            }
            intake.posted.push_back(SlotPosted { slot, record: None, bytes: false });
            wires.credits += 1;
        }
        if wires.credits > 0 && !wires.said {
            let extra = mem::take(&mut wires.credits);
            wires.out.send(io, &Record { extra, ..self.spec.record(Kind::Credit) })?;
        }
        Ok(())
    }

    /// A record of the sender has come. The next one is received, unless it was the last.
    fn told(&self, wires: &mut Wires, io: &mut Io<'_>) -> Result<()> {
        self.board.lock().heard = Heard::now();
        let record = wires.inbox.take();
        let done = record.and_then(|record| self.obey(wires, io, &record));
        match wires.heard {
            true => done,
            false => done.and(wires.inbox.start(io)),
        }
    }

    fn obey(&self, wires: &mut Wires, io: &mut Io<'_>, record: &Record) -> Result<()> {
        self.spec.check_channel(record)?;
        match record.kind {
            Kind::Open if !wires.agreed => {
                self.spec.check_open(record)?;
                wires.agreed = true;
                Ok(())
            }
            Kind::Frame if wires.agreed => self.announced(io, record),
            Kind::End | Kind::Stop => {
                wires.heard = true;
                self.heard_last(record)
            }
            _ => Err(self.spec.refused("an unexpected record")),
        }
    }

    /// A frame is on its way.
    fn announced(&self, io: &mut Io<'_>, record: &Record) -> Result<()> {
        let mut intake = self.board.lock();
        let expected = intake.announced;
        if record.number != expected || record.bytes != self.spec.bytes as u64 {
            return Err(self.spec.refused(&format!(
                "frame {} of {} bytes where frame {expected} of {} bytes was expected",
                record.number, record.bytes, self.spec.bytes
            )));
        }
        let arrived = Arrived { number: record.words[0], checksum: record.words[1] };
        let Some(posted) = intake.posted.iter_mut().find(|posted| posted.record.is_none()) else {
            return Err(self.spec.refused("a frame for which there was no room"));
        };
        posted.record = Some(arrived);
        intake.announced += 1;
        intake.note_filled();
        io.expect(self.spec.bytes);
        Ok(())
    }

    /// The sender sends nothing more.
    fn heard_last(&self, record: &Record) -> Result<()> {
        let mut intake = self.board.lock();
        if record.number != intake.announced {
            let (said, came) = (record.number, intake.announced);
            return Err(self
                .spec
                .refused(&format!("an end after {said} frames, when {came} have come")));
        }
        intake.total = Some(record.number);
        intake.fate.news = true;
        match record.kind {
            Kind::End => Ok(()),
            _ if intake.stop => Ok(()),
            _ => Err(self.spec.stopped(record.number)),
        }
    }

    /// Sends this side's last record.
    fn say_last(&self, wires: &mut Wires, io: &mut Io<'_>, kind: Kind) -> Result<()> {
        if wires.said {
            return Ok(());
        }
        wires.said = true;
        let number = self.board.lock().announced;
        wires.out.send(io, &Record { number, ..self.spec.record(kind) })
    }

    /// Does what the owner wants.
    fn step(&self, wires: &mut Wires, io: &mut Io<'_>) -> Result<()> {
        wires.begin(&self.spec, io)?;
        self.post(wires, io)?;
        if self.board.lock().stop {
            self.say_last(wires, io, Kind::Stop)?;
        }
        if wires.heard {
            self.say_last(wires, io, Kind::End)?;
        }
        Ok(())
    }

    /// Gives up the receives for which nothing will come: those behind the sender's last frame.
    fn cancel_rest(&self, wires: &Wires, io: &mut Io<'_>) {
        let mut intake = self.board.lock();
        if wires.heard && !intake.cancelled {
            intake.cancelled = true;
            let rest = intake.posted.iter().filter(|posted| posted.record.is_none());
            rest.for_each(|posted| wires.cancel(io, posted.slot));
        }
    }

    /// Records a failure: nothing more is received, and the other side is told.
    fn fail(&self, wires: &mut Wires, io: &mut Io<'_>, error: Error) {
        if self.say_last(wires, io, Kind::Stop).is_err() {
            wires.inbox.cancel(io);
        }
        self.board.lock().fate.fail(error);
    }

    /// Tells the owner, and the engine if there is nothing more to do.
    fn tell(&self, wires: &mut Wires, io: &mut Io<'_>) {
        self.cancel_rest(wires, io);
        let mut intake = self.board.lock();
        if wires.said {
            // What was not begun is not in use.
            intake.fate.busy -= intake.given.len();
            intake.given.clear();
            intake.fate.over = true;
        }
        intake.fate.closed = wires.retire(io, intake.fate.busy, intake.fate.error.is_some());
        tell(&self.board, intake, io);
    }
}

impl Ends for Intake {
    fn fate(&mut self) -> &mut Fate {
        &mut self.fate
    }
}

impl Intake {
    /// The owner is told if the oldest slots are filled.
    fn note_filled(&mut self) {
        let filled = |posted: &&SlotPosted| posted.bytes && posted.record.is_some();
        self.fate.note_ready(self.posted.iter().take_while(filled).count(), self.burst);
    }

    /// Notes that the bytes of a slot have come, or never will.
    fn came(&mut self, slot: usize, outcome: &Outcome) {
        self.fate.busy -= 1;
        self.heard = Heard::now();
        let posted = self.posted.iter_mut().find(|posted| posted.slot == slot && !posted.bytes);
        if let (Some(posted), Outcome::Done(_)) = (posted, outcome) {
            posted.bytes = true;
        }
        self.note_filled();
    }
}

impl Actor for StreamReceiver {
    fn woken(&self, io: &mut Io<'_>) {
        let mut wires = lock(&self.wires);
        if self.board.lock().fate.abandoned && !wires.heard {
            wires.abandon(io);
        }
        if self.board.lock().fate.error.is_none()
            && let Err(error) = self.step(&mut wires, io)
        {
            self.fail(&mut wires, io, error);
        }
        self.tell(&mut wires, io);
    }

    fn ended(&self, io: &mut Io<'_>, mark: u64, outcome: Outcome) {
        let mut wires = lock(&self.wires);
        wires.out.ended(mark);
        if let Some(slot) = slot_of(mark) {
            self.board.lock().came(slot, &outcome);
        }
        let next = match outcome {
            Outcome::Done(_) if mark == COMES => self.told(&mut wires, io),
            _ if mark == COMES => {
                wires.inbox.cancelled();
                outcome.check(self.spec.peer)
            }
            Outcome::Done(bytes) if slot_of(mark).is_some() && bytes != self.spec.bytes as u64 => {
                Err(self.spec.refused(&format!("{bytes} bytes of a frame of {}", self.spec.bytes)))
            }
            outcome => outcome.check(self.spec.peer),
        };
        let failed = self.board.lock().fate.error.is_some();
        let next = if failed { next } else { next.and_then(|()| self.step(&mut wires, io)) };
        if let Err(error) = next {
            self.fail(&mut wires, io, error);
        }
        self.tell(&mut wires, io);
    }

    fn failed(&self, io: &mut Io<'_>, error: &Error) {
        let mut wires = lock(&self.wires);
        wires.cut(io);
        self.fail(&mut wires, io, error.clone());
        self.tell(&mut wires, io);
    }
    fn calm(&self) {
        tell_now(&self.board);
    }
}
