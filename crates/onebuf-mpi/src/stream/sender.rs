//! The sending end of a stream.
//!
//! # Safety
//! The owner keeps the memory of a frame until the frame is reported as sent, or, after a failure, until nothing is under way;
//! otherwise forever.

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
use std::collections::VecDeque;

/// A frame to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub slot: usize,
    pub at: Address,
    pub number: u64,
    pub checksum: u64,
}

/// What the owner and the communication thread tell each other.
pub(crate) struct Desk {
    /// Frames that the owner wants to be sent.
    queue: VecDeque<Outgoing>,
    /// The slots of frames that were queued and not reported as sent, in their order, and whether they were sent.
    order: VecDeque<(usize, bool)>,
    /// Frames whose bytes were begun.
    started: u64,
    reported: u64,
    /// The owner ends the stream; whether in order.
    end: Option<bool>,
    fate: Fate,
    /// Of how many frames at a time the owner is told.
    burst: usize,
    heard: Heard,
}

pub(crate) struct StreamSender {
    pub spec: Spec,
    pub board: Board<Desk>,
    wires: Mutex<Wires>,
}

impl StreamSender {
    pub fn new(spec: Spec, slots: usize) -> Self {
        let desk = Desk {
            queue: VecDeque::new(),
            order: VecDeque::new(),
            started: 0,
            reported: 0,
            end: None,
            fate: Fate::default(),
            burst: burst(slots, spec.bytes),
            heard: Heard::now(),
        };
        let wires = Mutex::new(Wires::new(&spec, Way::Send, slots));
        Self { spec, board: Board::new(desk), wires }
    }

    /// Queues a frame. The engine must be woken afterwards.
    ///
    /// # Safety
    /// The frame's memory is valid until it is reported as sent: see the module.
    pub unsafe fn send(&self, frame: Outgoing) {
        let mut desk = self.board.lock();
        if desk.order.is_empty() {
            desk.heard = Heard::now();
        }
        desk.order.push_back((frame.slot, false));
        if !desk.fate.over {
            desk.fate.busy += 1;
            desk.queue.push_back(frame);
        }
    }

    /// Whether the oldest frame was sent. It is not reported again.
    ///
    /// # Errors
    /// Why the stream has failed; [`Error::Timeout`] if the other end is silent for too long.
    pub fn poll(&self) -> Result<bool> {
        let mut desk = self.board.lock();
        if let Some(error) = &desk.fate.error {
            return Err(error.clone());
        }
        match desk.order.front() {
            Some((_, true)) => {
                desk.order.pop_front();
                desk.reported += 1;
                Ok(true)
            }
            Some((_, false)) if desk.heard.is_late(self.spec.timeout) => {
                Err(self.spec.late("no room for frame", desk.reported))
            }
            _ => Ok(false),
        }
    }

    /// Ends the stream, in order or not. The engine must be woken afterwards.
    pub fn end(&self, orderly: bool) {
        self.board.lock().end.get_or_insert(orderly);
    }

    /// Sends the frames that there are credits for.
    fn send_frames(&self, wires: &mut Wires, io: &mut Io<'_>) -> Result<()> {
        while wires.agreed && wires.credits > 0 && !wires.said {
            let Some(frame) = self.board.lock().queue.pop_front() else { return Ok(()) };
            wires.credits -= 1;
            let sent = self.send_frame(wires, io, frame);
            sent.inspect_err(|_| self.board.lock().sent(frame.slot))?;
        }
        Ok(())
    }

    fn send_frame(&self, wires: &mut Wires, io: &mut Io<'_>, frame: Outgoing) -> Result<()> {
        let Outgoing { slot, at, number, checksum } = frame;
        let (started, bytes) = (self.board.lock().started, self.spec.bytes as u64);
        let words = [number, checksum, 0];
        let record = Record { number: started, bytes, words, ..self.spec.record(Kind::Frame) };
        wires.out.send(io, &record)?;
        self.board.lock().started += 1;
        // SAFETY: the owner keeps the frame's memory.
        let begun = unsafe { wires.start(&self.spec, io, slot, at) };
        // A record without its bytes: later frames would be taken for this one.
        begun.inspect_err(|error| io.give_up_on(self.spec.peer, error))?;
        io.expect(self.spec.bytes);
        Ok(())
    }

    /// A record of the receiver has come. The next one is received, unless it was the last.
    fn told(&self, wires: &mut Wires, io: &mut Io<'_>) -> Result<()> {
        self.board.lock().heard = Heard::now();
        let record = wires.inbox.take();
        let done = record.and_then(|record| self.obey(wires, &record));
        match wires.heard {
            true => done,
            false => done.and(wires.inbox.start(io)),
        }
    }

    fn obey(&self, wires: &mut Wires, record: &Record) -> Result<()> {
        self.spec.check_channel(record)?;
        match record.kind {
            Kind::Open if !wires.agreed => {
                self.spec.check_open(record)?;
                wires.agreed = true;
            }
            Kind::Credit if wires.agreed => {
                wires.credits = wires.credits.saturating_add(record.extra)
            }
            Kind::End if wires.said => wires.heard = true,
            Kind::Stop => {
                wires.heard = true;
                return Err(self.spec.stopped(record.number));
            }
            _ => return Err(self.spec.refused("an unexpected record")),
        }
        Ok(())
    }

    /// Sends this side's last record.
    fn say_last(&self, wires: &mut Wires, io: &mut Io<'_>, kind: Kind) -> Result<()> {
        if wires.said {
            return Ok(());
        }
        wires.said = true;
        let number = self.board.lock().started;
        wires.out.send(io, &Record { number, ..self.spec.record(kind) })
    }

    /// Does what the owner wants and the credits allow.
    fn step(&self, wires: &mut Wires, io: &mut Io<'_>) -> Result<()> {
        wires.begin(&self.spec, io)?;
        self.send_frames(wires, io)?;
        let (end, waiting) = {
            let desk = self.board.lock();
            (desk.end, !desk.queue.is_empty())
        };
        match end {
            Some(true) if !waiting && wires.agreed => self.say_last(wires, io, Kind::End),
            Some(false) => self.say_last(wires, io, Kind::Stop),
            _ => Ok(()),
        }
    }

    /// Records a failure: nothing more is sent, and the other side is told.
    fn fail(&self, wires: &mut Wires, io: &mut Io<'_>, error: Error) {
        if self.say_last(wires, io, Kind::Stop).is_err() {
            wires.inbox.cancel(io);
        }
        self.board.lock().fate.fail(error);
    }

    /// Tells the owner, and the engine if there is nothing more to do.
    fn tell(&self, wires: &mut Wires, io: &mut Io<'_>) {
        let mut desk = self.board.lock();
        if wires.said {
            // What was not begun is not in use.
            desk.fate.busy -= desk.queue.len();
            desk.queue.clear();
            desk.fate.over = true;
        }
        desk.fate.closed = wires.retire(io, desk.fate.busy, desk.fate.error.is_some());
        tell(&self.board, desk, io);
    }
}

impl Ends for Desk {
    fn fate(&mut self) -> &mut Fate {
        &mut self.fate
    }
}

impl Desk {
    /// Notes that the bytes of a slot were sent, or never will be.
    fn sent(&mut self, slot: usize) {
        self.fate.busy -= 1;
        self.heard = Heard::now();
        if let Some(entry) = self.order.iter_mut().find(|(other, sent)| *other == slot && !sent) {
            entry.1 = true;
        }
        let ready = self.order.iter().take_while(|(_, sent)| *sent).count();
        self.fate.note_ready(ready, self.burst);
    }
}

impl Actor for StreamSender {
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
            self.board.lock().sent(slot);
        }
        let next = match outcome {
            Outcome::Done(_) if mark == COMES => self.told(&mut wires, io),
            _ if mark == COMES => {
                wires.inbox.cancelled();
                outcome.check(self.spec.peer)
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
